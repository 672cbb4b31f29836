//! Congestion: CE marks on the wire, and what Soft-RoCE does with a CNP.
//!
//! rxe neither sends CNPs nor has an entry for their opcode. rocexdp sends a peer none unless asked. Must not: measure rates.

use std::time::Duration;

use rocexdp::rdma::{Behaviour, CqeOpcode, Rc};

use crate::{
    ends::{Tune, guest_done},
    ops::{self, Op},
    run::{Expect, Family, IN, Name, OUT, Role, Run},
};

const MTU: u16 = 1024;

fn name(what: &str, role: Role, family: Family) -> Name {
    Name {
        what: what.to_owned(),
        role,
        family,
        path_mtu: MTU,
    }
}

/// With packets that may be marked from both ends.
fn tune(cnp: bool) -> Tune {
    let usual = Tune::default();
    Tune {
        behaviour: Behaviour {
            cnp,
            min_rnr_timer: 20,
            ..usual.behaviour
        },
        guest: format!("{} tc=2", usual.guest),
    }
}

pub fn cases(run: &mut Run) {
    let marked = Expect::Findings(&["congestion"], &[]);
    for role in Role::EACH {
        let name = name("RC WRITE, all marked CE, no CNPs", role, Family::V4);
        run.case(&name, marked, |run| {
            let ends = run.connect::<Rc>("q", Family::V4, MTU, &tune(false));
            run.impair("ce=100%");
            ops::message(run, &ends, Op::Write, role, 1, 1 << 20);
            run.impair("clean");
            let stats = run.runtime.block_on(ends.qp.stats()).unwrap();
            assert_eq!(stats.np_cnp_sent, 0, "nobody asked for CNPs");
            assert_eq!(stats.rp_cnp_handled, 0, "rxe sends none");
            run.disconnect(ends);
        });
    }
    for family in Family::EACH {
        let name = name("RC SEND, all marked CE, with CNPs", Role::Responder, family);
        // A CNP has PSN 0. Taken for an acknowledgement, it would complete what begins before PSN 0 and has not been received.
        run.case(
            &name,
            Expect::Findings(&["congestion", "rnr"], &[]),
            |run| {
                let ends = run.connect::<Rc>("q", family, MTU, &tune(true));
                run.expect_here(IN, 3000, 1);
                run.impair("ce=100%");
                run.vsh.all(&[
                    format!("fill m {OUT} 3000 seed=1"),
                    format!("send q m {OUT} 3000 id=1"),
                ]);
                let early = run.vsh.attempt("poll 1 ms=300");
                assert!(!early.is_ok(), "acknowledged by a CNP: {:?}", early.details);
                let into = run.memory.slice(IN..IN + 3000).unwrap();
                ends.qp.post_recv(7, into).unwrap();
                ends.done(7, CqeOpcode::Recv);
                guest_done(&run.vsh.poll(1)[0], 1, "SEND", None);
                run.arrived_here(IN, 3000, 1);
                // PSN 0 is among the packets of this.
                ops::message(run, &ends, Op::Send, Role::Responder, 2, 1 << 20);
                ops::read(run, &ends, Role::Responder, 3, 1 << 20);
                ops::fetch_add(run, &ends, Role::Responder, 4);
                run.impair("clean");
                std::thread::sleep(Duration::from_millis(100));
                let stats = run.runtime.block_on(ends.qp.stats()).unwrap();
                assert!(stats.np_cnp_sent > 0, "a CNP was sent");
                run.disconnect(ends);
            },
        );
    }
}
