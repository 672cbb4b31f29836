//! A host of NVMe over Fabrics (RDMA transport): a controller's admin queue, its namespaces, one I/O queue.
//!
//! The order of what is done is that of the kernel's host (drivers/nvme/host/fabrics.c, core.c): Connect, Property Set of CC.EN, wait for
//! CSTS.RDY, Identify, Set Features, Connect of the I/O queue. No authentication, no keep-alive, no second path. Must not: know what the
//! data is.

mod queue;
mod wire;

use std::{fmt, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use rocexdp::{
    mem::Buffer,
    rdma::{Access, ProtectionDomain, ReadWrite, Region, cm::Cm},
};

use queue::{Data, Queue};
use wire::{
    ADMIN_DEPTH, CONNECT_BYTES, Command, ENABLE, IDENTIFY_BYTES, Identify, Property, READY,
    Response, SHUT_DOWN, SHUTDOWN_DONE, SHUTDOWN_MASK, connect_data, namespaces,
};
pub use wire::{ControllerInfo, Direction, Namespace, Status};

/// Any controller: the target makes one.
const ANY: u16 = 0xffff;
/// How often a controller is asked whether it is ready, 10 ms apart.
const ASKED: u32 = 1000;
/// Bytes of one command at most, where the controller would take more: so that several are under way.
const CHUNK: u64 = 128 << 10;

/// Who this host is, to targets: a UUID.
#[derive(Clone, Copy, Debug)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Its qualified name.
    pub fn nqn(&self) -> String {
        let [a, b, c, d, e] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| {
            let bytes = self.0[part].iter();
            bytes.map(|byte| format!("{byte:02x}")).collect::<String>()
        });
        format!("nqn.2014-08.org.nvmexpress:uuid:{a}-{b}-{c}-{d}-{e}")
    }
}

/// A command that the target did not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub what: &'static str,
    /// How.
    pub status: Status,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, status } = self;
        write!(f, "{what}: {status}")
    }
}

impl std::error::Error for Failed {}

fn succeeded(what: &'static str, response: Response) -> Result<u64> {
    match response.status {
        Status::SUCCESS => Ok(response.result),
        status => Err(Failed { what, status }.into()),
    }
}

/// A controller of a subsystem, ready, with its I/O queue.
pub struct Controller {
    admin: Queue,
    io: Queue,
    /// What Identify and Connect bring and take.
    scratch: Region<ReadWrite>,
    info: ControllerInfo,
    version: u32,
}

impl Controller {
    /// Connects to a subsystem, with an I/O queue for `depth` commands.
    ///
    /// # Errors
    /// The target does not answer, refuses, or a command fails: the text says which, and how.
    pub async fn connect(
        cm: &Cm,
        target: SocketAddr,
        host: &HostId,
        subsystem: &str,
        depth: u16,
    ) -> Result<Self> {
        ensure!((2..=128).contains(&depth), "a queue has 2 to 128 entries");
        let pd = cm.device().protection_domain()?;
        let scratch = pd.register(Buffer::map(IDENTIFY_BYTES as usize)?, Access::MW_BIND)?;
        let who = Who { host, subsystem };
        let mut admin = Queue::connect(cm, &pd, target, 0, ADMIN_DEPTH).await?;
        let id = who
            .connect(&mut admin, &scratch, 0, ADMIN_DEPTH, ANY)
            .await? as u16;
        set(&mut admin, Property::Configuration, ENABLE).await?;
        until(&mut admin, "ready", |status| status & READY != 0).await?;
        let capabilities = get(&mut admin, Property::Capabilities).await?;
        // The number of entries that a queue may have, less one.
        let most = (capabilities as u16).saturating_add(1);
        ensure!(
            depth <= most,
            "the controller's queues have {most} entries at most"
        );
        let version = get(&mut admin, Property::Version).await? as u32;
        let what = Command::identify(Identify::Controller);
        let bytes = identify(&mut admin, &scratch, what).await?;
        let info = ControllerInfo::parse(&bytes);
        let queues = admin.run(Command::one_io_queue(), Data::None).await?;
        succeeded("Set Features (number of queues)", queues)?;
        let mut io = Queue::connect(cm, &pd, target, 1, depth).await?;
        who.connect(&mut io, &scratch, 1, depth, id).await?;
        Ok(Self {
            admin,
            io,
            scratch,
            info,
            version,
        })
    }

    /// What it says of itself.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// Of the specification: major, minor.
    pub fn version(&self) -> (u16, u8) {
        ((self.version >> 16) as u16, (self.version >> 8) as u8)
    }

    /// Keys of data that the target has given back with its response, and such that had to be invalidated here.
    pub fn keys(&self) -> (u64, u64) {
        let of = |queue: &Queue| (queue.given_back, queue.taken_back);
        let (admin, io) = (of(&self.admin), of(&self.io));
        (admin.0 + io.0, admin.1 + io.1)
    }

    /// Memory for the data of its commands.
    ///
    /// # Errors
    /// There is none.
    pub fn memory(&self, bytes: u64) -> Result<Region<ReadWrite>> {
        let pd: &ProtectionDomain = self.scratch.protection_domain();
        let buffer = Buffer::map(usize::try_from(bytes)?)?;
        Ok(pd.register(buffer, Access::MW_BIND)?)
    }

