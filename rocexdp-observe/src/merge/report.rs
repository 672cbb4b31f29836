//! What two taps say together; plain data for JSON, versioned.
//!
//! Which tap a direction passes first is told by its delays; without them by what is missing, if only one tap misses some
//! (what has passed the second tap has passed the first). What can't be known is `null`, with the reason in `notes`.

use std::net::{IpAddr, Ipv6Addr};

use rocexdp_common::{ids::Gid, opcode};
use serde::Serialize;

use super::{Directions, Elsewhere, Merge, Stream, Tap, Told, Untold};

/// Version of the JSON.
const VERSION: u32 = 1;
const NS: f64 = 1e9;
/// A delay from which its sign tells which tap comes first.
const TELLING_NS: u64 = 50;

/// One of the two captures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// The first that was named.
    A,
    /// The second.
    B,
}

impl Which {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// `A` or `B`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
        }
    }
}

/// A capture.
#[derive(Clone, Debug, Serialize)]
pub struct TapReport {
    /// RoCE packets in it.
    pub packets: u64,
    /// All of it was read.
    pub complete: bool,
    /// What is to be known of it.
    pub warnings: Vec<String>,
}

/// The clocks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Clock {
    /// B's clock less A's, in nanoseconds: half way through, by the median of all packets that both saw. Contains the delay.
    pub rough_offset_ns: Option<i64>,
    /// B's clock less A's at the end, the delay taken out; `null`: no two hosts sent to each other past both taps.
    pub offset_ns: Option<i64>,
    /// Nanoseconds that B's clock gains in a second.
    pub drift_ns_per_s: Option<f64>,
    /// The shortest delay between the taps, the mean of both ways.
    pub shortest_delay_ns: Option<i64>,
}

/// Delays from the first tap to the second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Delay {
    /// Shortest.
    pub min_ns: u64,
    /// Half took no longer (at most one eighth too high).
    pub p50_ns: Option<u64>,
    /// 99 % took no longer.
    pub p99_ns: Option<u64>,
    /// Longest.
    pub max_ns: Option<u64>,
}

/// A direction of a QP pair.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Destination QP.
    pub dest_qpn: u32,
    /// The tap that its packets pass first; `null`: not known.
    pub first: Option<Which>,
    /// Packets that both saw.
    pub both: u64,
    /// Packets that A alone saw.
    pub only_a: u64,
    /// Packets that B alone saw.
    pub only_b: u64,
    /// Lost between the taps; `null`: which tap comes first is not known, or one of them never saw this direction.
    pub lost_between: Option<u64>,
    /// Seen by the second tap alone: missed by the first one's capture, or on another path there.
    pub missed_by_first: Option<u64>,
    /// Lost before either tap.
    pub lost_before: u64,
    /// Lost after both taps, as a NAK tells.
    pub lost_behind: u64,
    /// Lost after both taps, or its answer was: sent again after a silence.
    pub lost_behind_or_answer: u64,
    /// Overtaken by others, not lost.
    pub overtaken: u64,
    /// Packets while the other tap was not recording.
    pub outside: u64,
    /// `null`: the clocks' difference is not known.
    pub delay: Option<Delay>,
}

/// Where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Between the taps.
    Between,
    /// Nowhere: the first tap missed it.
    MissedByFirst,
    /// Only A saw it.
    OnlyA,
    /// Only B saw it.
    OnlyB,
    /// Before either.
    Before,
    /// After both.
    Behind,
    /// After both, or its answer.
    BehindOrAnswer,
}

/// A packet that was lost.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// Where.
    pub place: Place,
    /// Index into [`MergeReport::directions`].
    pub direction: usize,
    /// Its PSN.
    pub psn: u32,
    /// Opcode of the packet that shows it, by Wireshark's name: the lost one, the NAK, or the one sent again.
    pub opcode: &'static str,
    /// Seconds since A's first packet.
    pub time_s: f64,
    /// Frame in A that shows it.
    pub frame_a: Option<u64>,
    /// Frame in B.
    pub frame_b: Option<u64>,
}

/// Both captures together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MergeReport {
    /// Version of this JSON.
    pub version: u32,
    /// A and B.
    pub taps: Vec<TapReport>,
    /// Their clocks.
    pub clock: Clock,
    /// Directions that either saw, by the number of losses, then of packets.
    pub directions: Vec<Direction>,
    /// Losses one by one, in order of time.
    pub losses: Vec<Loss>,
    /// Losses that are counted and not listed.
    pub losses_not_listed: u64,
    /// What else is to be known.
    pub notes: Vec<String>,
}

fn taps_of(taps: &(Tap, Tap)) -> Vec<TapReport> {
    [&taps.0, &taps.1]
        .into_iter()
        .map(|tap| {
            let mut warnings = tap.warnings();
            warnings.extend(tap.end.as_ref().map(ToString::to_string));
            TapReport {
                packets: tap.packets,
                complete: tap.end.is_none(),
                warnings,
            }
        })
        .collect()
}

/// Of two captures that share no packet.
pub(super) fn of_strangers(taps: &(Tap, Tap)) -> MergeReport {
    MergeReport {
        version: VERSION,
        taps: taps_of(taps),
        notes: vec![
            "no packet was seen by both: not the same traffic, or not at the same time".into(),
        ],
        ..MergeReport::default()
    }
}

