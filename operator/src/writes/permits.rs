//! Permits for writes in flight, shared by the namespaces.
//!
//! A free permit goes to the waiting namespace that holds the fewest, of several to the write that waits longest. No
//! namespace holds more than three quarters of all. So a namespace with slow admission delays no write of another, and
//! one that is busy alone has most permits. Writes of objects without a namespace count as those of one more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Permits for writes. Clones share them.
#[derive(Clone)]
pub struct Permits(Arc<Mutex<State>>);

struct State {
    /// Permits that nobody holds.
    free: usize,
    /// Maximum permits of a namespace.
    share: usize,
    /// Permits of each namespace that holds any.
    held: BTreeMap<String, usize>,
    /// Writes without a permit, with their namespaces, in the order of their arrival.
    waiting: VecDeque<(String, oneshot::Sender<Permit>)>,
}

/// The right to one write in flight, until it is dropped.
pub struct Permit {
    permits: Permits,
    namespace: String,
}

impl Permits {
    /// This many permits. A namespace can always hold one of them.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: count,
            share: (count * 3 / 4).max(1),
            held: BTreeMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a permit for a write in this namespace; empty: in none.
    pub async fn acquire(&self, namespace: &str) -> Permit {
        let (turn, permit) = oneshot::channel();
        self.0.lock().waiting.push_back((namespace.to_owned(), turn));
        self.grant();
        permit.await.expect("a write stays in the queue until it has its permit")
    }

    /// Gives permits to those that may have one now.
    fn grant(&self) {
        loop {
            let first = self.0.lock().take_first();
            let Some((namespace, turn)) = first else { return };
            // The permit of a write that was given up meanwhile is dropped here, and so free again.
            drop(turn.send(Permit { permits: self.clone(), namespace }));
        }
    }
}

impl State {
    /// Takes a permit for the write that is next. `None` if there is no permit for any that still waits.
    fn take_first(&mut self) -> Option<(String, oneshot::Sender<Permit>)> {
        if self.free == 0 {
            return None;
        }
        self.waiting.retain(|(_, turn)| !turn.is_closed());
        let holds = self.waiting.iter().map(|(namespace, _)| self.held.get(namespace).copied().unwrap_or(0));
        let (at, _) =
            holds.enumerate().filter(|(_, held)| *held < self.share).min_by_key(|(_, held)| *held)?;
        let (namespace, turn) = self.waiting.remove(at)?;
        self.free -= 1;
        *self.held.entry(namespace.clone()).or_default() += 1;
        Some((namespace, turn))
    }

    fn give_back(&mut self, namespace: &str) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(namespace) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(namespace);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.0.lock().give_back(&self.namespace);
        self.permits.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// A permit that is to be had at once.
    fn take(permits: &Permits, namespace: &str) -> Option<Permit> {
        permits.acquire(namespace).now_or_never()
    }

    #[test]
    fn a_namespace_alone_has_three_quarters_and_leaves_the_rest_to_others() {
        let permits = Permits::new(16);
        let held: Vec<Permit> = std::iter::from_fn(|| take(&permits, "a")).collect();
        assert_eq!(held.len(), 12);
        let others: Vec<Permit> = ["b", "", "c", "b"].into_iter().filter_map(|n| take(&permits, n)).collect();
        assert_eq!(others.len(), 4, "at once, and what has no namespace too");
        assert!(take(&permits, "d").is_none(), "all are in use");
        drop((held, others));
        assert!(permits.0.lock().held.is_empty(), "no namespace is kept in memory");
        assert!(take(&Permits::new(1), "a").is_some(), "the only one is nobody's alone");
    }

    #[test]
    fn a_free_permit_goes_to_the_namespace_with_the_fewest_however_long_others_wait() {
        let permits = Permits::new(5);
        let mut held = Vec::from(["a", "a", "a", "b", "b"].map(|n| take(&permits, n).expect("free")));
        let mut waits = Vec::from(["a", "b", "c", "c"].map(|n| Box::pin(permits.acquire(n))));
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        // The namespaces that hold permits once the first one is given back, that of the newest last.
        let mut after_the_next = || {
            drop(held.remove(0));
            let mut turns = waits.iter_mut().enumerate();
            let granted = turns.find_map(|(at, wait)| Some((at, wait.as_mut().now_or_never()?)));
            let (at, permit) = granted.expect("somebody's turn");
            held.push(permit);
            drop(waits.remove(at));
            held.iter().map(|permit| permit.namespace.as_str()).collect::<String>()
        };
        assert_eq!(after_the_next(), "aabbc", "it held none");
        assert_eq!(after_the_next(), "abbca", "a and c hold one, and a waited longer");
    }

    #[test]
    fn a_write_that_was_given_up_takes_no_permit() {
        let permits = Permits::new(1);
        let held = take(&permits, "a").expect("free");
        let (mut before, mut after) = (Box::pin(permits.acquire("b")), Box::pin(permits.acquire("c")));
        assert!(before.as_mut().now_or_never().is_none() && after.as_mut().now_or_never().is_none());
        drop(before);
        drop(held);
        assert!(take(&permits, "a").is_none(), "c has it and does not know yet");
        drop(after);
        assert!(take(&permits, "a").is_some());
    }
}
