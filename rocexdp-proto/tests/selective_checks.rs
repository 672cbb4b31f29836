//! Selective repeat: what an early or a refused packet must not do, and READ responses that are lost more than once.

mod common;

use std::time::Duration;

use common::{Craft, LONG, outcomes, pattern, recv_wr, send_wr};
use rocexdp_common::headers::{Reth, Sack, Sreth};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, WrId};
use rocexdp_proto::mem::{Access, SgList};
use rocexdp_proto::verbs::{CqeOpcode, RecvWr, SendOp, Status};
use rocexdp_proto::wire::RxMeta;
use rocexdp_proto::{DropReason, SelectiveRepeat};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig};

const MTU: usize = 256;

fn config() -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        selective: Some(SelectiveRepeat { paths: 1 }),
        // 67 ms: whoever waits for it fails the test by its time.
        timeout: 14,
        ..PairConfig::default()
    }
}

/// A request packet to end 1, `ahead` of its first expected one, with number `index` in its message.
fn packet(
    config: &PairConfig,
    opcode: Opcode,
    ahead: u32,
    index: u32,
    reth: Option<Reth>,
) -> Craft {
    let psn = config.psn[0];
    let mut craft = Craft::new(0, opcode.selective(), psn.add(ahead)).asking();
    let sreth = Sreth {
        serial: psn.get() << 8 | ahead,
        path: 0,
        index,
    };
    let mut bytes = [0; Sreth::LEN];
    sreth.emit(&mut bytes);
    craft.extensions.extend(bytes);
    match reth {
        Some(r) => craft.reth(r.va, r.rkey, r.length),
        None => craft,
    }
}

#[test]
fn a_receive_request_of_another_domain_is_not_written_to_ahead_of_its_turn() {
    let config = config();
    let mut pair = Pair::new(&config);
    let inbox = Bytes::filled(4 * MTU, 0);
    let ep = &mut pair.ends[1].endpoint;
    let pd = ep.alloc_pd().unwrap();
    let region = ep
        .register_region(pd, inbox.clone(), 0, Access::LOCAL_WRITE)
        .unwrap();
    let wr = RecvWr {
        wr_id: WrId(5),
        local: SgList::of(&[region.segment(0, 4 * MTU as u32).unwrap()]),
    };
    pair.post_recv(1, wr).unwrap();
    let full = [7; MTU];
    let middle = packet(&config, rc::SEND_MIDDLE, 1, 1, None).payload(&full);
    pair.inject(1, middle.frame(&config, 0));
    pair.run(Duration::from_millis(1));
    assert!(inbox.copy().iter().all(|b| *b == 0));
    let first = packet(&config, rc::SEND_FIRST, 0, 0, None).payload(&full);
    pair.inject(1, first.frame(&config, 0));
    pair.run(Duration::from_millis(1));
    assert!(inbox.copy().iter().all(|b| *b == 0));
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::LocProtErr)]
    );
}

#[test]
fn a_write_does_not_complete_the_receive_request_that_an_early_packet_was_placed_into() {
    let config = config();
    let mut pair = Pair::new(&config);
    let (memory, region) = common::target(&mut pair, MTU);
    let inbox = Bytes::filled(4 * MTU, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 4 * MTU)).unwrap();
    let full = [7; MTU];
    let middle = packet(&config, rc::SEND_MIDDLE, 1, 1, None).payload(&full);
    pair.inject(1, middle.frame(&config, 0));
    // In its place comes something else.
    let reth = Reth {
        va: region.va,
        rkey: region.rkey.0,
        length: MTU as u32,
    };
    let write = packet(&config, rc::WRITE_ONLY, 0, 0, Some(reth)).payload(&full);
    pair.inject(1, write.frame(&config, 0));
    pair.run(Duration::from_millis(1));
    assert_eq!(memory.copy(), full);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::RemInvReqErr)]
    );
}

