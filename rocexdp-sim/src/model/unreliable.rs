//! The oracle of UC and UD: a message arrives whole or not at all, as its packets do.
//!
//! The model sees which frames arrive, and in which order; from a packet's number it knows the message. Of UC a message is
//! delivered exactly if all its packets came one behind the other (there is no order between messages: a link that delivers a
//! message twice, or late, delivers it so); of UD, if its packet came and carries the right Q_Key. Both need a receive request
//! and memory that may be written to; then nothing else may keep a message back. Each byte is compared, and UD's first 40
//! with the IP header of the frame. A sender sends each packet once, in order, and completes a request when its last packet has
//! left. Programs with completion queues that are polled late have neither: a completion is judged as it comes.
//!
//! Must not: know how an endpoint does it.

use rocexdp_common::headers::Deth;
use rocexdp_common::opcode::Transport;
use rocexdp_proto::ids::{Psn, Qpn};
use rocexdp_proto::verbs::{Cqe, CqeOpcode, Status};
use rocexdp_proto::wire::{GRH_ROOM, Head, Packet};

use super::io::{pair_of, qpn};
use super::program::kind;
use super::state::{Msg, Receive, Service, State, position};

/// A packet that is being received.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Pair and generation of the sender's stream, and its message.
    from: (usize, usize, usize),
    /// Bytes that may be written because of it, counted in the receive request or the message: from there to there.
    bytes: (u32, u32),
    /// It is the message's last packet, and all before it came.
    whole: bool,
    /// A receive request was there for it.
    ready: bool,
    /// UD: what precedes the message.
    grh: Option<[u8; GRH_ROOM]>,
    /// A receive request has completed.
    delivered: bool,
}

/// UC: packets that came one behind the other, from a message's first on.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    from: (usize, usize, usize),
    /// Packets.
    packets: u32,
    /// Bytes that were written.
    done: u32,
    /// A receive request was there when the message began.
    ready: bool,
}

/// What the model has to know of a frame whose ICRC is right.
pub(super) struct Came<'a> {
    pub(super) transport: Transport,
    pub(super) psn: Psn,
    pub(super) deth: Option<Deth>,
    pub(super) frame: &'a [u8],
    pub(super) ipv6: bool,
}

impl State {
    /// The message that a packet of `sender` at end `end` is of: generation, message, which packet of it.
    fn message_of(&self, sender: usize, end: usize, psn: Psn) -> Option<(usize, usize, u32)> {
        let streams = self.streams.get(sender)?[end].iter().enumerate().rev();
        for (generation, s) in streams {
            let number = psn.get().wrapping_sub(s.start) & 0xff_ffff;
            let index = s.msgs.partition_point(|m| m.first + m.packets <= number);
            if let Some(m) = s.msgs.get(index) {
                return Some((generation, index, number - m.first));
            }
        }
        None
    }

    fn arriving(&self, end: usize, from: (usize, usize, usize)) -> &Msg {
        let (sender, generation, index) = from;
        &self.streams[sender][1 - end][generation].msgs[index]
    }

