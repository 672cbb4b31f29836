//! Our responder in the place of a Soft-RoCE host: fed with the requests that the other host sent, it gives the answers that the
//! kernel gave, packet for packet: opcode, PSN, syndrome, MSN, what an atomic found, and each byte of a READ.
//!
//! What the host was told before (its memory, rights, receive requests, windows) is taken from the log of each capture. Three
//! things differ, on purpose, and are said where they do: how the answer to the rest of a READ begins, the NAK of a SEND that
//! is too long, and that the kernel marks its packets as not migrated.

mod common;

use std::sync::Arc;

use common::pcap::{Command, captures, commands, frames};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::{Opcode, Transport, rc};
use rocexdp_proto::ids::{PathMtu, Psn, RKey, WrId};
use rocexdp_proto::mem::{Access, Memory, Region, Window, WindowKind};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, RecvWr, Segment, SendOp, SendWr, SgList};
use rocexdp_proto::wire::{Head, Packet, Path, RxMeta};
use rocexdp_proto::{CreateQp, Endpoint, EndpointConfig, QpHandle, QpTransition, RtrAttr, RtsAttr};
use rocexdp_sim::memory::Bytes;

const NOW: Timestamp = Timestamp::ZERO;

/// An answer, but for the addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Answer {
    opcode: Opcode,
    psn: Psn,
    aeth: Option<(Syndrome, u32)>,
    original: Option<u64>,
    payload: Vec<u8>,
}

impl Answer {
    fn of(frame: &[u8], p: &Packet<'_>) -> Self {
        let behind = p.payload.len() as usize + usize::from(p.bth.pad) + 4;
        let start = frame.len() - behind;
        Self {
            opcode: p.bth.opcode,
            psn: p.bth.psn,
            aeth: p.aeth.map(|a| (a.syndrome, a.msn)),
            original: p.original,
            payload: frame[start..start + p.payload.len() as usize].to_vec(),
        }
    }
}

/// The rights of a log's letters.
fn access(letters: &str) -> Access {
    letters.chars().fold(Access::NONE, |rights, c| {
        rights
            | match c {
                'l' => Access::LOCAL_WRITE,
                'r' => Access::REMOTE_READ,
                'w' => Access::REMOTE_WRITE,
                'a' => Access::REMOTE_ATOMIC,
                'b' => Access::MW_BIND,
                other => panic!("right {other}"),
            }
    })
}

fn letters(words: &[String]) -> Option<Access> {
    words
        .iter()
        .find_map(|w| w.strip_prefix("access="))
        .map(access)
}

/// Host B.
struct Host {
    ep: Endpoint,
    qp: QpHandle,
    log: Vec<Command>,
    memory: Arc<Bytes>,
    region: Arc<Region>,
}

impl Host {
    /// With the QP, memory and windows of the log; A's packets look like `first`.
    fn new(capture: &str, first: &Packet<'_>, peer: rocexdp_proto::ids::Qpn) -> Self {
        let log = commands(capture);
        let find = |what: &str| log.iter().find(|c| c.words[0] == what).unwrap();
        let buf = find("buf");
        let number = |words: &[String], key| Command::number(words, key).unwrap();
        let memory = Bytes::filled(buf.at(2).unwrap() as usize, 0);
        let region = Region::new(
            RKey(number(&buf.answer, "rkey") as u32),
            rocexdp_proto::ids::Pd::default(),
            memory.clone(),
            number(&buf.answer, "addr"),
            letters(&buf.words).unwrap(),
        )
        .unwrap();
        let mut ep = Endpoint::new(EndpointConfig::default(), 1);
        ep.add_region(&region).unwrap();
        let cq = Arc::new(CompletionQueue::new(256));
        let qp = ep
            .create_qp(CreateQp::rc(first.bth.dest_qpn, &cq, &cq))
            .unwrap();
        let connect = &find("connect").words;
        let path = Path {
            src_mac: [2; 6],
            dst_mac: [3; 6],
            vlan: None,
            sl: 0,
            src: first.dst,
            dst: first.src,
            hop_limit: 64,
            dscp: None,
            flow_label: 0,
        };
        let rtr = RtrAttr {
            dest_qpn: peer,
            path_mtu: PathMtu::from_bytes(number(connect, "mtu") as u32).unwrap(),
            rq_psn: Psn::new(number(connect, "rpsn") as u32),
            min_rnr_timer: Command::number(connect, "rnrtimer").unwrap_or(12) as u8,
            max_dest_rd_atomic: Command::number(connect, "drd").unwrap_or(16) as u8,
            path,
            selective: None,
        };
        let rts = RtsAttr {
            sq_psn: Psn::new(number(connect, "spsn") as u32),
            timeout: 17,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
        };
        let serves = letters(connect).unwrap_or(access("lrwa"));
        for to in [
            QpTransition::Init { access: serves },
            QpTransition::Rtr(rtr),
            QpTransition::Rts(rts),
        ] {
            ep.modify_qp(NOW, qp.qpn, to).unwrap();
        }
        let mut host = Self {
            ep,
            qp,
            log,
            memory,
            region,
        };
        host.fill();
        host.bind();
        host
    }

