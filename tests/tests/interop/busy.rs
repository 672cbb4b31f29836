//! Several queue pairs at once, each in both directions at once.
//!
//! Must not: know faulty wires.

use rocexdp::rdma::{Rc, Wr};

use crate::{
    ends::{Ends, Tune},
    run::{Expect, Family, IN, Name, OUT, Role, Run},
};

const QPS: u64 = 4;
/// Bytes of each message.
const LEN: u64 = 128 << 10;
/// Bytes from one queue pair's places to the next one's: of the peer's WRITE, our READ, the peer's SEND.
const STRIDE: u64 = 4 * LEN;

pub fn cases(run: &mut Run) {
    for family in Family::EACH {
        let name = Name {
            what: format!("RC SEND, WRITE and READ, {QPS} QPs at once"),
            role: Role::Both,
            family,
            path_mtu: 1024,
        };
        // Two thousand packets at once are more than the emulated machine always takes: what it loses is repaired.
        // And a SEND may come before the guest has posted the receive request for it.
        let expect = Expect::Repaired(&["rnr"]);
        run.case(&name, expect, |run| at_once(run, family));
    }
}

fn at_once(run: &mut Run, family: Family) {
    let tune = Tune::default();
    let ends: Vec<Ends<Rc>> = (0..QPS)
        .map(|n| run.connect(&format!("q{n}"), family, 1024, &tune))
        .collect();
    for n in 0..QPS {
        run.fill(OUT + n * LEN, LEN, n);
        run.vsh
            .ask(&format!("fill m {} {LEN} seed={n}", OUT + n * LEN));
        for place in 0..3 {
            let at = IN + n * STRIDE + place * LEN;
            run.fill(at, LEN, n + 101);
            run.vsh.ask(&format!("fill m {at} {LEN} seed={}", n + 101));
        }
    }
    for (n, end) in (0..).zip(&ends) {
        let [written, read, sent] = [0, 1, 2].map(|place| IN + n * STRIDE + place * LEN);
        let from = OUT + n * LEN;
        let slice = |at: u64| run.memory.slice(at..at + LEN).unwrap();
        end.qp.post_recv(4, slice(sent)).unwrap();
        run.vsh.ask(&format!("recv q{n} m {sent} {LEN} id=4"));
        // Not waited for: they all go on at once.
        let (to, source) = (run.here(written), run.here(from));
        run.vsh
            .send(&format!("write q{n} m {from} {LEN} id=1 {to}"));
        run.vsh
            .send(&format!("read q{n} m {read} {LEN} id=2 {source}"));
        run.vsh.send(&format!("send q{n} m {from} {LEN} id=3"));
        let there = |at| run.there().slice(at, LEN).unwrap();
        let slice = |at: u64| run.memory.slice(at..at + LEN).unwrap();
        let (write, read) = (
            Wr::write(slice(from), there(written)),
            Wr::read(slice(read), there(from)),
        );
        end.qp.post(write.id(1)).unwrap();
        end.qp.post(read.id(2)).unwrap();
        end.qp.post(Wr::send(slice(from)).id(3)).unwrap();
    }
    for _ in 0..3 * QPS {
        run.vsh.ok();
    }
    for wc in run.vsh.poll(4 * QPS as usize) {
        assert_eq!(wc.status(), 0, "guest: {}", wc.text());
    }
    for end in &ends {
        let mut ids = [0; 4].map(|_: u64| end.completion().result().unwrap().id);
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3, 4]);
    }
    for n in 0..QPS {
        for place in 0..3 {
            let at = IN + n * STRIDE + place * LEN;
            run.check(at, LEN, n);
            run.vsh.ask(&format!("check m {at} {LEN} seed={n}"));
        }
    }
    for end in ends {
        run.disconnect(end);
    }
}
