//! Events as lines of the events pane: those of one kind about one flow are one line for as long as they go on, or a flow that
//! loses packets would fill the pane with its NAKs and what is rare would be gone before it is read.
//!
//! Events are told by the packet (`rocexdp events`), changes of counters by the interval ([`crate::live::news`]); of what both tell,
//! the events say more, and an interface that is listened to has these from its events.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::{Duration, SystemTime},
};

use crate::{
    control::events::Heard,
    events::Event,
    live::news::{Level, News},
    view::live::clock,
};

/// How long after an event another one like it still belongs to its line.
const GOES_ON: Duration = Duration::from_secs(10);

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Of lines with one number the newest counts.
    pub id: u64,
    /// When the last of its events came.
    pub time: SystemTime,
    /// How much it matters.
    pub level: Level,
    /// In words.
    pub text: String,
}

/// What was heard.
#[derive(Clone, Debug, Default)]
pub struct Listening {
    /// Interfaces whose events come.
    ifaces: HashSet<String>,
    /// Lines that go on.
    lines: HashMap<Same, Line>,
    /// Lines so far.
    told: u64,
}

/// Events of one kind about one flow.
#[derive(Clone, Debug)]
struct Line {
    id: u64,
    first: Event,
    count: u64,
    last_psn: Option<u32>,
    last: SystemTime,
    /// Whether there is more since it was told.
    fresh: bool,
}

/// What counters say too, of which events say more.
fn by_events(news: &News) -> bool {
    let of_packets = news.kind.starts_with("nak_") || news.kind == "rnr";
    (of_packets && !news.sent) || matches!(news.kind, "refused" | "qp_error" | "events_lost")
}

fn time(event: &Event) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(event.time_ns)
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
    pub fn leaves(&self, news: &News) -> bool {
        by_events(news) && self.ifaces.contains(&news.iface)
    }

    /// Takes what was heard in an interval; in order of time.
    pub fn take(&mut self, heard: impl Iterator<Item = Heard>, now: SystemTime) -> Vec<Told> {
        self.lines.retain(|_, line| {
            let age = now.duration_since(line.last);
            age.is_ok_and(|age| age < GOES_ON)
        });
        let mut told = Vec::new();
        for heard in heard {
            match heard {
                Heard::Listening(iface) => {
                    self.ifaces.insert(iface);
                }
                Heard::Silent(iface) => {
                    self.ifaces.remove(&iface);
                    let text = format!(
                        "{iface}: no process answers for its events: NAKs and refusals are told from the counters"
                    );
                    told.push(self.other(now, Level::Info, text));
                }
                Heard::Missed(iface, n) => {
                    let text = format!("{iface}: {n} events came too fast to be shown");
                    told.push(self.other(now, Level::Warning, text));
                }
                Heard::Event(event) => self.event(*event),
            }
        }
        for line in self.lines.values_mut().filter(|line| line.fresh) {
            line.fresh = false;
            told.push(Told {
                id: line.id,
                time: line.last,
                level: level(&line.first),
                text: line.words(),
            });
        }
        told.sort_by_key(|told| (told.time, told.id));
        told
    }

    fn next_id(&mut self) -> u64 {
        self.told += 1;
        self.told
    }

    fn other(&mut self, time: SystemTime, level: Level, text: String) -> Told {
        Told {
            id: self.next_id(),
            time,
            level,
            text,
        }
    }

    fn event(&mut self, event: Event) {
        if let Some(line) = self.lines.get_mut(&same(&event)) {
            line.count += 1;
            line.last_psn = event.psn;
            line.last = line.last.max(time(&event));
            line.fresh = true;
            return;
        }
        let line = Line {
            id: self.next_id(),
            count: 1,
            last_psn: event.psn,
            last: time(&event),
            fresh: true,
            first: event,
        };
        self.lines.insert(same(&line.first), line);
    }
}

