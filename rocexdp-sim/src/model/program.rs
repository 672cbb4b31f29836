//! A program of the model test: a set-up, operations with times, and faults; and its text form, which is what a replay is.
//!
//! Everything is a number with a name, so that a program can be cut down line by line and still be one: an operation whose
//! object is not there does nothing. Must not: run anything.

use std::fmt::{self, Write as _};

/// Numbers with names: a struct and its text form, `name=value` for what is not 0.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: u64,)* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if self.$field != 0 { write!(f, " {}={}", stringify!($field), self.$field)?; })*
                Ok(())
            }
        }

        impl $name {
            fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
                let mut it = Self::default();
                for word in words {
                    let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no name=value"))?;
                    let value = value.parse::<u64>().map_err(|_| format!("`{word}`: not a number"))?;
                    match name {
                        $(stringify!($field) => it.$field = value,)*
                        _ => return Err(format!("there is no `{name}`")),
                    }
                }
                Ok(it)
            }
        }
    };
}

numbers! {
    /// What stays the same over a program.
    Setup {
        /// Seed of the endpoints' generators and of what faults do to a frame.
        seed,
        /// Connected pairs of QPs.
        pairs,
        /// Completion queues of each end.
        cqs,
        /// Path MTU code, 1 to 5.
        mtu,
        /// Packets of a QP in flight.
        window,
        /// Interval of acknowledgement requests.
        interval,
        /// ACK timeout code.
        timeout,
        /// Retries.
        retry,
        /// RNR retries.
        rnr_retry,
        /// RNR timer code.
        rnr_timer,
        /// Depth of send queues.
        sends,
        /// Depth of receive queues.
        recvs,
        /// Initiator depth.
        depth,
        /// Responder resources.
        resources,
        /// What QPs serve, the bits of `mem::Access`.
        access,
        /// Largest piece of a frame, bytes; 0: whole frames.
        piece,
        /// Frames in and out in one step.
        budget,
        /// Nanoseconds that a frame holds the transmitter.
        gap,
        /// Delay of the link in each direction, nanoseconds.
        delay0,
        /// The other direction's.
        delay1,
        /// First PSN of end 0's first connection of pair 0.
        psn0,
        /// End 1's.
        psn1,
        /// 1: IPv6.
        ipv6,
        /// Selective repeat over so many paths; 0: go-back-N.
        selective,
        /// Share of frames lost, in 65536, from end 0.
        drop0,
        /// From end 1.
        drop1,
        /// Changed in one byte.
        corrupt0,
        /// From end 1.
        corrupt1,
        /// Delivered twice.
        duplicate0,
        /// From end 1.
        duplicate1,
        /// Overtaken by later ones.
        reorder0,
        /// From end 1.
        reorder1,
        /// Late by up to four ACK timeouts.
        late0,
        /// From end 1.
        late1,
        /// Cut short.
        truncate0,
        /// From end 1.
        truncate1,
        /// Marked with Congestion Experienced.
        mark0,
        /// From end 1.
        mark1,
        /// READ responses and atomic acknowledges that say something else, under a right ICRC.
        forge0,
        /// From end 1.
        forge1,
        /// Faults that aim at packets of one operation and place: the low five bits of the opcode, counted from 1; 0: none do.
        aim,
        /// Which pairs are UC, as bits.
        uc,
        /// Which are UD.
        ud,
        /// Depth of the receive queue that all QPs of an end share; 0: each has its own.
        srq,
        /// Its limit at the start.
        limit,
        /// Depth of completion queues that are polled from time to time; 0: deep ones, polled at once.
        cq,
        /// Nanoseconds between polls of those.
        poll,
    }
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Posts a send request at `end` of `pair`: `kind`, `len`, ...
    Post,
    /// Posts a receive request.
    Recv,
    /// To ERR.
    Err,
    /// To RESET.
    Reset,
    /// RESET to RTS, in the connection's newest generation.
    Connect,
    /// Destroys the QP.
    Destroy,
    /// Makes it again, in RESET.
    Create,
    /// Registers memory `kind` in region slot `slot` with access `a`.
    Register,
    /// Withdraws region slot `slot`.
    Deregister,
    /// Memory faults from now on: `kind` 0 sources, 1 receive buffers, 2 landing zones, 3.. targets.
    TakeAway,
    /// And no longer.
    GiveBack,
    /// The application writes `len` bytes at `at` of target memory `kind`.
    Poke,
    /// Nothing gets through from `end` for `a` nanoseconds.
    Blackout,
    /// Allocates a memory window in window slot `slot`: `kind` 1 or 2 its type; `b` 1: in another protection domain.
    Window,
    /// Frees it, bound or not.
    Free,
    /// Arms the limit of the shared receive queue: `a`.
    Limit,
    /// Polls `end`'s completion queues, if they are polled from time to time.
    Poll,
}

