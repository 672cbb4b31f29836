//! Names, keys and values of the BPF maps: the interface between the XDP program, the engine and
//! whoever looks (`rocexdp qp`, bpftool).
//!
//! Every mmapable map has one writer per entry, so that plain stores suffice: XDP on one receive
//! queue, or userspace. No per-CPU maps and no spin locks (neither can be mapped). All values are
//! multiples of 64 bytes where two writers would otherwise share a cache line.
//!
//! | map | type | key | value | writer |
//! |---|---|---|---|---|
//! | `QP_CONFIG` | array, mmapable | slot | [`QpConfig`] | userspace |
//! | `QP_COUNTERS` | array, mmapable | slot x queues + queue | [`QpCounters`] | XDP on that queue |
//! | `QP_ENGINE` | array, mmapable | slot | [`QpEngine`] | the engine |
//! | `QUEUE_COUNTERS` | array, mmapable | queue (1) | [`QueueCounters`] | XDP on that queue |
//! | `QUEUE_ENGINE` | array, mmapable | queue | [`QueueEngine`] | the engine |
//! | `DIRTY` | array, mmapable | slot / 64 | 64 bytes, one per slot | XDP sets, engine clears |
//! | `DIRTY_INDEX` | array, mmapable | slot / 4096 | 64 bytes, one per `DIRTY` entry | XDP sets, engine clears |
//! | `FLOWS` | LRU hash | [`FlowKey`] | [`FlowState`] | XDP |
//! | `LOCAL_ADDRS` | hash | GID | [`local_addr`] flags | userspace |
//! | `XSKS` | XSKMAP | owner x queues + queue | socket | userspace |
//!
//! (1) An entry more than queues, where the loader gives one, counts the frames of queues beyond
//! `N_QUEUES` (the device got more channels after the load); without it they pass uncounted.
//!
//! Dirty marks are bytes, not bits: setting a byte is a plain store, while a bit would need an
//! atomic read-modify-write that Rust's BPF target does not offer.

use crate::ids::Gid;

pub use crate::reason::{REASON_ALL, REASON_NAMES, Reason};

/// The map holding the QPs' configuration.
pub const QP_CONFIG: &str = "QP_CONFIG";
/// The map holding what XDP counted per QP and queue.
pub const QP_COUNTERS: &str = "QP_COUNTERS";
/// The map holding what the engine did per QP.
pub const QP_ENGINE: &str = "QP_ENGINE";
/// The map holding what XDP counted per queue, reasons of refusal included.
pub const QUEUE_COUNTERS: &str = "QUEUE_COUNTERS";
/// The map holding what the engine counted per queue.
pub const QUEUE_ENGINE: &str = "QUEUE_ENGINE";
/// The map of dirty marks, one byte a slot.
pub const DIRTY: &str = "DIRTY";
/// The map of dirty marks of `DIRTY`'s entries.
pub const DIRTY_INDEX: &str = "DIRTY_INDEX";
/// The map of RoCEv2 flows that are not ours.
pub const FLOWS: &str = "FLOWS";
/// The map of this endpoint's addresses.
pub const LOCAL_ADDRS: &str = "LOCAL_ADDRS";
/// The map of AF_XDP sockets.
pub const XSKS: &str = "XSKS";

/// Name of the program that accepts frames of several buffers (`xdp.frags`).
pub const PROGRAM_FRAGS: &str = "rocexdp_frags";
/// Name of the program for devices and kernels without multi-buffer XDP.
pub const PROGRAM_PLAIN: &str = "rocexdp";
/// Global in the object: receive queues (and sockets per owner), `u32`, at least 1.
pub const GLOBAL_QUEUES: &str = "N_QUEUES";
/// Global in the object: QP slots - 1, `u32`; the number of slots is a power of two.
pub const GLOBAL_SLOT_MASK: &str = "SLOT_MASK";

/// Global in the object, `u8`: 1 makes the program log each refused or malformed packet by aya-log (`EbpfLogger`); 0, the
/// default, costs nothing, because the verifier removes the branch.
pub const GLOBAL_LOG_REFUSALS: &str = "LOG_REFUSALS";

/// QP slots unless asked otherwise.
pub const DEFAULT_SLOTS: u32 = 1024;
/// Entries of `FLOWS` unless asked otherwise.
pub const DEFAULT_FLOWS: u32 = 8192;
/// Entries of `LOCAL_ADDRS`.
pub const MAX_ADDRESSES: u32 = 256;
/// Bit that every local QPN has set, so that it cannot collide with Soft-RoCE's, which count from 17.
pub const LOCAL_QPN_BIT: u32 = 0x80_0000;

/// Flags of a `LOCAL_ADDRS` value.
pub mod local_addr {
    /// The address is this endpoint's alone: an unknown QPN is dropped and counted.
    pub const EXCLUSIVE: u32 = 1;
    /// Another RoCE stack uses the address too: an unknown QPN is passed to the kernel.
    pub const SHARED: u32 = 2;
}

