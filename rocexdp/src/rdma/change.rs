//! A connected queue pair's attributes, asked for and changed.
//!
//! What may change when is the standard's modify table, carried out by the engine. Must not: change what the ends have agreed on (path MTU,
//! selective repeat, addresses).

use std::time::Duration;

use rocexdp_proto::{ModifyQp, QpAttr, QpInitAttr, QpState, Transport, mem::Access};

use super::{Behaviour, Error, QueuePair, Ready, Service};

/// How often a queue pair is looked at that drains, besides when the device tells that it has.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl<S: Service, State> QueuePair<S, State> {
    /// Its attributes as they were set, and how it was made (`ibv_query_qp(3)`): retries as configured, not as left.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn query(&self) -> Result<(QpAttr, QpInitAttr), Error> {
        self.raw.query().await.map_err(Error::Device)
    }
}

impl<S: Service> QueuePair<S, Ready> {
    /// What the peer may do through it from its next packet on, besides what regions allow.
    ///
    /// # Errors
    /// A right that only regions have, the queue pair has failed, or the engine has ended.
    pub async fn set_access(&self, access: Access) -> Result<(), Error> {
        self.modify(ModifyQp {
            access: Some(access),
            ..ModifyQp::default()
        })
        .await
    }

    async fn modify(&self, change: ModifyQp) -> Result<(), Error> {
        let modified = self.raw.modify(move |_| change).await;
        modified.map_err(Error::Device)
    }

    /// Drains the send queue (state SQD): requests that have begun are carried out, those posted from now on wait. Returns once nothing of
    /// ours is unanswered; then attributes can be changed that must not change meanwhile. Receiving goes on.
    ///
    /// Dropping what it gives, or this future, lets it send again.
    ///
    /// # Errors
    /// The queue pair has failed, or fails meanwhile; or the engine has ended.
    pub async fn drain(&self) -> Result<Drained<'_, S>, Error> {
        let mut events = self.protection_domain().device().events();
        // First, so that it sends again wherever this future is dropped.
        let drained = Drained { qp: self };
        self.modify(ModifyQp {
            en_sqd_async_notify: Some(true),
            ..ModifyQp::to(QpState::Sqd)
        })
        .await?;
        loop {
            let (attr, _) = self.query().await?;
            match attr.state {
                QpState::Sqd if !attr.sq_draining => return Ok(drained),
                QpState::Sqd => {}
                state => {
                    return Err(Error::Device(anyhow::anyhow!(
                        "QP {} went to {state} while it drained",
                        self.qpn()
                    )));
                }
            }
            // Whatever the device tells, or nothing: it is looked at again.
            let _ = tokio::time::timeout(LOOK_AGAIN, events.recv()).await;
        }
    }
}

/// A queue pair whose send queue is drained: see [`QueuePair::drain`].
#[derive(Debug)]
#[must_use = "dropped, the queue pair sends again"]
pub struct Drained<'a, S: Service> {
    qp: &'a QueuePair<S, Ready>,
}

impl<S: Service> Drained<'_, S> {
    /// Changes how the queue pair behaves: timers, retries, READs and atomics both ways (as the ends have agreed anew), DSCP, hop limit,
    /// flow label, what the peer may do. Path MTU and selective repeat stay.
    ///
    /// # Errors
    /// A value is out of its range, and none has changed; or the engine has ended.
    pub async fn set_behaviour(&self, to: Behaviour) -> Result<(), Error> {
        let reliable = S::TRANSPORT == Transport::Rc;
        let rc = move |value: u8| reliable.then_some(value);
        let modified = self.qp.raw.modify(move |now| ModifyQp {
            access: Some(to.access),
            path: now.path.map(|path| rocexdp_proto::wire::Path {
                dscp: to.dscp,
                hop_limit: to.hop_limit,
                flow_label: to.flow_label.get(),
                ..path
            }),
            timeout: rc(to.timeout),
            retry_cnt: rc(to.retry_cnt),
            rnr_retry: rc(to.rnr_retry),
            min_rnr_timer: rc(to.min_rnr_timer),
            max_rd_atomic: rc(to.max_rd_atomic),
            max_dest_rd_atomic: rc(to.max_dest_rd_atomic),
            ..ModifyQp::default()
        });
        modified.await.map_err(Error::Device)
    }
}

impl<S: Service> Drop for Drained<'_, S> {
    fn drop(&mut self) {
        self.qp.raw.resume();
    }
}
