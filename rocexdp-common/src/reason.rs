//! Why XDP did not take a packet as RoCEv2 for a QP: one reason is one counter.
//!
//! Their order is that of [`crate::maps::QueueCounters::reasons`]; those from [`Reason::UdpLength`] on are met when the
//! packet is known to be RoCEv2. Those from [`Reason::TunnelMalformed`] on are met by [`crate::dissect`] only, not by
//! the XDP program of an endpoint.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// Why XDP did not take a packet as RoCEv2 for a QP. One reason is one counter.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Reason { $($(#[doc = $doc])* $name,)* }
        /// Names of the reasons, for output, in order.
        pub const REASON_NAMES: &[&str] = &[$($text,)*];
        /// All reasons, in order.
        pub const REASON_ALL: &[Reason] = &[$(Reason::$name,)*];
    };
}

reasons! {
    /// Frame ends inside the Ethernet header or a VLAN tag.
    EthTruncated => "eth_truncated",
    /// More than two VLAN tags.
    VlanDepth => "vlan_depth",
    /// IPv4 header cut short, wrong version or IHL below 5.
    Ipv4Malformed => "ipv4_malformed",
    /// IPv4 total length disagrees with the frame.
    Ipv4Length => "ipv4_length",
    /// UDP fragment of IPv4: no transport header can be trusted.
    Ipv4Fragment => "ipv4_fragment",
    /// IPv6 header cut short or wrong version.
    Ipv6Malformed => "ipv6_malformed",
    /// IPv6 payload length disagrees with the frame.
    Ipv6Length => "ipv6_length",
    /// IPv6 fragment.
    Ipv6Fragment => "ipv6_fragment",
    /// IPv6 extension headers: more than the program follows, or cut short.
    Ipv6Extension => "ipv6_extension",
    /// UDP header cut short.
    UdpTruncated => "udp_truncated",
    /// UDP length disagrees with the IP length.
    UdpLength => "udp_length",
    /// Port 4791, but too short for BTH and ICRC.
    BthTruncated => "bth_truncated",
    /// BTH transport version is not 0.
    BthVersion => "bth_version",
    /// Too short for the extension headers of its opcode, its pad and the ICRC.
    ExtensionTruncated => "extension_truncated",
    /// Undefined opcode.
    UnknownOpcode => "unknown_opcode",
    /// Destination is our address, its QPN is no QP of ours.
    UnknownQpn => "unknown_qpn",
    /// The QP exists, but with another local address.
    LocalAddress => "local_address",
    /// The QP exists, but its peer has another address.
    PeerAddress => "peer_address",
    /// The opcode's transport service is not the QP's.
    TransportMismatch => "transport_mismatch",
    /// CNP of a wrong length or form.
    CnpMalformed => "cnp_malformed",
    /// CNP with a wrong ICRC.
    CnpIcrc => "cnp_icrc",
    /// No AF_XDP socket in the QP's slot of the XSKMAP.
    NoSocket => "no_socket",
    /// A map entry could not be had (full, or a queue index outside the maps).
    MapFull => "map_full",
    /// Sent to a multicast group that this endpoint has not joined.
    UnknownGroup => "unknown_group",
    /// A VXLAN, GENEVE, GRE or ERSPAN header is cut short, or its lengths disagree with the packet around it.
    TunnelMalformed => "tunnel_malformed",
    /// A tunnel of a kind that is not followed: another version, source routing, no VNI, a payload that is no frame.
    TunnelUnfollowed => "tunnel_unfollowed",
    /// A tunnel inside a tunnel.
    TunnelDepth => "tunnel_depth",
    /// RoCEv1: the global route header is cut short, has another version or another next header than a BTH.
    GrhMalformed => "grh_malformed",
    /// RoCEv1: the payload length disagrees with the frame.
    GrhLength => "grh_length",
    /// A pause frame that ends before its quanta.
    PauseMalformed => "pause_malformed",
    /// The frame is longer than what was captured of it, and what would tell is behind the cut.
    NotCaptured => "not_captured",
}

impl Reason {
    /// Whether the packet was known to be RoCEv2 (UDP port 4791) when this was found.
    pub const fn is_rocev2(self) -> bool {
        self as u8 >= Self::UdpLength as u8 && (self as u8) < Self::TunnelMalformed as u8
    }

    /// Whether the packet may be all right, and only more than is followed, or was captured.
    pub const fn is_unfollowed(self) -> bool {
        matches!(
            self,
            Self::VlanDepth
                | Self::Ipv4Fragment
                | Self::Ipv6Fragment
                | Self::TunnelUnfollowed
                | Self::TunnelDepth
                | Self::NotCaptured
        )
    }
}