/// Configuration of one QP slot. Userspace writes the fields, then publishes with `generation`.
///
/// The three resync words are apart from that, so that a live QP can be resynchronised: `generation` stays, the two
/// PSNs are written, then `resync` with release ordering. Each queue's counters take them with the QP's next packet
/// there. While `generation` is 0 the QP's packets are those of an unknown QP: clear it only to free the slot.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QpConfig {
    /// 0: the slot is free, or is being written. Otherwise changes with each publication; stored
    /// with release ordering, and read before and after the fields.
    pub generation: u32,
    /// Local QP number; its low bits are the slot.
    pub qpn: u32,
    /// The peer's QP number (RC, UC).
    pub peer_qpn: u32,
    /// Owner of the QP: selects the socket, `owner * queues + queue`.
    pub owner: u32,
    /// Our address: a packet must be sent to it.
    pub local_gid: Gid,
    /// The peer's address: an RC or UC packet must come from it.
    pub peer_gid: Gid,
    /// Changes when the engine wants the trackers set to the two PSNs below.
    pub resync: u32,
    /// Expected PSN of the peer's next request.
    pub resync_request_psn: u32,
    /// Expected PSN of the next READ response.
    pub resync_response_psn: u32,
    /// [`crate::opcode::Transport`] as a number: 0 RC, 1 UC, 3 UD.
    pub transport: u8,
    /// log2 of the path MTU: 8 (256) to 12 (4096).
    pub path_mtu_log2: u8,
    /// Reserved, 0.
    pub reserved: u16,
}

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
    /// Last [`QpConfig::resync`] that the trackers took.
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

/// Key of a flow that is not ours.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FlowKey {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

/// State of a flow that is not ours.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FlowState {
    /// The counters, as for a local QP; the trackers go on behind a gap.
    pub counters: QpCounters,
    /// Largest payload of a FIRST or MIDDLE packet that is a path MTU (256, 512, ... 4096), B; 0: none seen. Until
    /// one is, a READ request of more than 256 B leaves the next PSN unknown.
    pub path_mtu: u32,
    /// Reserved, 0.
    pub reserved: [u32; 15],
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

impl FlowState {
    /// A flow of which nothing was seen: what the program enters into the map.
    pub const ZERO: Self = Self {
        counters: QpCounters::ZERO,
        path_mtu: 0,
        reserved: [0; 15],
    };
}

/// Room for reasons in [`QueueCounters`].
pub const REASON_SLOTS: usize = 40;
const _: () = assert!(REASON_NAMES.len() <= REASON_SLOTS);

/// What XDP counted on one receive queue.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QueueCounters {
    /// All frames that the program saw.
    pub frames: u64,
    /// RoCEv2 packets among them (UDP port 4791), well-formed or not.
    pub rocev2: u64,
    /// Given to an AF_XDP socket.
    pub redirected: u64,
    /// Consumed by the program: CNPs for local QPs.
    pub consumed: u64,
    /// Dropped, each with a reason.
    pub dropped: u64,
    /// Passed to the kernel: RoCEv2 packets that are not for a local QP.
    pub passed_rocev2: u64,
    /// Passed to the kernel: everything else.
    pub passed_other: u64,
    /// Entries made in `FLOWS`; evictions are these less the live and the deleted ones.
    pub flow_inserts: u64,
    /// By [`Reason`].
    pub reasons: [u64; REASON_SLOTS],
}

impl Default for QueueCounters {
    fn default() -> Self {
        Self {
            frames: 0,
            rocev2: 0,
            redirected: 0,
            consumed: 0,
            dropped: 0,
            passed_rocev2: 0,
            passed_other: 0,
            flow_inserts: 0,
            reasons: [0; REASON_SLOTS],
        }
    }
}

