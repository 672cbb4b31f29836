//! Capsules of NVMe over Fabrics: what a host sends, and what comes back. Little endian throughout.
//!
//! Layouts are those of include/linux/nvme.h and include/linux/nvme-rdma.h of the kernel, named where they are used. Must not: know how
//! capsules travel.

use std::fmt;

use rocexdp::rdma::RemoteRegion;

/// Entries of an admin queue (`NVME_AQ_DEPTH`), which a target takes no more of.
pub const ADMIN_DEPTH: u16 = 32;
/// Bytes of what Identify brings (`NVME_IDENTIFY_DATA_SIZE`).
pub const IDENTIFY_BYTES: u64 = 4096;
/// Bytes of `struct nvmf_connect_data`.
pub const CONNECT_BYTES: usize = 1024;

/// Registers of a controller that Fabrics has as properties (`enum` of `NVME_REG_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// What the controller can do: 8 bytes.
    Capabilities = 0x00,
    /// Its version.
    Version = 0x08,
    /// What it is told.
    Configuration = 0x14,
    /// How it is.
    Status = 0x1c,
}

/// `NVME_CC_ENABLE`, with submission queue entries of 2^6 and completion queue entries of 2^4 bytes.
pub const ENABLE: u32 = 1 | 6 << 16 | 4 << 20;
/// `NVME_CC_SHN_NORMAL`.
pub const SHUT_DOWN: u32 = 1 << 14;
/// `NVME_CSTS_RDY`.
pub const READY: u64 = 1;
/// `NVME_CSTS_SHST_MASK` and `NVME_CSTS_SHST_CMPLT`.
pub const SHUTDOWN_MASK: u64 = 3 << 2;
pub const SHUTDOWN_DONE: u64 = 2 << 2;

/// The way of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the host: the target WRITEs it.
    Read,
    /// To the target, which READs it.
    Write,
}

/// `struct nvme_command`.
#[derive(Clone, Copy)]
pub struct Command([u8; Self::BYTES]);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command(opcode {:#04x})", self.0[0])
    }
}

impl Command {
    /// Bytes.
    pub const BYTES: usize = 64;
    /// `NVME_CMD_SGL_METABUF`: data is named by an SGL, as always in Fabrics.
    const SGL: u8 = 1 << 6;

    fn new(opcode: u8) -> Self {
        let mut command = Self([0; Self::BYTES]);
        command.0[0] = opcode;
        command.0[1] = Self::SGL;
        // `nvme_rdma_set_sg_null`: an empty keyed data block.
        command.0[39] = 0x40;
        command
    }

    fn put<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Self {
        self.0[at..at + N].copy_from_slice(&bytes);
        self
    }

    /// `struct nvmf_common_command`.
    fn fabrics(kind: u8) -> Self {
        Self::new(0x7f).put(4, [kind])
    }

    /// `struct nvmf_connect_command`: makes a connection queue `qid` of a controller. No keep-alive.
    pub fn connect(qid: u16, depth: u16) -> Self {
        let last = depth - 1;
        let of = Self::fabrics(0x01).put(42, qid.to_le_bytes());
        of.put(44, last.to_le_bytes())
    }

    /// `struct nvmf_property_get_command`.
    pub fn get(what: Property) -> Self {
        let eight = u8::from(what == Property::Capabilities);
        let of = Self::fabrics(0x04).put(40, [eight]);
        of.put(44, (what as u32).to_le_bytes())
    }

    /// `struct nvmf_property_set_command`.
    pub fn set(what: Property, value: u32) -> Self {
        let of = Self::fabrics(0x00).put(44, (what as u32).to_le_bytes());
        of.put(48, u64::from(value).to_le_bytes())
    }

    /// `struct nvme_identify`: of a namespace, the controller, or the list of namespaces.
    pub fn identify(what: Identify) -> Self {
        let (cns, nsid) = match what {
            Identify::Namespace(nsid) => (0, nsid),
            Identify::Controller => (1, 0),
            Identify::Namespaces => (2, 0),
        };
        Self::new(0x06)
            .put(4, u32::to_le_bytes(nsid))
            .put(40, [cns])
    }

    /// `struct nvme_features`: one I/O queue is asked for (`NVME_FEAT_NUM_QUEUES`; numbers are one less).
    pub fn one_io_queue() -> Self {
        Self::new(0x09).put(40, [0x07])
    }

    /// `struct nvme_rw_command`.
    pub fn transfer(direction: Direction, nsid: u32, block: u64, blocks: u16) -> Self {
        let opcode = match direction {
            Direction::Write => 0x01,
            Direction::Read => 0x02,
        };
        let of = Self::new(opcode).put(4, nsid.to_le_bytes());
        let last = blocks - 1;
        of.put(40, block.to_le_bytes()).put(48, last.to_le_bytes())
    }

    /// `nvme_cmd_flush`: what was written is on the medium.
    pub fn flush(nsid: u32) -> Self {
        Self::new(0x00).put(4, nsid.to_le_bytes())
    }

    /// With its number.
    pub fn numbered(self, cid: u16) -> Self {
        self.put(2, cid.to_le_bytes())
    }

    /// Its data is the target's to reach by RDMA (`struct nvme_keyed_sgl_desc`), who is to give the key back with the response
    /// (`NVME_SGL_FMT_INVALIDATE`).
    pub fn keyed(self, place: RemoteRegion) -> Self {
        let [a, b, c, _] = u32::try_from(place.len()).unwrap_or(u32::MAX).to_le_bytes();
        let of = self.put(24, place.va().to_le_bytes()).put(32, [a, b, c]);
        of.put(35, place.rkey().to_le_bytes()).put(39, [0x4f])
    }

