//! Selective repeat of answers at the responder: which transmission of which response is on the way, has arrived, is lost.
//!
//! READ responses and the answers of atomics, FLUSHes and ATOMIC WRITEs are numbered as the requests are, whose PSNs they have.
//! The requester says which of their transmissions have arrived, as the responder does of requests, and the responder sends again
//! what is lost, without being asked. The end of an answer, behind which nothing shows that it is lost, is the requester's
//! matter: it asks again for what it misses.
//!
//! Must not: know what the answers hold.

use rocexdp_common::headers::Sack;

use super::{SPAN, Sender};
use crate::time::Timestamp;

use super::sender::News;

/// Books of the answers that were sent.
#[derive(Debug)]
pub(crate) struct Answers {
    paths: u8,
    /// The first serial of each path.
    first: u32,
    /// The requester misses none before this one.
    una: u64,
    /// From the first answer on: many QPs have none.
    sender: Option<Box<Sender>>,
}

impl Answers {
    /// None sent, over so many paths, each of which starts with serial `first`.
    pub(crate) fn new(paths: u8, first: u32) -> Self {
        Self {
            paths,
            first,
            una: 0,
            sender: None,
        }
    }

    /// Answer `number` leaves, on this path and with this serial.
    pub(crate) fn sent(&mut self, number: u64, now: Timestamp) -> (u8, u32) {
        // Who asks for it has all that lies so far before it.
        self.arrived_before((number + 1).saturating_sub(u64::from(SPAN)));
        let (paths, first) = (self.paths, self.first);
        self.sender
            .get_or_insert_with(|| Box::new(Sender::new(paths, first)))
            .sent(number, now)
    }

    /// The requester misses none before `number`, or does not ask for them any more.
    pub(crate) fn arrived_before(&mut self, number: u64) {
        if number > self.una {
            if let Some(sender) = &mut self.sender {
                sender.acknowledged(self.una, number);
            }
            self.una = number;
        }
    }

    /// As for [`Sender::sack`], which it comes from.
    pub(crate) fn sack(&mut self, sack: &Sack, now: Timestamp) -> Option<News> {
        self.sender.as_mut()?.sack(sack, self.una, now)
    }

    /// The answer that is to be sent again next.
    pub(crate) fn next_lost(&self) -> Option<u64> {
        self.sender.as_ref()?.next_lost()
    }

    /// The requester asks again for an answer that was sent: unless it is known to have arrived, it goes again.
    pub(crate) fn suspect(&mut self, number: u64) {
        if let Some(sender) = self.sender.as_mut().filter(|_| number >= self.una) {
            sender.suspect(number);
        }
    }

    /// The answer is not sent again.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(sender) = &mut self.sender {
            sender.forget(number, self.una);
        }
    }
}
