//! What a peer may not do: the right NAK to it, the right completion status from it; and a receiver that is not ready.
//!
//! Statuses of the guest are those of `enum ibv_wc_status`. Must not: know faulty wires.

use std::time::{Duration, Instant};

use rocexdp::{
    mem::Buffer,
    rdma::{Access, Behaviour, CqeOpcode, Rc, RemoteRegion, Source, Status, Type2, Word, Wr},
};

use rocexdp_tests::softroce::pattern;

use crate::{
    ends::{Ends, Tune, guest_done},
    run::{Expect, Family, IN, MEMORY, Name, OUT, Role, Run, WORD},
};

const MTU: u16 = 1024;
const LOC_QP_OP_ERR: u64 = 2;
const REM_INV_REQ_ERR: u64 = 9;
const REM_ACCESS_ERR: u64 = 10;
const WR_FLUSH_ERR: u64 = 5;
const RNR_RETRY_EXC_ERR: u64 = 13;
/// Of RNR NAKs, 10.24 ms (InfiniBand's code; drivers/infiniband/sw/rdmavt/qp.c, `ib_rvt_rnr_table`).
const RNR_TIMER: (u8, Duration) = (20, Duration::from_micros(10_240));

fn name(what: &str, role: Role) -> Name {
    Name {
        what: what.to_owned(),
        role,
        family: Family::V4,
        path_mtu: MTU,
    }
}

pub fn cases(run: &mut Run) {
    for what in [Bad::Key, Bad::Range, Bad::Right] {
        for op in ["WRITE", "READ", "FETCH ADD"] {
            let title = format!("RC {op}, {}", what.name());
            let nak = Expect::Findings(&["nak_remote_access"], &[]);
            run.case(&name(&title, Role::Requester), nak, |run| {
                refused_there(run, what, op);
            });
            run.case(&name(&title, Role::Responder), nak, |run| {
                refused_here(run, what, op);
            });
        }
    }
    too_long(run);
    rnr(run);
    invalidate(run);
}

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bad {
    Key,
    Range,
    Right,
}

impl Bad {
    fn name(self) -> &'static str {
        match self {
            Self::Key => "no such rkey",
            Self::Range => "out of range",
            Self::Right => "no permission",
        }
    }
}

/// rocexdp asks the guest for what it must not have.
fn refused_there(run: &mut Run, what: Bad, op: &str) {
    let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune::default());
    let answer = run.vsh.ask("buf small 4096 access=l");
    let small = RemoteRegion::new(
        u32::try_from(answer.number("rkey")).unwrap(),
        answer.number("addr"),
        4096,
        Access::NONE,
    );
    let there = run.there();
    let target = match what {
        Bad::Key => RemoteRegion::new(there.rkey() ^ 0x5500, run.guest_va, MEMORY, Access::NONE),
        // One that claims more than there is.
        Bad::Range => {
            let end = run.guest_va + MEMORY - 64;
            RemoteRegion::new(there.rkey(), end & !7, 4096, Access::NONE)
        }
        Bad::Right => small,
    };
    let len = 3000;
    let ours = run.memory.slice(OUT..OUT + len).unwrap();
    let theirs = target.slice(0, len).unwrap();
    match op {
        "WRITE" => ends.qp.post(Wr::write(ours, theirs).id(1)),
        "READ" => ends.qp.post(Wr::read(ours, theirs).id(1)),
        _ => {
            let answer: Word = run.memory.word(WORD).unwrap();
            // The last word of the range that is said to be there.
            let at = target.word(4088).unwrap();
            ends.qp.post(Wr::fetch_add(&answer, at, 1).id(1))
        }
    }
    .unwrap();
    assert_eq!(ends.failure(1), Status::RemAccessErr);
    // What is behind it is flushed, and so is what comes now.
    ends.qp.post(Wr::send(Source::empty()).id(2)).unwrap();
    assert_eq!(ends.failure(2), Status::WrFlushErr);
    run.vsh.ask("destroy small");
    run.disconnect(ends);
}

/// The guest asks rocexdp.
fn refused_here(run: &mut Run, what: Bad, op: &str) {
    let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune::default());
    let rights = match op {
        "WRITE" => Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        "READ" => Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        _ => Access::REMOTE_READ | Access::REMOTE_WRITE,
    };
    let small = run.pd.register(Buffer::map(4096).unwrap(), rights).unwrap();
    small.write(0, &[0xa5; 4096]).unwrap();
    let told = small.remote().unwrap();
    let (va, rkey) = (told.va(), told.rkey());
    let (va, rkey) = match what {
        Bad::Key => (va, rkey ^ 0x5500_0000),
        Bad::Range => (va + 4096 - 64, rkey),
        Bad::Right => (va, rkey),
    };
    let request = match op {
        "WRITE" => format!("write q m {OUT} 3000 id=1 raddr={va} rkey={rkey}"),
        "READ" => format!("read q m {OUT} 3000 id=1 raddr={va} rkey={rkey}"),
        _ => format!("fadd q m {WORD} id=1 add=1 raddr={} rkey={rkey}", va + 64),
    };
    run.vsh.ask(&request);
    let wc = &run.vsh.poll(1)[0];
    assert_eq!(wc.status(), REM_ACCESS_ERR, "guest: {}", wc.text());
    run.vsh.ask("send q id=2");
    let wc = &run.vsh.poll(1)[0];
    assert_eq!(wc.status(), WR_FLUSH_ERR, "guest: {}", wc.text());
    let mut bytes = [0; 4096];
    small.read(0, &mut bytes).unwrap();
    assert!(
        bytes.iter().all(|byte| *byte == 0xa5),
        "nothing was changed"
    );
    run.disconnect(ends);
}

