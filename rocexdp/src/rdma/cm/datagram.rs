//! Datagram services: which UD queue pair serves a port (SIDR).

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use rocexdp_common::mad::sidr_status_name;
use rocexdp_proto::{
    Transport,
    cm::{Event, IpCm, Listen, RDMA_UDP_QKEY, Resolve, SidrAnswer, SidrId, port_space},
    ids::Qpn,
};

use super::{BACKLOG, Cm, Error, ended, ephemeral, ip_header};
use crate::cm::{self, Listening, Service as Manager};

/// A datagram service of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramService {
    /// The peer's address.
    pub address: IpAddr,
    /// Our address, towards it.
    pub local: IpAddr,
    /// The queue pair to send to.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// What its application gave along: 136 bytes, zeros at the end.
    pub private_data: Vec<u8>,
}

/// The Q_Key of the RDMA CM's datagram services.
pub const DATAGRAM_QKEY: u32 = RDMA_UDP_QKEY;

impl Cm {
    /// Listens on a port for who asks for a datagram service.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen_datagrams(&self, port: u16) -> Result<DatagramListener, Error> {
        let what = Listen {
            service_id: IpCm::service_id(port_space::UDP, port),
            transport: Transport::Ud,
            path_mtu: self.device.path_mtu(),
            max_half_open: BACKLOG,
        };
        Ok(DatagramListener(self.listening(port, what)?))
    }

    /// Asks which queue pair serves a port for datagrams, and gives at most 180 bytes along.
    ///
    /// # Errors
    /// There is no such service, or the peer does not answer, or there is no way to it.
    pub async fn resolve(
        &self,
        peer: SocketAddr,
        private_data: &[u8],
    ) -> Result<DatagramService, Error> {
        let route = self.towards(peer)?;
        self.manager.reach(route).await.map_err(Error::Device)?;
        let ask = Resolve {
            route,
            service_id: IpCm::service_id(port_space::UDP, peer.port()),
            ip: Some(ip_header(route, port_space::UDP, peer.port(), ephemeral())),
            private_data: private_data.to_vec(),
        };
        let asked = self.manager.resolve(&ask);
        let mut asked = asked.map_err(|error| Error::connection(peer, error))?;
        match asked.next().await.map_err(Error::Device)? {
            Event::Resolved {
                qpn,
                qkey,
                private_data,
                ..
            } => Ok(DatagramService {
                address: peer.ip(),
                local: cm::local(route),
                qpn,
                qkey,
                private_data,
            }),
            Event::NotResolved { status, .. } => {
                let why = sidr_status_name(status);
                let why = format!("it has no such datagram service: {why} (status {status})");
                Err(Error::connection(peer, why))
            }
            other => Err(ended(peer, &other)),
        }
    }
}

/// Answers who asks for a datagram service. Dropping it ends that.
#[derive(Debug)]
pub struct DatagramListener(Listening);

impl DatagramListener {
    /// The next peer that asks. May be dropped at any time without losing one.
    ///
    /// # Errors
    /// The manager has ended.
    pub async fn next(&mut self) -> Result<DatagramRequest, Error> {
        let (id, private_data) = self.0.wanted().await.map_err(Error::Device)?;
        Ok(DatagramRequest {
            manager: Arc::clone(self.0.service()),
            id,
            private_data,
        })
    }
}

/// A peer that asks for a datagram service. Unanswered, it asks again, and gives up.
#[derive(Debug)]
#[must_use = "answer it or refuse it"]
pub struct DatagramRequest {
    manager: Arc<Manager>,
    id: SidrId,
    private_data: Vec<u8>,
}

impl DatagramRequest {
    /// Who.
    #[must_use]
    pub fn from(&self) -> IpAddr {
        cm::peer(self.id.route())
    }

    /// Our address that it asked at.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        cm::local(self.id.route())
    }

    /// What its application gave along: 180 bytes, zeros at the end.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Names the queue pair, its Q_Key (librdmacm's programs expect [`DATAGRAM_QKEY`]), and at most 136 bytes for its application.
    ///
    /// # Errors
    /// The private data is too long, or the request has been forgotten (after 10 s).
    pub fn accept(self, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<(), Error> {
        self.answer(SidrAnswer::Found { qpn, qkey }, private_data)
    }

    /// Says no.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn refuse(self) -> Result<(), Error> {
        self.answer(SidrAnswer::Refused(2), &[])
    }

    fn answer(self, how: SidrAnswer, private_data: &[u8]) -> Result<(), Error> {
        let peer = SocketAddr::new(self.from(), 0);
        self.manager
            .answer(self.id, how, private_data)
            .map_err(|error| Error::connection(peer, error))
    }
}