#[test]
fn a_read_response_that_is_lost_again_is_asked_for_again_without_the_timer() {
    for (len, lost) in [(MTU, 3), (3 * MTU, 3), (40 * MTU, 2)] {
        let mut pair = Pair::new(&config());
        let source = Bytes::of(pattern(len, 3));
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let ep = &mut pair.ends[1].endpoint;
        let region = ep
            .register_memory(source.clone(), 0x10_0000, access)
            .unwrap();
        // Whatever answers the READ's first packet.
        let mut times = 0;
        let mut first = None;
        pair.script = Some(Box::new(move |end, _, bth, _| {
            let first = *first.get_or_insert(bth.psn);
            let answers = bth.opcode.is_response() && bth.opcode != rc::ACKNOWLEDGE.selective();
            if end == 1 && answers && bth.psn == first && times < lost {
                times += 1;
                return Fate::Drop;
            }
            Fate::Pass
        }));
        let inbox = Bytes::filled(len, 0);
        let op = SendOp::Read {
            va: region.va,
            rkey: region.rkey,
        };
        pair.post_send(0, send_wr(1, op, &inbox, len)).unwrap();
        assert!(pair.run_until_completions(0, 1, LONG));
        let took = pair.now().saturating_since(Default::default());
        assert_eq!(
            outcomes(&mut pair, 0),
            [(1, CqeOpcode::Read, Status::Success)]
        );
        assert_eq!(inbox.copy(), source.copy());
        assert!(took < Duration::from_millis(1), "{len}: {took:?}");
    }
}

