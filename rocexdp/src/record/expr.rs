//! When to write: the expression of `rocexdp record --on`.
//!
//! ```text
//! expression = term { "|" term }
//! term       = factor { "&" factor }
//! factor     = "!" factor | "(" expression ")" | event | number compare value
//! compare    = ">" | ">=" | "<" | "<=" | "=" | "!="
//! ```
//!
//! An event is true for the packet that is one ([`Event`]); a number is the packet's own or a rate ([`Quantity`]). Values
//! are decimal or 0x hexadecimal and may end in k, M or G. An expression of rates alone triggers when it becomes true.

use std::fmt;

/// What a packet can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A NAK of any code but RNR.
    Nak,
    /// RNR NAK.
    Rnr,
    /// CNP.
    Cnp,
    /// Congestion Experienced.
    Ce,
    /// Malformed, or an undefined opcode.
    Malformed,
    /// A wrong ICRC; told only of whole packets.
    Icrc,
}

/// A number to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Destination QPN.
    Qpn,
    /// BTH opcode.
    Opcode,
    /// AETH syndrome; no packet without AETH compares.
    Syndrome,
    /// Such packets of the interface in the last second.
    Rate(Event),
    /// RoCE packets of the interface in the last second.
    PacketRate,
}

const EVENTS: [(&str, Event); 6] = [
    ("nak", Event::Nak),
    ("rnr", Event::Rnr),
    ("cnp", Event::Cnp),
    ("ce", Event::Ce),
    ("malformed", Event::Malformed),
    ("icrc", Event::Icrc),
];

const QUANTITIES: [(&str, Quantity); 10] = [
    ("qpn", Quantity::Qpn),
    ("opcode", Quantity::Opcode),
    ("syndrome", Quantity::Syndrome),
    ("nak_rate", Quantity::Rate(Event::Nak)),
    ("rnr_rate", Quantity::Rate(Event::Rnr)),
    ("cnp_rate", Quantity::Rate(Event::Cnp)),
    ("ce_rate", Quantity::Rate(Event::Ce)),
    ("malformed_rate", Quantity::Rate(Event::Malformed)),
    ("icrc_rate", Quantity::Rate(Event::Icrc)),
    ("packet_rate", Quantity::PacketRate),
];

/// All names, for messages and help.
pub const NAMES: &str = "nak, rnr, cnp, ce, malformed, icrc; with a comparison qpn, opcode, syndrome, nak_rate, rnr_rate, \
                         cnp_rate, ce_rate, malformed_rate, icrc_rate, packet_rate";

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    More,
    MoreOrSame,
    Less,
    LessOrSame,
    Same,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Or(Box<Node>, Box<Node>),
    And(Box<Node>, Box<Node>),
    Not(Box<Node>),
    Is(Event),
    Compares(Quantity, Compare, u64),
}

/// What is known of a packet when it is judged.
pub trait Facts {
    /// Whether the packet is one.
    fn is(&self, event: Event) -> bool;
    /// The number; `None`: the packet has none.
    fn number(&self, quantity: Quantity) -> Option<u64>;
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr {
    root: Node,
    text: String,
}

/// What an expression says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// It holds.
    pub holds: bool,
    /// It does because of what this packet is, not of rates alone.
    pub by_packet: bool,
}

impl Expr {
    /// Judges a packet.
    pub fn judge(&self, facts: &impl Facts) -> Verdict {
        self.root.judge(facts)
    }

