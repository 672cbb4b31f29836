//! Packet by packet from a capture to flows and findings.
//!
//! [`Analyser::push`] takes one packet, in constant time and without allocation except for a new flow or a finding;
//! [`Analyser::finish`] decides what only the end can tell and gives the [`Report`]. Several files are one stream, one after
//! the other ([`Analyser::begin_file`]). A packet with a wrong ICRC is counted and
//! not believed, as receivers do (unless none of its sender's is right).

mod cm;
mod expected;
mod summary;
pub mod table;
mod tie;

use std::collections::{BTreeMap, HashSet};

use rocexdp_common::{
    dissect::{Captured, Dissected, Kind as Frame, TunnelKind, extensions},
    headers::Syndrome,
    ids::Gid,
    opcode::{Opcode, Operation, Position, Transport},
    parse::{IpVersion, Packet},
    reason::{REASON_ALL, Reason},
};

use self::{
    cm::Connections,
    table::{Key, Table},
};
use crate::{
    capture::PacketRef,
    findings::{Finding, Findings, Place},
    flow::{
        Answer, AnswerKind, Request, Requests,
        copies::Mark,
        half::{Events, Half},
        requests::Seen,
    },
    icrc::{self, Icrc},
    report::Report,
};

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Don't check ICRCs.
    pub no_icrc: bool,
    /// QPs to report, at either end; empty: all.
    pub qps: Vec<u32>,
    /// Addresses to look at, at either end; empty: all.
    pub addresses: Vec<Gid>,
}

/// A capture file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Number in the report of its first frame.
    pub first_frame: u64,
    /// Frames in it.
    pub frames: u64,
}

/// Counts of the capture as a whole.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Frames of any kind.
    pub frames: u64,
    /// Of them captured in part.
    pub truncated: Events,
    /// First and last time.
    pub times: Option<(i64, i64)>,
    /// Frames whose time is before the one before.
    pub backwards: u64,
    /// Malformed or not followed, by [`Reason`].
    pub reasons: Vec<Events>,
    /// Priority flow control frames, by priority that they pause.
    pub pfc: Events,
    /// Priorities paused: frames with quanta above 0.
    pub pfc_priorities: [u64; 8],
    /// Pause frames of the whole port.
    pub pause: Events,
    /// LLDP frames.
    pub lldp: u64,
    /// Messages of the communication manager, by name.
    pub cm: BTreeMap<&'static str, u64>,
    /// Packets in tunnels.
    pub tunnelled: u64,
    /// RoCE packets left out by the address filter.
    pub filtered: u64,
}

/// The analyser.
#[derive(Debug)]
pub struct Analyser {
    options: Options,
    table: Table,
    connections: Connections,
    right_senders: HashSet<Gid>,
    findings: Findings,
    totals: Totals,
    files: Vec<File>,
    base: u64,
    last_time: i64,
}

