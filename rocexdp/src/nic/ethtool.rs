//! Pauses in drivers' ethtool statistics, by name.
//!
//! Each driver has its own names; this is the list of those known, from the drivers' sources and recorded outputs. A name that
//! tells no priority is a counter of the whole port and kept as such. Where a unit is not documented the counter is left out.

use super::{Direction, Item, Pauses, PortWide, Source};
use Direction::{Rx, Tx};
use Item::{DurationUs, Frames, Resumes, Transitions};

/// Names with a priority, `#` in its place.
const BY_PRIORITY: &[(&str, Direction, Item)] = &[
    // mlx5: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
    ("rx_prio#_pause", Rx, Frames),
    ("rx_prio#_pause_duration", Rx, DurationUs),
    ("rx_prio#_pause_transition", Rx, Transitions),
    ("tx_prio#_pause", Tx, Frames),
    ("tx_prio#_pause_duration", Tx, DurationUs),
    // mlx4: en_ethtool.c. Its durations have no documented unit.
    ("rx_pause_prio_#", Rx, Frames),
    ("rx_pause_transition_prio_#", Rx, Transitions),
    ("tx_pause_prio_#", Tx, Frames),
    ("tx_pause_transition_prio_#", Tx, Transitions),
    // ice: ice_ethtool.c
    ("rx_priority_#_xoff.nic", Rx, Frames),
    ("rx_priority_#_xon.nic", Rx, Resumes),
    ("tx_priority_#_xoff.nic", Tx, Frames),
    ("tx_priority_#_xon.nic", Tx, Resumes),
    // i40e: i40e_ethtool.c, older and newer
    ("port.rx_priority_#_xoff", Rx, Frames),
    ("port.rx_priority_#_xon", Rx, Resumes),
    ("port.rx_priority_#_xon_2_xoff", Rx, Transitions),
    ("port.tx_priority_#_xoff", Tx, Frames),
    ("port.tx_priority_#_xon", Tx, Resumes),
    ("port.rx_priority_#_xoff_rx", Rx, Frames),
    ("port.rx_priority_#_xon_rx", Rx, Resumes),
    ("port.tx_priority_#_xoff_tx", Tx, Frames),
    ("port.tx_priority_#_xon_tx", Tx, Resumes),
    // ixgbe: ixgbe_ethtool.c
    ("rx_pb_#_pxoff", Rx, Frames),
    ("rx_pb_#_pxon", Rx, Resumes),
    ("tx_pb_#_pxoff", Tx, Frames),
    ("tx_pb_#_pxon", Tx, Resumes),
    // bnxt_en: bnxt_ethtool.c
    ("rx_pfc_ena_frames_pri#", Rx, Frames),
    ("tx_pfc_ena_frames_pri#", Tx, Frames),
    ("pfc_pri#_rx_duration_us", Rx, DurationUs),
    ("pfc_pri#_rx_transitions", Rx, Transitions),
    ("pfc_pri#_tx_duration_us", Tx, DurationUs),
    ("pfc_pri#_tx_transitions", Tx, Transitions),
    // hns3: hns3_ethtool.c, hclge_main.c
    ("mac_rx_pfc_pri#_pkt_num", Rx, Frames),
    ("mac_tx_pfc_pri#_pkt_num", Tx, Frames),
    // cxgb4: cxgb4_ethtool.c
    ("rx_ppp#_frames", Rx, Frames),
    ("tx_ppp#_frames", Tx, Frames),
];

/// Names of counters of the whole port.
const PORT_WIDE: &[(&str, Direction, Item)] = &[
    // mlx5
    ("rx_pause_ctrl_phy", Rx, Frames),
    ("tx_pause_ctrl_phy", Tx, Frames),
    ("rx_global_pause", Rx, Frames),
    ("rx_global_pause_duration", Rx, DurationUs),
    ("rx_global_pause_transition", Rx, Transitions),
    ("tx_global_pause", Tx, Frames),
    ("tx_global_pause_duration", Tx, DurationUs),
    // mlx4
    ("rx_pause", Rx, Frames),
    ("tx_pause", Tx, Frames),
    // ixgbe, igb, igc, e1000e
    ("rx_flow_control_xoff", Rx, Frames),
    ("rx_flow_control_xon", Rx, Resumes),
    ("tx_flow_control_xoff", Tx, Frames),
    ("tx_flow_control_xon", Tx, Resumes),
    // ice
    ("link_xoff_rx.nic", Rx, Frames),
    ("link_xon_rx.nic", Rx, Resumes),
    ("link_xoff_tx.nic", Tx, Frames),
    ("link_xon_tx.nic", Tx, Resumes),
    // i40e
    ("port.link_xoff_rx", Rx, Frames),
    ("port.link_xon_rx", Rx, Resumes),
    ("port.link_xoff_tx", Tx, Frames),
    ("port.link_xon_tx", Tx, Resumes),
    // bnxt_en, be2net, qede
    ("rx_pause_frames", Rx, Frames),
    ("tx_pause_frames", Tx, Frames),
    ("rx_pfc_frames", Rx, Frames),
    ("tx_pfc_frames", Tx, Frames),
    ("tx_pauseframes", Tx, Frames),
    ("rx_priority_pause_frames", Rx, Frames),
    ("tx_priority_pauseframes", Tx, Frames),
    // ionic
    ("frames_rx_pause", Rx, Frames),
    ("frames_rx_pripause", Rx, Frames),
    ("frames_tx_pause", Tx, Frames),
    ("frames_tx_pripause", Tx, Frames),
    // tg3
    ("rx_xoff_pause_rcvd", Rx, Frames),
    ("rx_xon_pause_rcvd", Rx, Resumes),
    ("tx_xoff_sent", Tx, Frames),
    ("tx_xon_sent", Tx, Resumes),
];

