//! Possibly lost reports, which must not count against a program.
//!
//! **In**: the server's [`Overload`] (refused or closed connections), the endpoint's refusals because of rate
//! limits or an unavailable API server, and jobs that do not trust the served certificate. **Out**: for each job, until when a `progressTimeout` does not count.

use std::collections::{HashMap, HashSet};

use andreas_runtime::server::Overload;
use jiff::Timestamp;
use parking_lot::Mutex;

/// When reports were last rejected by this process, or could not reach it.
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
        Self { since, overload, ..Self::default() }
    }

    /// A possibly valid report of this job was refused, or could not be sent.
    pub fn note(&self, uid: &str, now: Timestamp) {
        self.jobs.lock().insert(uid.to_owned(), now);
    }

    /// Latest instant at which a report of the job with this UID may have been lost. A
    /// `progressTimeout` counts only after it.
    pub fn last_possible_loss(&self, uid: &str) -> Option<Timestamp> {
        let own = self.jobs.lock().get(uid).copied();
        [Some(self.since), self.overload.last(), own].into_iter().flatten().max()
    }

    /// Number of jobs with such a report.
    pub(super) fn remembered(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Drops all other jobs.
    pub fn keep(&self, known: &HashSet<String>) {
        self.jobs.lock().retain(|uid, _| known.contains(uid));
    }
}
