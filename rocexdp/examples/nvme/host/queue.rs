//! A queue of NVMe over RDMA: a connection, commands that go by SEND, responses that come by SEND, data that the target READs and WRITEs.
//!
//! A command's data lies behind a memory window of type 2, bound in front of the command and given back by the target with the response
//! (SEND with invalidate), or else invalidated here: as the kernel's host does it with its fast registrations (drivers/nvme/host/rdma.c).
//! Must not: know what commands mean.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use rocexdp::{
    mem::Buffer,
    rdma::{
        Access, CompletionQueue, Done, Error, MemoryWindow, ProtectionDomain, QueuePair, Rc,
        ReadWrite, Region, Source, Type2, WindowKey, Wr, cm::Cm,
    },
};
use tokio::time::timeout;

use super::wire::{Command, Direction, Response, private_data, refusal};

/// A target that says nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Kinds of requests, in the upper half of their ids; the lower is a slot's number.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const INVALIDATE: u64 = 3;
const BIND: u64 = 4;

fn id(kind: u64, slot: u16) -> u64 {
    kind << 32 | u64::from(slot)
}

/// A command's data.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    None,
    /// Sent along.
    InCapsule(&'a Region<ReadWrite>, u64, u64),
    /// For the target to fetch or to fill.
    Keyed(&'a Region<ReadWrite>, u64, u64, Direction),
}

/// A place for one command: its number is the command's.
struct Slot {
    window: MemoryWindow<Type2>,
    /// That the target reaches the data by.
    key: Option<WindowKey>,
    /// The capsule may not be changed before.
    sending: bool,
    response: Option<Response>,
}

/// A queue. Capsules lie in one region: commands first, then responses.
pub struct Queue {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    capsules: Region<ReadWrite>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Keys that the target has given back, and that it has not.
    pub given_back: u64,
    pub taken_back: u64,
}

impl Queue {
    /// Connects queue `qid` with room for `depth` commands.
    pub async fn connect(
        cm: &Cm,
        pd: &ProtectionDomain,
        target: SocketAddr,
        qid: u16,
        depth: u16,
    ) -> Result<Self> {
        let many = u32::from(depth);
        // Of each command: a bind, the SEND, an invalidation, and its response.
        let cq = CompletionQueue::new(4 * many);
        let qp = pd.queue_pair(&cq).depths(3 * many, many).build()?;
        let bytes = usize::from(depth) * (Command::BYTES + Response::BYTES);
        let capsules = pd.register(Buffer::map(bytes)?, Access::NONE)?;
        let mut slots = Vec::new();
        for slot in 0..depth {
            qp.post_recv(id(RECEIVE, slot), response(&capsules, depth, slot)?)?;
            slots.push(Slot {
                window: pd.window()?,
                key: None,
                sending: false,
                response: None,
            });
        }
        let qp = match cm.connect(qp, target, &private_data(qid, depth)).await {
            Err(Error::Rejected(rejected)) => match refusal(&rejected.private_data) {
                Some(why) => bail!("{target} refused queue {qid}: {why}"),
                None => return Err(Error::Rejected(rejected).into()),
            },
            other => other?,
        };
        Ok(Self {
            qp,
            cq,
            capsules,
            slots,
            free: (0..depth).rev().collect(),
            given_back: 0,
            taken_back: 0,
        })
    }

    /// Whether a command can be submitted.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether no command is under way.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Sends a command, whose number it gives. There must be room.
    pub fn submit(&mut self, command: Command, data: Data<'_>) -> Result<u16> {
        let cid = self.free.pop().context("the queue is full")?;
        let sent = self.send(cid, command, data);
        if sent.is_err() {
            self.slots[usize::from(cid)].key = None;
            self.slots[usize::from(cid)].sending = false;
            self.free.push(cid);
        }
        sent.map(|()| cid)
    }

    fn send(&mut self, cid: u16, command: Command, data: Data<'_>) -> Result<()> {
        let slot = &mut self.slots[usize::from(cid)];
        let mut command = command.numbered(cid);
        let mut capsule = Vec::new();
        match data {
            Data::None => {}
            Data::InCapsule(region, offset, len) => {
                command = command.in_capsule(u32::try_from(len)?);
                capsule.push(region.slice(offset..offset + len)?);
            }
            Data::Keyed(region, offset, len, direction) => {
                let right = match direction {
                    Direction::Read => Access::REMOTE_WRITE,
                    Direction::Write => Access::REMOTE_READ,
                };
                let bind = Wr::bind(&slot.window, region, offset..offset + len, right)?;
                command = command.keyed(bind.remote());
                slot.key = Some(bind.key());
                self.qp.post(bind.id(id(BIND, cid)).unsignaled())?;
            }
        }
        let at = u64::from(cid) * Command::BYTES as u64;
        self.capsules.write(at, command.bytes())?;
        capsule.insert(0, self.capsules.slice(at..at + Command::BYTES as u64)?);
        slot.sending = true;
        slot.response = None;
        let send = Wr::send(Source::gather(&capsule));
        self.qp.post(send.id(id(SEND, cid)))?;
        Ok(())
    }

    /// The next command that is over: answered, its capsule free, its data out of the target's reach.
    pub async fn next(&mut self) -> Result<Response> {
        loop {
            let next = timeout(PATIENCE, self.cq.next()).await;
            let done = next.context("the target does not answer")??;
            let done = done.result()?;
            let mut cid = done.id as u16;
            match done.id >> 32 {
                RECEIVE => cid = self.received(&done)?,
                INVALIDATE => self.slots[usize::from(cid)].key = None,
                _ => self.slots[usize::from(cid)].sending = false,
            }
            let slot = &self.slots[usize::from(cid)];
            if let (false, None, Some(response)) = (slot.sending, slot.key, slot.response) {
                self.free.push(cid);
                return Ok(response);
            }
        }
    }

    /// A response: whose.
    fn received(&mut self, done: &Done) -> Result<u16> {
        let number = done.id as u16;
        let depth = self.slots.len() as u16;
        let place = response(&self.capsules, depth, number)?;
        let mut bytes = [0; Response::BYTES];
        ensure!(
            done.byte_len as usize == bytes.len(),
            "a response of {} B came, not of 16",
            done.byte_len
        );
        self.capsules.read(response_at(depth, number), &mut bytes)?;
        self.qp.post_recv(done.id, place)?;
        let response = Response::parse(&bytes);
        let cid = response.cid;
        let slot = self.slots.get_mut(usize::from(cid));
        let slot = slot.filter(|slot| slot.response.is_none() && !self.free.contains(&cid));
        let Some(slot) = slot else {
            bail!("a response to command {cid} came, which is not under way");
        };
        slot.response = Some(response);
        match (slot.key, done.invalidated) {
            (None, None) => {}
            (Some(key), Some(given)) if key == given => {
                slot.key = None;
                self.given_back += 1;
            }
            (Some(key), None) => {
                self.taken_back += 1;
                let invalidate = Wr::local_invalidate(key);
                self.qp.post(invalidate.id(id(INVALIDATE, cid)))?;
            }
            (key, given) => bail!("command {cid} has key {key:x?}, and {given:x?} came back"),
        }
        Ok(cid)
    }

    /// Sends a command and waits for what it brought; nothing else may be under way.
    pub async fn run(&mut self, command: Command, data: Data<'_>) -> Result<Response> {
        ensure!(self.is_idle(), "other commands are under way");
        self.submit(command, data)?;
        self.next().await
    }

    /// Ends the connection.
    pub async fn disconnect(self) {
        self.qp.disconnect().await;
    }
}

fn response_at(depth: u16, slot: u16) -> u64 {
    u64::from(depth) * Command::BYTES as u64 + u64::from(slot) * Response::BYTES as u64
}

fn response(
    capsules: &Region<ReadWrite>,
    depth: u16,
    slot: u16,
) -> Result<rocexdp::rdma::Slice<ReadWrite>> {
    let at = response_at(depth, slot);
    Ok(capsules.slice(at..at + Response::BYTES as u64)?)
}