/// What a driver's statistics say of pauses.
#[must_use]
pub fn pauses(statistics: &[(String, u64)]) -> Pauses {
    let mut found = Pauses::default();
    for (name, value) in statistics {
        // Some drivers pad their names.
        let name = name.trim();
        if let Some((priority, direction, item)) = by_priority(name) {
            let all = match direction {
                Rx => &mut found.rx,
                Tx => &mut found.tx,
            };
            if let Some(counts) = all.get_mut(priority) {
                let place = match item {
                    Frames => &mut counts.frames,
                    Resumes => &mut counts.resumes,
                    Transitions => &mut counts.transitions,
                    DurationUs => &mut counts.duration_us,
                };
                *place = Some(*value);
                if item == Frames {
                    found.frames_from = Some(Source::Ethtool);
                }
            }
        } else if let Some((_, direction, item)) =
            PORT_WIDE.iter().find(|(known, ..)| *known == name)
        {
            found.port_wide.push(PortWide {
                name: name.to_owned(),
                direction: *direction,
                item: *item,
                value: *value,
            });
        }
    }
    found
}

fn by_priority(name: &str) -> Option<(usize, Direction, Item)> {
    BY_PRIORITY.iter().find_map(|(pattern, direction, item)| {
        let (before, after) = pattern.split_once('#')?;
        let priority = name.strip_prefix(before)?.strip_suffix(after)?;
        match priority.as_bytes() {
            [digit @ b'0'..=b'7'] => Some((usize::from(digit - b'0'), *direction, *item)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ethtool -S` as printed: its pause lines, recorded on real NICs, with other counters around them that must not be taken.
    fn recorded(text: &str) -> Pauses {
        let all: Vec<(String, u64)> = text
            .lines()
            .filter_map(|line| {
                let (name, value) = line.trim().rsplit_once(": ")?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect();
        assert!(!all.is_empty());
        pauses(&all)
    }

    #[test]
    fn mlx5_has_frames_times_and_transitions_by_priority() {
        let found = recorded(include_str!("fixtures/mlx5_core.txt"));
        assert_eq!(
            found.rx[3],
            crate::nic::PauseCounts {
                frames: Some(148_213),
                resumes: None,
                transitions: Some(74_106),
                duration_us: Some(3_320_119),
            }
        );
        assert_eq!(
            (found.tx[3].frames, found.tx[3].duration_us),
            (Some(96_204), Some(1_904_772))
        );
        assert_eq!(found.rx[0].frames, Some(0));
        let names: Vec<&str> = found.port_wide.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names.len(), 7, "{names:?}");
    }

    #[test]
    fn ice_and_i40e_count_frames_by_priority_and_no_times() {
        let ice = recorded(include_str!("fixtures/ice.txt"));
        assert_eq!(
            (ice.tx[2].frames, ice.tx[2].resumes),
            (Some(14_864), Some(2))
        );
        assert_eq!((ice.rx[7].frames, ice.rx[7].duration_us), (Some(0), None));
        let i40e = recorded(include_str!("fixtures/i40e.txt"));
        for counts in i40e.rx {
            assert_eq!(
                (counts.frames, counts.resumes, counts.transitions),
                (Some(0), Some(0), Some(0))
            );
        }
        assert_eq!((ice.port_wide.len(), i40e.port_wide.len()), (4, 4));
    }

    #[test]
    fn bnxt_has_times_in_microseconds() {
        let found = recorded(include_str!("fixtures/bnxt_en.txt"));
        for counts in found.rx.iter().chain(&found.tx) {
            assert_eq!(
                (counts.frames, counts.duration_us, counts.transitions),
                (Some(0), Some(0), Some(0))
            );
        }
        let names: Vec<&str> = found.port_wide.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "rx_pause_frames",
                "rx_pfc_frames",
                "tx_pause_frames",
                "tx_pfc_frames"
            ]
        );
    }

    #[test]
    fn ionic_and_tg3_are_port_wide_only() {
        for text in [
            include_str!("fixtures/ionic.txt"),
            include_str!("fixtures/tg3.txt"),
        ] {
            let found = recorded(text);
            assert!(!found.per_priority() && found.frames_from.is_none());
            assert_eq!(found.port_wide.len(), 4, "{:?}", found.port_wide);
        }
    }

    #[test]
    fn a_name_that_only_resembles_one_is_not_taken() {
        for name in [
            "rx_prio8_pause",
            "rx_prio10_pause",
            "rx_prio3_packets",
            "rx_prio_pause",
            "rx_prio3_pause_",
            "",
            "#",
        ] {
            assert_eq!(pauses(&[(name.to_owned(), 1)]), Pauses::default(), "{name}");
        }
        // No two patterns can take one name.
        for (i, (a, ..)) in BY_PRIORITY.iter().enumerate() {
            for (b, ..) in BY_PRIORITY.iter().skip(i + 1).chain(PORT_WIDE) {
                assert_ne!(a, b);
            }
        }
    }
}
