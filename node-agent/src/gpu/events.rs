//! A thread that waits for critical errors of the node's GPUs.
//!
//! One subscription for all: it costs a call every few seconds, where a check of each GPU would cost one a second. A GPU that
//! hangs while the subscription is made delays the errors of the others; their reads are not delayed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{ErrorEvent, Library};

/// Longest wait for an error: as long as the thread may take to notice another list of GPUs.
const WAIT: Duration = Duration::from_secs(5);
/// Pause after a failed subscription.
const RETRY: Duration = Duration::from_secs(5);
/// Most errors that are kept until they are taken; further ones are dropped, since the first ones say enough.
const MAX_EVENTS: usize = 256;

#[derive(Default)]
struct State {
    uuids: Vec<String>,
    events: Vec<ErrorEvent>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Errors of GPUs, as they come. Its thread ends some seconds after it is dropped.
pub struct ErrorWatch {
    shared: Arc<Shared>,
}

impl ErrorWatch {
    /// Starts the thread; it watches no GPU yet.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(library: Arc<dyn Library>) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let watched = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("gpu-events".into())
            .stack_size(256 * 1024)
            .spawn(move || watch(library.as_ref(), &watched))?;
        Ok(Self { shared })
    }

    /// Watches these GPUs from now on.
    pub fn set_gpus(&self, uuids: Vec<String>) {
        let mut state = self.shared.state.lock();
        if state.uuids != uuids {
            state.uuids = uuids;
            self.shared.changed.notify_one();
        }
    }

    /// The errors since the last call, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<ErrorEvent> {
        std::mem::take(&mut self.shared.state.lock().events)
    }
}

fn watch(library: &dyn Library, shared: &Weak<Shared>) {
    let mut subscription = None;
    let mut subscribed: Vec<String> = Vec::new();
    loop {
        let uuids = {
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.state.lock();
            if state.uuids.is_empty() {
                shared.changed.wait_for(&mut state, WAIT);
            }
            state.uuids.clone()
        };
        if uuids.is_empty() {
            subscription = None;
            continue;
        }
        if subscription.is_none() || subscribed != uuids {
            match library.error_events(&uuids) {
                Ok(events) => subscription = Some(events),
                Err(error) => {
                    tracing::debug!(%error, "no subscription to errors of GPUs");
                    subscription = None;
                    std::thread::sleep(RETRY);
                    continue;
                }
            }
            subscribed = uuids;
        }
        let Some(events) = subscription.as_mut() else { continue };
        match events.wait(WAIT) {
            Ok(None) => {}
            Ok(Some(event)) => {
                tracing::error!(uuid = event.uuid, xid = event.xid, "the driver reports an Xid error");
                let Some(shared) = shared.upgrade() else { return };
                let mut state = shared.state.lock();
                if state.events.len() < MAX_EVENTS {
                    state.events.push(event);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the subscription to errors of GPUs ended");
                subscription = None;
                std::thread::sleep(RETRY);
            }
        }
    }
}
