//! A wire that loses, doubles, reorders and corrupts packets in both directions; a guest that stands still, and one that dies.
//!
//! The tap is behind the faults of what goes to the guest and before those of what comes from it. What chance does to packets differs from
//! run to run; that it did something, and that every byte came right, does not. Must not: know clean wires.

use std::time::{Duration, Instant};

use rocexdp::{
    lab::{Host, PortCounters},
    rdma::{Behaviour, CqeOpcode, Rc, Source, Status, Uc, Wr},
};

use crate::{
    ends::{Ends, Tune, guest_done},
    ops::{self, Op},
    run::{Expect, Family, IN, Name, OUT, REPAIRED, Role, Run},
};

const MTU: u16 = 1024;
const RETRY_EXC_ERR: u64 = 12;
/// Rounds of all operations: some 130 packets each.
const ROUNDS: u64 = 8;
type Count = fn(&PortCounters) -> u64;

/// A fault of the wire.
struct Fault {
    what: &'static str,
    /// As the lab has it.
    wire: &'static str,
    /// The wire's count of it.
    count: Count,
    expect: Expect,
}

const FAULTS: [Fault; 4] = [
    Fault {
        what: "1 % dropped",
        wire: "drop=1%",
        count: |port| port.dropped,
        expect: Expect::OneOf(REPAIRED, &[]),
    },
    Fault {
        what: "1 % duplicated",
        wire: "dup=1%",
        count: |port| port.duplicated,
        // A second acknowledgement tells nothing new, and what the guest sent twice is twice only behind the tap.
        expect: Expect::Repaired(&["duplicate_frames"]),
    },
    Fault {
        what: "1 % reordered",
        wire: "reorder=1%",
        count: |port| port.reordered,
        expect: Expect::OneOf(REPAIRED, &[]),
    },
    Fault {
        what: "1 % corrupted",
        wire: "corrupt=1%",
        count: |port| port.corrupted,
        // What is corrupt may look like anything.
        expect: Expect::OneOf(&["icrc_error"], CORRUPT),
    },
];

/// What a peer that stood still says when it is too late, or does not say.
pub const AFTERWARDS: &[&str] = &[
    "rnr",
    "rnr_exceeded",
    "retry_exceeded",
    "no_answer",
    "packet_loss",
    "lost_ack",
    "ack_timeout",
    "unneeded_retransmission",
    "read_response_lost",
    "nak_sequence",
    "reordering",
    // Where answers come so late that they are not known to be this QP's.
    "one_direction",
];

/// What corrupt packets may be taken for, and what repairs them leaves.
const CORRUPT: &[&str] = &[
    "malformed",
    "unfollowed",
    "one_direction",
    "no_answer",
    "packet_loss",
    "read_response_lost",
    "lost_ack",
    "atomic_replayed",
    "ack_timeout",
    "nak_sequence",
    "unneeded_retransmission",
    "reordering",
];

fn name(what: String, role: Role, family: Family) -> Name {
    Name {
        what,
        role,
        family,
        path_mtu: MTU,
    }
}

/// Both ends notice a loss after half a second.
fn quick() -> Tune {
    Tune {
        guest: "timeout=17".to_owned(),
        ..Tune::default()
    }
}

pub fn cases(run: &mut Run) {
    let families: &[Family] = if run.full() {
        &Family::EACH
    } else {
        &[Family::V4]
    };
    for fault in FAULTS {
        for family in families {
            for role in Role::EACH {
                let what = format!("RC, all operations, {}", fault.what);
                on_wire(run, &name(what, role, *family), &fault, |run| {
                    all_operations(run, *family, role);
                });
            }
        }
    }
    unreliable(run);
    stands_still(run);
    gone(run);
}

/// Runs a case on a faulty wire, which must have done something in both directions.
fn on_wire(run: &mut Run, name: &Name, fault: &Fault, body: impl Fn(&mut Run)) {
    run.case(name, fault.expect, |run| {
        let before = run.site.wire();
        run.impair(&[fault.wire, ",seed=5"].concat());
        body(run);
        run.impair("clean");
        let after = run.site.wire();
        for host in [Host::A, Host::B] {
            let at = host.index();
            let hit = (fault.count)(&after[at]) - (fault.count)(&before[at]);
            assert!(hit > 0, "the wire did nothing to what {host} sent");
        }
    });
}

