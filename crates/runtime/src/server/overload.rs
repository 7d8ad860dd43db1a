//! What a server could not serve: when it last turned a client away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;

/// When a server last turned away a client that may have been a good one. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Overload {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: Mutex<Option<Timestamp>>,
    count: AtomicU64,
}

impl Overload {
    /// A client is turned away now.
    pub fn note(&self) {
        let now = Timestamp::now();
        let mut last = self.inner.last.lock();
        *last = (*last).max(Some(now));
        self.inner.count.fetch_add(1, Ordering::Relaxed);
    }

    /// When that happened last.
    #[must_use]
    pub fn last(&self) -> Option<Timestamp> {
        *self.inner.last.lock()
    }

    /// How often it happened.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.inner.count.load(Ordering::Relaxed)
    }
}

/// Lets this process open as many files as it may: container runtimes start programs with a soft limit of 1,024, which is less than
/// the connections that a server keeps.
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