    /// A frame with a right ICRC came for the QP of `pair`.
    pub(super) fn arrives(&mut self, pair: usize, end: usize, came: &Came<'_>) {
        self.arrival = None;
        let side = self.pairs[pair][end];
        if !side.connected {
            return;
        }
        let ready = self.has_receive(pair, end);
        match (self.service(pair), came.transport) {
            (Service::Unreliable, Transport::Uc) => {
                let Some((generation, index, packet)) = self.message_of(pair, 1 - end, came.psn)
                else {
                    return self.wrong(|| format!("end {end} pair {pair}: a packet of no message"));
                };
                let from = (pair, generation, index);
                let run = match side.run {
                    _ if packet == 0 => Some(Run {
                        from,
                        packets: 1,
                        done: 0,
                        ready,
                    }),
                    Some(run) if run.from == from && run.packets == packet => Some(Run {
                        packets: packet + 1,
                        ..run
                    }),
                    _ => None,
                };
                self.pairs[pair][end].run = run;
                let m = self.arriving(end, from);
                let mtu = self.mtu();
                self.arrival = run.map(|run| Arrival {
                    from,
                    bytes: (packet * mtu, m.len.min((packet + 1) * mtu)),
                    whole: run.packets == m.packets,
                    // A WRITE takes one at its end.
                    ready: if m.kind == kind::WRITE_IMM {
                        ready
                    } else {
                        run.ready
                    },
                    grh: None,
                    delivered: false,
                });
            }
            (Service::Datagram, Transport::Ud) => {
                let sender = came.deth.and_then(|d| pair_of(d.src_qpn, 1 - end));
                let found =
                    sender.and_then(|s| self.message_of(s, 1 - end, came.psn).map(|m| (s, m)));
                let Some((sender, (generation, index, _))) = found else {
                    return self.wrong(|| format!("end {end} pair {pair}: a packet of no message"));
                };
                let from = (sender, generation, index);
                let mut grh = [0; GRH_ROOM];
                let header = if came.ipv6 { 14..54 } else { 14..34 };
                let at = GRH_ROOM - header.len();
                if let Some(bytes) = came.frame.get(header) {
                    grh[at..].copy_from_slice(bytes);
                }
                self.arrival = Some(Arrival {
                    from,
                    bytes: (0, GRH_ROOM as u32 + self.arriving(end, from).len),
                    whole: true,
                    ready,
                    grh: Some(grh),
                    delivered: false,
                });
                // Bytes are counted from here.
                self.pairs[pair][end].run = Some(Run {
                    from,
                    packets: 1,
                    done: 0,
                    ready,
                });
            }
            _ => {}
        }
    }

    /// The frame has been received: was what had to be delivered?
    pub(super) fn arrived(&mut self, pair: usize, end: usize) {
        let Some(arrival) = self.arrival.take() else {
            return;
        };
        let m = self.arriving(end, arrival.from).clone();
        let side = self.pairs[pair][end];
        if !arrival.whole || arrival.delivered || !side.connected {
            return;
        }
        let consumes = m.consumes();
        let written = side.run.map_or(0, |run| run.done);
        let done = if consumes {
            // It would have completed.
            false
        } else {
            written == m.len
        };
        let excused = (consumes && !arrival.ready)
            || m.bad.is_some()
            || !self.refusals(end, pair, &m).is_empty();
        if !done && !excused {
            self.wrong(|| {
                format!("end {end} pair {pair}: all of message {m:?} came, and it was not delivered ({written} B were written)")
            });
        }
    }

    /// A receive request is there for a message that begins, or a WRITE that ends. One out of a shared queue that was taken for
    /// a message before is given up with that.
    fn has_receive(&mut self, pair: usize, end: usize) -> bool {
        if self.shares() {
            return self.ends[end].shared.left() > 0;
        }
        let s = self.incoming(pair, end);
        s.recv_head < s.recvs.len()
    }

    /// The receive request that a message of UC or UD goes to.
    fn receive_of(&mut self, pair: usize, end: usize) -> Option<Receive> {
        if self.shares() {
            let index = self.pairs[pair][end].holds;
            let shared = &self.ends[end].shared;
            let (receive, _) = shared.recvs.get(index.unwrap_or(shared.taken))?;
            return Some(receive.clone());
        }
        let s = self.incoming(pair, end);
        s.recvs.get(s.recv_head).cloned()
    }