impl Analyser {
    /// Nothing seen.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            table: Table::new(),
            connections: Connections::default(),
            right_senders: HashSet::new(),
            findings: Findings::default(),
            totals: Totals {
                frames: 0,
                truncated: Events::default(),
                times: None,
                backwards: 0,
                reasons: vec![Events::default(); REASON_ALL.len()],
                pfc: Events::default(),
                pfc_priorities: [0; 8],
                pause: Events::default(),
                lldp: 0,
                cm: BTreeMap::new(),
                tunnelled: 0,
                filtered: 0,
            },
            files: Vec::new(),
            base: 0,
            last_time: i64::MIN,
        }
    }

    /// The packets that follow are of this file. Frames are numbered on from the file before.
    pub fn begin_file(&mut self, name: impl Into<String>) {
        self.base = self.totals.frames;
        self.files.push(File {
            name: name.into(),
            first_frame: self.base + 1,
            frames: 0,
        });
    }

    /// Frames taken so far.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.totals.frames
    }

    /// Flows seen so far, one per direction.
    #[must_use]
    pub fn directions(&self) -> usize {
        self.table.all().len()
    }

    /// Takes a packet.
    #[inline]
    pub fn push(&mut self, packet: &PacketRef<'_>) {
        let frame = self.base + packet.number;
        let time = packet.time_ns;
        self.totals.frames = self.totals.frames.max(frame);
        if let Some(file) = self.files.last_mut() {
            file.frames = packet.number;
        }
        match &mut self.totals.times {
            Some((first, last)) => {
                *first = (*first).min(time);
                *last = (*last).max(time);
                self.totals.backwards += u64::from(time < self.last_time);
            }
            None => {
                self.totals.times = Some((time, time));
                self.findings.start_at(time);
            }
        }
        self.last_time = time;
        if packet.is_truncated() {
            self.totals.truncated.add(frame, time);
        }
        let dissected = packet.dissect();
        match &dissected.kind {
            Frame::RoceV2(p) => self.roce(frame, packet, p, &dissected, false),
            Frame::RoceV1(p) => self.roce(frame, packet, p, &dissected, true),
            Frame::Malformed(reason) | Frame::Unfollowed(reason) => {
                self.stopped(*reason, frame, time);
            }
            Frame::Pfc(pfc) => {
                self.totals.pfc.add(frame, time);
                for (priority, quanta) in pfc.quanta.iter().enumerate() {
                    if pfc.class_enable & (1 << priority) != 0
                        && *quanta > 0
                        && let Some(n) = self.totals.pfc_priorities.get_mut(priority)
                    {
                        *n += 1;
                    }
                }
            }
            Frame::GlobalPause { .. } => self.totals.pause.add(frame, time),
            Frame::Lldp => self.totals.lldp += 1,
            Frame::Other => {}
        }
    }

    fn stopped(&mut self, reason: Reason, frame: u64, time: i64) {
        if let Some(events) = self.totals.reasons.get_mut(reason as usize) {
            events.add(frame, time);
        }
    }

    #[inline]
    fn roce(&mut self, frame: u64, r: &PacketRef<'_>, p: &Packet, d: &Dissected, v1: bool) {
        let wanted = &self.options.addresses;
        if !wanted.is_empty() && !wanted.contains(&p.flow.src) && !wanted.contains(&p.flow.dst) {
            self.totals.filtered += 1;
            return;
        }
        self.totals.tunnelled += u64::from(d.tunnel.is_some());
        let transport = p.bth.opcode.transport();
        let captured = Captured {
            data: r.data,
            wire_len: r.wire_len,
        };
        let src_qpn = match transport {
            Transport::Ud | Transport::Rd => extensions(&captured, p)
                .and_then(|e| e.deth)
                .map_or(0, |deth| deth.src_qpn.get()),
            _ => 0,
        };
        let key = Key {
            src: p.flow.src,
            dst: p.flow.dst,
            dest_qpn: p.flow.dest_qpn,
            src_qpn,
        };
        let id = self.table.id(&key, transport);
        let Some(half) = self.table.get_mut(id) else {
            return;
        };
        let time = r.time_ns;
        let mark = Mark {
            time,
            psn: p.bth.psn,
            ip_id: ip_id(r.data, p),
            opcode: p.bth.opcode.0,
            ttl: d.ttl,
            interface: r.interface,
        };
        half.count_opcode(p.bth.opcode.0);
        half.v1 += u64::from(v1);
        if half.copies.is_copy(mark) {
            half.copies_seen.add(frame, time);
            return;
        }
        let icrc = if self.options.no_icrc {
            Icrc::Unknown
        } else {
            icrc::check(r.data, p)
        };
        match icrc {
            Icrc::Right => {
                half.icrc_right += 1;
                if half.icrc_right == 1 {
                    self.right_senders.insert(p.flow.src);
                }
            }
            Icrc::Wrong { without_pad, .. } => {
                half.icrc_wrong.add(frame, time);
                half.icrc_without_pad += u64::from(without_pad);
                // A sender of whom no packet was right: captured before its NIC made the ICRC, not damaged.
                if self.right_senders.contains(&p.flow.src) {
                    return;
                }
            }
            Icrc::Unknown => half.icrc_unknown += 1,
        }
        if half.packets == half.cnp.count && half.transport != transport {
            half.set_transport(transport);
        }
        half.count(frame, time, r.wire_len, ecn(p, d));
        let Some((operation, position)) = p.operation else {
            self.stopped(Reason::UnknownOpcode, frame, time);
            return;
        };
        match operation {
            Operation::Cnp => half.cnp.add(frame, time),
            Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse => {
                self.answer(id, frame, time, &captured, p, operation, position);
            }
            _ => self.request(id, frame, time, &captured, p, operation, position),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the packet's own parts")]
    #[inline]
    fn request(
        &mut self,
        id: u32,
        frame: u64,
        time: i64,
        captured: &Captured<'_>,
        p: &Packet,
        operation: Operation,
        position: Position,
    ) {
        let reth =
            if p.bth.opcode.extensions().unwrap_or(0) & rocexdp_common::opcode::ext::RETH != 0 {
                extensions(captured, p)
                    .and_then(|e| e.reth)
                    .map(|reth| (reth.length, reth.rkey, reth.va))
            } else {
                None
            };
        let Some(half) = self.table.get_mut(id) else {
            return;
        };
        let begins_long = matches!(position, Position::First | Position::Middle);
        let mtu = (begins_long && is_path_mtu(p.payload) && p.payload > half.requests.path_mtu)
            .then_some(p.payload);
        let peer = half.peer;
        if let Some(mtu) = mtu {
            half.requests.learn_path_mtu(mtu);
        }
        let sequenced = matches!(
            half.transport,
            Transport::Rc | Transport::Uc | Transport::Xrc
        );
        let seen = if sequenced {
            let request = Request {
                frame,
                time,
                psn: p.bth.psn,
                opcode: p.bth.opcode.0,
                operation,
                position,
                ack_req: p.bth.ack_req,
                payload: p.payload,
                reth,
            };
            half.requests
                .take(&request, &mut self.findings, Place::Half(id))
        } else {
            Seen::Fresh
        };
        let awaits = half.peer.is_none()
            && half.requests.reliable
            && (p.bth.ack_req || is_answered(operation))
            && half.requests.awaits(p.bth.psn);
        if seen == Seen::Fresh {
            let length = reth.map_or(0, |(length, ..)| length);
            half.operations
                .count(operation, position, p.payload, length);
        }
        if let Some(mtu) = mtu
            && let Some(peer) = peer.and_then(|peer| self.table.get_mut(peer))
            && peer.requests.path_mtu < mtu
        {
            peer.requests.learn_path_mtu(mtu);
        }
        if awaits {
            self.table.await_answer(id, p.bth.psn);
        }
        if matches!(half_transport(&self.table, id), Some(Transport::Ud)) {
            if p.bth.dest_qpn == rocexdp_common::mad::GSI_QPN {
                self.management(frame, time, captured, p, id);
            }
            self.tie_datagrams(id);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the packet's own parts")]
    #[inline]
    fn answer(
        &mut self,
        id: u32,
        frame: u64,
        time: i64,
        captured: &Captured<'_>,
        p: &Packet,
        operation: Operation,
        position: Position,
    ) {
        let Some(half) = self.table.get_mut(id) else {
            return;
        };
        let kind = match (operation, p.aeth.map(|aeth| aeth.syndrome)) {
            (Operation::ReadResponse, _) => {
                half.responses += 1;
                AnswerKind::Response(position)
            }
            (_, Some(Syndrome::RnrNak(code))) => {
                half.rnrs += 1;
                AnswerKind::Rnr(code)
            }
            (Operation::AtomicAcknowledge, Some(Syndrome::Ack(_))) => {
                half.acks += 1;
                AnswerKind::AtomicAck(extensions(captured, p).and_then(|e| e.atomic_ack))
            }
            (_, Some(Syndrome::Ack(_))) => {
                half.acks += 1;
                AnswerKind::Ack
            }
            (_, Some(Syndrome::NakSequence)) => {
                half.naks.sequence += 1;
                AnswerKind::NakSequence
            }
            (_, Some(syndrome)) => {
                let count = match syndrome {
                    Syndrome::NakInvalidRequest => &mut half.naks.invalid_request,
                    Syndrome::NakRemoteAccess => &mut half.naks.remote_access,
                    Syndrome::NakRemoteOperational => &mut half.naks.remote_operational,
                    _ => &mut half.naks.other,
                };
                *count += 1;
                AnswerKind::NakFatal(syndrome.to_byte())
            }
            // The AETH was not captured: what it says is unknown.
            (_, None) => return,
        };
        let answer = Answer {
            frame,
            time,
            psn: p.bth.psn,
            opcode: p.bth.opcode.0,
            kind,
            payload: p.payload,
        };
        let peer = match half.peer {
            Some(peer) => peer,
            None => match self.tie_by_answer(id, &answer) {
                Some(peer) => {
                    self.answer_late(id, peer);
                    peer
                }
                None => return self.keep_answer(id, &answer),
            },
        };
        let Some(asked) = self.table.get_mut(peer) else {
            return;
        };
        let requests: &mut Requests = &mut asked.requests;
        requests.answered(&answer, &mut self.findings, Place::Half(peer));
    }

    /// Decides what is left, and reports.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.summarise();
        let Self {
            options,
            table,
            findings,
            totals,
            files,
            ..
        } = self;
        let findings: Vec<Finding> = findings.sorted();
        Report::build(&options, table.all(), &totals, &files, &findings)
    }
}

fn half_transport(table: &Table, id: u32) -> Option<Transport> {
    table.get(id).map(|half: &Half| half.transport)
}

/// Operations with an answer of their own, asked for or not.
const fn is_answered(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
    )
}

/// Whether a payload of a First or Middle packet is a path MTU.
pub(crate) const fn is_path_mtu(payload: u32) -> bool {
    matches!(payload, 256 | 512 | 1024 | 2048 | 4096)
}

/// IPv4 identification; 0 of IPv6 and RoCEv1.
#[inline]
fn ip_id(data: &[u8], p: &Packet) -> u16 {
    if p.ip == IpVersion::V6 {
        return 0;
    }
    let at = p.ip_at as usize + 4;
    data.get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |id| u16::from_be_bytes(*id))
}

/// ECN codepoint that the receiver will see: an overlay's outer mark is copied in at its end (RFC 6040), a mirror's is
/// none of the packet's.
#[inline]
fn ecn(p: &Packet, d: &Dissected) -> u8 {
    match &d.tunnel {
        Some(tunnel)
            if tunnel.ecn == rocexdp_common::account::CE
                && matches!(
                    tunnel.kind,
                    TunnelKind::Vxlan { .. } | TunnelKind::Geneve { .. }
                ) =>
        {
            tunnel.ecn
        }
        _ => p.ecn,
    }
}

/// An opcode's name as the report has it.
pub(crate) fn opcode_name(opcode: u8) -> String {
    let opcode = Opcode(opcode);
    if opcode.decode().is_none() {
        return format!("{} {:#04x}", rocexdp_common::opcode::name(opcode), opcode.0);
    }
    rocexdp_common::opcode::name(opcode).to_owned()
}
