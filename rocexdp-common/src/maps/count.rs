//! What XDP counts of one QP on one receive queue: packets by kind, ECN, PSN streams, NAKs, times.
//!
//! Layout only; `crate::account` and `crate::track` do the counting.

/// What kind of packet a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// SEND in any form.
    Send,
    /// RDMA WRITE in any form.
    Write,
    /// READ request.
    ReadRequest,
    /// READ response.
    ReadResponse,
    /// COMPARE SWAP, FETCH ADD.
    Atomic,
    /// ATOMIC acknowledge.
    AtomicAck,
    /// ACK.
    Ack,
    /// NAK of any code but RNR.
    Nak,
    /// RNR NAK.
    RnrNak,
    /// CNP with a right ICRC.
    Cnp,
    /// Any other defined or undefined opcode.
    Other,
}

/// Number of [`Kind`]s.
pub const KINDS: usize = 11;
/// Names of the kinds, for output, in order.
pub const KIND_NAMES: [&str; KINDS] = [
    "send",
    "write",
    "read_request",
    "read_response",
    "atomic",
    "atomic_ack",
    "ack",
    "nak",
    "rnr_nak",
    "cnp",
    "other",
];

/// Packets and bytes of one kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes of the frames, Ethernet header included, padding and FCS not.
    pub bytes: u64,
}

/// One PSN stream as XDP saw it, before the ICRC check.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Tracker {
    /// PSN expected next, 24 bits.
    pub expected_psn: u32,
    /// 0 until the first packet, or a resynchronisation, has set `expected_psn`.
    pub valid: u32,
    /// Packets ahead of the expected PSN (mlx5 `out_of_sequence`).
    pub out_of_sequence: u64,
    /// Gaps: times the stream went from in sequence to out of sequence.
    pub gaps: u64,
    /// PSNs that were jumped over at the gaps: the distance to the first packet behind each.
    pub missing: u64,
    /// Packets behind the expected PSN (`duplicate_request` for the request stream).
    pub duplicates: u64,
}

/// What XDP counted of one QP on one receive queue.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QpCounters {
    /// Packets and bytes by [`Kind`].
    pub kinds: [Count; KINDS],
    /// Packets by ECN codepoint: not-ECT, ECT(1), ECT(0), CE (`np_ecn_marked_roce_packets`). CNPs are not among
    /// them: congestion that a CNP met is not answered with another CNP.
    pub ecn: [u64; 4],
    /// The peer's requests.
    pub requests: Tracker,
    /// The READ responses to our requests.
    pub responses: Tracker,
    /// NAKs by code: sequence (`packet_seq_err`), invalid request, remote access, remote operational, other.
    pub naks: [u64; 5],
    /// CNPs whose ICRC was wrong; not among `kinds`.
    pub cnp_bad_icrc: u64,
    /// Packets given to the socket.
    pub redirected: u64,
    /// Packets that found no socket in the slot.
    pub no_socket: u64,
    /// Time of the first packet, ns of CLOCK_MONOTONIC; 0: none. By the kernel's tick: up to 10 ms early.
    pub first_seen_ns: u64,
    /// Time of the last packet; by the kernel's tick, but never before the two below.
    pub last_seen_ns: u64,
    /// Time of the last CE-marked packet, exact.
    pub last_ce_ns: u64,
    /// Time of the last CNP, exact.
    pub last_cnp_ns: u64,
    /// PSN of the last ACK or NAK, 24 bits.
    pub last_ack_psn: u32,
    /// MSN of the last ACK or NAK, 24 bits.
    pub last_ack_msn: u32,
    /// Last [`super::QpConfig::resync`] that the trackers took.
    pub resync_seen: u32,
    /// Whether the request stream is within a gap: 1 after an out-of-sequence packet.
    pub in_gap: u32,
    /// The same of the READ response stream.
    pub response_in_gap: u32,
    /// 1 while a READ response has begun and its last packet has not come: only then is a FIRST or ONLY response
    /// ahead of the expected PSN a gap, because requests of other kinds take PSNs between two READs.
    pub response_open: u32,
    /// Reserved, 0.
    pub reserved: [u64; 5],
}

impl QpCounters {
    /// Nothing counted.
    pub const ZERO: Self = {
        const COUNT: Count = Count {
            packets: 0,
            bytes: 0,
        };
        const TRACKER: Tracker = Tracker {
            expected_psn: 0,
            valid: 0,
            out_of_sequence: 0,
            gaps: 0,
            missing: 0,
            duplicates: 0,
        };
        Self {
            kinds: [COUNT; KINDS],
            ecn: [0; 4],
            requests: TRACKER,
            responses: TRACKER,
            naks: [0; 5],
            cnp_bad_icrc: 0,
            redirected: 0,
            no_socket: 0,
            first_seen_ns: 0,
            last_seen_ns: 0,
            last_ce_ns: 0,
            last_cnp_ns: 0,
            last_ack_psn: 0,
            last_ack_msn: 0,
            resync_seen: 0,
            in_gap: 0,
            response_in_gap: 0,
            response_open: 0,
            reserved: [0; 5],
        }
    };
}
