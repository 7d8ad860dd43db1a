//! The door between watches and what a server knows.

use std::collections::HashSet;
use std::sync::Arc;

use kube::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Event, ObjectKey, Watcher};
use crate::health::ReadyHandle;

/// A synchronous view of one kind. Implementations do no input or output and return soon: they run in the watch's task.
pub trait Index<T> {
    /// The object is there, in this state. Repeats are normal; so is a new UID under a known name.
    fn apply(&mut self, object: T);

    /// The object is gone; `last` is its last state where that could be read.
    fn delete(&mut self, key: &ObjectKey, last: Option<T>);

    /// Everything that is not `present` is gone, without a `delete` for it.
    fn reset(&mut self, present: &HashSet<ObjectKey>);

    /// The server went back to an older state: whatever it says next is newer than anything known, whatever its version.
    fn rewound(&mut self) {}

    /// The object is there but cannot be read. Keeping what was known of it is the default.
    fn undecodable(&mut self, key: Option<&ObjectKey>, error: &str) {
        let _ = (key, error);
    }
}

/// Carries events into `index` until `shutdown`; sets `ready` when the first complete list is in.
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
