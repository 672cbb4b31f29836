//! Operations, one at a time and checked to the byte: from rocexdp to the guest, and from the guest to rocexdp.
//!
//! Must not: know on what wire.

use rocexdp::rdma::{CqeOpcode, Rc, Source, Wr};

use crate::{
    ends::{Both, Ends, guest_done},
    run::{IN, OUT, Role, Run, WORD},
};

const IMMEDIATE: u32 = 0x0bad_cafe;
/// Where answers to atomics come to.
const ANSWER: u64 = WORD + 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
}

impl Op {
    pub const EACH: [Self; 4] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm];

    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
        }
    }

    /// Whether the responder completes a receive request.
    fn receives(self) -> bool {
        self != Self::Write
    }

    fn immediate(self) -> Option<u32> {
        matches!(self, Self::SendImm | Self::WriteImm).then_some(IMMEDIATE)
    }

    /// Of the receive request: ours, and in the guest's words.
    fn received(self) -> (CqeOpcode, &'static str) {
        match self {
            Self::Write | Self::WriteImm => (CqeOpcode::RecvWriteImm, "RECV_WRITE"),
            Self::Send | Self::SendImm => (CqeOpcode::Recv, "RECV"),
        }
    }

    /// Of the request.
    fn sent(self) -> (CqeOpcode, &'static str) {
        match self {
            Self::Write | Self::WriteImm => (CqeOpcode::Write, "WRITE"),
            Self::Send | Self::SendImm => (CqeOpcode::Send, "SEND"),
        }
    }
}

/// A message of `size` bytes; `role` is rocexdp's.
pub fn message<S: Both>(run: &mut Run, ends: &Ends<S>, op: Op, role: Role, id: u64, size: u64) {
    match role {
        Role::Requester => to_guest(run, ends, op, id, size),
        _ => from_guest(run, ends, op, id, size),
    }
}

fn to_guest<S: Both>(run: &mut Run, ends: &Ends<S>, op: Op, id: u64, size: u64) {
    let seed = id;
    run.fill(OUT, size, seed);
    run.expect_there(IN, size, seed);
    let name = &ends.name;
    match op {
        Op::Send | Op::SendImm => run.vsh.ask(&format!("recv {name} m {IN} {size} id={id}")),
        // On UC, a message behind it tells that it has come.
        Op::Write | Op::WriteImm => run.vsh.ask(&format!("recv {name} id={id}")),
    };
    let data = run.memory.slice(OUT..OUT + size).unwrap();
    let to = run.there().slice(IN, size).unwrap();
    match op {
        Op::Send => ends.qp.post(Wr::send(data).id(id)),
        Op::SendImm => ends.qp.post(Wr::send(data).immediate(IMMEDIATE).id(id)),
        Op::Write => ends.qp.post(Wr::write(data, to).id(id)),
        Op::WriteImm => ends
            .qp
            .post(Wr::write(data, to).immediate(IMMEDIATE).id(id)),
    }
    .unwrap();
    let (sent, _) = op.sent();
    let done = ends.done(id, sent);
    assert_eq!(u64::from(done.byte_len), size);
    if op.receives() {
        let [wc] = &run.vsh.poll(1)[..] else {
            panic!("one completion")
        };
        guest_done(wc, id, op.received().1, Some(size));
        assert_eq!(wc.get("imm"), op.immediate().map(u64::from));
    } else {
        let behind = Wr::send(Source::empty()).id(id);
        ends.qp.post(behind).unwrap();
        ends.done(id, CqeOpcode::Send);
        guest_done(&run.vsh.poll(1)[0], id, "RECV", Some(0));
    }
    run.arrived_there(IN, size, seed);
}

