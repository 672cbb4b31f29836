//! The latest events, and whoever follows them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::broadcast::{self, error::RecvError};

use super::Event;

/// Events kept for those who ask later.
pub const HISTORY: usize = 1024;

#[derive(Debug)]
struct Shared {
    history: VecDeque<Arc<Event>>,
    live: broadcast::Sender<Arc<Event>>,
}

/// Where all events of one process meet. Clones are the same hub.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Mutex<Shared>>);

impl Default for Hub {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Shared {
            history: VecDeque::with_capacity(HISTORY),
            live: broadcast::channel(HISTORY).0,
        })))
    }
}

/// What a follower gets next.
#[derive(Debug)]
pub enum Followed {
    /// An event.
    Event(Arc<Event>),
    /// The follower was too slow for this many.
    Missed(u64),
    /// The hub has gone.
    End,
}

/// Events from now on.
#[derive(Debug)]
pub struct Follower(broadcast::Receiver<Arc<Event>>);

impl Follower {
    /// Waits for the next.
    pub async fn next(&mut self) -> Followed {
        match self.0.recv().await {
            Ok(event) => Followed::Event(event),
            Err(RecvError::Lagged(missed)) => Followed::Missed(missed),
            Err(RecvError::Closed) => Followed::End,
        }
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event.
    pub fn tell(&self, event: Event) {
        let event = Arc::new(event);
        let mut shared = self.lock();
        if shared.history.len() == HISTORY {
            shared.history.pop_front();
        }
        shared.history.push_back(Arc::clone(&event));
        // Nobody may be following.
        let _ = shared.live.send(event);
    }

    /// The events kept, oldest first, and those to come: none twice, none left out between.
    #[must_use]
    pub fn follow(&self) -> (Vec<Arc<Event>>, Follower) {
        let shared = self.lock();
        (
            shared.history.iter().cloned().collect(),
            Follower(shared.live.subscribe()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;

    fn event(number: usize) -> Event {
        Event::new("eth0", Origin::Network, "network", number.to_string())
    }

    #[tokio::test]
    async fn a_follower_gets_the_latest_and_then_each_new_one_once() {
        let hub = Hub::default();
        for number in 0..HISTORY + 3 {
            hub.tell(event(number));
        }
        let (kept, mut follower) = hub.follow();
        assert_eq!(kept.len(), HISTORY);
        assert_eq!(kept[0].text, "3");
        hub.tell(event(9999));
        assert!(matches!(follower.next().await, Followed::Event(e) if e.text == "9999"));
    }

    #[tokio::test]
    async fn a_slow_follower_is_told_how_many_it_missed() {
        let hub = Hub::default();
        let (_, mut follower) = hub.follow();
        for number in 0..HISTORY + 10 {
            hub.tell(event(number));
        }
        assert!(matches!(follower.next().await, Followed::Missed(10)));
        drop(hub);
        let mut left = 0;
        while let Followed::Event(_) = follower.next().await {
            left += 1;
        }
        assert_eq!(left, HISTORY);
    }
}
