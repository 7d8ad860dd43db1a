//! Readiness and liveness: named conditions and heartbeats.
//!
//! A server is *ready* when every registered condition holds. A condition that is never set keeps it unready,
//! so a cache that cannot be filled is noticed. A server is *alive* while every heartbeat is younger than its
//! limit.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The health of one process. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    conditions: Mutex<Vec<(String, ReadyHandle)>>,
    beats: Mutex<Vec<Watched>>,
}

#[derive(Debug)]
struct Watched {
    name: String,
    limit: Duration,
    last: Arc<Mutex<Instant>>,
}

impl Health {
    /// A process without conditions: ready and alive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a readiness condition that does not hold yet. `/readyz` shows `name`.
    #[must_use = "a condition that is never set keeps the server unready"]
    pub fn register(&self, name: impl Into<String>) -> ReadyHandle {
        let handle = ReadyHandle { holds: watch::Sender::new(false) };
        self.inner.conditions.lock().push((name.into(), handle.clone()));
        handle
    }

    /// Adds a heartbeat. The process counts as hung if [`Heartbeat::beat`] is not called for longer than
    /// `limit`.
    #[must_use = "a heart that never beats gets the process restarted"]
    pub fn heartbeat(&self, name: impl Into<String>, limit: Duration) -> Heartbeat {
        let last = Arc::new(Mutex::new(Instant::now()));
        self.inner.beats.lock().push(Watched { name: name.into(), limit, last: Arc::clone(&last) });
        Heartbeat { last }
    }

    /// Names of the conditions that do not hold; empty when ready.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let conditions = self.inner.conditions.lock();
        conditions.iter().filter(|(_, condition)| !condition.is_set()).map(|(name, _)| name.clone()).collect()
    }

    /// Names of the heartbeats that are overdue; empty when alive.
    #[must_use]
    pub fn overdue(&self) -> Vec<String> {
        let beats = self.inner.beats.lock();
        let late = beats.iter().filter(|beat| beat.last.lock().elapsed() > beat.limit);
        late.map(|beat| beat.name.clone()).collect()
    }
}

/// One readiness condition. Clones share it.
#[derive(Clone, Debug)]
pub struct ReadyHandle {
    holds: watch::Sender<bool>,
}

impl ReadyHandle {
    /// Sets the condition.
    pub fn set(&self) {
        self.holds.send_replace(true);
    }

    /// Clears the condition.
    pub fn unset(&self) {
        self.holds.send_replace(false);
    }

    /// Whether the condition holds.
    #[must_use]
    pub fn is_set(&self) -> bool {
        *self.holds.borrow()
    }

    /// Waits until the condition holds.
    pub async fn wait(&self) {
        // The sender is in `self`, so the channel is open.
        let _ = self.holds.subscribe().wait_for(|holds| *holds).await;
    }
}

/// Heartbeat of one loop.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    last: Arc<Mutex<Instant>>,
}

impl Heartbeat {
    /// Records an iteration of the loop.
    pub fn beat(&self) {
        *self.last.lock() = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_holds() {
        let health = Health::new();
        assert!(health.not_ready().is_empty());
        let jobs = health.register("jobs cache");
        let nodes = health.register("nodes cache");
        assert_eq!(health.not_ready(), ["jobs cache", "nodes cache"]);
        nodes.set();
        assert_eq!(health.not_ready(), ["jobs cache"]);
        jobs.set();
        assert!(health.not_ready().is_empty());
        jobs.unset();
        assert_eq!(health.not_ready(), ["jobs cache"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_stops_beating_is_reported() {
        let health = Health::new();
        let heartbeat = health.heartbeat("planner loop", Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(health.overdue().is_empty());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(health.overdue(), ["planner loop"]);
        heartbeat.beat();
        assert!(health.overdue().is_empty());
    }
}
