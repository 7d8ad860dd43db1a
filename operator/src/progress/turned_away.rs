//! Reports that may not have got through, so that no program is blamed for them.
//!
//! **In**: the server's [`Overload`] (connections that were refused or cut off), and the endpoint's refusals for want of an answer of
//! the API server or of the sender's share. **Out**: for each job, until when a `progressTimeout` cannot be charged.

use std::collections::{HashMap, HashSet};

use andreas_runtime::server::Overload;
use jiff::Timestamp;
use parking_lot::Mutex;

/// When reports were last turned away, as this process knows it.
#[derive(Default)]
pub struct TurnedAway {
    /// Nothing is known of the time before: another replica served, or none.
    since: Timestamp,
    overload: Overload,
    /// By UID of the job.
    jobs: Mutex<HashMap<String, Timestamp>>,
}

impl TurnedAway {
    /// Reports are taken since then, by a server that notes what it could not serve.
    pub fn new(since: Timestamp, overload: Overload) -> Self {
        Self { since, overload, jobs: Mutex::default() }
    }

    /// A report of this job was refused although it may have been good.
    pub fn note(&self, uid: &str, now: Timestamp) {
        self.jobs.lock().insert(uid.to_owned(), now);
    }

    /// Until when reports of this job may not have got through.
    pub fn until(&self, uid: &str) -> Option<Timestamp> {
        let own = self.jobs.lock().get(uid).copied();
        [Some(self.since), self.overload.last(), own].into_iter().flatten().max()
    }

    /// Forgets all other jobs.
    pub fn keep(&self, known: &HashSet<String>) {
        self.jobs.lock().retain(|uid, _| known.contains(uid));
    }
}
