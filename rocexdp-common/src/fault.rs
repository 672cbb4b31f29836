//! What a faulty wire does to a packet, as a pure function.
//!
//! The lab's XDP wire, its userspace AF_XDP wire, the in-memory link of the protocol tests and the simulator's links
//! all ask [`decide`], so one seed gives the same faults everywhere and a run repeats: each decision is a function of
//! (seed, port, packet number) alone. Packet numbers count RoCEv2 packets entering a port, from 0; other traffic (ARP,
//! ping, TCP) is neither numbered nor harmed, so its timing can't shift the faults.
//!
//! [`find`] locates what faults change in a frame: the ECN bits and the bytes that the invariant CRC covers. It accepts
//! only what can be changed safely; it is no validator and gives no drop reasons (that is the verdict's role).
//! The mixing function is SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014).

/// A probability as fixed point: value / 2^32. `u32::MAX` means always.
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Every packet.
    pub const ALWAYS: Self = Self(u32::MAX);

    /// From the raw fixed-point number.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The raw fixed-point number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// `numerator / denominator`, saturating at [`Share::ALWAYS`]; 0 for a zero denominator.
    pub const fn ratio(numerator: u32, denominator: u32) -> Self {
        if denominator == 0 {
            return Self::NEVER;
        }
        if numerator >= denominator {
            return Self::ALWAYS;
        }
        Self((((numerator as u64) << 32) / denominator as u64) as u32)
    }

    /// True for this share of the values of `random`.
    pub const fn hits(self, random: u32) -> bool {
        self.0 == u32::MAX || random < self.0
    }
}

/// The faults of one port of a wire: what happens to RoCEv2 packets that enter it. A BPF map value: no padding.
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Selects the sequence of decisions.
    pub seed: u64,
    /// Fixed delay of every packet, nanoseconds. Needs a wire that holds frames.
    pub delay_ns: u64,
    /// Packets that vanish.
    pub drop: Share,
    /// Packets with one byte changed that the invariant CRC covers.
    pub corrupt: Share,
    /// ECN-capable packets that get Congestion Experienced.
    pub ce: Share,
    /// Packets delivered twice. Needs a wire that holds frames.
    pub duplicate: Share,
    /// Packets held back behind later ones. Needs a wire that holds frames.
    pub reorder: Share,
    /// How many later packets overtake a held one, 0 meaning [`Faults::DEFAULT_REORDER_DEPTH`].
    pub reorder_depth: u32,
}

impl Faults {
    /// How many packets overtake a reordered one unless said otherwise.
    pub const DEFAULT_REORDER_DEPTH: u32 = 3;

    /// True when nothing is done to any packet.
    pub const fn is_clean(&self) -> bool {
        self.drop.0 == 0 && self.corrupt.0 == 0 && self.ce.0 == 0 && !self.needs_holding()
    }

    /// True when frames must be held or copied, which an XDP program can't do.
    pub const fn needs_holding(&self) -> bool {
        self.duplicate.0 != 0 || self.reorder.0 != 0 || self.delay_ns != 0
    }
}

/// What happens to one packet. When `drop` is set nothing else is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The packet vanishes.
    pub drop: bool,
    /// One byte changes: see [`Covered::corruption`], which takes `entropy`.
    pub corrupt: bool,
    /// Congestion Experienced is set if the packet is ECN-capable.
    pub mark: bool,
    /// The packet is delivered twice.
    pub duplicate: bool,
    /// Later packets overtake this one.
    pub reorder: bool,
    /// Random bits that place the corruption.
    pub entropy: u64,
}

const LANE_DROP: u64 = 1;
const LANE_CORRUPT: u64 = 2;
const LANE_MARK: u64 = 3;
const LANE_DUPLICATE: u64 = 4;
const LANE_REORDER: u64 = 5;
const LANE_ENTROPY: u64 = 6;

