//! Makes RoCEv2 traffic as two taps between requester and responder would see it: messages, acknowledgements, losses with
//! go-back-N, CE marks with CNPs. Every run of one plan is the same.
//!
//! A model to test and measure readers with: timers and windows are simple, frames are complete, their ICRC right.

#![allow(dead_code, reason = "each user takes its part")]

use std::{cmp::Reverse, collections::BinaryHeap, io::Write};

use rocexdp_common::dissect::dissect;
use rocexdp_observe::icrc::{Icrc, check};

/// What a QP does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Write,
    Send,
    Read,
}

/// One QP pair.
#[derive(Clone, Copy)]
pub struct Qp {
    pub verb: Verb,
    pub mtu: u32,
    /// Bytes of a message.
    pub message: u32,
    /// Messages in all.
    pub messages: u32,
    /// Time from one packet to the next.
    pub gap_ns: i64,
}

/// Where a packet is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Before the first tap on its way.
    Before,
    /// Between the taps.
    Between,
    /// Behind the second tap.
    After,
}

/// The traffic.
pub struct Plan {
    pub qps: Vec<Qp>,
    /// One packet in so many is lost, 0: none.
    pub loss_one_in: u64,
    /// Where losses happen, in turn.
    pub places: Vec<Lost>,
    /// One data packet in so many is marked CE, 0: none.
    pub ce_one_in: u64,
    pub seed: u64,
    /// Time of the first packet, in nanoseconds.
    pub start: i64,
    /// From one tap to the other.
    pub delay_ns: i64,
}

/// A packet on the wire.
pub struct Wire<'a> {
    pub frame: &'a [u8],
    /// When the tap near the requester saw it.
    pub near: Option<i64>,
    /// When the tap near the responder saw it.
    pub far: Option<i64>,
    pub lost: Option<Lost>,
    /// Nothing that follows was seen by a tap before this.
    pub settled: i64,
}

/// A tap's capture: classic pcap with nanoseconds, in order of time.
pub struct Tap<W: Write> {
    out: W,
    waiting: BinaryHeap<Reverse<(i64, u64, Vec<u8>)>>,
    count: u64,
    /// Bytes kept of a packet.
    pub snaplen: usize,
    /// Bytes written.
    pub bytes: u64,
}

impl<W: Write> Tap<W> {
    pub fn new(mut out: W) -> Self {
        let mut header = Vec::new();
        for word in [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 262_144, 1_u32] {
            header.extend(word.to_le_bytes());
        }
        out.write_all(&header).unwrap();
        Self {
            out,
            waiting: BinaryHeap::new(),
            count: 0,
            snaplen: usize::MAX,
            bytes: 24,
        }
    }

    pub fn push(&mut self, time: i64, settled: i64, frame: &[u8]) {
        self.count += 1;
        self.waiting
            .push(Reverse((time, self.count, frame.to_vec())));
        while self.waiting.peek().is_some_and(|first| first.0.0 < settled) {
            self.write();
        }
    }

    fn write(&mut self) {
        let Some(Reverse((time, _, frame))) = self.waiting.pop() else {
            return;
        };
        let captured = &frame[..frame.len().min(self.snaplen)];
        let (seconds, fraction) = (time / 1_000_000_000, time % 1_000_000_000);
        for word in [
            seconds as u32,
            fraction as u32,
            captured.len() as u32,
            frame.len() as u32,
        ] {
            self.out.write_all(&word.to_le_bytes()).unwrap();
        }
        self.out.write_all(captured).unwrap();
        self.bytes += 16 + captured.len() as u64;
    }

    pub fn finish(mut self) -> W {
        while !self.waiting.is_empty() {
            self.write();
        }
        self.out.flush().unwrap();
        self.out
    }
}

