//! List and watch that keeps going: for *slim* types, one object at a time.
//!
//! # What it holds
//!
//! [`Watcher`] turns one collection into [`Event`]s. [`feed`] carries them into a synchronous [`Index`], which is how servers keep
//! what they know: all input and output here, all meaning there.
//!
//! # What it promises
//!
//! * **One bad object stops nobody.** Any tenant may nest `metadata.managedFields` of their own pod deeper than serde_json reads
//!   (128 levels); a list decoded as a whole then fails for everybody, for ever. Here each object is first cut out as raw text
//!   (without recursion) and then decoded by itself. One that does not decode is counted and reported as
//!   [`Event::Undecodable`]; slim types, which never look into `managedFields`, decode even then.
//! * **Its memory does not grow with what is listed.** Pages and watch lines are cut into objects while they arrive, and each is
//!   decoded and handed on before the next. Pages become smaller where objects are large or an answer takes too long; a page that
//!   failed is asked for again, not the whole list.
//! * **It notices a restored server.** A list that is older than what was seen before says [`Event::Rewound`] first: versions that
//!   are known count for nothing then.
//! * **It resumes.** Busy API servers end watches often (a reader late by some tens of milliseconds is cut off). The watch goes on
//!   from the last version, without a new list. Only 410 Gone lists again.
//! * **It notices silence.** Watches are asked to end after [`WatchConfig::watch_for`] and given up a little later; a list has the
//!   client's deadline per page. So a connection that died silently costs that long at most.
//! * **It comes back soon.** Waits grow to [`WatchConfig::longest_wait`] (2 s) with jitter, not to a minute.
//!
//! # What must never be here
//!
//! Knowledge of what the objects mean, and any write.

use std::collections::HashSet;
use std::time::Duration;

use kube::Resource;

mod cut;
mod index;
mod listing;
mod metrics;
mod watcher;
mod wire;

pub use index::{Index, feed};
pub use metrics::{WATCHES, WatchMetrics};
pub use watcher::Watcher;

/// What is watched, and how patiently.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// One namespace; all without it. Ignored for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Label selector.
    pub labels: Option<String>,
    /// Field selector.
    pub fields: Option<String>,
    /// Most objects in a page of a list; fewer where they are large.
    pub page: u32,
    /// How long one watch call lasts (drawn within +/- 20 %). Also how long a dead connection goes unnoticed. At least 5 s.
    pub watch_for: Duration,
    /// Longest time for one page of a list.
    pub list_within: Duration,
    /// Longest wait after a failure.
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
    /// Only objects whose labels match.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only objects whose fields match.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Only one namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }
}

/// Namespace (empty for cluster-scoped kinds) and name of an object.
///
/// A name may be used again by another object; compare UIDs where that matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object; empty strings where its metadata has none.
    pub fn of(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What happened to a collection.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<T> {
    /// An object is there, new or changed or listed again. The same version may come more than once.
    Applied(T),
    /// An object is gone.
    Deleted {
        /// Which.
        key: ObjectKey,
        /// Its last state, which may be newer than any applied before; `None` when it does not decode.
        last: Option<T>,
    },
    /// An object is there but cannot be read. What was known of it before still counts until it is deleted or readable again.
    Undecodable {
        /// Which; `None` when not even its name can be read.
        key: Option<ObjectKey>,
        /// What the decoder said.
        error: String,
    },
    /// The server is in an older state than before: its database was restored. A list follows that holds, whatever its versions.
    Rewound,
    /// A complete list has been delivered; whatever is not among these keys is gone. The first one means: the cache is filled.
    Reset(HashSet<ObjectKey>),
}
