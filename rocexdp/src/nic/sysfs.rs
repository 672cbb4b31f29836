//! Counters of RDMA ports in sysfs: what RDMA hardware, or Soft-RoCE, counts of its own traffic.
//!
//! `counters/` has the standard's port counters, `hw_counters/` the driver's, under the names that
//! Documentation/ABI/stable/sysfs-class-infiniband and the drivers give them.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::Serialize;

/// More counters than any driver has.
const MAX_COUNTERS: usize = 1024;

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Port {
    /// The device, such as `mlx5_0`.
    pub device: String,
    /// Its port, from 1.
    pub port: u32,
    /// Soft-RoCE or another device without hardware.
    pub software: bool,
    /// `counters/`: the standard's. Data counters are in units of 4 bytes, as the files have them.
    pub counters: BTreeMap<String, u64>,
    /// `hw_counters/`: the driver's own. `lifespan`, the age in ms up to which values may be old, is not among them.
    pub hw_counters: BTreeMap<String, u64>,
}

/// The ports of `device` below `class` (usually [`super::CLASS`]), in order.
///
/// # Errors
/// The device has gone or can't be read. A single counter that can't be read, or is no number, is left out.
pub fn ports(class: &Path, device: &str, software: bool) -> io::Result<Vec<Port>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(class.join(device).join("ports"))? {
        let entry = entry?;
        let Some(port) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        found.push(Port {
            device: device.to_owned(),
            port,
            software,
            counters: numbers(&entry.path().join("counters")),
            hw_counters: numbers(&entry.path().join("hw_counters")),
        });
    }
    found.sort_by_key(|port| port.port);
    Ok(found)
}

fn numbers(directory: &Path) -> BTreeMap<String, u64> {
    // A port without this directory has no such counters.
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .take(MAX_COUNTERS)
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let value = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
            (name != "lifespan").then_some((name, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as a ConnectX has it: `ports/1/{counters,hw_counters}`, and files that are no counters.
    fn tree(root: &Path) {
        let file = |path: &str, text: &str| {
            let path = root.join("mlx5_0/ports").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("1/counters/port_rcv_data", "2195783498134\n");
        file("1/counters/port_xmit_wait", "18446744073709551615\n");
        file(
            "1/counters/excessive_buffer_overrun_errors",
            "N/A (no PMA)\n",
        );
        for (name, value) in [
            ("lifespan", "10"),
            ("out_of_sequence", "3"),
            ("np_cnp_sent", "431"),
            ("rp_cnp_handled", "12"),
            ("rnr_nak_retry_err", "0"),
        ] {
            file(&format!("1/hw_counters/{name}"), &format!("{value}\n"));
        }
        file("2/state", "4: ACTIVE\n");
    }

    #[test]
    fn counters_are_read_by_port_and_what_is_no_number_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path());
        let found = ports(root.path(), "mlx5_0", false).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].port, found[1].port), (1, 2));
        assert_eq!(found[0].counters["port_rcv_data"], 2_195_783_498_134);
        assert_eq!(found[0].counters["port_xmit_wait"], u64::MAX);
        assert_eq!(found[0].counters.len(), 2);
        assert_eq!(
            found[0].hw_counters.keys().collect::<Vec<_>>(),
            [
                "np_cnp_sent",
                "out_of_sequence",
                "rnr_nak_retry_err",
                "rp_cnp_handled"
            ]
        );
        assert!(found[1].counters.is_empty() && found[1].hw_counters.is_empty());
        assert!(ports(root.path(), "mlx5_9", false).is_err());
    }
}
