//! What the engine publishes of one QP.

use super::Rtt;

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
    /// RNR NAKs received and acted on (`rnr_nak_retry_err`).
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
    /// From a request's first transmission to the packet that acknowledged it.
    pub rtt: Rtt,
    /// Answers beyond a READ or atomic response that had not come, acted on (`implied_nak_seq_err`).
    pub implied_nak_seq_err: u64,
    /// Packets of QPs of this host, which no program saw; they are among those accepted or dropped.
    pub rx_looped: u64,
    /// Copies of multicast groups' packets, which XDP counts for the groups' QPN 0xffffff; among those accepted or dropped.
    pub rx_mcast: u64,
    /// DSCP of its data (of a UD QP: unless an address handle says otherwise).
    pub dscp: u8,
    /// Priority in the VLAN tag of its data, where there is one.
    pub pcp: u8,
    /// Priority that follows from these: its traffic class.
    pub priority: u8,
    /// Its rate controller: 0 dcqcn, 1 fixed, 2 dcqcn-window.
    pub rate_control: u8,
    /// Packets that may be unacknowledged now.
    pub window: u32,
    /// Reserved, 0.
    pub reserved: [u64; 5],
}
