//! Is there an RDMA device on an interface?
//!
//! With hardware RDMA, RoCE packets bypass the kernel and with it XDP: whoever loads our program there must be told so.
//! Soft-RoCE (rxe) takes the kernel's path instead and gets what XDP passes. Read from `/sys/class/infiniband`, which
//! shows what the mount's network namespace sees: in a namespace entered without a `/sys` of its own, a device of the
//! same interface name elsewhere is reported too. Follows the kernel's Documentation/ABI/stable/sysfs-class-infiniband.

use std::{fs, io, path::Path};

const CLASS: &str = "/sys/class/infiniband";
/// Entries of a port's GID table that are looked at: every table has its interface in the first ones.
const GIDS: usize = 16;

/// An RDMA device bound to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// True for a software device, whose packets pass through the kernel's stack and so through XDP.
    pub software: bool,
}

impl std::fmt::Display for RdmaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.name;
        if self.software {
            write!(
                f,
                "software RDMA device {name}: it gets the RoCE packets that XDP passes on"
            )
        } else {
            write!(
                f,
                "RDMA device {name}: its RoCE traffic bypasses the kernel, so XDP can't see it"
            )
        }
    }
}

impl RdmaDevice {
    /// The RDMA devices with a port on the interface called `interface`, sorted by name. A host without RDMA has none.
    ///
    /// # Errors
    /// The class directory exists and can't be read.
    pub fn on(interface: &str) -> io::Result<Vec<Self>> {
        Self::find(Path::new(CLASS), interface)
    }

    fn find(class: &Path, interface: &str) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(class) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let device = entry.path();
            if device.join("device/net").join(interface).exists()
                || has_line(&device.join("parent"), interface)
                || has_port_on(&device, interface)
            {
                found.push(Self {
                    name: entry.file_name().to_string_lossy().into_owned(),
                    // Only a device on a bus has this link.
                    software: !device.join("device").exists(),
                });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Bonds and functions that share a PCI device: the GID table names the interface of each port.
fn has_port_on(device: &Path, interface: &str) -> bool {
    let Ok(ports) = fs::read_dir(device.join("ports")) else {
        return false;
    };
    ports.flatten().any(|port| {
        let table = port.path().join("gid_attrs/ndevs");
        (0..GIDS).any(|index| has_line(&table.join(index.to_string()), interface))
    })
}

fn has_line(file: &Path, text: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|content| content.trim() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_software_and_bonded_devices_are_found_by_interface() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("mlx5_0/device/net/eth1/address", "");
        file("mlx5_bond_0/device/net/eth2/address", "");
        file("mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0\n");
        file("rxe0/parent", "eth1\n");
        let found = |interface| RdmaDevice::find(root.path(), interface).unwrap();
        let device = |name: &str, software| RdmaDevice {
            name: name.to_owned(),
            software,
        };
        assert_eq!(
            found("eth1"),
            [device("mlx5_0", false), device("rxe0", true)]
        );
        assert_eq!(found("bond0"), [device("mlx5_bond_0", false)]);
        assert_eq!(found("eth0"), []);
        assert_eq!(
            RdmaDevice::find(&root.path().join("none"), "eth1").unwrap(),
            []
        );
    }
}