/// A SEND longer than the receive request.
fn too_long(run: &mut Run) {
    let title = "RC SEND longer than the receive request";
    let here = name(title, Role::Responder);
    // rocexdp refuses as the standard says; Linux says "operational error" (see the table of what differs).
    run.case(
        &here,
        Expect::Findings(&["nak_invalid_request"], &["mtu_mismatch"]),
        |run| {
            let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune::default());
            let into = run.memory.slice(IN..IN + 1000).unwrap();
            ends.qp.post_recv(7, into).unwrap();
            run.vsh.ask(&format!("send q m {OUT} 3000 id=1"));
            let wc = &run.vsh.poll(1)[0];
            assert_eq!(wc.status(), REM_INV_REQ_ERR, "guest: {}", wc.text());
            assert_eq!(ends.failure(7), Status::LocLenErr);
            run.disconnect(ends);
        },
    );
    let there = name(title, Role::Requester);
    let nak = Expect::Findings(&["nak_remote_operational"], &[]);
    run.case(&there, nak, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune::default());
        run.vsh.ask(&format!("recv q m {IN} 1000 id=7"));
        let data = run.memory.slice(OUT..OUT + 3000).unwrap();
        ends.qp.post(Wr::send(data).id(1)).unwrap();
        assert_eq!(ends.failure(1), Status::RemOpErr);
        let wc = &run.vsh.poll(1)[0];
        assert_eq!(wc.status(), LOC_QP_OP_ERR, "guest: {}", wc.text());
        run.disconnect(ends);
    });
}

/// A receive request that comes late, or never.
fn rnr(run: &mut Run) {
    let wait = Duration::from_millis(300);
    let most = |took: Duration| (took.as_micros() / RNR_TIMER.1.as_micros()) as u64 + 1;
    let tune = || Tune {
        behaviour: Behaviour {
            min_rnr_timer: RNR_TIMER.0,
            ..Tune::default().behaviour
        },
        guest: format!("{} rnrtimer={}", Tune::default().guest, RNR_TIMER.0),
    };
    let late = "RC SEND, receive request 0.3 s late";
    // rxe says NAK, sequence error, to the packets behind the one that it said RNR NAK to (capture rc-rnr-behind). Where it is so slow
    // that the retry crosses this NAK, that looks like a loss.
    let expect = Expect::Findings(&["rnr"], &["packet_loss"]);
    run.case(&name(late, Role::Requester), expect, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &tune());
        run.expect_there(IN, 3000, 1);
        run.fill(OUT, 3000, 1);
        let data = run.memory.slice(OUT..OUT + 3000).unwrap();
        let began = Instant::now();
        ends.qp.post(Wr::send(data).id(1)).unwrap();
        std::thread::sleep(wait);
        run.vsh.ask(&format!("recv q m {IN} 3000 id=7"));
        ends.done(1, CqeOpcode::Send);
        let took = began.elapsed();
        guest_done(&run.vsh.poll(1)[0], 7, "RECV", Some(3000));
        run.arrived_there(IN, 3000, 1);
        let stats = run.runtime.block_on(ends.qp.stats()).unwrap();
        let naks = stats.rnr_naks_received;
        assert!(
            (1..=most(took)).contains(&naks),
            "{naks} RNR NAKs in {took:?}: the timer asks for 10.24 ms between tries"
        );
        run.disconnect(ends);
    });
    run.case(&name(late, Role::Responder), expect, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &tune());
        run.expect_here(IN, 3000, 1);
        run.vsh.all(&[
            format!("fill m {OUT} 3000 seed=1"),
            format!("send q m {OUT} 3000 id=1"),
        ]);
        std::thread::sleep(wait);
        let into = run.memory.slice(IN..IN + 3000).unwrap();
        ends.qp.post_recv(7, into).unwrap();
        ends.done(7, CqeOpcode::Recv);
        guest_done(&run.vsh.poll(1)[0], 1, "SEND", None);
        run.arrived_here(IN, 3000, 1);
        let stats = run.runtime.block_on(ends.qp.stats()).unwrap();
        assert!(stats.tx_rnr_naks > 0);
        run.disconnect(ends);
    });
    let never = "RC SEND, no receive request, 2 RNR retries";
    let expect = Expect::Findings(&["rnr_exceeded"], &["rnr"]);
    run.case(&name(never, Role::Requester), expect, |run| {
        let tune = tune();
        let behaviour = Behaviour {
            rnr_retry: 2,
            ..tune.behaviour
        };
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune { behaviour, ..tune });
        ends.qp.post(Wr::send(Source::inline(b"x")).id(1)).unwrap();
        assert_eq!(ends.failure(1), Status::RnrRetryExcErr);
        run.disconnect(ends);
    });
    run.case(&name(never, Role::Responder), expect, |run| {
        let tune = tune();
        let guest = format!("{} rnr=2", tune.guest);
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune { guest, ..tune });
        run.vsh.ask(&format!("send q m {OUT} 1 id=1"));
        let wc = &run.vsh.poll(1)[0];
        assert_eq!(wc.status(), RNR_RETRY_EXC_ERR, "guest: {}", wc.text());
        run.disconnect(ends);
    });
}

