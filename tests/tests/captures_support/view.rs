//! What our parser says of a frame, in tshark's terms.

use rocexdp_common::{
    dissect::{Dissected, Kind, TunnelKind, dissect, extensions},
    mad::{CmMessage, datagram},
    parse::IpVersion,
};

use super::tshark::{FIELDS, View};

fn mac(m: [u8; 6]) -> String {
    m.map(|b| format!("{b:02x}")).join(":")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Our view of a frame.
pub fn ours(frame: &[u8]) -> View {
    let d = dissect(frame);
    let mut view = View::new();
    let mut put = |field: &'static str, value: String| view.entry(field).or_default().push(value);
    for link in [d.link, d.inner_link].into_iter().flatten() {
        put("eth.src", mac(link.src));
        put("eth.dst", mac(link.dst));
        for tag in link.tags.into_iter().flatten() {
            let [id, priority] = if tag.tpid == 0x8100 {
                ["vlan.id", "vlan.priority"]
            } else {
                ["ieee8021ad.id", "ieee8021ad.priority"]
            };
            put(id, tag.vid.to_string());
            put(priority, tag.pcp.to_string());
        }
    }
    match d.tunnel.map(|t| t.kind) {
        Some(TunnelKind::Vxlan { vni }) => put("vxlan.vni", vni.to_string()),
        Some(TunnelKind::Geneve { vni }) => put("geneve.vni", vni.to_string()),
        Some(TunnelKind::Gre { protocol, key }) => {
            put("gre.proto", protocol.to_string());
            key.into_iter()
                .for_each(|key| put("gre.key", key.to_string()));
        }
        Some(TunnelKind::Erspan { version, session }) => {
            put(
                "gre.proto",
                if version == 3 { 0x22eb } else { 0x88be }.to_string(),
            );
            if let Some(session) = session {
                put("erspan.version", (version - 1).to_string());
                put("erspan.spanid", session.to_string());
            }
        }
        None => {}
    }
    match d.kind {
        Kind::GlobalPause { quanta } => {
            put("macc.opcode", "1".into());
            put("macc.pause_time", quanta.to_string());
        }
        Kind::Pfc(pfc) => {
            put("macc.opcode", 0x101.to_string());
            put("macc.cbfc.enbv", pfc.class_enable.to_string());
            let names = FIELDS
                .iter()
                .filter(|f| f.starts_with("macc.cbfc.pause_time.c"));
            for (name, quanta) in names.zip(pfc.quanta) {
                put(name, quanta.to_string());
            }
        }
        Kind::RoceV2(_) | Kind::RoceV1(_) => packet(frame, &d, &mut put),
        _ => {}
    }
    view
}

/// The part of our view that a RoCE packet has.
fn packet(frame: &[u8], d: &Dissected, put: &mut impl FnMut(&'static str, String)) {
    let p = d.kind.packet().expect("a packet");
    let mut number = |field, n: u64| put(field, n.to_string());
    let bth = p.bth;
    number("infiniband.bth.opcode", bth.opcode.0.into());
    number("infiniband.bth.se", bth.solicited.into());
    number("infiniband.bth.m", bth.mig_req.into());
    number("infiniband.bth.padcnt", bth.pad.into());
    number("infiniband.bth.tver", bth.version.into());
    number("infiniband.bth.p_key", bth.pkey.into());
    number("infiniband.bth.destqp", bth.dest_qpn.get().into());
    number("infiniband.bth.a", bth.ack_req.into());
    number("infiniband.bth.psn", bth.psn.get().into());
    let icrc: [u8; 4] = frame[p.end as usize - 4..p.end as usize]
        .try_into()
        .expect("four bytes");
    number("infiniband.invariant.crc", u32::from_be_bytes(icrc).into());
    let tos = u64::from(d.dscp << 2 | d.ecn);
    if let Kind::RoceV1(_) = d.kind {
        number("infiniband.grh.tclass", tos);
        number("infiniband.grh.flowlabel", d.flow_label.into());
        number("infiniband.grh.hoplmt", d.ttl.into());
        number("infiniband.grh.paylen", u64::from(p.end - p.ip_at) - 40);
    } else {
        number("udp.srcport", d.udp_src_port.into());
        if p.ip == IpVersion::V4 {
            number("ip.ttl", d.ttl.into());
            number("ip.dsfield", tos);
        } else {
            number("ipv6.hlim", d.ttl.into());
            number("ipv6.tclass", tos);
            number("ipv6.flow", d.flow_label.into());
        }
    }
    let Some(ext) = extensions(frame, p) else {
        return;
    };
    if let Some(deth) = ext.deth {
        number("infiniband.deth.q_key", deth.qkey.into());
        number("infiniband.deth.srcqp", deth.src_qpn.get().into());
    }
    if let Some(reth) = ext.reth {
        number("infiniband.reth.va", reth.va);
        number("infiniband.reth.r_key", reth.rkey.into());
        number("infiniband.reth.dmalen", reth.length.into());
    }
    if let Some(a) = ext.atomic {
        // tshark has no fields of its own for the first two.
        number("infiniband.reth.va", a.va);
        number("infiniband.reth.r_key", a.rkey.into());
        number("infiniband.atomiceth.swapdt", a.swap_or_add);
        number("infiniband.atomiceth.cmpdt", a.compare);
    }
    if let Some(aeth) = ext.aeth {
        number("infiniband.aeth.syndrome", aeth.syndrome.to_byte().into());
        number("infiniband.aeth.msn", aeth.msn.into());
    }
    if let Some(original) = ext.atomic_ack {
        number("infiniband.atomicacketh.origremdt", original);
    }
    if let Some(d) = datagram(frame, p) {
        number("infiniband.mad.mgmtclass", d.mad.class.into());
        number("infiniband.mad.method", d.mad.method.into());
        number("infiniband.mad.transactionid", d.mad.transaction_id);
        number("infiniband.mad.attributeid", d.mad.attribute.into());
        if let Some(cm) = d.cm {
            message(&cm, &mut number);
        }
    }
    if let Some(imm) = ext.imm {
        put("infiniband.immdt", hex(&imm.to_be_bytes()));
    }
    if let Some(rkey) = ext.ieth {
        put("infiniband.ieth", hex(&rkey.to_be_bytes()));
    }
    if let Kind::RoceV1(_) = d.kind {
        put(
            "infiniband.grh.sgid",
            std::net::Ipv6Addr::from(p.flow.src).to_string(),
        );
        put(
            "infiniband.grh.dgid",
            std::net::Ipv6Addr::from(p.flow.dst).to_string(),
        );
    }
}

/// The part that a message of the communication manager has.
fn message(cm: &CmMessage, number: &mut impl FnMut(&'static str, u64)) {
    match cm {
        CmMessage::Req(r) => {
            number("infiniband.cm.req", r.local_comm_id.into());
            number("infiniband.cm.req.localqpn", r.local_qpn.get().into());
            number("infiniband.cm.req.startpsn", r.starting_psn.get().into());
            number(
                "infiniband.cm.req.responderres",
                r.responder_resources.into(),
            );
            number("infiniband.cm.req.initdepth", r.initiator_depth.into());
            number("infiniband.cm.req.retrcount", r.retry_count.into());
            number("infiniband.cm.req.rnrretrcount", r.rnr_retry_count.into());
            number("infiniband.cm.req.pppmtu", r.path_mtu.into());
            number("infiniband.cm.req.pkey", r.pkey.into());
            number(
                "infiniband.cm.req.prim_localacktout",
                r.primary.local_ack_timeout.into(),
            );
            number(
                "infiniband.cm.req.prim_tfcclass",
                r.primary.traffic_class.into(),
            );
            number("infiniband.cm.req.prim_hoplim", r.primary.hop_limit.into());
            number(
                "infiniband.cm.req.prim_flowlabel",
                r.primary.flow_label.into(),
            );
            number(
                "infiniband.cm.req.prim_pktrate",
                r.primary.packet_rate.into(),
            );
            if let Some(ip) = r.ip_cm {
                number("infiniband.cm.req.serviceid.dport", ip.port.into());
                number("infiniband.cm.req.ip_cm.sport", ip.src_port.into());
            }
        }
        CmMessage::Rep(r) => {
            number("infiniband.cm.rep", r.local_comm_id.into());
            number("infiniband.cm.rep.remotecommid", r.remote_comm_id.into());
            number("infiniband.cm.rep.localqpn", r.local_qpn.get().into());
            number("infiniband.cm.rep.startpsn", r.starting_psn.get().into());
            number("infiniband.cm.rep.respres", r.responder_resources.into());
            number("infiniband.cm.rep.initdepth", r.initiator_depth.into());
            number("infiniband.cm.rep.tgtackdelay", r.target_ack_delay.into());
            number("infiniband.cm.rep.rnrretrcount", r.rnr_retry_count.into());
        }
        CmMessage::Rtu {
            local_comm_id,
            remote_comm_id,
        } => {
            number("infiniband.cm.rtu.localcommid", (*local_comm_id).into());
            number("infiniband.cm.rtu.remotecommid", (*remote_comm_id).into());
        }
        CmMessage::Rej {
            local_comm_id,
            remote_comm_id,
            message,
            reason,
            ..
        } => {
            number("infiniband.cm.rej.localcommid", (*local_comm_id).into());
            number("infiniband.cm.rej.remotecommid", (*remote_comm_id).into());
            number("infiniband.cm.rej.msgrej", (*message).into());
            number("infiniband.cm.rej.reason", (*reason).into());
        }
        CmMessage::Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn,
        } => {
            number("infiniband.cm.dreq.localcommid", (*local_comm_id).into());
            number("infiniband.cm.dreq.remotecommid", (*remote_comm_id).into());
            number("infiniband.cm.req.remoteqpneecn", remote_qpn.get().into());
        }
        CmMessage::Drep {
            local_comm_id,
            remote_comm_id,
        } => {
            number("infiniband.cm.drsp.localcommid", (*local_comm_id).into());
            number("infiniband.cm.drsp.remotecommid", (*remote_comm_id).into());
        }
        // tshark has no fields for the others.
        _ => {}
    }
}