/// Verbs and their words.
const VERBS: [(Verb, &str); 17] = [
    (Verb::Post, "post"),
    (Verb::Recv, "recv"),
    (Verb::Err, "err"),
    (Verb::Reset, "reset"),
    (Verb::Connect, "connect"),
    (Verb::Destroy, "destroy"),
    (Verb::Create, "create"),
    (Verb::Register, "register"),
    (Verb::Deregister, "deregister"),
    (Verb::TakeAway, "takeaway"),
    (Verb::GiveBack, "giveback"),
    (Verb::Poke, "poke"),
    (Verb::Blackout, "blackout"),
    (Verb::Window, "window"),
    (Verb::Free, "free"),
    (Verb::Limit, "limit"),
    (Verb::Poll, "poll"),
];

numbers! {
    /// An operation's numbers; which of them count depends on the verb.
    Args {
        /// Which end.
        end,
        /// Which pair of QPs.
        pair,
        /// Post: operation, see [`kind`]. Else: which memory.
        kind,
        /// Bytes.
        len,
        /// Segments of the local list.
        segs,
        /// Flags of a post, see [`flag`].
        flags,
        /// Region slot of the peer.
        slot,
        /// Offset in the region, or in the memory.
        at,
        /// Operand, or immediate.
        a,
        /// Second operand.
        b,
        /// Mistake, see [`mistake`].
        bad,
        /// Where in the source the bytes are, first.
        src,
        /// Not 0: the key is that of the peer's window slot, counted from 1, instead of a region's.
        window,
        /// Which of the keys that a window has had: 0 the newest.
        age,
        /// UD: pair of the QP that it goes to.
        to,
    }
}

/// Operations of send requests.
pub mod kind {
    #![allow(missing_docs)]
    pub const SEND: u64 = 0;
    pub const SEND_IMM: u64 = 1;
    pub const SEND_INV: u64 = 2;
    pub const WRITE: u64 = 3;
    pub const WRITE_IMM: u64 = 4;
    pub const READ: u64 = 5;
    pub const COMPARE_SWAP: u64 = 6;
    pub const FETCH_ADD: u64 = 7;
    pub const ATOMIC_WRITE: u64 = 8;
    pub const FLUSH: u64 = 9;
    pub const BIND: u64 = 10;
    pub const LOCAL_INV: u64 = 11;
    pub const ALL: u64 = 12;
}

/// Flags of a post.
pub mod flag {
    /// No completion on success.
    pub const UNSIGNALED: u64 = 1;
    /// Solicited event.
    pub const SOLICITED: u64 = 2;
    /// Fence.
    pub const FENCE: u64 = 4;
    /// The bytes are copied when posted.
    pub const INLINE: u64 = 8;
}

/// Mistakes of a post.
pub mod mistake {
    /// None.
    pub const NONE: u64 = 0;
    /// A key that is no region's.
    pub const KEY: u64 = 1;
    /// A range that leaves the region.
    pub const RANGE: u64 = 2;
    /// An atomic's address that is no multiple of 8.
    pub const ALIGN: u64 = 3;
    /// An atomic's memory that is not 8 bytes.
    pub const LENGTH: u64 = 4;
    /// The window's key, or what is to be done with the window, as it is: old, not bound, another QP's.
    pub const AS_IT_IS: u64 = 5;
    /// A right that no window, or this region, can give.
    pub const RIGHT: u64 = 6;
}

/// An operation with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Nanoseconds from the start.
    pub at: u64,
    /// What to do.
    pub verb: Verb,
    /// With what.
    pub args: Args,
}

