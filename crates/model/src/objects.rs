//! Names of objects, and the door by which a watch tells a state of them.

use std::collections::HashSet;
use std::fmt;

/// Namespace (empty for cluster-scoped kinds) and name of an object.
///
/// Another object may reuse a name; compare UIDs where that matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object by its metadata; what is missing there is empty.
    pub fn of(namespace: Option<&str>, name: Option<&str>) -> Self {
        Self {
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A synchronous view of one kind. Implementations must do no I/O and return soon: they run in the watch's
/// task.
pub trait Index<T> {
    /// The object exists in this state. Repeats are normal, as is a new UID under a known name.
    fn apply(&mut self, object: T);

    /// The object was deleted; `last` is its last state, if readable.
    fn delete(&mut self, key: &ObjectKey, last: Option<T>);

    /// Every object that is not `present` was deleted, without a `delete` call.
    fn reset(&mut self, present: &HashSet<ObjectKey>);

    /// The server was restored to an older state. All later events are newer than the known state, whatever
    /// their version.
    fn rewound(&mut self) {}

    /// The object exists but cannot be decoded. By default its last known state is kept.
    fn undecodable(&mut self, key: Option<&ObjectKey>, error: &str) {
        let _ = (key, error);
    }
}
