//! Permits for writes in flight, shared by the namespaces.
//!
//! A free permit goes to the waiting namespace that holds the fewest, of several to the write that waits longest. The
//! last quarter of all goes to namespaces that hold none. So a few namespaces with slow admission delay no write of
//! another, and one that is busy alone has most permits. Writes of objects without a namespace count as those of one
//! more.

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
    /// Free permits that are kept for namespaces without one.
    reserve: usize,
    /// Permits of each namespace that holds any.
    held: BTreeMap<String, usize>,
    /// Writes without a permit by namespace, with their places in the order of arrival, first in first out.
    waiting: BTreeMap<String, VecDeque<(u64, oneshot::Sender<Permit>)>>,
    /// Number of writes that have come so far.
    arrived: u64,
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
            reserve: count / 4,
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            arrived: 0,
        })))
    }

    /// Waits for a permit for a write in this namespace; empty: in none.
    pub async fn acquire(&self, namespace: &str) -> Permit {
        let (turn, permit) = oneshot::channel();
        self.0.lock().queue(namespace, turn);
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
    fn queue(&mut self, namespace: &str, turn: oneshot::Sender<Permit>) {
        self.arrived += 1;
        self.waiting.entry(namespace.to_owned()).or_default().push_back((self.arrived, turn));
    }

    /// Takes a permit for the write that is next. `None` if there is no permit for any that still waits.
    fn take_first(&mut self) -> Option<(String, oneshot::Sender<Permit>)> {
        if self.free == 0 {
            return None;
        }
        self.waiting.retain(|_, writes| {
            while writes.front().is_some_and(|(_, turn)| turn.is_closed()) {
                writes.pop_front();
            }
            !writes.is_empty()
        });
        let next = self.waiting.iter().filter_map(|(namespace, writes)| {
            let held = self.held.get(namespace).copied().unwrap_or(0);
            let (arrival, _) = writes.front()?;
            (held == 0 || self.free > self.reserve).then_some((held, *arrival, namespace))
        });
        let namespace = next.min()?.2.clone();
        let (_, turn) = self.waiting.get_mut(&namespace)?.pop_front()?;
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
    fn busy_namespaces_have_three_quarters_and_leave_the_rest_to_others() {
        let permits = Permits::new(16);
        let held: Vec<Permit> = std::iter::from_fn(|| take(&permits, "a")).collect();
        assert_eq!(held.len(), 12);
        // A second one that is busy gets one. At once, and what has no namespace too.
        let turns = ["b", "b", "", "c", "b", "d"].into_iter();
        let others: Vec<Permit> = turns.filter_map(|n| take(&permits, n)).collect();
        let namespaces: Vec<&str> = others.iter().map(|permit| permit.namespace.as_str()).collect();
        assert_eq!(namespaces, ["b", "", "c", "d"]);
        assert!(take(&permits, "e").is_none(), "all are in use");
        drop((held, others));
        let state = permits.0.lock();
        assert!(state.held.is_empty() && state.waiting.is_empty(), "no namespace is kept in memory");
        assert!(take(&Permits::new(1), "a").is_some(), "the only one is nobody's alone");
    }

    #[test]
    fn a_free_permit_goes_to_the_namespace_with_the_fewest_however_long_others_wait() {
        let permits = Permits::new(8);
        let all = ["a", "a", "a", "b", "b", "b", "d", "e"];
        let mut held = Vec::from(all.map(|n| take(&permits, n).expect("free")));
        let mut waits = Vec::from(["a", "b", "c", "c"].map(|n| Box::pin(permits.acquire(n))));
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        // Gives back one of a namespace's permits. The answer: the namespace that has it then.
        let mut give_back = |namespace: &str| {
            let at = held.iter().position(|permit| permit.namespace == namespace).expect("it holds one");
            drop(held.remove(at));
            let mut turns = waits.iter_mut().enumerate();
            let (at, permit) = turns.find_map(|(at, wait)| Some((at, wait.as_mut().now_or_never()?)))?;
            drop(waits.remove(at));
            let next = permit.namespace.clone();
            held.push(permit);
            Some(next)
        };
        assert_eq!(give_back("a").as_deref(), Some("c"), "it held none");
        let none = ["d", "e"].into_iter().all(|namespace| give_back(namespace).is_none());
        assert!(none, "the last two are for those that hold none");
        assert_eq!(give_back("a").as_deref(), Some("a"), "a and c hold one, and a waited longer");
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
