//! End 1 of a pair as responder, fed with request packets of our making.

use std::sync::Arc;

use super::{Craft, LONG, Reply, pattern, replies};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, Psn, RKey};
use rocexdp_proto::mem::Access;
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

pub const FIRST: Psn = Psn::new(0xff_fff0);
pub const VA: u64 = 0x10_0000;
pub const LEN: usize = 4096;
pub const ACK: Syndrome = Syndrome::Ack(0x1f);

/// End 1 of a pair as responder, with a region of 4 KiB at [`VA`] that allows everything.
pub struct Responder {
    pub config: PairConfig,
    pub pair: Pair,
    pub bytes: Arc<Bytes>,
    pub rkey: RKey,
}

impl Responder {
    pub fn new(config: PairConfig) -> Self {
        let mut pair = Pair::new(&config);
        let bytes = Bytes::of(pattern(LEN, 1));
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let region = pair.ends[1]
            .endpoint
            .register_memory(bytes.clone(), VA, access)
            .expect("a region");
        pair.capture();
        Self {
            config,
            pair,
            bytes,
            rkey: region.rkey,
        }
    }

    pub fn small() -> Self {
        Self::new(PairConfig {
            path_mtu: PathMtu::Mtu256,
            ..PairConfig::default()
        })
    }

    /// A request packet, `n` behind the first.
    pub fn packet(&self, n: u32, opcode: Opcode) -> Craft {
        Craft::new(0, opcode, FIRST.add(n))
    }

    pub fn read(&self, n: u32, at: u64, len: u32) -> Craft {
        self.packet(n, rc::READ_REQUEST)
            .reth(VA + at, self.rkey.0, len)
    }

    pub fn write(&self, n: u32, at: u64, bytes: &[u8]) -> Craft {
        self.packet(n, rc::WRITE_ONLY)
            .reth(VA + at, self.rkey.0, bytes.len() as u32)
            .payload(bytes)
            .asking()
    }

    pub fn add(&self, n: u32, at: u64, add: u64) -> Craft {
        self.packet(n, rc::FETCH_ADD)
            .atomic(VA + at, self.rkey.0, add, 0)
    }

    /// What these packets are answered by, having arrived at once.
    pub fn feed(&mut self, packets: &[Craft]) -> Vec<Reply> {
        self.pair.sent.clear();
        for p in packets {
            self.pair.inject(1, p.frame(&self.config, 0));
        }
        assert!(self.pair.run(LONG));
        replies(&self.pair.sent, 1)
    }

    /// As [`Self::feed`]: opcodes and distances of PSNs.
    pub fn answers(&mut self, packets: &[Craft]) -> Vec<(Opcode, i32)> {
        let replies = self.feed(packets);
        replies
            .iter()
            .map(|r| (r.opcode, r.psn.diff(FIRST)))
            .collect()
    }

    pub fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes.copy()[at..at + 8].try_into().unwrap())
    }
}
