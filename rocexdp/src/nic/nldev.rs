//! Counters of single QPs of RDMA hardware, by RDMA netlink.
//!
//! Hardware counts per QP only where a counter was bound to it (`rdma statistic qp set link DEVICE/PORT auto type on`, or
//! `bind`); several QPs may share one. Follows the kernel's include/uapi/rdma/rdma_netlink.h and
//! drivers/infiniband/core/nldev.c (`nldev_res_get_counter_dumpit`, `fill_res_counter_entry`).

use std::{collections::BTreeMap, io};

use netlink_packet_core::NLM_F_DUMP;
use serde::Serialize;

use super::raw::{Raw, attribute, attributes, text_of, u32_of, u64_of};
use crate::net::netlink::Socket;

const RDMA_NL_NLDEV: u16 = 5;
const CMD_GET: u16 = 1;
const CMD_STAT_GET: u16 = 17;
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const RES_QP: u16 = 19;
const RES_QP_ENTRY: u16 = 20;
const RES_LQPN: u16 = 21;
const STAT_RES: u16 = 75;
const STAT_COUNTER: u16 = 77;
const STAT_COUNTER_ENTRY: u16 = 78;
const STAT_COUNTER_ID: u16 = 79;
const STAT_HWCOUNTERS: u16 = 80;
const STAT_HWCOUNTER_ENTRY: u16 = 81;
const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
/// More counters than are worth showing: the rest is left out.
const MAX_COUNTERS: usize = 4096;

/// One bound counter of an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QpCounters {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// The counter's number.
    pub counter: u32,
    /// The QPs that are bound to it.
    pub qpns: Vec<u32>,
    /// What it counts, by the driver's names.
    pub values: BTreeMap<String, u64>,
}

/// The bound counters of these devices.
///
/// # Errors
/// The kernel has no RDMA netlink (`EPROTONOSUPPORT`), or refuses.
pub fn qp_counters(devices: &[&str]) -> io::Result<Vec<QpCounters>> {
    let mut socket = Socket::rdma()?;
    let listed = socket.request(Raw::new(kind(CMD_GET), &[]), NLM_F_DUMP)?;
    let mut all = Vec::new();
    for message in &listed {
        let Some((index, name)) = device(&message.body) else {
            continue;
        };
        if !devices.contains(&name.as_str()) {
            continue;
        }
        let request = Raw::new(kind(CMD_STAT_GET), &[])
            .with(DEV_INDEX, &index.to_ne_bytes())
            .with(STAT_RES, &u32::from(RES_QP).to_ne_bytes());
        for answer in socket.request(request, NLM_F_DUMP)? {
            all.extend(counters(&answer.body, &name));
        }
    }
    all.truncate(MAX_COUNTERS);
    Ok(all)
}

const fn kind(command: u16) -> u16 {
    RDMA_NL_NLDEV << 10 | command
}

fn device(body: &[u8]) -> Option<(u32, String)> {
    Some((
        u32_of(attribute(body, DEV_INDEX)?)?,
        text_of(attribute(body, DEV_NAME)?),
    ))
}

fn counters(body: &[u8], device: &str) -> Vec<QpCounters> {
    let table = attribute(body, STAT_COUNTER).unwrap_or_default();
    let of = |entry: &[u8], kind| attribute(entry, kind).and_then(u32_of);
    attributes(table)
        .filter(|(kind, _)| *kind == STAT_COUNTER_ENTRY)
        .filter_map(|(_, entry)| {
            let qps = attribute(entry, RES_QP).unwrap_or_default();
            let values = attribute(entry, STAT_HWCOUNTERS).unwrap_or_default();
            Some(QpCounters {
                device: device.to_owned(),
                port: of(entry, PORT_INDEX)?,
                counter: of(entry, STAT_COUNTER_ID)?,
                qpns: attributes(qps)
                    .filter(|(kind, _)| *kind == RES_QP_ENTRY)
                    .filter_map(|(_, qp)| of(qp, RES_LQPN))
                    .collect(),
                values: attributes(values)
                    .filter(|(kind, _)| *kind == STAT_HWCOUNTER_ENTRY)
                    .filter_map(|(_, value)| {
                        Some((
                            text_of(attribute(value, STAT_HWCOUNTER_ENTRY_NAME)?),
                            u64_of(attribute(value, STAT_HWCOUNTER_ENTRY_VALUE)?)?,
                        ))
                    })
                    .collect(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nest(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = Raw::new(0, &[]);
        for (kind, value) in parts {
            message = message.with(*kind, value);
        }
        message.body
    }

    /// A message as `fill_res_counter_entry` lays it out; no device here to record one from.
    #[test]
    fn a_bound_counter_has_its_qps_and_values() {
        let value = |name: &[u8], n: u64| {
            nest(&[
                (STAT_HWCOUNTER_ENTRY_NAME, name),
                (STAT_HWCOUNTER_ENTRY_VALUE, &n.to_ne_bytes()),
            ])
        };
        let (a, b) = (
            value(b"out_of_sequence\0", 3),
            value(b"np_cnp_sent\0", 1 << 40),
        );
        let qp = |n: u32| nest(&[(RES_LQPN, &n.to_ne_bytes())]);
        let entry = nest(&[
            (PORT_INDEX, &1_u32.to_ne_bytes()),
            (STAT_COUNTER_ID, &4_u32.to_ne_bytes()),
            (
                RES_QP | 0x8000,
                &nest(&[(RES_QP_ENTRY, &qp(178)), (RES_QP_ENTRY, &qp(179))]),
            ),
            (
                STAT_HWCOUNTERS | 0x8000,
                &nest(&[(STAT_HWCOUNTER_ENTRY, &a), (STAT_HWCOUNTER_ENTRY, &b)]),
            ),
        ]);
        let body = nest(&[
            (DEV_INDEX, &0_u32.to_ne_bytes()),
            (DEV_NAME, b"mlx5_0\0"),
            (
                STAT_COUNTER | 0x8000,
                &nest(&[(STAT_COUNTER_ENTRY, &entry)]),
            ),
        ]);
        let found = counters(&body, "mlx5_0");
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].port, found[0].counter, found[0].qpns.as_slice()),
            (1, 4, &[178, 179][..])
        );
        assert_eq!(found[0].values["np_cnp_sent"], 1 << 40);
        assert_eq!(device(&body), Some((0, "mlx5_0".to_owned())));
        for cut in 0..body.len() {
            // Whatever is cut off, nothing is read beyond it.
            let _ = counters(&body[..cut], "mlx5_0");
        }
    }

    #[test]
    fn a_kernel_without_rdma_says_so_and_one_with_it_answers() {
        match qp_counters(&["no_such_device"]) {
            Ok(found) => assert!(found.is_empty()),
            Err(error) => assert!(
                [
                    Some(libc::EPROTONOSUPPORT),
                    Some(libc::EPERM),
                    Some(libc::EINVAL)
                ]
                .contains(&error.raw_os_error()),
                "{error}"
            ),
        }
    }
}