/// What the engine did for one QP. Names follow mlx5's and rdma's counters where one exists.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QpEngine {
    /// QP state: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQD, 5 SQE, 6 ERR.
    pub state: u32,
    /// PSN of the next new request.
    pub send_psn: u32,
    /// Oldest request PSN not acknowledged.
    pub unacked_psn: u32,
    /// Expected PSN of the peer's next request.
    pub expected_psn: u32,
    /// Messages that we completed as responder, 24 bits.
    pub msn: u32,
    /// DCQCN alpha as 0..=1023.
    pub alpha: u32,
    /// DCQCN current rate, bit/s; 0: unpaced.
    pub rate: u64,
    /// DCQCN target rate, bit/s; 0: unpaced.
    pub target_rate: u64,
    /// Lowest rate so far, bit/s; 0: never paced.
    pub min_rate: u64,
    /// Packets sent, retransmissions included, acknowledgements not.
    pub tx_packets: u64,
    /// Payload bytes of them.
    pub tx_bytes: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// Payload bytes of them.
    pub retransmitted_bytes: u64,
    /// Acknowledgements sent: ACK.
    pub tx_acks: u64,
    /// Acknowledgements sent: NAK sequence error (`out_of_sequence` answered).
    pub tx_naks: u64,
    /// Acknowledgements sent: RNR NAK.
    pub tx_rnr_naks: u64,
    /// ACK timeouts that made us send again (`local_ack_timeout_err`).
    pub local_ack_timeout_err: u64,
    /// NAK sequence errors received and acted on (`packet_seq_err`).
    pub packet_seq_err: u64,
    /// RNR NAKs received and acted on.
    pub rnr_naks_received: u64,
    /// Requests received again (`duplicate_request`).
    pub duplicate_request: u64,
    /// Requests received ahead of sequence (`out_of_sequence`).
    pub out_of_sequence: u64,
    /// Packets with a wrong ICRC for this QP (`rx_icrc_encapsulated`).
    pub icrc_errors: u64,
    /// CNPs sent (`np_cnp_sent`).
    pub np_cnp_sent: u64,
    /// CNPs handled (`rp_cnp_handled`).
    pub rp_cnp_handled: u64,
    /// DCQCN rate cuts.
    pub rate_cuts: u64,
    /// DCQCN rate increases.
    pub rate_increases: u64,
    /// Payload bytes accepted as responder.
    pub rx_bytes: u64,
    /// Packets that passed all checks of the transport.
    pub rx_accepted: u64,
    /// Packets of this QP that the transport dropped, for any reason.
    pub rx_dropped: u64,
    /// Work requests completed, successfully or not.
    pub completions: u64,
    /// Work requests completed with an error.
    pub completions_err: u64,
    /// Work requests posted and not completed.
    pub outstanding: u64,
    /// Reserved, 0.
    pub reserved: [u64; 3],
}

/// Room for the transport's drop reasons in [`QueueEngine`].
pub const ENGINE_DROP_SLOTS: usize = 46;

/// What the engine counted on one receive queue, and the socket's own statistics.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QueueEngine {
    /// Packets taken from the RX ring.
    pub rx_packets: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Packets accepted by the transport.
    pub rx_accepted: u64,
    /// Packets with a wrong ICRC.
    pub rx_icrc_errors: u64,
    /// Packets put into the TX ring.
    pub tx_packets: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Times the TX ring or the UMEM had no room; nothing is lost.
    pub tx_backpressure: u64,
    /// XDP_STATISTICS `rx_dropped`.
    pub xsk_rx_dropped: u64,
    /// XDP_STATISTICS `rx_ring_full`.
    pub xsk_rx_ring_full: u64,
    /// XDP_STATISTICS `rx_fill_ring_empty_descs`.
    pub xsk_rx_fill_ring_empty: u64,
    /// XDP_STATISTICS `rx_invalid_descs`.
    pub xsk_rx_invalid: u64,
    /// XDP_STATISTICS `tx_invalid_descs`.
    pub xsk_tx_invalid: u64,
    /// XDP_STATISTICS `tx_ring_empty_descs`.
    pub xsk_tx_ring_empty: u64,
    /// Descriptors from the kernel that lay outside the UMEM.
    pub xsk_rx_bad_desc: u64,
    /// Packets that the device's transmit function dropped (copy mode): lost on our side.
    pub tx_device_drops: u64,
    /// Packets that came in on a queue of another worker and were handed to this one.
    pub rx_handed_over: u64,
    /// Packets that came in here and were handed to the worker that owns their QP.
    pub rx_handed_away: u64,
    /// Packets dropped because that worker did not keep up.
    pub rx_handover_full: u64,
    /// Packets dropped by the transport, by reason (`rocexdp_proto::DropReason`).
    pub drops: [u64; ENGINE_DROP_SLOTS],
}

impl Default for QueueEngine {
    fn default() -> Self {
        Self {
            rx_packets: 0,
            rx_bytes: 0,
            rx_accepted: 0,
            rx_icrc_errors: 0,
            tx_packets: 0,
            tx_bytes: 0,
            tx_backpressure: 0,
            xsk_rx_dropped: 0,
            xsk_rx_ring_full: 0,
            xsk_rx_fill_ring_empty: 0,
            xsk_rx_invalid: 0,
            xsk_tx_invalid: 0,
            xsk_tx_ring_empty: 0,
            xsk_rx_bad_desc: 0,
            tx_device_drops: 0,
            rx_handed_over: 0,
            rx_handed_away: 0,
            rx_handover_full: 0,
            drops: [0; ENGINE_DROP_SLOTS],
        }
    }
}

/// 64 dirty marks, one byte each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct DirtyLine(pub [u8; 64]);