    /// Bytes into a receive buffer, by a packet of UC or UD.
    pub(super) fn datagram_write(
        &mut self,
        pair: usize,
        end: usize,
        offset: u64,
        bytes: &[u8],
    ) -> bool {
        let Some(arrival) = self.arrival else {
            return false;
        };
        let place = if self.shares() {
            self.shared_place(pair, end, offset)
        } else {
            self.receive_of(pair, end)
                .and_then(|r| position(&r.list, offset))
        };
        let Some((at, room)) = place else {
            return false;
        };
        let m = self.arriving(end, arrival.from);
        let len = bytes.len() as u32;
        let same = match arrival.grh {
            Some(grh) if (at as usize) < GRH_ROOM => {
                grh.get(at as usize..at as usize + bytes.len()) == Some(bytes)
            }
            Some(_) => m.payload_is(at - GRH_ROOM as u32, bytes),
            None => m.payload_is(at, bytes),
        };
        let fits = m.kind <= kind::SEND_INV && m.bad.is_none() && len <= room;
        same && fits && self.write_on(pair, end, &arrival, at, len)
    }

    /// Bytes into memory that peers reach, by a packet of UC: those of its message from byte `at` on?
    pub(super) fn unreliable_write(
        &mut self,
        pair: usize,
        end: usize,
        mem: usize,
        offset: u64,
        bytes: &[u8],
    ) -> bool {
        let Some(arrival) = self.arrival else {
            return false;
        };
        let m = self.arriving(end, arrival.from).clone();
        let at = offset.checked_sub(m.at);
        let Some(at) = at.and_then(|n| u32::try_from(n).ok()) else {
            return false;
        };
        let len = bytes.len() as u32;
        matches!(m.kind, kind::WRITE | kind::WRITE_IMM)
            && m.bad.is_none()
            && self.granted(end, pair, &m, u64::from(at), u64::from(len)) == Some((mem, offset))
            && m.payload_is(at, bytes)
            && self.write_on(pair, end, &arrival, at, len)
    }

    /// Each byte comes once, behind the one before it, with the packet that it is in.
    fn write_on(&mut self, pair: usize, end: usize, arrival: &Arrival, at: u32, len: u32) -> bool {
        let Some(run) = &mut self.pairs[pair][end].run else {
            return false;
        };
        let right =
            run.done == at && at >= arrival.bytes.0 && at.saturating_add(len) <= arrival.bytes.1;
        run.done = at.saturating_add(len);
        self.tally.bytes += u64::from(len);
        right
    }

    /// A receive request of UC or UD has completed, `index` of its queue.
    pub(super) fn datagram_completion(
        &mut self,
        pair: usize,
        end: usize,
        index: usize,
        cqe: &Cqe,
    ) -> Result<(), String> {
        let receive = self.receive_of(pair, end);
        if self.shares() {
            self.shared_completes(pair, end, index)?;
        } else {
            let s = self.incoming(pair, end);
            if index != s.recv_head {
                return Err(format!("receive request {} comes first", s.recv_head));
            }
            s.recv_head = index + 1;
        }
        let arrival = self.arrival;
        if cqe.status == Status::Success {
            let Some(arrival) = arrival.filter(|a| a.whole && !a.delivered) else {
                return Err("no message has come whole".into());
            };
            let m = self.arriving(end, arrival.from).clone();
            let room = arrival.grh.map_or(0, |_| GRH_ROOM as u32);
            let done = self.pairs[pair][end].run.map_or(0, |run| run.done);
            if done != m.len + room || m.bad.is_some() || !m.consumes() {
                return Err(format!("{done} B of message {m:?} have come"));
            }
            let said = (cqe.opcode, cqe.byte_len, cqe.imm, cqe.solicited);
            let src = arrival.grh.map(|_| qpn(arrival.from.0, 1 - end));
            if said != said_of(&m, room) || (cqe.src_qpn, cqe.grh) != (src, src.is_some()) {
                return Err(format!("the message was {m:?}"));
            }
            self.delivered();
            return Ok(());
        }
        let gone = self.ends[end].was_gone;
        match (cqe.status, self.service(pair)) {
            (Status::WrFlushErr, _) => {
                self.pairs[pair][end].flushed = true;
                return Ok(());
            }
            (Status::LocProtErr, _) if gone[1] => {
                self.pairs[pair][end].flushed = true;
                self.pairs[pair][end].erred = true;
                self.delivered();
                return Ok(());
            }
            (Status::LocLenErr, Service::Datagram) => {
                let short = arrival.is_none_or(|a| {
                    let len = self.arriving(end, a.from).len;
                    receive.is_some_and(|r| r.room < len + GRH_ROOM as u32)
                });
                if short {
                    self.delivered();
                    return Ok(());
                }
            }
            // Of a shared queue: others wait for the memory of a message that is dropped.
            (
                Status::RemInvReqErr | Status::LocLenErr | Status::RemAccessErr,
                Service::Unreliable,
            ) if self.shares() => {
                return Ok(());
            }
            // So does one whose bytes the target memory did not take.
            (Status::LocProtErr, Service::Unreliable)
                if self.shares() && gone[3..].contains(&true) =>
            {
                return Ok(());
            }
            _ => {}
        }
        Err("nothing can have made it fail so".into())
    }