    /// Its data follows in the capsule (`struct nvme_sgl_desc`, `NVME_SGL_FMT_OFFSET`).
    pub fn in_capsule(self, bytes: u32) -> Self {
        let of = self.put(24, [0; 8]).put(32, bytes.to_le_bytes());
        of.put(36, [0, 0, 0, 0x01])
    }

    /// On the wire.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

/// What Identify is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Identify {
    Controller,
    Namespaces,
    Namespace(u32),
}

/// `struct nvmf_connect_data`: who connects with what.
pub fn connect_data(host: &super::HostId, controller: u16, subsystem: &str) -> [u8; CONNECT_BYTES] {
    let mut data = [0; CONNECT_BYTES];
    data[..16].copy_from_slice(&host.0);
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    let mut text = |at: usize, text: &str| {
        // A byte 0 must be behind it.
        let len = text.len().min(255);
        data[at..at + len].copy_from_slice(&text.as_bytes()[..len]);
    };
    text(256, subsystem);
    text(512, &host.nqn());
    data
}

/// `struct nvme_rdma_cm_req`: the private data of a connection's REQ. Each queue has a connection.
pub fn private_data(qid: u16, depth: u16) -> [u8; 32] {
    let mut data = [0; 32];
    let numbers = [0, qid, depth, depth - 1];
    for (to, number) in data.chunks_exact_mut(2).zip(numbers) {
        to.copy_from_slice(&u16::to_le_bytes(number));
    }
    data
}

/// Why a target refused a connection: `struct nvme_rdma_cm_rej` and `nvme_rdma_cm_msg`.
pub fn refusal(private_data: &[u8]) -> Option<&'static str> {
    match private_data.get(..4)? {
        [0, 0, 1, 0] => Some("invalid length"),
        [0, 0, 2, 0] => Some("invalid record format"),
        [0, 0, 3, 0] => Some("invalid queue ID"),
        [0, 0, 4, 0] => Some("invalid host SQ size"),
        [0, 0, 5, 0] => Some("invalid host RQ size"),
        [0, 0, 6, 0] => Some("resource not found"),
        [0, 0, 7, 0] => Some("invalid IRD"),
        [0, 0, 8, 0] => Some("invalid ORD"),
        _ => None,
    }
}

/// `struct nvme_completion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// What the command brought.
    pub result: u64,
    /// The command's number.
    pub cid: u16,
    /// How it went.
    pub status: Status,
}

impl Response {
    /// Bytes.
    pub const BYTES: usize = 16;

    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [result @ .., _, _, _, _, c0, c1, s0, s1] = *bytes;
        Self {
            result: u64::from_le_bytes(result),
            cid: u16::from_le_bytes([c0, c1]),
            // The lowest bit is a ring's, and nothing here.
            status: Status(u16::from_le_bytes([s0, s1]) >> 1),
        }
    }
}

/// How a command went: status code, and its type from bit 8 on. Not zero: it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// The command was carried out.
    pub const SUCCESS: Self = Self(0);

    /// Without the bits that say whether to try again.
    pub const fn code(self) -> u16 {
        self.0 & 0x7ff
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.code() {
            0x000 => "success",
            0x001 => "invalid opcode",
            0x002 => "invalid field in the command",
            0x004 => "data transfer error",
            0x006 => "internal error",
            0x00b => "invalid namespace or format",
            0x080 => "blocks behind the namespace's end",
            0x180 => "unknown connect format",
            0x181 => "controller busy",
            0x182 => "invalid parameter of Connect: no such subsystem?",
            0x184 => "this host is not allowed",
            _ => "see the NVMe specification",
        };
        write!(f, "{text} (status {:#05x})", self.code())
    }
}

/// What is used of `struct nvme_id_ctrl`.
#[derive(Clone, Debug)]
pub struct ControllerInfo {
    pub serial: String,
    pub model: String,
    pub firmware: String,
    /// Bytes of a command's data at most.
    pub max_transfer: u64,
    /// Bytes of data that a capsule may carry.
    pub in_capsule: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let part = bytes.get(at..).and_then(<[u8]>::first_chunk);
    part.copied().unwrap_or([0; N])
}

impl ControllerInfo {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = |at: usize, len| {
            let text = bytes.get(at..at + len).unwrap_or_default();
            String::from_utf8_lossy(text).trim().to_owned()
        };
        let [mdts] = number(bytes, 77);
        let in_capsule = u64::from(u32::from_le_bytes(number(bytes, 1792))) * 16;
        Self {
            serial: text(4, 20),
            model: text(24, 40),
            firmware: text(64, 8),
            // Pages of 4096 bytes, as a power of 2; 0: no limit, but that of the SGL's length.
            max_transfer: match mdts {
                1..=11 => 4096 << mdts,
                _ => 8 << 20,
            },
            in_capsule: in_capsule.saturating_sub(Command::BYTES as u64),
        }
    }
}

/// What is used of `struct nvme_id_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub id: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block: u64,
}

impl Namespace {
    /// `None` where the bytes say nothing that can be.
    pub fn parse(id: u32, bytes: &[u8]) -> Option<Self> {
        let blocks = u64::from_le_bytes(number(bytes, 0));
        let [format] = number(bytes, 26);
        let [_, _, shift, _] = number(bytes, 128 + 4 * usize::from(format & 0xf));
        (9..=16).contains(&shift).then_some(Self {
            id,
            blocks,
            block: 1 << shift,
        })
    }
}

/// The numbers of a list of namespaces.
pub fn namespaces(bytes: &[u8]) -> Vec<u32> {
    let numbers = bytes
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes(number(four, 0)));
    numbers.take_while(|number| *number != 0).collect()
}
