//! Possibly lost reports, which must not count against a program.
//!
//! **In**: the server's [`Overload`] (refused or closed connections), and the endpoint's refusals because of
//! rate limits or an unavailable API server. **Out**: for each job, until when a `progressTimeout` does not
//! count.

use std::collections::{HashMap, HashSet};

use andreas_runtime::server::Overload;
use jiff::Timestamp;
use parking_lot::Mutex;

/// When this process last rejected reports.
#[derive(Default)]
pub struct RejectedReports {
    /// Earlier times are unknown: another replica served, or none.
    since: Timestamp,
    overload: Overload,
    /// By UID of the job.
    jobs: Mutex<HashMap<String, Timestamp>>,
}

impl RejectedReports {
    /// Reports are accepted since then, by a server that records its overload.
    pub fn new(since: Timestamp, overload: Overload) -> Self {
        Self { since, overload, jobs: Mutex::default() }
    }

    /// A possibly valid report of this job was refused.
    pub fn note(&self, uid: &str, now: Timestamp) {
        self.jobs.lock().insert(uid.to_owned(), now);
    }

    /// Latest instant at which a report of the job with this UID may have been lost. A
    /// `progressTimeout` counts only after it.
    pub fn last_possible_loss(&self, uid: &str) -> Option<Timestamp> {
        let own = self.jobs.lock().get(uid).copied();
        [Some(self.since), self.overload.last(), own].into_iter().flatten().max()
    }

    /// Drops all other jobs.
    pub fn keep(&self, known: &HashSet<String>) {
        self.jobs.lock().retain(|uid, _| known.contains(uid));
    }
}
