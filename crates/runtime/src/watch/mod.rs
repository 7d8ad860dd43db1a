//! A robust list and watch for *slim* types, one object at a time.
//!
//! # Contents
//!
//! [`Watcher`] turns one collection into [`Event`]s. [`feed`] passes them to a synchronous [`Index`], in
//! which servers keep their state. All I/O is here; the index gives objects their meaning.
//!
//! # Guarantees
//!
//! * **A bad object affects no others.** A tenant can nest `metadata.managedFields` of a pod deeper than
//!   serde_json reads (128 levels). Decoding the list as a whole would then always fail. Here each object is
//!   first split off as raw text, without recursion, and then decoded alone. A failure is counted and
//!   reported as [`Event::Undecodable`]. Slim types ignore `managedFields` and decode even then.
//! * **Memory does not grow with the list.** Pages and watch lines are split into objects while they arrive;
//!   each object is passed on before the next is decoded. Pages shrink with large objects or slow answers. A
//!   failed page is retried alone, without the whole list.
//! * **A restored server is detected.** A list older than an earlier event sends [`Event::Rewound`] first;
//!   known versions are then invalid. A watch without events or bookmarks is followed by a list of one object.
//! * **Watches resume.** Busy API servers end watches often, even for readers late by some tens of
//!   milliseconds. The watch resumes from the last version without a new list. Only 410 Gone lists again.
//! * **Silence is detected.** Watches are requested for [`WatchConfig::watch_for`] and abandoned a little
//!   later. A list has the client's deadline per page. A silently dead connection costs at most that time.
//! * **Retries are fast.** The backoff grows to [`WatchConfig::longest_wait`] (2 s) with jitter, not to a
//!   minute.
//!
//! # Not allowed
//!
//! Knowledge of the objects' meaning, and writes.

use std::collections::HashSet;
use std::time::Duration;

use kube::Resource;

mod index;
pub mod list_splitter;
mod metrics;
mod state;
mod watcher;
mod wire;

pub use andreas_model::{Index, ObjectKey};
pub use index::feed;
pub use metrics::{WATCHES, WatchMetrics};
pub use watcher::{Watcher, check_line};

/// Selection and timeouts of a watch.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// Namespace; default: all. Ignored for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Label selector.
    pub labels: Option<String>,
    /// Field selector.
    pub fields: Option<String>,
    /// Maximum objects per page; fewer if they are large.
    pub page: u32,
    /// Duration of one watch call, with 20 % jitter, and the time to detect a dead connection. At least 5 s.
    pub watch_for: Duration,
    /// Timeout of one page of a list.
    pub list_within: Duration,
    /// Maximum backoff after a failure.
    pub longest_wait: Duration,
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            namespace: None,
            labels: None,
            fields: None,
            page: 500,
            watch_for: Duration::from_secs(30),
            list_within: Duration::from_secs(30),
            longest_wait: Duration::from_secs(2),
        }
    }
}

impl WatchConfig {
    /// Selects objects by labels.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Selects objects by fields.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Selects one namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

/// The key of an object; missing metadata gives empty strings.
fn key_of(object: &impl Resource) -> ObjectKey {
    let meta = object.meta();
    ObjectKey::of(meta.namespace.as_deref(), meta.name.as_deref())
}

/// A change of a collection.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<T> {
    /// An object exists: new, changed or listed again. The same version may come more than once.
    Applied(T),
    /// An object was deleted.
    Deleted {
        /// Its key.
        key: ObjectKey,
        /// Its last state, possibly newer than any applied before; `None` if it does not decode.
        last: Option<T>,
    },
    /// An object exists but does not decode. Its last known state is valid until it is deleted or readable
    /// again.
    Undecodable {
        /// Its key; `None` if not even the name is readable.
        key: Option<ObjectKey>,
        /// The decoder's error.
        error: String,
    },
    /// The server's database was restored to an older state. The following list is valid, whatever its
    /// versions.
    Rewound,
    /// A complete list was delivered; all other objects were deleted. The first one means that the cache is
    /// filled.
    Reset(HashSet<ObjectKey>),
}