/// What a link may do to a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Fault {
    /// Lost.
    Drop,
    /// One byte changed that the ICRC covers.
    Corrupt,
    /// Delivered twice.
    Duplicate,
    /// Overtaken by later ones.
    Reorder,
    /// Late by as much as an ACK timeout, or more.
    Late,
    /// Cut short.
    Truncate,
    /// Lost in a blackout.
    Blackout,
    /// Marked with Congestion Experienced.
    Mark,
    /// An answer that says something else, its ICRC right: what only a broken peer sends.
    Forge,
}

impl Fault {
    /// Every fault with its word.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::Drop, "drop"),
        (Self::Corrupt, "corrupt"),
        (Self::Duplicate, "duplicate"),
        (Self::Reorder, "reorder"),
        (Self::Late, "late"),
        (Self::Truncate, "truncate"),
        (Self::Blackout, "blackout"),
        (Self::Mark, "mark"),
        (Self::Forge, "forge"),
    ];

    /// Whether a frame that it hits may be missing, late or twice: what every opcode must meet.
    #[must_use]
    pub fn is_of_links(self) -> bool {
        !matches!(self, Self::Mark | Self::Forge)
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// A fault of one frame: the direction (the end that sent it), the frame's number there, what happens.
pub type Hit = (u8, u64, Fault);

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What stays the same.
    pub setup: Setup,
    /// By time.
    pub ops: Vec<Op>,
    /// The faults, one by one; `None`: by the set-up's shares.
    pub faults: Option<Vec<Hit>>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "setup{}", self.setup)?;
        for op in &self.ops {
            writeln!(f, "{} {}{}", op.at, op.verb.word(), op.args)?;
        }
        if let Some(faults) = &self.faults {
            f.write_str("faults")?;
            for (dir, n, fault) in faults {
                write!(f, " {dir}:{n}:{}", fault.word())?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

impl Verb {
    fn word(self) -> &'static str {
        VERBS.iter().find(|(v, _)| *v == self).map_or("", |v| v.1)
    }
}

impl Program {
    /// Reads the text form; lines that are empty or start with `#` say nothing.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut program = Self {
            setup: Setup::default(),
            ops: Vec::new(),
            faults: None,
        };
        for (i, line) in text.lines().enumerate() {
            program
                .line(line)
                .map_err(|e| format!("line {}: {e}", i + 1))?;
        }
        if !(1..=5).contains(&program.setup.mtu) || !(1..=8).contains(&program.setup.pairs) {
            return Err("a program needs a line `setup` with mtu=1..5 and pairs=1..8".into());
        }
        Ok(program)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some(word) if word.starts_with('#') => {}
            Some("setup") => self.setup = Setup::parse(words)?,
            Some("faults") => {
                let hits = words.map(|w| hit(w).ok_or_else(|| format!("`{w}` is no fault")));
                self.faults = Some(hits.collect::<Result<_, _>>()?);
            }
            Some(time) => {
                let at = time
                    .parse()
                    .map_err(|_| format!("`{time}` is no time in nanoseconds"))?;
                let word = words.next().unwrap_or_default();
                let verb = VERBS.iter().find(|v| v.1 == word);
                self.ops.push(Op {
                    at,
                    verb: verb.ok_or_else(|| format!("there is no `{word}`"))?.0,
                    args: Args::parse(words)?,
                });
            }
        }
        Ok(())
    }
}

fn hit(word: &str) -> Option<Hit> {
    let mut parts = word.split(':');
    let (dir, n, name) = (parts.next()?, parts.next()?, parts.next()?);
    let fault = Fault::ALL.iter().find(|f| f.1 == name)?.0;
    Some((dir.parse().ok().filter(|d| *d < 2)?, n.parse().ok()?, fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_gives_the_program_back() {
        let mut program = super::super::generate::program(7);
        program.faults = Some(vec![(0, 3, Fault::Late), (1, 9, Fault::Drop)]);
        assert_eq!(Program::parse(&program.to_string()).unwrap(), program);
        for bad in [
            "setup mtu=9",
            "5 fly end=1",
            "5 post wing=1",
            "faults 2:1:drop",
        ] {
            assert!(Program::parse(bad).is_err(), "{bad}");
        }
    }
}