impl Line {
    fn words(&self) -> String {
        let Self { first, count, .. } = self;
        // What names the interface itself need not do so twice.
        let iface = if first.text.starts_with(&first.iface) {
            String::new()
        } else {
            format!("{}: ", first.iface)
        };
        let to = match self.last_psn {
            Some(psn) if first.psn != Some(psn) => format!(" to {psn}"),
            _ => String::new(),
        };
        let since = clock(time(first));
        let more = match count {
            1 => String::new(),
            _ if since == clock(self.last) => format!(" ({count} such)"),
            _ => format!(" ({count} such since {since})"),
        };
        format!("{iface}{}{to}{more}", first.text)
    }
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

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn events_of_one_kind_and_flow_are_one_line() {
        let mut listening = Listening::default();
        let heard = vec![
            Heard::Listening("eth0".to_owned()),
            nak(7, "packet_seq_err"),
            nak(8, "remote_access"),
            nak(9, "packet_seq_err"),
            Heard::Missed("eth0".to_owned(), 3),
        ];
        let told = listening.take(heard.into_iter(), at(9));
        assert_eq!(told.len(), 3, "{told:#?}");
        let levels = told.iter().map(|told| told.level);
        assert_eq!(
            levels.collect::<Vec<_>>(),
            [Level::Error, Level::Warning, Level::Warning]
        );
        let text = &told[1].text;
        assert!(text.starts_with("eth0: nak (packet_seq_err)"), "{text}");
        assert!(text.ends_with("PSN 7 to 9 (2 such)"), "{text}");
        assert!(told[2].text.contains("3 events"), "{}", told[2].text);
    }

    #[test]
    fn a_line_goes_on_while_its_events_do() {
        let mut listening = Listening::default();
        let mut later = |psn: u32, seconds: u64| {
            let Heard::Event(mut event) = nak(psn, "packet_seq_err") else {
                unreachable!()
            };
            event.time_ns = seconds * 1_000_000_000;
            let told = listening.take([Heard::Event(event)].into_iter(), at(seconds));
            assert_eq!(told.len(), 1);
            (told[0].id, told[0].text.clone())
        };
        let (first, text) = later(7, 5);
        assert!(text.ends_with("PSN 7"), "{text}");
        assert_eq!(later(8, 9).0, first);
        let (same, text) = later(9, 18);
        assert_eq!(same, first);
        assert!(
            text.ends_with("PSN 7 to 9 (3 such since 00:00:05)"),
            "{text}"
        );
        // After a rest it is told anew.
        let (other, text) = later(10, 40);
        assert_ne!(other, first);
        assert!(text.ends_with("PSN 10"), "{text}");
        assert!(listening.take([].into_iter(), at(41)).is_empty());
        listening.take([].into_iter(), at(60));
        assert!(listening.lines.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn what_events_tell_the_counters_need_not_tell_too() {
        let mut listening = Listening::default();
        let news = |iface: &str, kind, sent| News {
            level: Level::Warning,
            kind,
            iface: iface.to_owned(),
            text: String::new(),
            sent,
        };
        let naks = news("eth0", "nak_sequence", false);
        assert!(!listening.leaves(&naks));
        listening.take([Heard::Listening("eth0".to_owned())].into_iter(), at(0));
        assert!(listening.leaves(&naks));
        assert!(listening.leaves(&news("eth0", "rnr", false)));
        assert!(listening.leaves(&news("eth0", "refused", false)));
        // The endpoint's program sees nothing of what its engine sends.
        assert!(!listening.leaves(&news("eth0", "nak_sequence", true)));
        assert!(!listening.leaves(&news("eth0", "congestion", false)));
        assert!(!listening.leaves(&news("eth1", "rnr", false)));
        let told = listening.take([Heard::Silent("eth0".to_owned())].into_iter(), at(0));
        let text = &told[0].text;
        assert!(text.contains("from the counters"), "{text}");
        assert!(!listening.leaves(&naks));
    }
}