/// As where the way back carries no long packets: requests arrive, and are acknowledged, for ever.
#[test]
fn a_peer_whose_read_responses_never_come_is_given_up() {
    let mut pair = Pair::new(&config());
    let source = Bytes::of(pattern(MTU, 3));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let ep = &mut pair.ends[1].endpoint;
    let region = ep.register_memory(source, 0x10_0000, access).unwrap();
    pair.script = Some(Box::new(|end, _, bth, _| {
        if end == 1 && bth.opcode != rc::ACKNOWLEDGE.selective() {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let inbox = Bytes::filled(MTU, 0);
    let op = SendOp::Read {
        va: region.va,
        rkey: region.rkey,
    };
    pair.post_send(0, send_wr(1, op, &inbox, MTU)).unwrap();
    assert!(pair.run_until_completions(0, 1, Duration::from_secs(2)));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Read, Status::RetryExcErr)]
    );
}

#[test]
fn a_selective_acknowledgement_with_a_reserved_syndrome_tells_nothing() {
    let config = config();
    let mut pair = Pair::new(&config);
    // The WRITE's packets are on their way for ever.
    pair.script = Some(Box::new(
        |end, _, _, _| {
            if end == 0 { Fate::Drop } else { Fate::Pass }
        },
    ));
    let (_, region) = common::target(&mut pair, 4 * MTU);
    let source = Bytes::of(pattern(4 * MTU, 3));
    pair.post_send(0, send_wr(1, common::write_op(&region), &source, 4 * MTU))
        .unwrap();
    pair.run(Duration::from_millis(1));
    let before = pair.ends[0].endpoint.state_digest();
    let first = config.psn[0].get() << 8;
    for syndrome in [0x40, 0x5f, 0x64] {
        let sack = Sack {
            path: 0,
            answers: false,
            mark: 0,
            highest: first + 3,
            below: [0b110, 0, 0, 0],
        };
        let mut body = [0; Sack::LEN];
        sack.emit(&mut body);
        let opcode = rc::ACKNOWLEDGE.selective();
        let mut craft = Craft::new(1, opcode, config.psn[0].add(1));
        craft.extensions = [&[syndrome, 0, 0, 1][..], &body[..]].concat();
        pair.inject(0, craft.frame(&config, 1));
        pair.run(Duration::from_micros(10));
    }
    let drops = pair.ends[0].endpoint.counters().drops;
    assert_eq!(drops[DropReason::ReservedSyndrome.index()], 3);
    assert_eq!(pair.ends[0].endpoint.state_digest(), before);
}

/// A READ of `len` bytes by end 0, whose answers are lost: what end 1 sent of them.
fn read_unanswered(pair: &mut Pair, len: usize) -> Vec<Vec<u8>> {
    let source = Bytes::of(pattern(len, 3));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let ep = &mut pair.ends[1].endpoint;
    let region = ep.register_memory(source, 0x10_0000, access).unwrap();
    pair.script = Some(Box::new(
        |end, _, _, _| {
            if end == 1 { Fate::Drop } else { Fate::Pass }
        },
    ));
    pair.capture();
    let op = SendOp::Read {
        va: region.va,
        rkey: region.rkey,
    };
    let inbox = Bytes::filled(len, 0);
    pair.post_send(0, send_wr(1, op, &inbox, len)).unwrap();
    pair.run(Duration::from_micros(10));
    let answers = pair.sent.iter().filter(|s| s.end == 1);
    answers.map(|s| s.frame.clone()).collect()
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_tells_nothing_of_answers_either() {
    let config = config();
    let mut pair = Pair::new(&config);
    read_unanswered(&mut pair, 2 * MTU);
    let before = pair.ends[1].endpoint.state_digest();
    let first = config.psn[0];
    let sack = Sack {
        path: 0,
        answers: true,
        mark: first.add(1).get(),
        highest: first.get() << 8,
        below: [0; 4],
    };
    let mut body = [0; Sack::LEN];
    sack.emit(&mut body);
    // End 1 has sent no request.
    let unsent = config.psn[1].add(1);
    let last = config.psn[1].sub(1);
    for (psn, syndrome, reason) in [
        (unsent, 0x1f, DropReason::GhostAck),
        (last, 0x64, DropReason::ReservedSyndrome),
    ] {
        let mut craft = Craft::new(0, rc::ACKNOWLEDGE.selective(), psn);
        craft.extensions = [&[syndrome, 0, 0, 0][..], &body[..]].concat();
        let frame = craft.frame(&config, 0);
        let now = pair.now();
        let ep = &mut pair.ends[1].endpoint;
        let got = ep.handle_frame(now, &RxMeta::default(), &[&frame]);
        assert_eq!(got, Err(reason));
        assert_eq!(pair.ends[1].endpoint.state_digest(), before);
    }
}

#[test]
fn an_early_answer_that_there_is_no_room_for_changes_nothing() {
    let mut config = config();
    config.endpoint[0].reorder_packets = 0;
    let mut pair = Pair::new(&config);
    let answers = read_unanswered(&mut pair, 3 * MTU);
    let middle = rc::READ_RESPONSE_MIDDLE.selective().0;
    let early = answers.iter().find(|f| f[42] == middle).unwrap();
    let before = pair.ends[0].endpoint.state_digest();
    let now = pair.now();
    let ep = &mut pair.ends[0].endpoint;
    let got = ep.handle_frame(now, &RxMeta::default(), &[early]);
    assert_eq!(got, Err(DropReason::ReorderFull));
    assert_eq!(pair.ends[0].endpoint.state_digest(), before);
}

#[test]
fn a_request_that_came_before_and_is_not_kept_is_not_told_of() {
    let config = config();
    let mut pair = Pair::new(&config);
    read_unanswered(&mut pair, MTU);
    let before = pair.ends[1].endpoint.state_digest();
    // The READ's PSN, and other bytes.
    let other = Reth {
        va: 0x10_0000,
        rkey: 1,
        length: 8,
    };
    let frame = packet(&config, rc::READ_REQUEST, 0, 0, Some(other)).frame(&config, 0);
    let now = pair.now();
    let ep = &mut pair.ends[1].endpoint;
    let got = ep.handle_frame(now, &RxMeta::default(), &[&frame]);
    assert_eq!(got, Err(DropReason::DuplicateUnanswered));
    assert_eq!(pair.ends[1].endpoint.state_digest(), before);
}
