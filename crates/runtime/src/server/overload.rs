//! Records when a server last turned a client away.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::clock;

/// The last time a server turned away a possibly legitimate client. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Overload {
    last: Arc<Mutex<Option<Timestamp>>>,
}

impl Overload {
    /// Records that a client is turned away now.
    pub fn note(&self) {
        let now = clock::now();
        let mut last = self.last.lock();
        *last = (*last).max(Some(now));
    }

    /// Time of the last one.
    #[must_use]
    pub fn last(&self) -> Option<Timestamp> {
        *self.last.lock()
    }
}

/// Raises the soft limit of open files to the hard limit. Container runtimes start programs with a soft limit
/// of 1,024, below the server's connection limit.
pub(super) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
}
