//! Families of what the NIC itself counts.

use super::page::{Page, Sample, labels};
use crate::nic::{Direction, Item, NicCounters, nldev, sysfs};

/// Bound counters of RDMA hardware that get series; the others are only numbered.
const MOST_BOUND: usize = 64;
/// Units of `port_rcv_data` and `port_xmit_data`, bytes (Documentation/ABI/stable/sysfs-class-infiniband).
const DATA_UNIT: u64 = 4;

/// All of them.
pub fn families(page: &mut Page, iface: &str, nic: &NicCounters) {
    pauses(page, iface, nic);
    for port in &nic.rdma {
        rdma_port(page, iface, port);
    }
    for counter in nic.rdma_qps.iter().take(MOST_BOUND) {
        bound(page, iface, counter);
    }
    if !nic.rdma_qps.is_empty() {
        page.gauge(
            "rdma_bound_counters_not_shown",
            "Counters bound to QPs of RDMA hardware beyond those that have series",
            labels(&[("iface", iface)]),
            nic.rdma_qps.len().saturating_sub(MOST_BOUND) as f64,
        );
    }
}

fn pauses(page: &mut Page, iface: &str, nic: &NicCounters) {
    let pauses = &nic.pauses;
    let source = pauses.frames_from.map_or("none", crate::nic::Source::name);
    for direction in [Direction::Rx, Direction::Tx] {
        for (priority, counts) in pauses.of(direction).iter().enumerate() {
            let priority = priority.to_string();
            let on = |more: &[(&'static str, &str)]| {
                let mut all = labels(&[
                    ("iface", iface),
                    ("direction", direction.name()),
                    ("priority", &priority),
                ]);
                all.extend(labels(more));
                all
            };
            let help = "Pause frames of a priority that the NIC counted";
            if let Some(n) = counts.frames {
                page.count(
                    "nic_pfc_frames",
                    help,
                    on(&[("asks", "pause"), ("source", source)]),
                    n,
                );
            }
            if let Some(n) = counts.resumes {
                page.count(
                    "nic_pfc_frames",
                    help,
                    on(&[("asks", "resume"), ("source", "ethtool")]),
                    n,
                );
            }
            if let Some(n) = counts.transitions {
                page.count(
                    "nic_pfc_transitions",
                    "Times that a priority was paused or went on, as the NIC counts them",
                    on(&[]),
                    n,
                );
            }
            if let Some(us) = counts.duration_us {
                page.add(
                    "nic_pfc_paused_seconds",
                    "Time paused that the NIC counted",
                    on(&[]),
                    Sample::Seconds(us as f64 / 1e6),
                );
            }
        }
    }
    for wide in &pauses.port_wide {
        let on = labels(&[
            ("iface", iface),
            ("direction", wide.direction.name()),
            ("counter", &wide.name),
        ]);
        match wide.item {
            Item::DurationUs => page.add(
                "nic_pause_port_wide_seconds",
                "Time paused of the whole port, by the driver's counter",
                on,
                Sample::Seconds(wide.value as f64 / 1e6),
            ),
            _ => page.count(
                "nic_pause_port_wide",
                "Pause frames, or changes, of the whole port, by the driver's counter; they tell no priority",
                on,
                wide.value,
            ),
        }
    }
    if let Some(enabled) = pauses.enabled {
        for priority in 0..8_u8 {
            page.gauge(
                "nic_pfc_enabled",
                "Whether PFC is on for a priority (DCB netlink)",
                labels(&[("iface", iface), ("priority", &priority.to_string())]),
                f64::from(enabled >> priority & 1),
            );
        }
    }
}

fn rdma_port(page: &mut Page, iface: &str, port: &sysfs::Port) {
    let number = port.port.to_string();
    let on = || {
        labels(&[
            ("iface", iface),
            ("device", &port.device),
            ("port", &number),
        ])
    };
    for (name, value) in port.counters.iter().chain(&port.hw_counters) {
        let Some(name) = name_of(name) else { continue };
        let help = "A counter of an RDMA port, by the kernel's name (sysfs)";
        match name.strip_suffix("_data") {
            Some(name @ ("port_rcv" | "port_xmit")) => page.count(
                &format!("rdma_{name}_data_bytes"),
                "Bytes of an RDMA port (sysfs)",
                on(),
                value.saturating_mul(DATA_UNIT),
            ),
            _ => page.count(&format!("rdma_{name}"), help, on(), *value),
        }
    }
}

fn bound(page: &mut Page, iface: &str, counter: &nldev::QpCounters) {
    let (port, id) = (counter.port.to_string(), counter.counter.to_string());
    // A counter of many QPs is told by its number.
    let qpn = match counter.qpns.as_slice() {
        [one] => crate::view::text::qpn(*one),
        _ => "several".to_owned(),
    };
    for (name, value) in &counter.values {
        let Some(name) = name_of(name) else { continue };
        page.count(
            &format!("rdma_bound_{name}"),
            "A counter bound to QPs of RDMA hardware, by the driver's name (RDMA netlink)",
            labels(&[
                ("iface", iface),
                ("device", &counter.device),
                ("port", &port),
                ("counter", &id),
                ("qpn", &qpn),
            ]),
            *value,
        );
    }
}

/// A driver's name as part of a metric's; `None` where it can't be one.
fn name_of(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix("_total").unwrap_or(&name);
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(plain)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::nic::PauseCounts;

    #[test]
    fn the_nics_counters_have_the_kernels_names_and_base_units() {
        let mut nic = NicCounters::default();
        nic.pauses.rx[3] = PauseCounts {
            frames: Some(7),
            resumes: None,
            transitions: Some(2),
            duration_us: Some(1_500_000),
        };
        nic.pauses.frames_from = Some(crate::nic::Source::Ethtool);
        nic.pauses.enabled = Some(0b1000);
        nic.rdma.push(sysfs::Port {
            device: "mlx5_0".to_owned(),
            port: 1,
            software: false,
            counters: BTreeMap::from([
                ("port_rcv_data".to_owned(), 25),
                ("VL15_dropped".to_owned(), 1),
            ]),
            hw_counters: BTreeMap::from([
                ("np_cnp_sent".to_owned(), 431),
                ("bad name".to_owned(), 1),
            ]),
        });
        nic.rdma_qps = (0..100)
            .map(|n| nldev::QpCounters {
                device: "mlx5_0".to_owned(),
                port: 1,
                counter: n,
                qpns: vec![n],
                values: BTreeMap::from([("out_of_sequence".to_owned(), 3)]),
            })
            .collect();
        let mut page = Page::default();
        families(&mut page, "eth0", &nic);
        let text = page.encode().unwrap();
        for line in [
            "rocexdp_nic_pfc_frames_total{iface=\"eth0\",direction=\"rx\",priority=\"3\",asks=\"pause\",source=\"ethtool\"} 7",
            "rocexdp_nic_pfc_paused_seconds_total{iface=\"eth0\",direction=\"rx\",priority=\"3\"} 1.5",
            "rocexdp_nic_pfc_enabled{iface=\"eth0\",priority=\"3\"} 1",
            "rocexdp_rdma_port_rcv_data_bytes_total{iface=\"eth0\",device=\"mlx5_0\",port=\"1\"} 100",
            "rocexdp_rdma_vl15_dropped_total{iface=\"eth0\",device=\"mlx5_0\",port=\"1\"} 1",
            "rocexdp_rdma_np_cnp_sent_total{iface=\"eth0\",device=\"mlx5_0\",port=\"1\"} 431",
            "rocexdp_rdma_bound_counters_not_shown{iface=\"eth0\"} 36",
        ] {
            assert!(
                text.lines()
                    .any(|l| l == line || l.trim_end_matches(".0") == line),
                "{line} in\n{text}"
            );
        }
        assert!(!text.contains("bad name"));
        assert_eq!(
            text.matches("rocexdp_rdma_bound_out_of_sequence_total{")
                .count(),
            64
        );
        // Priorities of which nothing is known have no series.
        assert_eq!(text.matches("rocexdp_nic_pfc_frames_total{").count(), 1);
    }
}
