//! From a watch to a server's state.

use std::sync::Arc;

use andreas_model::Index;
use kube::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Event, Watcher};
use crate::health::ReadyHandle;

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