fn all_operations(run: &mut Run, family: Family, role: Role) {
    let ends = run.connect::<Rc>("q", family, MTU, &quick());
    for id in 1..=ROUNDS {
        ops::message(run, &ends, Op::Send, role, id, 10_000);
        ops::message(run, &ends, Op::SendImm, role, id, 1);
        ops::message(run, &ends, Op::Write, role, id, 50_000);
        ops::message(run, &ends, Op::WriteImm, role, id, 5000);
        ops::read(run, &ends, role, id, 50_000);
        ops::compare_swap(run, &ends, role, id);
        ops::fetch_add(run, &ends, role, id);
    }
    run.disconnect(ends);
}

/// UC: a message comes whole and right, or not at all.
fn unreliable(run: &mut Run) {
    const MESSAGES: u64 = 60;
    const LEN: u64 = 4000;
    const SLOT: u64 = 8192;
    let title = "UC SEND with immediate, 3 % dropped";
    for role in Role::EACH {
        // A loss behind the tap leaves no trace: nobody asks for it again.
        let any: &[&str] = match role {
            Role::Requester => &["uc_message_lost"],
            _ => &[],
        };
        let name = name(title.to_owned(), role, Family::V4);
        run.case(&name, Expect::OneOf(any, &[]), |run| {
            let ends = run.connect::<Uc>("q", Family::V4, MTU, &quick());
            let before = run.site.wire();
            let at = |slot: u64| IN + slot * SLOT;
            let mut came = Vec::new();
            run.impair("drop=3%,seed=5");
            if role == Role::Requester {
                for slot in 0..MESSAGES {
                    run.vsh
                        .ask(&format!("recv q m {} {LEN} id={slot}", at(slot)));
                }
                for n in 0..MESSAGES {
                    run.fill(OUT, LEN, n);
                    let data = run.memory.slice(OUT..OUT + LEN).unwrap();
                    let wr = Wr::send(data).immediate(u32::try_from(n).unwrap());
                    ends.qp.post(wr.id(n)).unwrap();
                    ends.done(n, CqeOpcode::Send);
                }
                let polled = run.vsh.attempt(&format!("poll {MESSAGES} ms=2000"));
                for wc in polled.completions() {
                    guest_done(&wc, came.len() as u64, "RECV", Some(LEN));
                    let n = wc.get("imm").unwrap();
                    let slot = wc.get("id").unwrap();
                    run.vsh.ask(&format!("check m {} {LEN} seed={n}", at(slot)));
                    came.push(n);
                }
            } else {
                for slot in 0..MESSAGES {
                    let into = run.memory.slice(at(slot)..at(slot) + LEN).unwrap();
                    ends.qp.post_recv(slot, into).unwrap();
                }
                for n in 0..MESSAGES {
                    run.vsh.all(&[
                        format!("fill m {OUT} {LEN} seed={n}"),
                        format!("send q m {OUT} {LEN} id={n} imm={n}"),
                    ]);
                    guest_done(&run.vsh.poll(1)[0], n, "SEND", None);
                }
                while let Some(done) = ends.cq.wait(Duration::from_secs(2)).unwrap() {
                    let done = done.result().unwrap();
                    let n = done.imm.unwrap().into();
                    run.check(at(done.id), LEN, n);
                    came.push(n);
                }
            }
            run.impair("clean");
            let lost = run.site.wire();
            let index = usize::from(role != Role::Requester);
            let lost = lost[index].dropped - before[index].dropped;
            assert!(lost > 0, "the wire did nothing");
            assert!(came.is_sorted(), "in order: {came:?}");
            let missing = MESSAGES - came.len() as u64;
            // rxe also drops the message behind one that lost a packet.
            assert!(
                (1..=2 * lost).contains(&missing),
                "{missing} messages are missing, {lost} packets were lost"
            );
            run.disconnect(ends);
        });
    }
}