fn address(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

fn first_of(stream: &Stream) -> Option<Which> {
    // Taps at one place: the clocks' resolution decides nothing.
    let order = match stream.delays.percentile(50) {
        Some(TELLING_NS..) => stream.order,
        _ => (0, 0),
    };
    match order {
        (0, 0) => match (stream.only_a, stream.only_b) {
            (1.., 0) => Some(Which::A),
            (0, 1..) => Some(Which::B),
            _ => None,
        },
        (a, b) if a >= b => Some(Which::A),
        _ => Some(Which::B),
    }
}

fn direction_of(stream: &Stream, (src, dst, dest_qpn): (Gid, Gid, u32)) -> Direction {
    let first = first_of(stream).filter(|_| stream.both != 0);
    let (between, missed) = match first {
        Some(Which::A) => (Some(stream.only_a), Some(stream.only_b)),
        Some(Which::B) => (Some(stream.only_b), Some(stream.only_a)),
        None if stream.both != 0 && stream.only_a + stream.only_b == 0 => (Some(0), Some(0)),
        None => (None, None),
    };
    Direction {
        src: address(src),
        dst: address(dst),
        dest_qpn,
        first,
        both: stream.both,
        only_a: stream.only_a,
        only_b: stream.only_b,
        lost_between: between,
        missed_by_first: missed,
        lost_before: stream.before,
        lost_behind: stream.behind,
        lost_behind_or_answer: stream.behind_or_answer,
        overtaken: stream.overtaken,
        outside: stream.outside,
        delay: stream.least_delay.map(|min_ns| Delay {
            min_ns,
            p50_ns: stream.delays.percentile(50),
            p99_ns: stream.delays.percentile(99),
            max_ns: stream.delays.max(),
        }),
    }
}

/// Losses of a direction, of whatever kind.
fn losses(d: &Direction) -> u64 {
    if d.both == 0 {
        return 0;
    }
    d.only_a + d.only_b + d.lost_before + d.lost_behind + d.lost_behind_or_answer
}

pub(super) fn build(mut merge: Merge, directions: &Directions, taps: &(Tap, Tap)) -> MergeReport {
    let mut list: Vec<_> = merge
        .streams
        .iter()
        .zip(&directions.list)
        .enumerate()
        .map(|(index, (stream, &of))| (index, direction_of(stream, of)))
        .collect();
    list.sort_by_key(|(index, d)| (std::cmp::Reverse((losses(d), d.both)), *index));
    let mut place_of = vec![0; merge.streams.len()];
    for (to, (from, _)) in list.iter().enumerate() {
        if let Some(place) = place_of.get_mut(*from) {
            *place = to;
        }
    }
    let directions: Vec<_> = list.into_iter().map(|(_, d)| d).collect();
    merge.told.sort_by_key(|told| told.time);
    let start = merge.bounds.0.0;
    let losses = merge
        .told
        .iter()
        .map(|told| {
            let direction = place_of
                .get(told.direction as usize)
                .copied()
                .unwrap_or_default();
            let first = directions.get(direction).and_then(|d| d.first);
            loss(told, direction, first, start)
        })
        .collect();
    let clock = clock(&merge);
    let mut notes = Vec::new();
    if clock.offset_ns.is_none() {
        notes.push(
            "delays are not known: no two hosts sent to each other past both taps, so that the clocks' difference can't be told from a delay".to_owned(),
        );
    }
    for (which, of_one) in [
        (
            Which::A,
            directions
                .iter()
                .filter(|d| d.both == 0 && d.only_a != 0)
                .count(),
        ),
        (
            Which::B,
            directions
                .iter()
                .filter(|d| d.both == 0 && d.only_b != 0)
                .count(),
        ),
    ] {
        if of_one != 0 {
            notes.push(format!(
                "{of_one} directions were seen by {} alone: another path, or a capture filter; their packets are not counted as lost",
                which.name()
            ));
        }
    }
    MergeReport {
        version: VERSION,
        taps: taps_of(taps),
        clock,
        directions,
        losses,
        losses_not_listed: merge.not_listed,
        notes,
    }
}

fn loss(told: &Told, direction: usize, first: Option<Which>, start: i64) -> Loss {
    let place = match (told.place, first) {
        (Untold::OnlyA, Some(Which::A)) | (Untold::OnlyB, Some(Which::B)) => Place::Between,
        (Untold::OnlyA, Some(Which::B)) | (Untold::OnlyB, Some(Which::A)) => Place::MissedByFirst,
        (Untold::OnlyA, None) => Place::OnlyA,
        (Untold::OnlyB, None) => Place::OnlyB,
        (Untold::Elsewhere(Elsewhere::Before | Elsewhere::Overtaken), _) => Place::Before,
        (Untold::Elsewhere(Elsewhere::Behind), _) => Place::Behind,
        (Untold::Elsewhere(Elsewhere::BehindOrAnswer), _) => Place::BehindOrAnswer,
    };
    Loss {
        place,
        direction,
        psn: told.psn,
        opcode: opcode::name(opcode::Opcode(told.opcode)),
        time_s: told.time.saturating_sub(start) as f64 / NS,
        frame_a: told.frames.0,
        frame_b: told.frames.1,
    }
}

fn clock(merge: &Merge) -> Clock {
    let fine = &merge.fine;
    let drift = match (fine.first, fine.last) {
        (Some((from, first)), Some((to, last))) if to.saturating_sub(from) > 500_000_000 => {
            Some((last - first) as f64 / (to - from) as f64 * NS)
        }
        _ => None,
    };
    Clock {
        rough_offset_ns: Some(merge.rough.offset),
        offset_ns: fine.offset,
        drift_ns_per_s: drift,
        shortest_delay_ns: fine.shortest,
    }
}
