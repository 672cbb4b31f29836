//! How many strangers a listener hears at once: in all, and of one address, so that none takes all places by saying nothing.
//!
//! Must not: know what they say.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for all, and for each address.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: Arc<Semaphore>,
    each: usize,
    /// Most in line, those with a place included, of one address.
    most: usize,
    /// The same, of all addresses together.
    most_of_all: usize,
    /// By address: how many are in line, and its places.
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    count: usize,
    of: HashMap<IpAddr, (usize, Arc<Semaphore>)>,
}

impl Inner {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One in line. Dropped, it has left.
#[derive(Debug)]
pub(super) struct InLine {
    inner: Arc<Inner>,
    from: IpAddr,
    places: Arc<Semaphore>,
}

impl Places {
    /// `all` places, at most `each` for one address, of which `most` may be in line, and `most_of_all` altogether.
    pub(super) fn new(all: usize, each: usize, most: usize, most_of_all: usize) -> Self {
        Self(Arc::new(Inner {
            all: Arc::new(Semaphore::new(all)),
            each,
            most,
            most_of_all,
            line: Mutex::default(),
        }))
    }

    /// Takes one in line; `None` where too many of its address are, or too many in all.
    pub(super) fn stand(&self, from: IpAddr) -> Option<InLine> {
        let inner = &self.0;
        let mut line = inner.line();
        let known = line.of.get(&from).map_or(0, |(count, _)| *count);
        if known >= inner.most || line.count >= inner.most_of_all {
            return None;
        }
        line.count += 1;
        let places = || (0, Arc::new(Semaphore::new(inner.each)));
        let (count, places) = line.of.entry(from).or_insert_with(places);
        *count += 1;
        let places = Arc::clone(places);
        drop(line);
        Some(InLine {
            inner: Arc::clone(inner),
            from,
            places,
        })
    }
}

impl InLine {
    /// Waits for a place, which lasts as long as what this gives; `None`: never.
    pub(super) async fn place(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        // Its address's first: who waits for that holds up nobody else.
        let own = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.inner.all).acquire_owned().await.ok()?;
        Some([own, all])
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut line = self.inner.line();
        line.count -= 1;
        if let Some((count, _)) = line.of.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                line.of.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Poll};

    use super::*;

    /// Whether there is a place now.
    async fn at_once(one: &InLine) -> Option<[OwnedSemaphorePermit; 2]> {
        let mut place = pin!(one.place());
        std::future::poll_fn(|cx| match place.as_mut().poll(cx) {
            Poll::Ready(place) => Poll::Ready(place),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn one_address_leaves_places_to_others_and_its_line_ends() {
        let places = Places::new(3, 2, 4, 6);
        let [a, b, c] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
        let crowd: Vec<InLine> = (0..4).map(|_| places.stand(a).unwrap()).collect();
        assert!(places.stand(a).is_none(), "the line is full");
        let first = at_once(&crowd[0]).await.unwrap();
        let _second = at_once(&crowd[1]).await.unwrap();
        assert!(at_once(&crowd[2]).await.is_none(), "two of one address");
        let other = places.stand(b).unwrap();
        let _third = at_once(&other).await.unwrap();
        let last = places.stand(c).unwrap();
        assert!(at_once(&last).await.is_none(), "three in all");
        assert!(places.stand(c).is_none(), "six in line");
        drop(first);
        assert!(at_once(&last).await.is_some());
        drop((crowd, other, last));
        assert!(
            places.0.line().of.is_empty() && places.0.line().count == 0,
            "nothing is kept of who has left"
        );
    }
}
