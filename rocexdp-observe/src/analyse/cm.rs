//! The communication manager's messages: which QPs were connected, from which PSNs on, and what was refused.
//!
//! REQ and REP name QPs and starting PSNs; the starting PSN in a message is that of the requests that its receiver sends
//! (drivers/infiniband/core/cm.c `cm_req_handler`: the `sq_psn` of who gets the REQ; seen in the captures).

use std::collections::{HashMap, VecDeque};

use rocexdp_common::{
    dissect::Captured,
    ids::{Gid, Psn},
    mad::{self, CmMessage, Rep, Req},
    opcode::Transport,
    parse::Packet,
};

use super::{
    Analyser,
    table::Key,
    tie::{tie, untie},
};
use crate::{
    findings::{Kind, Place},
    flow::{TiedBy, half::Connection},
};

/// Requests for connections remembered until they are answered.
const MOST: usize = 1 << 14;

/// Who asked: source, destination, communication ID.
type Asked = (Gid, Gid, u32);

#[derive(Clone, Copy, Debug)]
struct Pending {
    frame: u64,
    qpn: u32,
    psn: Psn,
    path_mtu: Option<u32>,
    reliable: bool,
    addresses: (Gid, Gid),
    service_id: u64,
    port: Option<u16>,
}

/// Requests for connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pending: HashMap<Asked, Pending>,
    order: VecDeque<Asked>,
    requests: HashMap<(Gid, Gid, u32), u64>,
}

impl Connections {
    fn add(&mut self, asked: Asked, pending: Pending) {
        if self.pending.len() >= MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.pending.remove(&oldest);
        }
        if self.pending.insert(asked, pending).is_none() {
            self.order.push_back(asked);
        }
    }

    fn ask_sidr(&mut self, asked: Asked, frame: u64) {
        if self.requests.len() >= MOST {
            self.requests.clear();
        }
        self.requests.insert(asked, frame);
    }
}

const NO_GID: Gid = [0; 16];

impl Analyser {
    /// A packet to QP 1.
    pub(super) fn management(
        &mut self,
        frame: u64,
        time: i64,
        captured: &Captured<'_>,
        p: &Packet,
        id: u32,
    ) {
        let Some(cm) = mad::datagram(captured, p).and_then(|datagram| datagram.cm) else {
            return;
        };
        *self.totals.cm.entry(cm.name()).or_default() += 1;
        let (src, dst) = (p.flow.src, p.flow.dst);
        match cm {
            CmMessage::Req(req) => self.asked(frame, src, dst, &req),
            CmMessage::Rep(rep) => self.accepted(time, src, dst, &rep),
            CmMessage::Rej {
                remote_comm_id,
                reason,
                message,
                ..
            } => self.refused(
                (frame, time),
                (dst, src, remote_comm_id),
                reason,
                message,
                id,
            ),
            CmMessage::SidrReq(req) => {
                self.connections.ask_sidr((src, dst, req.request_id), frame);
            }
            CmMessage::SidrRep(rep) if rep.status != 0 => {
                let asked = self.connections.requests.get(&(dst, src, rep.request_id));
                let frames: Vec<u64> = asked.copied().into_iter().chain([frame]).collect();
                self.findings
                    .add(Kind::CmRejected, Place::Half(id), time, 1, &frames, |f| {
                        format!(
                            "the request for a datagram service {:#x} was refused at {} (SIDR REP in frame {frame}): {}",
                            rep.service_id,
                            f.at(time),
                            mad::sidr_status_name(rep.status)
                        )
                    });
            }
            _ => {}
        }
    }

    fn asked(&mut self, frame: u64, src: Gid, dst: Gid, req: &Req) {
        let path = &req.primary;
        let addresses = if path.local_gid == NO_GID || path.remote_gid == NO_GID {
            (src, dst)
        } else {
            (path.local_gid, path.remote_gid)
        };
        self.connections.add(
            (src, dst, req.local_comm_id),
            Pending {
                frame,
                qpn: req.local_qpn.get(),
                psn: req.starting_psn,
                path_mtu: req.path_mtu_bytes(),
                reliable: req.transport == 0,
                addresses,
                service_id: req.service_id,
                port: req.ip_cm.map(|ip| ip.port),
            },
        );
    }

    fn accepted(&mut self, time: i64, src: Gid, dst: Gid, rep: &Rep) {
        let Some(req) = self
            .connections
            .pending
            .get(&(dst, src, rep.remote_comm_id))
            .copied()
        else {
            return;
        };
        let (active, passive) = req.addresses;
        let transport = if req.reliable {
            Transport::Rc
        } else {
            Transport::Uc
        };
        let connection = Connection {
            comm_ids: (rep.remote_comm_id, rep.local_comm_id),
            service_id: req.service_id,
            port: req.port,
        };
        let mut ids = [0; 2];
        let sides = [
            (active, passive, rep.local_qpn.get(), rep.starting_psn),
            (passive, active, req.qpn, req.psn),
        ];
        for (slot, (src, dst, dest_qpn, psn)) in ids.iter_mut().zip(sides) {
            let key = Key {
                src,
                dst,
                dest_qpn,
                src_qpn: 0,
            };
            let id = self.table.id(&key, transport);
            *slot = id;
            let same = self
                .table
                .get(id)
                .and_then(|half| half.connection)
                .is_some_and(|known| known == connection);
            if same {
                // The REP again.
                return;
            }
            untie(&mut self.table, id);
            let other_direction = self.table.get(id).is_some_and(|half| half.packets > 0);
            if let Some(half) = self.table.get_mut(id) {
                let verdicts = crate::flow::Verdicts {
                    other_direction,
                    untold_answers: false,
                    end: time,
                    last: false,
                };
                half.requests
                    .begin(psn, verdicts, &mut self.findings, Place::Half(id));
                if let Some(mtu) = req.path_mtu {
                    half.requests.learn_path_mtu(mtu);
                }
            }
        }
        let [a, b] = ids;
        tie(&mut self.table, a, b, TiedBy::Cm, Some(connection));
    }

    fn refused(
        &mut self,
        (frame, time): (u64, i64),
        asked: Asked,
        reason: u16,
        message: u8,
        id: u32,
    ) {
        let request = self.connections.pending.get(&asked).copied();
        let frames: Vec<u64> = request
            .map(|req| req.frame)
            .into_iter()
            .chain([frame])
            .collect();
        self.findings
            .add(Kind::CmRejected, Place::Half(id), time, 1, &frames, |f| {
                let what = match message {
                    0 => "the request for a connection",
                    1 => "the answer to a request for a connection",
                    _ => "a connection",
                };
                let target = request.map_or_else(String::new, |req| match req.port {
                    Some(port) => format!(
                        " from QP {:#x} to port {port} (REQ in frame {})",
                        req.qpn, req.frame
                    ),
                    None => format!(
                        " from QP {:#x} to service {:#x} (REQ in frame {})",
                        req.qpn, req.service_id, req.frame
                    ),
                });
                format!(
                    "{what}{target} was refused at {} (REJ in frame {frame}): reason {reason}, {}",
                    f.at(time),
                    mad::rej_reason_name(reason)
                )
            });
    }
}