fn from_guest<S: Both>(run: &mut Run, ends: &Ends<S>, op: Op, id: u64, size: u64) {
    let seed = id;
    run.expect_here(IN, size, seed);
    let into = match op {
        Op::Send | Op::SendImm => size,
        Op::Write | Op::WriteImm => 0,
    };
    let into = run.memory.slice(IN..IN + into).unwrap();
    ends.qp.post_recv(id, into).unwrap();
    let name = &ends.name;
    let at = run.here(IN);
    let imm = IMMEDIATE;
    let request = match op {
        Op::Send => format!("send {name} m {OUT} {size} id={id}"),
        Op::SendImm => format!("send {name} m {OUT} {size} id={id} imm={imm}"),
        Op::Write => format!("write {name} m {OUT} {size} id={id} {at}"),
        Op::WriteImm => format!("write {name} m {OUT} {size} id={id} {at} imm={imm}"),
    };
    run.vsh
        .all(&[format!("fill m {OUT} {size} seed={seed}"), request]);
    guest_done(&run.vsh.poll(1)[0], id, op.sent().1, Some(size));
    if op.receives() {
        let done = ends.done(id, op.received().0);
        assert_eq!(u64::from(done.byte_len), size);
        assert_eq!(done.imm, op.immediate());
    } else {
        run.vsh.ask(&format!("send {name} id={id}"));
        guest_done(&run.vsh.poll(1)[0], id, "SEND", Some(0));
        ends.done(id, CqeOpcode::Recv);
    }
    run.arrived_here(IN, size, seed);
}

/// READ of `size` bytes.
pub fn read(run: &mut Run, ends: &Ends<Rc>, role: Role, id: u64, size: u64) {
    let seed = id;
    if role == Role::Requester {
        run.vsh.ask(&format!("fill m {OUT} {size} seed={seed}"));
        run.expect_here(IN, size, seed);
        let into = run.memory.slice(IN..IN + size).unwrap();
        let from = run.there().slice(OUT, size).unwrap();
        ends.qp.post(Wr::read(into, from).id(id)).unwrap();
        let done = ends.done(id, CqeOpcode::Read);
        assert_eq!(u64::from(done.byte_len), size);
        run.arrived_here(IN, size, seed);
    } else {
        run.fill(OUT, size, seed);
        run.expect_there(IN, size, seed);
        let (name, from) = (&ends.name, run.here(OUT));
        run.vsh
            .ask(&format!("read {name} m {IN} {size} id={id} {from}"));
        guest_done(&run.vsh.poll(1)[0], id, "READ", Some(size));
        run.arrived_there(IN, size, seed);
    }
}

/// COMPARE SWAP, with a value that stands there and with one that does not.
pub fn compare_swap(run: &mut Run, ends: &Ends<Rc>, role: Role, id: u64) {
    let stood = 0x0123_4567_89ab_cdef_u64;
    let new = 0xfedc_ba98_7654_3210_u64;
    for (compare, then) in [(stood, new), (stood + 1, stood)] {
        if role == Role::Requester {
            run.put_word_there(WORD, stood);
            let answer = run.memory.word(ANSWER).unwrap();
            let at = run.there().word(WORD).unwrap();
            let wr = Wr::compare_swap(&answer, at, compare, new).id(id);
            ends.qp.post(wr).unwrap();
            ends.done(id, CqeOpcode::CompareSwap);
            assert_eq!(answer.load(), stood);
            assert_eq!(run.word_there(WORD), then);
        } else {
            run.memory.word(WORD).unwrap().store(stood);
            let (name, at) = (&ends.name, run.here(WORD));
            run.vsh.ask(&format!(
                "cas {name} m {ANSWER} id={id} cmp={compare} swap={new} {at}"
            ));
            guest_done(&run.vsh.poll(1)[0], id, "CAS", None);
            assert_eq!(run.word_there(ANSWER), stood);
            assert_eq!(run.memory.load(WORD).unwrap(), then);
        }
    }
}

/// FETCH ADD, without and with a sum over 2^64.
pub fn fetch_add(run: &mut Run, ends: &Ends<Rc>, role: Role, id: u64) {
    for (stood, add) in [(40, 2), (u64::MAX, 3_u64)] {
        let sum = add.wrapping_add(stood);
        if role == Role::Requester {
            run.put_word_there(WORD, stood);
            let answer = run.memory.word(ANSWER).unwrap();
            let at = run.there().word(WORD).unwrap();
            let wr = Wr::fetch_add(&answer, at, add).id(id);
            ends.qp.post(wr).unwrap();
            ends.done(id, CqeOpcode::FetchAdd);
            assert_eq!(answer.load(), stood);
            assert_eq!(run.word_there(WORD), sum);
        } else {
            run.memory.word(WORD).unwrap().store(stood);
            let (name, at) = (&ends.name, run.here(WORD));
            run.vsh
                .ask(&format!("fadd {name} m {ANSWER} id={id} add={add} {at}"));
            guest_done(&run.vsh.poll(1)[0], id, "FADD", None);
            assert_eq!(run.word_there(ANSWER), stood);
            assert_eq!(run.memory.load(WORD).unwrap(), sum);
        }
    }
}