    /// Writes what the log writes.
    fn fill(&self) {
        for c in &self.log {
            let at = c.at(2).unwrap_or(0);
            match c.words[0].as_str() {
                "fill" => {
                    let seed = Command::number(&c.words, "seed").unwrap();
                    let byte = |i: u64| (seed + i + (i >> 8) * 7) as u8;
                    let bytes: Vec<u8> = (0..c.at(3).unwrap()).map(byte).collect();
                    self.memory.write(at, &bytes).unwrap();
                }
                "put" => {
                    let word = u64::from_str_radix(&c.words[3], 16).unwrap();
                    self.memory.write(at, &word.to_be_bytes()).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Binds the windows of the log.
    fn bind(&mut self) {
        let key = |c: &Command| RKey(Command::number(&c.answer, "rkey").unwrap() as u32);
        let windows = self.log.iter().filter(|c| c.words[0] == "mw");
        let binds = self.log.iter().filter(|c| c.words[0] == "bind");
        for (mw, bind) in windows.zip(binds) {
            let pd = rocexdp_proto::ids::Pd::default();
            let window = Window::new(key(mw), pd, WindowKind::Type2).unwrap();
            self.ep.add_window(&window).unwrap();
            let op = SendOp::BindMw {
                window: key(mw),
                rkey: key(bind),
                region: self.region.rkey(),
                va: Command::number(&bind.answer, "addr").unwrap(),
                len: bind.at(5).unwrap(),
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            };
            self.qp
                .sq
                .post(SendWr::new(WrId(0), op, SgList::empty()))
                .unwrap();
            self.ep.work_posted(NOW, self.qp.qpn);
            assert!(self.ep.poll_transmit(NOW).is_none() && window.is_bound());
        }
    }

    /// Posts the receive requests of the log.
    fn post(&self) {
        for c in self.log.iter().filter(|c| c.words[0] == "recv") {
            let (at, len) = (c.at(3).unwrap_or(0), c.at(4).unwrap_or(0));
            for _ in 0..Command::number(&c.words, "n").unwrap_or(1) {
                let local = Segment::new(self.memory.clone(), at, len as u32);
                self.qp.rq.post(RecvWr::new(WrId(0), local)).unwrap();
            }
        }
    }

    /// What a frame is answered by.
    fn serve(&mut self, frame: &[u8]) -> Vec<Answer> {
        let _ = self.ep.handle_frame(NOW, &RxMeta::default(), &[frame]);
        let mut answers = Vec::new();
        while let Some(t) = self.ep.poll_transmit(NOW) {
            let mut bytes = vec![0; t.len()];
            t.write(&mut [&mut bytes]).unwrap();
            let pieces: [&[u8]; 1] = [&bytes];
            let head = Head::of(&pieces);
            let p = Packet::parse(&head, &pieces).unwrap();
            assert!(p.icrc_is_right(&head));
            answers.push(Answer::of(&bytes, &p));
        }
        answers
    }
}

/// What happened between the hosts that no packet shows.
#[derive(Clone, Copy, Default)]
struct Unseen {
    /// The first request with this PSN was dropped behind the tap.
    lost: Option<u32>,
    /// The receive requests were posted when so many requests had come.
    late: usize,
}

/// Feeds A's requests of a capture to host B; gives our answers and the captured ones.
#[allow(clippy::disallowed_methods)] // Reads the captures; the core does not.
fn replay(capture: &str, unseen: Unseen) -> (Vec<Answer>, Vec<Answer>) {
    let file = std::fs::read(captures().join(format!("{capture}.pcap"))).unwrap();
    let frames: Vec<[&[u8]; 1]> = frames(&file).into_iter().map(|f| [f]).collect();
    let packets: Vec<(&[u8], Packet<'_>)> = frames
        .iter()
        .filter_map(|f| Some((f[0], Packet::parse(&Head::of(f), f).ok()?)))
        .filter(|(_, p)| p.bth.opcode.transport() == Transport::Rc)
        .collect();
    let (_, first) = packets[0];
    let answer = packets.iter().find(|(_, p)| p.src != first.src);
    let mut host = Host::new(capture, &first, answer.unwrap().1.bth.dest_qpn);
    if unseen.late == 0 {
        host.post();
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut lost, mut requests) = (unseen.lost.map(Psn::new), 0);
    for (frame, p) in &packets {
        let response = p.bth.opcode.is_response();
        if p.src != first.src {
            theirs.extend(response.then(|| Answer::of(frame, p)));
        } else if lost == Some(p.bth.psn) {
            lost = None;
        } else if !response {
            ours.extend(host.serve(frame));
            requests += 1;
            if requests == unseen.late {
                host.post();
            }
        }
    }
    assert!(!theirs.is_empty(), "{capture}");
    (ours, theirs)
}

fn same(capture: &str, unseen: Unseen) {
    let (ours, theirs) = replay(capture, unseen);
    for (n, (o, t)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(o, t, "{capture}, answer {n}");
    }
    assert_eq!(ours.len(), theirs.len(), "{capture}");
}

#[test]
fn our_responder_answers_as_soft_roce_did() {
    for capture in [
        "rc-send-only",
        "rc-send-multi",
        "rc-send-imm",
        "rc-send-inv",
        "rc-write-only",
        "rc-write-multi",
        "rc-write-imm",
        "rc-read",
        "rc-atomic",
        "rc-mtu-256",
        "rc-mtu-512",
        "rc-mtu-2048",
        "rc-mtu-4096",
        "rc-psn-wrap",
        "rc-bidir",
        "rc-pipeline",
        "rc-rnr-exceeded",
        "rc-nak-write-bad-rkey",
        "rc-nak-write-out-of-range",
        "rc-nak-read-bad-rkey",
        "rc-nak-write-no-access",
        "rc-nak-qp-access",
        "rc-nak-rd-atomic",
        "rc-nak-mtu-mismatch",
        "rc-loss-ack",
        "rc-loss-atomic-ack",
        "rc-ipv6",
        "rc-dscp",
    ] {
        same(capture, Unseen::default());
    }
}

#[test]
fn our_responder_answers_as_soft_roce_did_where_requests_were_lost_or_came_too_early() {
    let lost = |psn| Unseen {
        lost: Some(psn),
        late: 0,
    };
    same("rc-loss-write-middle", lost(0x102));
    same("rc-loss-send-last", lost(0x102));
    same("rc-loss-read-request", lost(0x100));
    let late = Unseen {
        lost: None,
        late: 3,
    };
    same("rc-rnr", late);
}

/// Soft-RoCE goes on with a MIDDLE (or LAST) where it is asked for the rest of a READ; we begin with a FIRST (or ONLY), as
/// for any READ, which it takes as well (rxe_comp.c `check_ack`: "read retries of partial data may restart from read
/// response first or response only").
#[test]
fn the_rest_of_a_read_that_lost_a_response_is_answered_like_a_read_of_its_own() {
    for (capture, from) in [("rc-loss-read-response", 0x102), ("rc-loss-mixed", 0x103)] {
        let (ours, theirs) = replay(capture, Unseen::default());
        assert_eq!(ours.len(), theirs.len(), "{capture}");
        let mut again = 0;
        let mut seen = Vec::new();
        for (o, t) in ours.iter().zip(&theirs) {
            if seen.contains(&t.psn) && t.psn == Psn::new(from) {
                again += 1;
                let begins = match t.opcode {
                    rc::READ_RESPONSE_MIDDLE => rc::READ_RESPONSE_FIRST,
                    rc::READ_RESPONSE_LAST => rc::READ_RESPONSE_ONLY,
                    other => panic!("{capture}: {other:?}"),
                };
                let ack = Syndrome::Ack(0x1f);
                assert_eq!((o.opcode, o.psn), (begins, t.psn), "{capture}");
                assert_eq!(o.aeth.map(|(s, _)| s), Some(ack), "{capture}");
                assert_eq!(o.payload, t.payload, "{capture}");
            } else {
                assert_eq!(o, t, "{capture}");
            }
            seen.push(t.psn);
        }
        assert_eq!(again, 1, "{capture}");
    }
}

/// Soft-RoCE has remote operational error here, the standard invalid request.
#[test]
fn a_send_that_is_too_long_is_an_invalid_request_not_as_soft_roce_has_it() {
    let (ours, theirs) = replay("rc-nak-send-too-long", Unseen::default());
    let [ours, theirs] = [&ours[..], &theirs[..]].map(|a| match a {
        [one] => (one.opcode, one.psn, one.aeth.unwrap()),
        other => panic!("{other:?}"),
    });
    assert_eq!((ours.0, ours.1), (theirs.0, theirs.1));
    assert_eq!(ours.2.0, Syndrome::NakInvalidRequest);
    assert_eq!(theirs.2.0, Syndrome::NakRemoteOperational);
}
