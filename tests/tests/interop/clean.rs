//! Every operation on a clean wire, all sizes over one connection: bytes compared, nothing sent again, nothing to find in the capture.
//!
//! Must not: know faults.

use rocexdp::rdma::{Rc, Uc};

use crate::{
    ends::{Both, Ends, Tune},
    ops::{self, Op},
    run::{Expect, Family, Name, Role, Run},
};

/// Path MTUs that both ends have.
const PATH_MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];

/// The sizes of messages: none, one byte, a last packet with 3 bytes of padding, around a full packet, many packets.
fn sizes(path_mtu: u16) -> [u64; 7] {
    let mtu = u64::from(path_mtu);
    [0, 1, 33, mtu - 1, mtu, mtu + 1, 1 << 20]
}

pub fn cases(run: &mut Run) {
    // A short run: the usual path MTU over IPv4, the largest over IPv6, whose frames come in fragments.
    let short = |family, mtu| match family {
        Family::V4 => mtu == 1024,
        Family::V6 => mtu == 4096,
    };
    let full = run.full();
    for family in Family::EACH {
        for mtu in PATH_MTUS.iter().filter(|mtu| full || short(family, **mtu)) {
            for role in Role::EACH {
                let over = (family, *mtu, role);
                for op in Op::EACH {
                    messages::<Rc>(run, over, op);
                }
                for op in Op::EACH {
                    messages::<Uc>(run, over, op);
                }
                on_rc(run, over, "READ", |run, ends| {
                    for (id, size) in (1..).zip(sizes(*mtu)) {
                        ops::read(run, ends, role, id, size);
                    }
                });
                on_rc(run, over, "COMPARE SWAP", |run, ends| {
                    ops::compare_swap(run, ends, role, 1);
                });
                on_rc(run, over, "FETCH ADD", |run, ends| {
                    ops::fetch_add(run, ends, role, 1);
                });
            }
        }
    }
}

type Over = (Family, u16, Role);

fn name(what: String, (family, path_mtu, role): Over) -> Name {
    Name {
        what,
        role,
        family,
        path_mtu,
    }
}

/// SEND and WRITE.
fn messages<S: Both>(run: &mut Run, over: Over, op: Op) {
    let name = name(format!("{} {}", S::NAME, op.name()), over);
    let (family, mtu, role) = over;
    run.case(&name, Expect::Clean, |run| {
        let ends = run.connect::<S>("q", family, mtu, &Tune::default());
        for (id, size) in (1..).zip(sizes(mtu)) {
            ops::message(run, &ends, op, role, id, size);
        }
        run.disconnect(ends);
    });
}

/// What only RC has.
fn on_rc(run: &mut Run, over: Over, what: &str, body: impl Fn(&mut Run, &Ends<Rc>)) {
    let name = name(format!("RC {what}"), over);
    let (family, mtu, _) = over;
    run.case(&name, Expect::Clean, |run| {
        let ends = run.connect::<Rc>("q", family, mtu, &Tune::default());
        body(run, &ends);
        run.disconnect(ends);
    });
}