    /// Its namespaces.
    ///
    /// # Errors
    /// A command fails, or brings nonsense.
    pub async fn namespaces(&mut self) -> Result<Vec<Namespace>> {
        let list = Command::identify(Identify::Namespaces);
        let list = identify(&mut self.admin, &self.scratch, list).await?;
        let mut found = Vec::new();
        for id in namespaces(&list) {
            let one = Command::identify(Identify::Namespace(id));
            let bytes = identify(&mut self.admin, &self.scratch, one).await?;
            let parsed = Namespace::parse(id, &bytes);
            found.push(parsed.with_context(|| format!("namespace {id} has no blocks"))?);
        }
        Ok(found)
    }

    /// Moves whole blocks between a namespace, from `block` on, and a region, from `offset` on: by as many commands as it takes, several
    /// at once. What is short and written goes in its command's capsule.
    ///
    /// # Errors
    /// `len` is no multiple of the namespace's blocks, it is not in the region, or a command fails: all that were under way are over then.
    pub async fn transfer(
        &mut self,
        direction: Direction,
        on: &Namespace,
        block: u64,
        region: &Region<ReadWrite>,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        ensure!(
            len.is_multiple_of(on.block),
            "{len} B are not whole blocks of {}",
            on.block
        );
        let most = self.info.max_transfer.min(CHUNK) / on.block * on.block;
        ensure!(
            most > 0,
            "a block of {} B is more than a command may carry ({} B)",
            on.block,
            self.info.max_transfer.min(CHUNK)
        );
        let end = block.checked_add(len / on.block);
        ensure!(
            end.is_some(),
            "{len} B from block {block} on: there is no such block"
        );
        let until = offset.checked_add(len).context("no such memory")?;
        let _ = region.slice(offset..until)?;
        let (mut done, mut failed) = (0, None);
        let what = match direction {
            Direction::Read => "Read",
            Direction::Write => "Write",
        };
        while done < len && failed.is_none() || !self.io.is_idle() {
            if done < len && failed.is_none() && self.io.has_room() {
                let part = most.min(len - done);
                let blocks = u16::try_from(part / on.block)?;
                let first = block + done / on.block;
                let command = Command::transfer(direction, on.id, first, blocks);
                let data = match direction {
                    Direction::Write if part <= self.info.in_capsule => {
                        Data::InCapsule(region, offset + done, part)
                    }
                    _ => Data::Keyed(region, offset + done, part, direction),
                };
                match self.io.submit(command, data) {
                    Ok(_) => done += part,
                    Err(error) => failed = Some(error),
                }
            } else if let Err(error) = succeeded(what, self.io.next().await?) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// What was written to a namespace is on its medium.
    ///
    /// # Errors
    /// The command fails.
    pub async fn flush(&mut self, on: &Namespace) -> Result<()> {
        let done = self.io.run(Command::flush(on.id), Data::None).await?;
        succeeded("Flush", done).map(drop)
    }

    /// Shuts the controller down, and disconnects.
    ///
    /// # Errors
    /// It does not shut down.
    pub async fn disconnect(mut self) -> Result<()> {
        self.io.disconnect().await;
        set(&mut self.admin, Property::Configuration, ENABLE | SHUT_DOWN).await?;
        let down = |status| status & SHUTDOWN_MASK == SHUTDOWN_DONE;
        until(&mut self.admin, "shut down", down).await?;
        self.admin.disconnect().await;
        Ok(())
    }
}

/// Who connects with what.
struct Who<'a> {
    host: &'a HostId,
    subsystem: &'a str,
}

impl Who<'_> {
    /// Makes a connection a queue of the controller, whose number it gives.
    async fn connect(
        &self,
        queue: &mut Queue,
        scratch: &Region<ReadWrite>,
        qid: u16,
        depth: u16,
        controller: u16,
    ) -> Result<u64> {
        scratch.write(0, &connect_data(self.host, controller, self.subsystem))?;
        let data = Data::Keyed(scratch, 0, CONNECT_BYTES as u64, Direction::Write);
        let done = queue.run(Command::connect(qid, depth), data).await?;
        succeeded("Connect", done).with_context(|| format!("{}, queue {qid}", self.subsystem))
    }
}

async fn get(admin: &mut Queue, what: Property) -> Result<u64> {
    let done = admin.run(Command::get(what), Data::None).await?;
    succeeded("Property Get", done)
}

async fn set(admin: &mut Queue, what: Property, value: u32) -> Result<()> {
    let done = admin.run(Command::set(what, value), Data::None).await?;
    succeeded("Property Set", done).map(drop)
}

/// Asks for the controller's status until it is as wished.
async fn until(admin: &mut Queue, what: &str, as_wished: impl Fn(u64) -> bool) -> Result<()> {
    for _ in 0..ASKED {
        if as_wished(get(admin, Property::Status).await?) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("the controller does not get {what}")
}

async fn identify(
    admin: &mut Queue,
    scratch: &Region<ReadWrite>,
    what: Command,
) -> Result<Vec<u8>> {
    let data = Data::Keyed(scratch, 0, IDENTIFY_BYTES, Direction::Read);
    succeeded("Identify", admin.run(what, data).await?)?;
    let mut bytes = vec![0; IDENTIFY_BYTES as usize];
    scratch.read(0, &mut bytes)?;
    Ok(bytes)
}