/// SEND with invalidate: the guest's memory window is gone with it.
fn invalidate(run: &mut Run) {
    let title = name("RC SEND with invalidate", Role::Requester);
    let nak = Expect::Findings(&["nak_remote_access"], &[]);
    run.case(&title, nak, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune::default());
        run.vsh.ask("mw w");
        let bound = run.vsh.ask(&format!("bind q w m {IN} 4096"));
        guest_done(&run.vsh.poll(1)[0], 0, "BIND", None);
        let rkey = u32::try_from(bound.number("rkey")).unwrap();
        let window = RemoteRegion::new(rkey, bound.number("addr"), 4096, Access::REMOTE_WRITE);
        // It is there: a WRITE goes through it.
        run.expect_there(IN, 3000, 1);
        run.fill(OUT, 3000, 1);
        let write = |run: &Run, ends: &Ends<Rc>, id| {
            let data = run.memory.slice(OUT..OUT + 3000).unwrap();
            let to = window.slice(0, 3000).unwrap();
            ends.qp.post(Wr::write(data, to).id(id)).unwrap();
        };
        write(run, &ends, 1);
        ends.done(1, CqeOpcode::Write);
        run.arrived_there(IN, 3000, 1);
        run.vsh.ask(&format!("recv q m {} 100 id=7", IN + 8192));
        let send = Wr::send(Source::inline(b"away with it"));
        ends.qp.post(send.invalidate(window).id(2)).unwrap();
        ends.done(2, CqeOpcode::Send);
        let wc = &run.vsh.poll(1)[0];
        guest_done(wc, 7, "RECV", Some(12));
        // rxe gives userspace the kernel's flag: IB_WC_WITH_INVALIDATE is what IBV_WC_IP_CSUM_OK is there (rxe_resp.c, `do_complete`).
        assert_eq!(wc.get("flags"), Some(5), "guest: {}", wc.text());
        assert_eq!(wc.get("ex"), Some(rkey.into()), "guest: {}", wc.text());
        write(run, &ends, 3);
        assert_eq!(ends.failure(3), Status::RemAccessErr);
        run.disconnect(ends);
        run.vsh.ask("destroy w");
    });
    let title = name("RC SEND with invalidate", Role::Responder);
    run.case(&title, nak, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &Tune::default());
        let memory = Buffer::map(8192).unwrap();
        let region = run.pd.register(memory, Access::MW_BIND).unwrap();
        let window = run.pd.window::<Type2>().unwrap();
        let bind = Wr::bind(&window, &region, 0..4096, Access::REMOTE_WRITE).unwrap();
        let (remote, key) = (bind.remote(), bind.key());
        ends.qp.post(bind.id(1)).unwrap();
        ends.done(1, CqeOpcode::BindMw);
        let write = |run: &mut Run, id: u64| {
            let (va, rkey) = (remote.va(), remote.rkey());
            run.vsh.all(&[
                format!("fill m {OUT} 3000 seed=1"),
                format!("write q m {OUT} 3000 id={id} raddr={va} rkey={rkey}"),
            ]);
        };
        write(run, 2);
        guest_done(&run.vsh.poll(1)[0], 2, "WRITE", None);
        let mut bytes = [0; 3000];
        region.read(0, &mut bytes).unwrap();
        let right = (0..3000).map(|i| pattern(1, i));
        assert!(right.eq(bytes), "what came through the window");
        let into = region.slice(4096..4196).unwrap();
        ends.qp.post_recv(7, into).unwrap();
        run.vsh
            .ask(&format!("send q m {OUT} 12 id=3 inv={}", remote.rkey()));
        guest_done(&run.vsh.poll(1)[0], 3, "SEND", None);
        let done = ends.done(7, CqeOpcode::Recv);
        assert_eq!(done.invalidated, Some(key));
        write(run, 4);
        let wc = &run.vsh.poll(1)[0];
        assert_eq!(wc.status(), REM_ACCESS_ERR, "guest: {}", wc.text());
        run.disconnect(ends);
    });
}