const WINDOW: u32 = 64;
const TIMEOUT: i64 = 4_000_000;
const HOP: i64 = 2_000;
const CNP_GAP: i64 = 50_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The requester may send.
    Send,
    /// The responder gets the nth request packet.
    Request(u32),
    /// The responder sends a packet of the answer to the READ that is the nth request.
    Response(u32, u32),
    /// The requester learns: all before this PSN is acknowledged; whether it was a NAK.
    Answer(u32, bool),
    Timeout(u32),
}

struct State {
    plan: Qp,
    /// Next request packet to send, oldest not acknowledged, all that will be; counted from 0.
    next: u32,
    oldest: u32,
    end: u32,
    expected: u32,
    nak_sent: bool,
    last_cnp: i64,
    sending: bool,
}

impl State {
    /// PSNs of a message.
    fn per_message(&self) -> u32 {
        self.plan.message.div_ceil(self.plan.mtu).max(1)
    }
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

struct Maker<'p, F> {
    plan: &'p Plan,
    emit: F,
    random: Random,
    frame: Vec<u8>,
    ip_id: u16,
    losses: usize,
}

/// PSN of the first request of QP `index`.
pub fn first_psn(index: usize) -> u32 {
    (0xff_fff0 + index as u32 * 7919) & 0xff_ffff
}

/// The responder's QPN; the requester's is 0x1000 more.
pub fn qpn(index: usize) -> u32 {
    0x100 + index as u32
}

