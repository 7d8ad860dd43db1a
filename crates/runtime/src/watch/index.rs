//! The interface between watches and a server's state.

use std::collections::HashSet;
use std::sync::Arc;

use kube::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Event, ObjectKey, Watcher};
use crate::health::ReadyHandle;

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

/// Passes events to `index` until `shutdown`; sets `ready` after the first complete list.
pub async fn feed<T, I>(
    mut watcher: Watcher<T>,
    index: Arc<Mutex<I>>,
    ready: ReadyHandle,
    shutdown: CancellationToken,
) where
    T: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    I: Index<T> + Send + 'static,
{
    loop {
        let event = tokio::select! {
            event = watcher.next() => event,
            () = shutdown.cancelled() => return,
        };
        let mut index = index.lock();
        match event {
            Event::Applied(object) => index.apply(object),
            Event::Deleted { key, last } => index.delete(&key, last),
            Event::Undecodable { key, error } => index.undecodable(key.as_ref(), &error),
            Event::Rewound => index.rewound(),
            Event::Reset(present) => {
                index.reset(&present);
                drop(index);
                ready.set();
            }
        }
    }
}
