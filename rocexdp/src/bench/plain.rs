//! Plain AF_XDP: one socket sends, one receives, nothing else ([`crate::xsk::baseline`]).
//!
//! The receiver's XDP program is the product's, told of a QP that no engine serves, so that it redirects the frames. The
//! frames are well-formed RoCEv2 up to the BTH; nobody looks at what follows.

use std::time::Duration;

use anyhow::{Context, bail};
use rocexdp_common::{
    headers::{Bth, ICRC_LEN},
    maps::{DEFAULT_SLOTS, LOCAL_QPN_BIT, QpConfig},
    opcode::{Opcode, Transport},
};
use rocexdp_proto::{
    ids::{PathMtu, Psn, Qpn},
    wire::{HeaderBuf, HeaderTemplate, Path},
};

use crate::{
    lab::{HOST_INTERFACE, Host, Lab},
    loader::{AttachWish, Dataplane, LoadConfig, gid_of},
    net::Link,
    process::Cancel,
    xsk::{Xsk, XskConfig, baseline},
};

/// RC RDMA WRITE MIDDLE: no header behind the BTH.
const WRITE_MIDDLE: Opcode = Opcode(0x07);
const RECEIVER: Qpn = Qpn::new(LOCAL_QPN_BIT | 1);
const SENDER: Qpn = Qpn::new(LOCAL_QPN_BIT | 2);

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
    let mut sender = lab.host(Host::A).run(|| open(None))??;
    let (plane, mut receiver) = lab.host(Host::B).run(|| {
        let plane = load()?;
        let receiver = open(Some(plane.report.multi_buffer))?;
        plane
            .control
            .lock()
            .map_err(|_| anyhow::anyhow!("a thread died"))?
            .set_socket(
                0,
                std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&receiver)),
            )?;
        Ok::<_, anyhow::Error>((plane, receiver))
    })??;
    path_mtus
        .iter()
        .map(|&path_mtu| {
            cancel.check()?;
            publish(&plane, path_mtu);
            let header = header(path_mtu);
            let len = header.len() + path_mtu.bytes() as usize + ICRC_LEN;
            let moved = baseline::run(&mut sender, &mut receiver, &header, len, time)?;
            if moved.received == 0 {
                bail!("no frame arrived");
            }
            let payload = moved.received as f64 * f64::from(path_mtu.bytes()) * 8.0;
            Ok(payload / moved.elapsed.as_secs_f64() / 1e9)
        })
        .collect()
}

fn open(multi_buffer: Option<bool>) -> anyhow::Result<Xsk> {
    let link = Link::by_name(HOST_INTERFACE)?;
    let mut config = XskConfig::new(HOST_INTERFACE, link.index.0, 0);
    config.multi_buffer = multi_buffer.unwrap_or(true);
    Ok(Xsk::open(&config)?)
}

fn load() -> anyhow::Result<Dataplane> {
    Dataplane::load(&LoadConfig {
        iface: HOST_INTERFACE.to_owned(),
        attach: AttachWish::Driver,
        path_mtu: None,
        addresses: Vec::new(),
        vlan: None,
        shared_addresses: false,
        slots: DEFAULT_SLOTS,
        log_refusals: false,
    })
    .context("loading the XDP program")
}

fn publish(plane: &Dataplane, path_mtu: PathMtu) {
    let slot = RECEIVER.get() & (DEFAULT_SLOTS - 1);
    plane.maps.qp_config.publish(
        slot,
        &QpConfig {
            generation: path_mtu.bytes(),
            qpn: RECEIVER.get(),
            peer_qpn: SENDER.get(),
            local_gid: gid_of(Host::B.ipv4().into()),
            peer_gid: gid_of(Host::A.ipv4().into()),
            transport: Transport::Rc as u8,
            path_mtu_log2: path_mtu.log2(),
            ..QpConfig::default()
        },
    );
}

fn header(path_mtu: PathMtu) -> Vec<u8> {
    let path = Path {
        src_mac: Host::A.mac().0,
        dst_mac: Host::B.mac().0,
        vlan: None,
        src: gid_of(Host::A.ipv4().into()),
        dst: gid_of(Host::B.ipv4().into()),
        hop_limit: 64,
        flow_label: 0,
    };
    let mut header = HeaderBuf::default();
    let behind_udp = Bth::LEN + path_mtu.bytes() as usize + ICRC_LEN;
    HeaderTemplate::data(&path, SENDER, RECEIVER, 0).start(&mut header, behind_udp);
    header.push_bth(&Bth {
        opcode: WRITE_MIDDLE,
        solicited: false,
        mig_req: false,
        pad: 0,
        version: 0,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qpn: RECEIVER,
        ack_req: false,
        psn: Psn::new(0),
    });
    header.bytes().to_vec()
}