    /// Whether it asks for what only whole packets tell.
    pub fn needs_payload(&self) -> bool {
        self.root.mentions(Event::Icrc)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Node {
    fn judge(&self, facts: &impl Facts) -> Verdict {
        match self {
            Self::Or(a, b) => {
                let (a, b) = (a.judge(facts), b.judge(facts));
                Verdict {
                    holds: a.holds || b.holds,
                    by_packet: a.holds && a.by_packet || b.holds && b.by_packet,
                }
            }
            Self::And(a, b) => {
                let (a, b) = (a.judge(facts), b.judge(facts));
                Verdict {
                    holds: a.holds && b.holds,
                    by_packet: a.by_packet || b.by_packet,
                }
            }
            Self::Not(a) => Verdict {
                holds: !a.judge(facts).holds,
                by_packet: false,
            },
            Self::Is(event) => Verdict {
                holds: facts.is(*event),
                by_packet: true,
            },
            Self::Compares(quantity, compare, value) => Verdict {
                holds: facts.number(*quantity).is_some_and(|n| match compare {
                    Compare::More => n > *value,
                    Compare::MoreOrSame => n >= *value,
                    Compare::Less => n < *value,
                    Compare::LessOrSame => n <= *value,
                    Compare::Same => n == *value,
                    Compare::Other => n != *value,
                }),
                by_packet: !matches!(quantity, Quantity::Rate(_) | Quantity::PacketRate),
            },
        }
    }

    fn mentions(&self, event: Event) -> bool {
        match self {
            Self::Or(a, b) | Self::And(a, b) => a.mentions(event) || b.mentions(event),
            Self::Not(a) => a.mentions(event),
            Self::Is(e) | Self::Compares(Quantity::Rate(e), ..) => *e == event,
            Self::Compares(..) => false,
        }
    }
}

/// Where an expression is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExprError {
    text: String,
    /// Byte offset.
    at: usize,
    what: String,
}

/// Characters shown before and behind where an expression is wrong.
const SHOWN: usize = 160;

impl fmt::Display for ExprError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, behind) = self.text.split_at_checked(self.at).unwrap_or_default();
        let column = before.chars().count();
        // Of a long one the part around it.
        let skipped = column.saturating_sub(SHOWN);
        let head: String = before.chars().skip(skipped).collect();
        let tail: String = behind.chars().take(SHOWN).collect();
        let cut = if skipped > 0 { "... " } else { "" };
        let indent = cut.len() + column - skipped;
        write!(
            f,
            "column {}: {}\n  {cut}{head}{tail}{}\n  {:indent$}^",
            column + 1,
            self.what,
            if tail.len() < behind.len() {
                " ..."
            } else {
                ""
            },
            ""
        )
    }
}

impl std::error::Error for ExprError {}

/// Nested parentheses and negations that are followed.
const DEPTH: usize = 32;
/// Events and comparisons of an expression: a chain of them is a tree of that depth, and each packet is judged by all.
const MOST_TERMS: usize = 256;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    terms: usize,
}

impl std::str::FromStr for Expr {
    type Err = ExprError;

    fn from_str(text: &str) -> Result<Self, ExprError> {
        let mut parser = Parser {
            text,
            at: 0,
            terms: 0,
        };
        let root = parser.expression(0)?;
        if parser.peek().is_some() {
            return Err(parser.error("expected | or & or the end"));
        }
        Ok(Self {
            root,
            text: text.trim().to_owned(),
        })
    }
}

