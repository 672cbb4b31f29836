//! Plain AF_XDP: one socket sends, one receives, nothing else ([`crate::xsk::baseline`]).
//!
//! The receiver's XDP program redirects every frame without looking at it. Frames are as long as those of an RDMA WRITE and
//! carry an EtherType for experiments (IEEE 802 local experimental, 0x88b5).

use std::{
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use anyhow::{Context, bail};
use rocexdp_common::headers::{Bth, ICRC_LEN};
use rocexdp_proto::ids::PathMtu;

use crate::{
    lab::{HOST_INTERFACE, Host, Lab, XdpWire},
    net::Link,
    process::Cancel,
    xsk::{Xsk, XskConfig, baseline},
};

/// Ethernet, IPv4, UDP, BTH and ICRC: what a WRITE MIDDLE has beside its payload, B.
const AROUND: usize = 14 + 20 + 8 + Bth::LEN + ICRC_LEN;

/// Payload per second, Gb/s, for each path MTU.
///
/// # Errors
/// A program or socket can't be had; nothing arrives; a signal came.
pub fn measure(
    lab: &Lab,
    path_mtus: &[PathMtu],
    time: Duration,
    cancel: &Cancel,
) -> anyhow::Result<Vec<f64>> {
    let mut sender = lab.host(Host::A).run(open)??;
    let (_program, mut receiver) = lab.host(Host::B).run(|| {
        let link = Link::by_name(HOST_INTERFACE)?;
        let mut program = XdpWire::redirect_all(link.index)?;
        let receiver = open()?;
        program
            .sockets()?
            .set(0, receiver.as_fd().as_raw_fd(), 0)
            .context("giving the program its socket")?;
        Ok::<_, anyhow::Error>((program, receiver))
    })??;
    let mut header = [Host::B.mac().0, Host::A.mac().0].concat();
    header.extend_from_slice(&[0x88, 0xb5]);
    path_mtus
        .iter()
        .map(|&path_mtu| {
            cancel.check()?;
            let len = AROUND + path_mtu.bytes() as usize;
            let moved = baseline::run(&mut sender, &mut receiver, &header, len, time)?;
            if moved.received == 0 {
                bail!("no frame arrived");
            }
            let payload = moved.received as f64 * f64::from(path_mtu.bytes()) * 8.0;
            Ok(payload / moved.elapsed.as_secs_f64() / 1e9)
        })
        .collect()
}

fn open() -> anyhow::Result<Xsk> {
    let link = Link::by_name(HOST_INTERFACE)?;
    Ok(Xsk::open(&XskConfig::new(HOST_INTERFACE, link.index.0, 0))?)
}
