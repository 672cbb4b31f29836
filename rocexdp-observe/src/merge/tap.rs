//! One of the two captures: its RoCE packets, one after the other, as little as two taps need to be compared.

use std::path::{Path, PathBuf};

use rocexdp_common::{
    headers::Syndrome,
    ids::{Gid, Psn},
    opcode::{Operation, Transport},
    parse::IpVersion,
};

use super::MergeError;
use crate::capture::{CaptureError, PacketRef, Reader};

/// What makes two sightings one packet: addresses and QP (as a number both taps share), PSN, opcode, IP identification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub direction: u32,
    pub psn: Psn,
    pub opcode: u8,
    pub ip_id: u16,
}

/// What a packet is to its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A request of a connection; whether it takes one PSN, which a READ need not.
    Request {
        one: bool,
    },
    Response,
    Acknowledgement,
    /// PSN sequence error.
    Nak,
    Rnr,
    Other,
}

/// A packet at a tap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting {
    pub frame: u64,
    pub time: i64,
    pub key: Key,
    pub role: Role,
}

/// Addresses and destination QP.
pub(super) type Direction = (Gid, Gid, u32);

/// Numbers for directions, shared by both taps.
#[derive(Default)]
pub(super) struct Directions {
    ids: std::collections::HashMap<Direction, u32>,
    pub list: Vec<Direction>,
    last: Option<(Direction, u32)>,
}

impl Directions {
    fn id(&mut self, direction: Direction) -> u32 {
        if let Some((last, id)) = self.last
            && last == direction
        {
            return id;
        }
        let list = &mut self.list;
        let id = *self.ids.entry(direction).or_insert_with(|| {
            list.push(direction);
            list.len() as u32 - 1
        });
        self.last = Some((direction, id));
        id
    }
}

/// A capture being read.
pub(super) struct Tap {
    path: PathBuf,
    reader: Reader,
    pub next: Option<Sighting>,
    /// Time of the first and the last frame read, RoCE or not.
    pub first: Option<i64>,
    pub last: i64,
    pub packets: u64,
    pub end: Option<CaptureError>,
}

impl Tap {
    pub(super) fn open(path: &Path, directions: &mut Directions) -> Result<Self, MergeError> {
        let failed = |source| MergeError {
            path: path.to_owned(),
            source,
        };
        let reader = Reader::open(path).map_err(failed)?;
        let mut tap = Self {
            path: path.to_owned(),
            reader,
            next: None,
            first: None,
            last: i64::MIN,
            packets: 0,
            end: None,
        };
        tap.advance(directions)?;
        Ok(tap)
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        self.reader.warnings()
    }

    /// Takes the sighting that stands ready, and reads on to the one after it.
    pub(super) fn take(
        &mut self,
        directions: &mut Directions,
    ) -> Result<Option<Sighting>, MergeError> {
        let taken = self.next.take();
        if taken.is_some() {
            self.advance(directions)?;
        }
        Ok(taken)
    }

    fn advance(&mut self, directions: &mut Directions) -> Result<(), MergeError> {
        loop {
            match self.reader.next() {
                Ok(Some(packet)) => {
                    self.first.get_or_insert(packet.time_ns);
                    self.last = self.last.max(packet.time_ns);
                    if let Some(sighting) = sight(&packet, directions) {
                        self.packets += 1;
                        self.next = Some(sighting);
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(e) if e.is_partial() => {
                    self.end = Some(e);
                    return Ok(());
                }
                Err(source) => {
                    return Err(MergeError {
                        path: self.path.clone(),
                        source,
                    });
                }
            }
        }
    }
}

fn sight(captured: &PacketRef<'_>, directions: &mut Directions) -> Option<Sighting> {
    let dissected = captured.dissect();
    let packet = dissected.kind.packet()?;
    let ip_id = match packet.ip {
        IpVersion::V4 => captured
            .data
            .get(packet.ip_at as usize + 4..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |id| u16::from_be_bytes(*id)),
        IpVersion::V6 => 0,
    };
    let operation = packet.operation.map(|(operation, _)| operation);
    let connected = matches!(
        packet.bth.opcode.transport(),
        Transport::Rc | Transport::Uc | Transport::Xrc
    );
    let role = match operation.filter(|_| connected) {
        Some(
            Operation::Send
            | Operation::Write
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite,
        ) => Role::Request { one: true },
        Some(Operation::ReadRequest) => Role::Request { one: false },
        Some(Operation::ReadResponse | Operation::AtomicAcknowledge) => Role::Response,
        Some(Operation::Acknowledge) => match packet.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::NakSequence) => Role::Nak,
            Some(Syndrome::RnrNak(_)) => Role::Rnr,
            _ => Role::Acknowledgement,
        },
        _ => Role::Other,
    };
    Some(Sighting {
        frame: captured.number,
        time: captured.time_ns,
        key: Key {
            direction: directions.id((packet.flow.src, packet.flow.dst, packet.flow.dest_qpn)),
            psn: packet.bth.psn,
            opcode: packet.bth.opcode.0,
            ip_id,
        },
        role,
    })
}