/// SplitMix64's output function.
#[inline(always)]
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[inline(always)]
const fn lane(base: u64, lane: u64) -> u64 {
    mix(base.wrapping_add(lane.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[inline(always)]
const fn rolls(base: u64, which: u64, share: Share) -> bool {
    share.0 != 0 && share.hits((lane(base, which) >> 32) as u32)
}

/// Decides what happens to RoCEv2 packet number `packet` (from 0) that entered `port`.
///
/// Raising one share only adds packets to those it hits, and changes no other fault's choice.
#[inline(always)]
pub const fn decide(faults: &Faults, port: u32, packet: u64) -> Decision {
    let base = mix(mix(faults.seed ^ ((port as u64) << 32)).wrapping_add(packet));
    if rolls(base, LANE_DROP, faults.drop) {
        return Decision {
            drop: true,
            corrupt: false,
            mark: false,
            duplicate: false,
            reorder: false,
            entropy: 0,
        };
    }
    let corrupt = rolls(base, LANE_CORRUPT, faults.corrupt);
    Decision {
        drop: false,
        corrupt,
        mark: rolls(base, LANE_MARK, faults.ce),
        duplicate: rolls(base, LANE_DUPLICATE, faults.duplicate),
        reorder: rolls(base, LANE_REORDER, faults.reorder),
        entropy: if corrupt { lane(base, LANE_ENTROPY) } else { 0 },
    }
}

/// Reads a frame that may be in pieces (XDP fragments): the only access [`find`] has.
pub trait Load {
    /// `N` bytes from byte `at` on, or `None` when the frame is shorter.
    fn load<const N: usize>(&self, at: usize) -> Option<[u8; N]>;
}

impl Load for [u8] {
    fn load<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}

/// Where the bytes lie that faults change in a RoCEv2 frame. Offsets are from the start of the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The IP header.
    pub ip: usize,
    /// True for IPv6.
    pub ipv6: bool,
    /// The BTH, where the invariant CRC's unmasked part starts.
    pub bth: usize,
    /// Bytes from the BTH up to, without, the invariant CRC.
    pub length: usize,
    /// The first two bytes of the IP header: version with IHL and TOS, or version with traffic class.
    pub first: [u8; 2],
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_8021Q: u16 = 0x8100;
const ETHERTYPE_8021AD: u16 = 0x88a8;
const ROCE_PORT: u16 = 4791;
const BTH_LENGTH: usize = 12;
const ICRC_LENGTH: usize = 4;
/// `resv8a` with FECN and BECN: masked in the invariant CRC, so changing it would go unseen.
const BTH_MASKED_BYTE: usize = 4;
/// Extension headers that are stepped over at most.
const MAX_EXTENSIONS: usize = 4;

/// Finds the parts of a RoCEv2 frame that faults change, or `None` when this is not one (or a fragment, or too short
/// for a BTH and an invariant CRC): such a frame passes unharmed.
#[inline(always)]
pub fn find<L: Load + ?Sized>(frame: &L) -> Option<Covered> {
    let mut ip = 14;
    let mut ethertype = u16::from_be_bytes(frame.load::<2>(12)?);
    let mut tags = 0;
    while tags < 2 && (ethertype == ETHERTYPE_8021Q || ethertype == ETHERTYPE_8021AD) {
        ethertype = u16::from_be_bytes(frame.load::<2>(ip + 2)?);
        ip += 4;
        tags += 1;
    }
    let (ipv6, first, udp) = match ethertype {
        ETHERTYPE_IPV4 => {
            let [version, tos, _, _, _, _, flags, fragment, _, protocol] = frame.load::<10>(ip)?;
            let header = ((version & 0x0f) as usize) * 4;
            // More fragments, or an offset: not a whole packet.
            if version >> 4 != 4
                || header < 20
                || flags & 0x3f != 0
                || fragment != 0
                || protocol != 17
            {
                return None;
            }
            (false, [version, tos], ip + header)
        }
        ETHERTYPE_IPV6 => {
            let [version, class, _, _, _, _, mut next] = frame.load::<7>(ip)?;
            let mut at = ip + 40;
            let mut extensions = 0;
            // Hop-by-hop, routing, destination options.
            while extensions < MAX_EXTENSIONS && (next == 0 || next == 43 || next == 60) {
                let [following, length] = frame.load::<2>(at)?;
                at += (length as usize + 1) * 8;
                next = following;
                extensions += 1;
            }
            if version >> 4 != 6 || next != 17 {
                return None;
            }
            (true, [version, class], at)
        }
        _ => return None,
    };
    let [_, _, port_high, port_low, length_high, length_low] = frame.load::<6>(udp)?;
    if u16::from_be_bytes([port_high, port_low]) != ROCE_PORT {
        return None;
    }
    let udp_length = u16::from_be_bytes([length_high, length_low]) as usize;
    if udp_length < 8 + BTH_LENGTH + ICRC_LENGTH {
        return None;
    }
    Some(Covered {
        ip,
        ipv6,
        bth: udp + 8,
        length: udp_length - 8 - ICRC_LENGTH,
        first,
    })
}

/// How Congestion Experienced is put into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where the second byte of the IP header lies.
    pub at: usize,
    /// Its new value.
    pub value: u8,
    /// IPv4: what the header checksum (at IP header + 10) turns into is [`Mark::checksum`] of its old value.
    pub ipv4_checksum_at: Option<usize>,
    /// What the mark adds to the 16-bit word it changes.
    added: u16,
}

impl Mark {
    /// The IPv4 header checksum after the mark (RFC 1624, equation 3: HC' = ~(~HC + ~m + m')).
    #[inline(always)]
    pub const fn checksum(&self, old: [u8; 2]) -> [u8; 2] {
        // ~m + m' is m' - m in ones' complement, and the mark only adds.
        let sum = !u16::from_be_bytes(old) as u32 + self.added as u32;
        let folded = (sum & 0xffff) + (sum >> 16);
        (!(folded as u16)).to_be_bytes()
    }
}

impl Covered {
    /// How to mark this packet, or `None` when it is not ECN-capable (ECN 00) or already marked.
    #[inline(always)]
    pub const fn mark(&self) -> Option<Mark> {
        let byte = self.first[1];
        let (ecn, ce) = if self.ipv6 {
            ((byte >> 4) & 3, byte | 0x30)
        } else {
            (byte & 3, byte | 3)
        };
        if ecn == 0 || ecn == 3 {
            return None;
        }
        Some(Mark {
            at: self.ip + 1,
            value: ce,
            ipv4_checksum_at: if self.ipv6 { None } else { Some(self.ip + 10) },
            added: (ce - byte) as u16,
        })
    }

    /// Which byte changes and the mask to exclusive-or it with (never 0), from [`Decision::entropy`]. The byte is one
    /// the invariant CRC covers.
    #[inline(always)]
    pub const fn corruption(&self, entropy: u64) -> (usize, u8) {
        // `length` is at least a BTH; the maximum only tells the verifier so.
        let length = if self.length < BTH_LENGTH {
            BTH_LENGTH
        } else {
            self.length
        };
        let mut byte = ((entropy >> 32) % length as u64) as usize;
        if byte == BTH_MASKED_BYTE {
            byte += 1;
        }
        (self.bth + byte, (entropy as u8) | 1)
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
