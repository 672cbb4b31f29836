//! Events as lines of the events pane: those of one kind about one flow in one interval are one line.
//!
//! Events are told by the packet (`rocexdp events`), changes of counters by the interval ([`crate::live::news`]); of what both tell,
//! the events say more, and an interface that is listened to has these from its events.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::{Duration, SystemTime},
};

use crate::{control::events::Heard, events::Event, live::news::Level};

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// When the first came.
    pub time: SystemTime,
    /// How much it matters.
    pub level: Level,
    /// In words.
    pub text: String,
}

/// Interfaces whose events come.
#[derive(Clone, Debug, Default)]
pub struct Listening(HashSet<String>);

/// What counters say too, of which events say more. An endpoint's program does not see what its engine sends, a monitor's sees all.
fn by_events(kind: &str, monitor: bool) -> bool {
    let sent_too = kind.starts_with("nak_") || kind == "rnr";
    (sent_too && monitor) || matches!(kind, "refused" | "qp_error" | "events_lost")
}

/// How much an event matters.
fn level(event: &Event) -> Level {
    match event.kind.as_str() {
        // A sequence error is mended by sending again; of the others the work request dies.
        "nak" if event.reason.as_deref() != Some("packet_seq_err") => Level::Error,
        "retry_exceeded" | "rnr_retry_exceeded" | "qp_error" | "cq_overflow" | "device"
        | "link_down" | "link_gone" | "unreachable" | "pfc_storm" => Level::Error,
        "established" | "link_up" | "mtu" | "address_new" | "sq_drained" | "last_wqe_reached"
        | "srq_limit_reached" | "network" | "pfc_storm_over" => Level::Info,
        _ => Level::Warning,
    }
}

type Same = (
    String,
    String,
    Option<String>,
    Option<IpAddr>,
    Option<IpAddr>,
    Option<u32>,
    Option<u32>,
);

fn same(e: &Event) -> Same {
    (
        e.iface.clone(),
        e.kind.clone(),
        e.reason.clone(),
        e.src,
        e.dst,
        e.dest_qpn,
        e.qpn,
    )
}

impl Listening {
    /// Whether a line of the counters' is left to the events.
    pub fn leaves(&self, iface: &str, kind: &str, monitor: bool) -> bool {
        by_events(kind, monitor) && self.0.contains(iface)
    }

    /// Takes what was heard in an interval; in order of time.
    pub fn take(&mut self, heard: impl Iterator<Item = Heard>, now: SystemTime) -> Vec<Told> {
        let mut lines: Vec<(Told, Event, u64, u32)> = Vec::new();
        let mut known: HashMap<Same, usize> = HashMap::new();
        let mut other = Vec::new();
        for heard in heard {
            match heard {
                Heard::Listening(iface) => {
                    self.0.insert(iface);
                }
                Heard::Silent(iface) => {
                    self.0.remove(&iface);
                    other.push(Told {
                        time: now,
                        level: Level::Info,
                        text: format!(
                            "{iface}: no process answers for its events: NAKs and refusals are told from the counters"
                        ),
                    });
                }
                Heard::Missed(iface, n) => other.push(Told {
                    time: now,
                    level: Level::Warning,
                    text: format!("{iface}: {n} events came too fast to be shown"),
                }),
                Heard::Event(event) => match known.get(&same(&event)) {
                    Some(at) => {
                        if let Some((_, _, count, last)) = lines.get_mut(*at) {
                            *count += 1;
                            *last = event.psn.unwrap_or(0);
                        }
                    }
                    None => {
                        known.insert(same(&event), lines.len());
                        let told = Told {
                            time: SystemTime::UNIX_EPOCH + Duration::from_nanos(event.time_ns),
                            level: level(&event),
                            text: String::new(),
                        };
                        lines.push((told, *event, 1, 0));
                    }
                },
            }
        }
        let mut told: Vec<Told> = lines
            .into_iter()
            .map(|(told, event, count, last)| Told {
                text: words(&event, count, last),
                ..told
            })
            .chain(other)
            .collect();
        told.sort_by_key(|told| told.time);
        told
    }
}

fn words(event: &Event, count: u64, last: u32) -> String {
    // What names the interface itself need not do so twice.
    let iface = if event.text.starts_with(&event.iface) {
        String::new()
    } else {
        format!("{}: ", event.iface)
    };
    let more = match (count, event.psn) {
        (1, _) => String::new(),
        (_, Some(psn)) if psn != last => format!(" to {last} ({count} such)"),
        _ => format!(" ({count} such)"),
    };
    format!("{iface}{}{more}", event.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nak(psn: u32, reason: &str) -> Heard {
        Heard::Event(Box::new(
            serde_json::from_value(serde_json::json!({
                "version": 1, "time_ns": 5_000_000_000_u64 + u64::from(psn), "iface": "eth0", "origin": "packet",
                "kind": "nak", "src": "10.0.0.1", "dst": "10.0.0.2", "dest_qpn": 17, "psn": psn, "reason": reason,
                "text": format!("nak ({reason}) received: 10.0.0.1 -> 10.0.0.2 QP 0x000011, RC Acknowledge, PSN {psn}"),
            }))
            .unwrap(),
        ))
    }

    #[test]
    fn events_of_one_kind_and_flow_are_one_line() {
        let mut listening = Listening::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let heard = vec![
            Heard::Listening("eth0".to_owned()),
            nak(7, "packet_seq_err"),
            nak(8, "remote_access"),
            nak(9, "packet_seq_err"),
            Heard::Missed("eth0".to_owned(), 3),
        ];
        let told = listening.take(heard.into_iter(), now);
        assert_eq!(told.len(), 3, "{told:#?}");
        assert!(
            told[0].text.ends_with("PSN 7 to 9 (2 such)"),
            "{}",
            told[0].text
        );
        assert!(told[0].text.starts_with("eth0: nak (packet_seq_err)"));
        assert_eq!(
            [told[0].level, told[1].level],
            [Level::Warning, Level::Error]
        );
        assert!(told[2].text.contains("3 events"), "{}", told[2].text);
    }

    #[test]
    fn what_events_tell_the_counters_need_not_tell_too() {
        let mut listening = Listening::default();
        let now = SystemTime::UNIX_EPOCH;
        assert!(!listening.leaves("eth0", "nak_sequence", true));
        listening.take([Heard::Listening("eth0".to_owned())].into_iter(), now);
        let leaves = |kind, monitor| listening.leaves("eth0", kind, monitor);
        assert!(leaves("nak_sequence", true) && leaves("rnr", true) && leaves("refused", false));
        assert!(!leaves("congestion", true) && !leaves("nak_sequence", false));
        assert!(!listening.leaves("eth1", "rnr", true));
        let told = listening.take([Heard::Silent("eth0".to_owned())].into_iter(), now);
        assert!(
            told[0].text.contains("from the counters"),
            "{}",
            told[0].text
        );
        assert!(!listening.leaves("eth0", "nak_sequence", true));
    }
}
