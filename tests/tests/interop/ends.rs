//! A queue pair of rocexdp and one of the guest, connected by hand; and the requests that both can make.
//!
//! Must not: know what a case expects.

use std::time::Duration;

use rocexdp::{
    lab::Host,
    rdma::{
        Agreed, Behaviour, Carries, Completion, CompletionQueue, Connected, CqeOpcode, Done, End,
        PathMtu, Psn, Qpn, QueuePair, Rc, RemoteRegion, Send, Status, Uc, Write, WriteImm,
    },
};
use rocexdp_tests::softroce::{Wc, pattern};

use crate::run::{Family, MEMORY, Run};

/// A completion that takes longer never comes.
pub const LIMIT: Duration = Duration::from_secs(60);
/// PSN of the guest's first request: a few packets before they begin at 0 again.
const GUEST_PSN: u32 = 0xff_fff0;
/// Bytes behind a message that must stay as they are.
const GUARD: u64 = 64;

/// What differs from the usual between the two ends.
#[derive(Clone, Debug)]
pub struct Tune {
    pub behaviour: Behaviour,
    /// More words for the guest's `connect`.
    pub guest: String,
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            behaviour: Behaviour {
                // Emulated processors stand still for milliseconds.
                timeout: 17,
                ..Behaviour::default()
            },
            // rxe's timer runs from a QP's first packet that waits for an answer, and answers don't set it anew: within it a case
            // must be done, or a packet is sent again that is not lost.
            guest: "timeout=20".to_owned(),
        }
    }
}

/// A service that both ends have.
pub trait Both: Connected + Carries<Send> + Carries<Write> + Carries<WriteImm> {
    /// In names of cases.
    const NAME: &str;
    /// In the guest's shell.
    const GUEST: &str;
}

impl Both for Rc {
    const NAME: &str = "RC";
    const GUEST: &str = "rc";
}

impl Both for Uc {
    const NAME: &str = "UC";
    const GUEST: &str = "uc";
}

/// Two connected queue pairs.
pub struct Ends<S: Connected> {
    pub qp: QueuePair<S>,
    pub cq: CompletionQueue,
    /// The guest's, in its shell.
    pub name: String,
}

/// As the API has it.
pub fn path_mtu(bytes: u16) -> PathMtu {
    PathMtu::from_bytes(bytes.into()).expect("a path MTU")
}

impl Run {
    /// Connects a new queue pair with one of the guest called `name`.
    pub fn connect<S: Both>(
        &mut self,
        name: &str,
        family: Family,
        mtu: u16,
        tune: &Tune,
    ) -> Ends<S> {
        let cq = CompletionQueue::new(1024);
        let qp = self
            .pd
            .queue_pair_of::<S>(&cq)
            .behaviour(tune.behaviour)
            .build()
            .unwrap();
        let theirs = self.vsh.ask(&format!("qp {name} {}", S::GUEST));
        self.vsh.ask(&format!(
            "connect {name} qpn={} gid={} mtu={mtu} spsn={GUEST_PSN} rpsn={} {}",
            qp.qpn().get(),
            family.of(Host::A),
            qp.psn().get(),
            tune.guest
        ));
        let peer = End {
            address: family.of(Host::B),
            qpn: Qpn::new(u32::try_from(theirs.number("qpn")).unwrap()),
            psn: Psn::new(GUEST_PSN),
        };
        let agreed = Agreed {
            path_mtu: path_mtu(mtu),
            max_rd_atomic: tune.behaviour.max_rd_atomic.min(16),
            selective: None,
        };
        let qp = qp.connect_to(family.of(Host::A), peer, agreed);
        let qp = self.runtime.block_on(qp).unwrap();
        let name = name.to_owned();
        Ends { qp, cq, name }
    }

    /// Ends both.
    pub fn disconnect<S: Connected>(&mut self, ends: Ends<S>) {
        self.vsh.ask(&format!("destroy {}", ends.name));
        // What a failed queue pair has flushed: nobody asked for it.
        self.vsh.attempt("poll 1000 ms=0");
        drop(ends);
    }

    /// Fills our memory with a pattern.
    pub fn fill(&self, offset: u64, len: u64, seed: u64) {
        let bytes: Vec<u8> = (0..len).map(|i| pattern(seed, i)).collect();
        self.memory.write(offset, &bytes).unwrap();
    }