/// The guest's processors stop for a while.
fn stands_still(run: &mut Run) {
    const STILL: Duration = Duration::from_secs(2);
    const LEN: u64 = 1 << 20;
    let within = "RC WRITE of 1 MiB, peer stopped for 2 s, within the retries";
    for role in Role::EACH {
        let name = name(within.to_owned(), role, Family::V4);
        run.case(&name, Expect::OneOf(&[], AFTERWARDS), |run| {
            let ends = run.connect::<Rc>("q", Family::V4, MTU, &quick());
            let stop = |run: &Run| {
                run.site.guest().pause();
                std::thread::sleep(STILL);
                run.site.guest().resume();
            };
            if role == Role::Requester {
                run.fill(OUT, LEN, 1);
                run.expect_there(IN, LEN, 1);
                let data = run.memory.slice(OUT..OUT + LEN).unwrap();
                let to = run.there().slice(IN, LEN).unwrap();
                ends.qp.post(Wr::write(data, to).id(1)).unwrap();
                stop(run);
                ends.done(1, CqeOpcode::Write);
                run.arrived_there(IN, LEN, 1);
            } else {
                run.expect_here(IN, LEN, 1);
                run.vsh.ask(&format!("fill m {OUT} {LEN} seed=1"));
                let to = run.here(IN);
                run.vsh.ask(&format!("write q m {OUT} {LEN} id=1 {to}"));
                stop(run);
                guest_done(&run.vsh.poll(1)[0], 1, "WRITE", None);
                run.arrived_here(IN, LEN, 1);
            }
            run.disconnect(ends);
        });
    }
    let beyond = "RC WRITE, peer stopped beyond the retries";
    let name = name(beyond.to_owned(), Role::Requester, Family::V4);
    // The guest answers once it goes on, to a QP that has failed: the capture has both.
    let expect = Expect::OneOf(&["unneeded_retransmission", "ack_timeout"], AFTERWARDS);
    run.case(&name, expect, |run| {
        let behaviour = Behaviour {
            timeout: 14,
            retry_cnt: 2,
            ..Behaviour::default()
        };
        let tune = Tune {
            behaviour,
            ..quick()
        };
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &tune);
        run.site.guest().pause();
        let began = Instant::now();
        fails_in_time(run, &ends, began);
        run.site.guest().resume();
        run.disconnect(ends);
    });
}

/// A WRITE to a peer that does not answer fails within a bound, and what is behind it is flushed.
fn fails_in_time(run: &Run, ends: &Ends<Rc>, began: Instant) {
    let data = run.memory.slice(OUT..OUT + 3000).unwrap();
    let to = run.there().slice(IN, 3000).unwrap();
    ends.qp.post(Wr::write(data, to).id(1)).unwrap();
    ends.qp.post(Wr::send(Source::empty()).id(2)).unwrap();
    assert_eq!(ends.failure(1), Status::RetryExcErr);
    assert_eq!(ends.failure(2), Status::WrFlushErr);
    // At most 4 tries of at most 4 x 0.54 s, as the standard has the timer, and the machine's load.
    assert!(began.elapsed() < Duration::from_secs(15));
}

/// A peer's queue pair, then the peer itself, is gone.
fn gone(run: &mut Run) {
    let impatient = || Tune {
        behaviour: Behaviour {
            retry_cnt: 3,
            ..quick().behaviour
        },
        guest: "timeout=17 retry=3".to_owned(),
    };
    let unanswered = Expect::OneOf(&["retry_exceeded", "no_answer"], REPAIRED);
    let title = "RC, the peer's QP is gone";
    let here = name(title.to_owned(), Role::Responder, Family::V4);
    run.case(&here, unanswered, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &impatient());
        drop(ends);
        run.vsh.ask("send q id=1");
        let wc = &run.vsh.poll(1)[0];
        assert_eq!(wc.status(), RETRY_EXC_ERR, "guest: {}", wc.text());
        run.vsh.ask("destroy q");
    });
    let there = name(title.to_owned(), Role::Requester, Family::V4);
    run.case(&there, unanswered, |run| {
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &impatient());
        run.vsh.ask("destroy q");
        fails_in_time(run, &ends, Instant::now());
    });
}

/// The last case: the guest is killed.
pub fn killed(run: &mut Run) {
    let name = name(
        "RC, the peer is killed".to_owned(),
        Role::Requester,
        Family::V4,
    );
    // The tap has gone with it, and what is sent to it then.
    run.case(&name, Expect::OneOf(&[], AFTERWARDS), |run| {
        let behaviour = Behaviour {
            retry_cnt: 3,
            ..quick().behaviour
        };
        let tune = Tune {
            behaviour,
            ..quick()
        };
        let ends = run.connect::<Rc>("q", Family::V4, MTU, &tune);
        let data = run.memory.slice(OUT..OUT + 3000).unwrap();
        let to = run.there().slice(IN, 3000).unwrap();
        ends.qp.post(Wr::write(data, to).id(7)).unwrap();
        ends.done(7, CqeOpcode::Write);
        run.kill();
        fails_in_time(run, &ends, Instant::now());
    });
}
