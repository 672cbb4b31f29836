//! Why a received frame was not accepted: one reason is one counter.
//!
//! A dropped frame changes no state but its counter, except where the reason says that it was answered by a NAK.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// Why a frame was not accepted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])* $name,)* }

        impl DropReason {
            /// All reasons, in the order of [`DropReason::index`].
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Short name for counters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Frame ends inside the Ethernet header or a VLAN tag.
    EthTruncated => "eth_truncated",
    /// More than two VLAN tags.
    VlanDepth => "vlan_depth",
    /// Neither IPv4 nor IPv6.
    NotIp => "not_ip",
    /// IPv4 header cut short, wrong version or IHL below 5.
    Ipv4Malformed => "ipv4_malformed",
    /// IPv4 header checksum is wrong.
    Ipv4Checksum => "ipv4_checksum",
    /// IPv4 total length is longer than the frame or shorter than its header.
    Ipv4Length => "ipv4_length",
    /// Fragment of an IPv4 packet.
    Ipv4Fragment => "ipv4_fragment",
    /// IPv6 header cut short, wrong version, or an IPv4 address written as an IPv6 address.
    Ipv6Malformed => "ipv6_malformed",
    /// IPv6 payload length is longer than the frame.
    Ipv6Length => "ipv6_length",
    /// Fragment of an IPv6 packet.
    Ipv6Fragment => "ipv6_fragment",
    /// IPv6 extension headers: too many, too long (all headers are within 256 B), or cut short.
    Ipv6Extension => "ipv6_extension",
    /// Not UDP.
    NotUdp => "not_udp",
    /// UDP header cut short.
    UdpTruncated => "udp_truncated",
    /// UDP length disagrees with the IP length.
    UdpLength => "udp_length",
    /// UDP destination port is not 4791.
    NotRoce => "not_roce",
    /// Too short for BTH and ICRC.
    BthTruncated => "bth_truncated",
    /// BTH transport version is not 0.
    BthVersion => "bth_version",
    /// Undefined opcode.
    UnknownOpcode => "unknown_opcode",
    /// Too short for the extension headers of its opcode, its pad and the ICRC.
    ExtensionTruncated => "extension_truncated",
    /// No QP has the destination QPN.
    UnknownQpn => "unknown_qpn",
    /// The QP has another local address.
    LocalAddress => "local_address",
    /// The QP's peer has another address.
    PeerAddress => "peer_address",
    /// P_Key is not the default partition's.
    PKey => "pkey",
    /// The QP's state takes no such packet.
    QpState => "qp_state",
    /// The opcode's transport service is not the QP's.
    TransportMismatch => "transport_mismatch",
    /// Wrong ICRC. Counted in `EndpointCounters::icrc_errors`, not among the drops.
    Icrc => "icrc",
    /// CNP of a wrong form.
    CnpMalformed => "cnp_malformed",
    /// Request ahead of sequence. RC: the first one of a gap is answered by a NAK. UC: its message is dropped.
    OutOfSequence => "out_of_sequence",
    /// RC: no receive request was there for it: answered by an RNR NAK.
    ReceiverNotReady => "receiver_not_ready",
    /// Request that its opcode, order, length or pad makes invalid. RC: answered by a NAK, and the QP went to ERR. UC, UD: its
    /// message is dropped.
    InvalidRequest => "invalid_request",
    /// READ, atomic, FLUSH or ATOMIC WRITE that came again and can't be answered again: it is no longer kept, or is not what it
    /// was.
    DuplicateUnanswered => "duplicate_unanswered",
    /// Access outside what the peer may reach. RC: answered by a NAK, and the QP went to ERR. UC: its message is dropped.
    RemoteAccess => "remote_access",
    /// Local memory failed under the request: the QP went to ERR. RC: answered by a NAK.
    RemoteOperational => "remote_operational",
    /// Acknowledgement of a packet that was never sent.
    GhostAck => "ghost_ack",
    /// AETH syndrome that is reserved.
    ReservedSyndrome => "reserved_syndrome",
    /// Selective repeat: the packet names a path that was not agreed on.
    UnknownPath => "unknown_path",
    /// Selective repeat: further ahead of a missing packet than is tracked, or of a former connection.
    BeyondWindow => "beyond_window",
    /// Selective repeat: ahead of a missing packet, and no room to keep it. It will be sent again.
    ReorderFull => "reorder_full",
    /// Response to a request that was never made (READ response, atomic acknowledge).
    UnexpectedResponse => "unexpected_response",
    /// READ response or atomic acknowledge that had been taken before. Selective repeat: the peer is told that it came.
    DuplicateResponse => "duplicate_response",
    /// UC, UD: no receive request was there for the message.
    NoReceive => "no_receive",
    /// UC: further packet of a message that is being dropped, or whose FIRST was lost.
    MessageDropped => "message_dropped",
    /// UD: the message is longer than its receive request's memory, which completed in error.
    ReceiveTooSmall => "receive_too_small",
    /// UD: the Q_Key is not the QP's.
    QKey => "qkey",
    /// Multicast group that no QP is attached to.
    UnknownGroup => "unknown_group",
    /// Of IP address, link address and QPN (0xffffff) one says multicast and another does not, or another group.
    GroupAddress => "group_address",
}

/// Number of reasons.
pub const DROP_REASONS: usize = DropReason::ALL.len();
const _: () = assert!(DROP_REASONS <= rocexdp_common::maps::ENGINE_DROP_SLOTS);

impl DropReason {
    /// Position in [`DropReason::ALL`] and among the counters; below `maps::ENGINE_DROP_SLOTS`.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl core::fmt::Display for DropReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_position_in_all_and_names_differ() {
        for (i, r) in DropReason::ALL.iter().enumerate() {
            assert_eq!(r.index(), i);
            assert!(
                DropReason::ALL
                    .iter()
                    .all(|o| o == r || o.name() != r.name())
            );
        }
    }
}