    /// Our memory must have the pattern.
    pub fn check(&self, offset: u64, len: u64, seed: u64) {
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        self.memory.read(offset, &mut bytes).unwrap();
        for (i, byte) in (0..).zip(bytes) {
            let right = pattern(seed, i);
            assert_eq!(byte, right, "byte {i} of {len} that came to rocexdp");
        }
    }

    /// Makes a place ready in which `len` bytes of `seed`'s pattern are to come: other bytes there, and a guard behind.
    pub fn expect_here(&self, offset: u64, len: u64, seed: u64) {
        self.fill(offset, len, seed + 101);
        self.fill(offset + len, GUARD, seed);
    }

    /// They must have come, and nothing else.
    pub fn arrived_here(&self, offset: u64, len: u64, seed: u64) {
        self.check(offset, len, seed);
        self.check(offset + len, GUARD, seed);
    }

    /// As [`Self::expect_here`], in the guest.
    pub fn expect_there(&mut self, offset: u64, len: u64, seed: u64) {
        self.vsh.all(&[
            format!("fill m {offset} {len} seed={}", seed + 101),
            format!("fill m {} {GUARD} seed={seed}", offset + len),
        ]);
    }

    /// As [`Self::arrived_here`], in the guest.
    pub fn arrived_there(&mut self, offset: u64, len: u64, seed: u64) {
        self.vsh.all(&[
            format!("check m {offset} {len} seed={seed}"),
            format!("check m {} {GUARD} seed={seed}", offset + len),
        ]);
    }

    /// The guest's memory, for requests.
    pub fn there(&self) -> RemoteRegion {
        let all = rocexdp::rdma::Access::REMOTE_READ;
        RemoteRegion::new(self.guest_rkey, self.guest_va, MEMORY, all)
    }

    /// `raddr= rkey=` of our memory at an offset, for requests of the guest.
    pub fn here(&self, offset: u64) -> String {
        let remote = self.memory.remote().unwrap();
        format!("raddr={} rkey={}", remote.va() + offset, remote.rkey())
    }

    /// A 64-bit number in the guest's memory, in its byte order.
    pub fn word_there(&mut self, offset: u64) -> u64 {
        let answer = self.vsh.ask(&format!("hex m {offset} 8"));
        let digits = answer.details[0].strip_prefix("hex ").unwrap();
        u64::from_str_radix(digits, 16).unwrap().swap_bytes()
    }

    /// Puts one there.
    pub fn put_word_there(&mut self, offset: u64, value: u64) {
        let digits = value.swap_bytes();
        self.vsh.ask(&format!("put m {offset} {digits:016x}"));
    }
}

impl<S: Connected> Ends<S> {
    /// Our next completion, which must come.
    pub fn completion(&self) -> Completion {
        completion(&self.cq)
    }

    /// Our next completion, a success.
    pub fn done(&self, id: u64, opcode: CqeOpcode) -> Done {
        done(&self.cq, id, opcode)
    }

    /// Our next completion, a failure.
    pub fn failure(&self, id: u64) -> Status {
        let error = self.completion().result().expect_err("a failure");
        assert_eq!(error.id, id, "{error}");
        error.status
    }
}

/// The next completion, which must come.
pub fn completion(cq: &CompletionQueue) -> Completion {
    let next = cq.wait(LIMIT).unwrap();
    next.expect("rocexdp's completion comes")
}

/// The next completion, a success.
pub fn done(cq: &CompletionQueue, id: u64, opcode: CqeOpcode) -> Done {
    let done = completion(cq).result().unwrap();
    assert_eq!((done.id, done.opcode), (id, opcode), "{done:?}");
    done
}

/// A success of the guest's.
pub fn guest_done(wc: &Wc, id: u64, op: &str, len: Option<u64>) {
    assert_eq!(wc.status(), 0, "guest: {}", wc.text());
    assert_eq!(
        (wc.get("id"), wc.op()),
        (Some(id), op),
        "guest: {}",
        wc.text()
    );
    if len.is_some() {
        assert_eq!(wc.get("len"), len, "guest: {}", wc.text());
    }
}