    fn delivered(&mut self) {
        if let Some(a) = &mut self.arrival {
            a.delivered = true;
        }
    }

    /// A frame has been handed out by `end`. Of UC and UD each packet leaves once, in order.
    pub(super) fn handed_out(&mut self, end: usize, frame: &[u8]) {
        let whole: [&[u8]; 1] = [frame];
        let Ok(p) = Packet::parse(&Head::of(&whole), &whole) else {
            return;
        };
        // A packet without a sender's QPN is from the QP of the same pair.
        let pair = match p.deth {
            Some(deth) => pair_of(deth.src_qpn, end),
            None => pair_of(p.bth.dest_qpn, 1 - end),
        };
        let Some(pair) = pair.filter(|p| *p < self.pairs.len() && !self.is_reliable(*p)) else {
            return;
        };
        if p.bth.opcode.transport() == Transport::Cnp {
            return;
        }
        if let Err(why) = self.unacknowledged_leaves(pair, end, p.bth.psn, p.bth.dest_qpn) {
            self.wrong(|| format!("end {end} pair {pair}: {why}"));
        }
    }

    fn unacknowledged_leaves(
        &mut self,
        pair: usize,
        end: usize,
        psn: Psn,
        to: Qpn,
    ) -> Result<(), String> {
        let service = self.service(pair);
        let s = self.outgoing(pair, end);
        let number = psn.get().wrapping_sub(s.start) & 0xff_ffff;
        let index = s.msgs.partition_point(|m| m.first + m.packets <= number);
        let Some(m) = s.msgs.get(index) else {
            return Err(format!("sends packet {number}, which is of no request"));
        };
        if number != s.left {
            return Err(format!("sends packet {number}, and the next is {}", s.left));
        }
        s.left = number + 1;
        let right = match service {
            Service::Datagram => m.to,
            _ => pair,
        };
        if to != qpn(right, 1 - end) {
            return Err(format!("sends request {} to {to}", m.wr));
        }
        Ok(())
    }

    /// A send request of UC or UD succeeded: its packets have left.
    pub(super) fn has_left(&mut self, pair: usize, end: usize, m: &Msg) -> Result<(), String> {
        if self.outgoing(pair, end).left < m.first + m.packets {
            return Err("its last packet has not left".into());
        }
        Ok(())
    }
}

/// What a receive completion has to say of a message.
pub(super) fn said_of(m: &Msg, room: u32) -> (CqeOpcode, u32, Option<u32>, bool) {
    let imm = matches!(m.kind, kind::SEND_IMM | kind::WRITE_IMM).then_some(m.a as u32);
    let opcode = match m.kind {
        kind::WRITE_IMM => CqeOpcode::RecvWriteImm,
        _ => CqeOpcode::Recv,
    };
    let solicited = m.flags & super::program::flag::SOLICITED != 0;
    (opcode, m.len + room, imm, solicited)
}