/// Makes all packets, in the order in which they are sent.
pub fn make(plan: &Plan, emit: impl FnMut(Wire<'_>)) {
    let mut maker = Maker {
        plan,
        emit,
        random: Random(plan.seed | 1),
        frame: Vec::new(),
        ip_id: 1,
        losses: 0,
    };
    let mut states: Vec<_> = plan
        .qps
        .iter()
        .map(|&plan| {
            let mut state = State {
                plan,
                next: 0,
                oldest: 0,
                end: 0,
                expected: 0,
                nak_sent: false,
                last_cnp: i64::MIN / 2,
                sending: true,
            };
            state.end = state.per_message() * plan.messages;
            state
        })
        .collect();
    let mut queue = BinaryHeap::new();
    for index in 0..states.len() {
        let at = plan.start + maker.random.below(20_000) as i64;
        queue.push(Reverse((at, index, Event::Send)));
    }
    while let Some(Reverse((now, index, event))) = queue.pop() {
        let state = &mut states[index];
        match event {
            Event::Send => {
                let reads = state.plan.verb == Verb::Read;
                let window = if reads { state.per_message() } else { WINDOW };
                if state.next >= state.end || state.next - state.oldest >= window {
                    state.sending = false;
                    continue;
                }
                let n = state.next;
                let step = if reads { state.per_message() } else { 1 };
                state.next += step;
                let lost = maker.request(now, index, state, n);
                let behind = now + maker.plan.delay_ns + 2 * HOP;
                if lost.is_none() {
                    queue.push(Reverse((behind, index, Event::Request(n))));
                }
                queue.push(Reverse((now + TIMEOUT, index, Event::Timeout(n))));
                queue.push(Reverse((now + state.plan.gap_ns, index, Event::Send)));
            }
            Event::Request(n) => {
                if n > state.expected {
                    if !state.nak_sent {
                        state.nak_sent = true;
                        if maker.answer(now, index, state.expected, 0x60).is_none() {
                            let back = now + maker.plan.delay_ns + 2 * HOP;
                            let answer = Event::Answer(state.expected, true);
                            queue.push(Reverse((back, index, answer)));
                        }
                    }
                    continue;
                }
                let per_message = state.per_message();
                if state.plan.verb == Verb::Read {
                    state.expected = state.expected.max(n + per_message);
                    queue.push(Reverse((now, index, Event::Response(n, 0))));
                    continue;
                }
                if n == state.expected {
                    state.expected += 1;
                    state.nak_sent = false;
                }
                // Marked by the last switch, told by the responder.
                let ce = maker.plan.ce_one_in;
                if ce != 0 && maker.random.below(ce) == 0 && now - state.last_cnp > CNP_GAP {
                    state.last_cnp = now;
                    maker.cnp(now, index);
                }
                if asks(n, per_message) || n + 1 < state.expected {
                    let acknowledged = state.expected;
                    if maker
                        .answer(now, index, acknowledged.wrapping_sub(1), 0x1f)
                        .is_none()
                    {
                        let back = now + maker.plan.delay_ns + 2 * HOP;
                        queue.push(Reverse((back, index, Event::Answer(acknowledged, false))));
                    }
                }
            }
            Event::Response(n, i) => {
                maker.response(now, index, state, n, i);
                let (end, next) = (n + state.per_message(), now + state.plan.gap_ns);
                if n + i + 1 < end {
                    queue.push(Reverse((next, index, Event::Response(n, i + 1))));
                } else {
                    let back = next + maker.plan.delay_ns + 2 * HOP;
                    queue.push(Reverse((back, index, Event::Answer(end, false))));
                }
            }
            Event::Answer(before, nak) => {
                state.oldest = state.oldest.max(before);
                if nak {
                    state.next = before;
                }
                // What a late answer asks for, or a timer, may be acknowledged meanwhile.
                state.next = state.next.max(state.oldest);
                if !state.sending && state.next < state.end {
                    state.sending = true;
                    queue.push(Reverse((now, index, Event::Send)));
                }
            }
            Event::Timeout(n) => {
                // Only the oldest packet's timer counts.
                if n == state.oldest && state.next > n {
                    state.next = n;
                    if !state.sending {
                        state.sending = true;
                        queue.push(Reverse((now, index, Event::Send)));
                    }
                }
            }
        }
    }
}

/// Whether the nth packet asks for an acknowledgement: the last of its message, and every 16th.
fn asks(n: u32, per_message: u32) -> bool {
    (n + 1).is_multiple_of(per_message) || n % 16 == 15
}

impl<F: FnMut(Wire<'_>)> Maker<'_, F> {
    fn request(&mut self, now: i64, index: usize, state: &State, n: u32) -> Option<Lost> {
        let per_message = state.per_message();
        let i = n % per_message;
        let (first, last) = (i == 0, i + 1 == per_message);
        let (only, first_op, middle, last_op) = match state.plan.verb {
            Verb::Write => (0x0a, 0x06, 0x07, 0x08),
            Verb::Send => (0x04, 0x00, 0x01, 0x02),
            Verb::Read => (0x0c, 0x0c, 0x0c, 0x0c),
        };
        let opcode = match (first, last) {
            _ if state.plan.verb == Verb::Read => 0x0c,
            (true, true) => only,
            (true, false) => first_op,
            (false, false) => middle,
            (false, true) => last_op,
        };
        let mut extra = Vec::new();
        if first && state.plan.verb != Verb::Send {
            extra.extend(0x7f00_0000_1000_u64.to_be_bytes());
            extra.extend(0x1234_u32.to_be_bytes());
            extra.extend(state.plan.message.to_be_bytes());
        }
        let payload = if state.plan.verb == Verb::Read {
            0
        } else {
            piece(state, i)
        };
        let ask = state.plan.verb != Verb::Read && asks(n, per_message);
        let psn = first_psn(index).wrapping_add(n) & 0xff_ffff;
        self.build(index, true, opcode, psn, ask, &extra, payload, 2);
        self.send(now, true, true)
    }

    fn response(&mut self, now: i64, index: usize, state: &State, n: u32, i: u32) {
        let last = state.per_message() - 1;
        let opcode = match (i == 0, i == last) {
            (true, true) => 0x10,
            (true, false) => 0x0d,
            (false, false) => 0x0e,
            (false, true) => 0x0f,
        };
        let aeth = [0x1f, 0, 0, 1];
        let extra = if opcode == 0x0e { &[][..] } else { &aeth };
        let psn = first_psn(index).wrapping_add(n + i) & 0xff_ffff;
        let ecn = if self.plan.ce_one_in != 0 && self.random.below(self.plan.ce_one_in) == 0 {
            3
        } else {
            2
        };
        self.build(
            index,
            false,
            opcode,
            psn,
            false,
            extra,
            piece(state, i),
            ecn,
        );
        self.send(now, false, false);
    }

    fn answer(&mut self, now: i64, index: usize, n: u32, syndrome: u8) -> Option<Lost> {
        let psn = first_psn(index).wrapping_add(n) & 0xff_ffff;
        self.build(index, false, 0x11, psn, false, &[syndrome, 0, 0, 1], 0, 2);
        self.send(now, false, true)
    }

    fn cnp(&mut self, now: i64, index: usize) {
        self.build(index, false, 0x81, 0, false, &[0; 16], 0, 2);
        self.send(now, false, false);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    fn build(
        &mut self,
        index: usize,
        to_responder: bool,
        opcode: u8,
        psn: u32,
        ask: bool,
        extra: &[u8],
        payload: u32,
        ecn: u8,
    ) {
        let host = (index % 8) as u8;
        let (requester, responder) = ([10, 0, 0, 1 + host], [10, 0, 1, 1 + host]);
        let (src, dst, to) = if to_responder {
            (requester, responder, qpn(index))
        } else {
            (responder, requester, qpn(index) + 0x1000)
        };
        let pad = payload.wrapping_neg() & 3;
        let udp = 8 + 12 + extra.len() + (payload + pad) as usize + 4;
        let f = &mut self.frame;
        f.clear();
        f.extend([
            2, 0, dst[0], dst[1], dst[2], dst[3], 2, 0, src[0], src[1], src[2], src[3], 8, 0,
        ]);
        f.extend([0x45, 26 << 2 | ecn]);
        f.extend((udp as u16 + 20).to_be_bytes());
        f.extend(self.ip_id.to_be_bytes());
        f.extend([0x40, 0, 64, 17, 0, 0]);
        f.extend(src);
        f.extend(dst);
        f.extend((0xc000 | index as u16 & 0x3fff).to_be_bytes());
        f.extend(4791_u16.to_be_bytes());
        f.extend((udp as u16).to_be_bytes());
        f.extend([0, 0, opcode, (pad as u8) << 4, 0xff, 0xff]);
        // A CNP sets BECN.
        f.extend([if opcode == 0x81 { 0x40 } else { 0 }]);
        f.extend(&to.to_be_bytes()[1..]);
        f.extend([u8::from(ask) << 7]);
        f.extend(&psn.to_be_bytes()[1..]);
        f.extend(extra);
        let fill = self.random.below(256) as u8;
        f.resize(f.len() + payload as usize, fill);
        f.resize(f.len() + pad as usize + 4, 0);
        // Identifications of 0 would tell readers that there is none.
        self.ip_id = self.ip_id.wrapping_add(1).max(1);
        if let Some(packet) = dissect(f.as_slice()).kind.packet()
            && let Icrc::Wrong { computed, .. } = check(f, packet)
        {
            let at = f.len() - 4;
            f[at..].copy_from_slice(&computed.to_le_bytes());
        }
    }

    fn send(&mut self, now: i64, to_responder: bool, may_be_lost: bool) -> Option<Lost> {
        let one_in = self.plan.loss_one_in;
        let lost = (may_be_lost && one_in != 0 && self.random.below(one_in) == 0).then(|| {
            self.losses += 1;
            self.plan.places[self.losses % self.plan.places.len()]
        });
        let first = now + HOP;
        let second = first + self.plan.delay_ns;
        let first = (lost != Some(Lost::Before)).then_some(first);
        let second = (!matches!(lost, Some(Lost::Before | Lost::Between))).then_some(second);
        let (near, far) = if to_responder {
            (first, second)
        } else {
            (second, first)
        };
        (self.emit)(Wire {
            frame: &self.frame,
            near,
            far,
            lost,
            settled: now,
        });
        lost
    }
}

/// Payload of the ith packet of a message.
fn piece(state: &State, i: u32) -> u32 {
    (state.plan.message - i * state.plan.mtu).min(state.plan.mtu)
}