impl<'a> Parser<'a> {
    fn error(&self, what: impl Into<String>) -> ExprError {
        ExprError {
            text: self.text.to_owned(),
            at: self.at,
            what: what.into(),
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        self.peek();
        if self.rest().starts_with(text) {
            self.at += text.len();
            return true;
        }
        false
    }

    fn word(&mut self) -> &'a str {
        self.peek();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
            .unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn expression(&mut self, depth: usize) -> Result<Node, ExprError> {
        let mut left = self.term(depth)?;
        while self.take("|") {
            self.take("|");
            left = Node::Or(Box::new(left), Box::new(self.term(depth)?));
        }
        Ok(left)
    }

    fn term(&mut self, depth: usize) -> Result<Node, ExprError> {
        let mut left = self.factor(depth)?;
        while self.take("&") {
            self.take("&");
            left = Node::And(Box::new(left), Box::new(self.factor(depth)?));
        }
        Ok(left)
    }

    fn factor(&mut self, depth: usize) -> Result<Node, ExprError> {
        if depth > DEPTH {
            return Err(self.error("nested too deep"));
        }
        if self.take("!") {
            return Ok(Node::Not(Box::new(self.factor(depth + 1)?)));
        }
        if self.take("(") {
            let inner = self.expression(depth + 1)?;
            if !self.take(")") {
                return Err(self.error("expected )"));
            }
            return Ok(inner);
        }
        self.peek();
        self.terms += 1;
        if self.terms > MOST_TERMS {
            return Err(self.error(format!(
                "an expression has at most {MOST_TERMS} events and comparisons"
            )));
        }
        let start = self.at;
        let name = self.word();
        let wrong = |what: String| ExprError {
            text: self.text.to_owned(),
            at: start,
            what,
        };
        if name.is_empty() {
            return Err(wrong(format!("expected one of {NAMES}")));
        }
        if let Some((_, event)) = EVENTS.iter().find(|(n, _)| *n == name) {
            if self.compare().is_some() {
                return Err(wrong(format!(
                    "{name} is no number; the number of them in a second is {name}_rate"
                )));
            }
            return Ok(Node::Is(*event));
        }
        let Some((_, quantity)) = QUANTITIES.iter().find(|(n, _)| *n == name) else {
            return Err(wrong(format!("there is no {name}; there are {NAMES}")));
        };
        let Some(compare) = self.compare() else {
            return Err(self.error(format!("{name} wants a comparison, as in {name}>1k")));
        };
        self.peek();
        let at = self.at;
        let value = number(self.word());
        let Some(value) = value else {
            return Err(ExprError {
                text: self.text.to_owned(),
                at,
                what: "expected a number, as in 1000, 1k, 2.5M or 0x11".to_owned(),
            });
        };
        Ok(Node::Compares(*quantity, compare, value))
    }

    fn compare(&mut self) -> Option<Compare> {
        // The longer ones first.
        const COMPARES: [(&str, Compare); 7] = [
            (">=", Compare::MoreOrSame),
            ("<=", Compare::LessOrSame),
            ("!=", Compare::Other),
            ("==", Compare::Same),
            (">", Compare::More),
            ("<", Compare::Less),
            ("=", Compare::Same),
        ];
        COMPARES
            .into_iter()
            .find(|(text, _)| self.take(text))
            .map(|(_, compare)| compare)
    }
}

fn number(word: &str) -> Option<u64> {
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let (digits, scale) = match word.chars().last()? {
        'k' | 'K' => (word.get(..word.len() - 1)?, 1e3),
        'M' => (word.get(..word.len() - 1)?, 1e6),
        'G' => (word.get(..word.len() - 1)?, 1e9),
        _ => (word, 1.0),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value: f64 = digits.parse().ok()?;
    (value.is_finite() && value * scale < 1e18).then_some((value * scale) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Some(Vec<Event>, u64);

    impl Facts for Some {
        fn is(&self, event: Event) -> bool {
            self.0.contains(&event)
        }
        fn number(&self, quantity: Quantity) -> Option<u64> {
            match quantity {
                Quantity::Rate(Event::Cnp) => Option::Some(self.1),
                Quantity::Qpn => Option::Some(17),
                _ => None,
            }
        }
    }

    fn judge(text: &str, events: &[Event], rate: u64) -> (bool, bool) {
        let verdict = text
            .parse::<Expr>()
            .unwrap()
            .judge(&Some(events.to_vec(), rate));
        (verdict.holds, verdict.by_packet && verdict.holds)
    }

    #[test]
    fn events_and_rates_combine() {
        use Event::{Cnp, Nak};
        let both = "nak|cnp_rate>1k";
        assert_eq!(judge(both, &[Nak], 0), (true, true));
        assert_eq!(judge(both, &[Cnp], 1000), (false, false));
        assert_eq!(judge(both, &[Cnp], 1001), (true, false));
        // & binds stronger than |.
        assert!(judge("nak | rnr & cnp", &[Nak], 0).0);
        assert!(!judge("(nak | rnr) & cnp", &[Nak], 0).0);
        assert_eq!(judge("!nak", &[], 0), (true, false));
        assert!(judge("nak && qpn=0x11 && cnp_rate <= 2.5k", &[Nak], 2500).0);
        assert!(!judge("nak & qpn != 17", &[Nak], 0).0);
        assert!(!judge("syndrome>=0", &[], 0).0, "there is no AETH");
        assert!("icrc|nak".parse::<Expr>().unwrap().needs_payload());
        assert!("icrc_rate>1".parse::<Expr>().unwrap().needs_payload());
        assert!(!both.parse::<Expr>().unwrap().needs_payload());
    }

    #[test]
    fn an_error_points_at_its_column() {
        for (text, column, what) in [
            ("", 1, "expected one of nak"),
            ("nak | nakk", 7, "there is no nakk"),
            ("nak rnr", 5, "expected | or &"),
            ("cnp>5", 1, "cnp_rate"),
            ("cnp_rate", 9, "wants a comparison"),
            ("cnp_rate > many", 12, "expected a number"),
            ("(nak", 5, "expected )"),
            ("nak & ", 7, "expected one of"),
            ("qpn=0xzz", 5, "expected a number"),
        ] {
            let error = text.parse::<Expr>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("column {column}: ")),
                "{text}: {error}"
            );
            assert!(error.contains(what), "{text}: {error}");
            let caret = error.lines().last().unwrap();
            assert_eq!(caret.len(), column + 2, "{error}");
        }
        let most = vec!["nak"; MOST_TERMS].join("|");
        assert!(most.parse::<Expr>().is_ok());
        for more in ["|", "&"] {
            let many = vec!["nak"; 30_000].join(more);
            let error = many.parse::<Expr>().unwrap_err();
            assert!(error.what.contains("at most 256"), "{}", error.what);
            let shown = error.to_string();
            assert!(shown.len() < 600, "{shown}");
            let lines: Vec<&str> = shown.lines().collect();
            let marked = lines[1].get(lines[2].len() - 1..).unwrap();
            assert!(marked.starts_with("nak|") || marked.starts_with("nak&"));
        }
        let deep = format!("{}nak", "(".repeat(100_000));
        assert!(
            deep.parse::<Expr>()
                .unwrap_err()
                .to_string()
                .contains("deep")
        );
    }
}
