//! A thread that waits for critical errors of the node's GPUs.
//!
//! One subscription for all: it costs a call every few seconds, where a check of each GPU would cost one a second. A GPU that
//! hangs while the subscription is made delays the errors of the others; their reads are not delayed.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{ErrorEvent, ErrorEvents, Library};

/// Longest wait for an error: as long as the thread may take to notice another list of GPUs.
const WAIT: Duration = Duration::from_secs(5);
/// Pause after a failed subscription.
const RETRY: Duration = Duration::from_secs(5);
/// Interval between subscriptions while one misses a GPU: it may answer again.
const COMPLETE: Duration = Duration::from_secs(30);
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
        Self::start_with(library, COMPLETE)
    }

    fn start_with(library: Arc<dyn Library>, complete: Duration) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let watched = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("gpu-events".into())
            .stack_size(256 * 1024)
            .spawn(move || watch(library.as_ref(), &watched, complete))?;
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

/// A subscription and the GPUs for which it was made.
struct Subscription {
    events: Box<dyn ErrorEvents>,
    uuids: Vec<String>,
    made: Instant,
}

impl Subscription {
    fn is_current(&self, uuids: &[String], complete: Duration) -> bool {
        self.uuids == uuids && (self.events.left_out().is_empty() || self.made.elapsed() < complete)
    }
}

fn watch(library: &dyn Library, shared: &Weak<Shared>, complete: Duration) {
    let mut subscription: Option<Subscription> = None;
    let mut unwatched = BTreeSet::new();
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
        if !subscription.as_ref().is_some_and(|subscription| subscription.is_current(&uuids, complete)) {
            match library.error_events(&uuids) {
                Ok(events) => {
                    name_unwatched(events.as_ref(), &mut unwatched);
                    // What came before the new one began is in the former one.
                    while let Some(Ok(Some(event))) =
                        subscription.as_mut().map(|former| former.events.wait(Duration::ZERO))
                    {
                        keep(shared, event);
                    }
                    subscription = Some(Subscription { events, uuids, made: Instant::now() });
                }
                Err(error) => {
                    tracing::debug!(%error, "no subscription to errors of GPUs");
                    subscription = None;
                    std::thread::sleep(RETRY);
                    continue;
                }
            }
        }
        let Some(current) = subscription.as_mut() else { continue };
        match current.events.wait(WAIT) {
            Ok(None) => {}
            Ok(Some(event)) => keep(shared, event),
            Err(error) => {
                tracing::debug!(%error, "the subscription to errors of GPUs ended");
                subscription = None;
                std::thread::sleep(RETRY);
            }
        }
    }
}

/// Keeps an error until it is taken.
fn keep(shared: &Weak<Shared>, event: ErrorEvent) {
    tracing::error!(uuid = event.uuid, xid = event.xid, "the driver reports an Xid error");
    let Some(shared) = shared.upgrade() else { return };
    let mut state = shared.state.lock();
    if state.events.len() < MAX_EVENTS {
        state.events.push(event);
    }
}

/// Logs each GPU once that a subscription misses, until one covers it.
fn name_unwatched(events: &dyn ErrorEvents, unwatched: &mut BTreeSet<String>) {
    let left_out = events.left_out();
    for (uuid, error) in left_out.iter().filter(|(uuid, _)| !unwatched.contains(*uuid)) {
        tracing::warn!(uuid, %error, "Xid errors of a GPU are not reported until it answers");
    }
    *unwatched = left_out.keys().cloned().collect();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::gpu::{Gpu, GpuError};

    /// A driver that has lost one of two GPUs when the first subscription is made.
    #[derive(Default)]
    struct FakeLibrary {
        subscriptions: AtomicUsize,
    }

    struct FakeEvents {
        pending: Vec<ErrorEvent>,
        left_out: BTreeMap<String, GpuError>,
    }

    impl ErrorEvents for FakeEvents {
        fn wait(&mut self, timeout: Duration) -> Result<Option<ErrorEvent>, GpuError> {
            std::thread::sleep(timeout.min(Duration::from_millis(5)));
            Ok(self.pending.pop())
        }
        fn left_out(&self) -> &BTreeMap<String, GpuError> {
            &self.left_out
        }
    }

    impl Library for FakeLibrary {
        fn uuids(&self) -> Result<Vec<String>, GpuError> {
            Ok(Vec::new())
        }
        fn open(&self, _: &str) -> Result<Box<dyn Gpu>, GpuError> {
            Err(GpuError::NotFound)
        }
        fn error_events(&self, uuids: &[String]) -> Result<Box<dyn ErrorEvents>, GpuError> {
            assert_eq!(uuids, ["GPU-a", "GPU-b"]);
            let first = self.subscriptions.fetch_add(1, Ordering::Relaxed) == 0;
            let lost = first.then(|| ("GPU-b".to_owned(), GpuError::Lost));
            // It tells of errors of those that it covers.
            let of = if first { "GPU-a" } else { "GPU-b" };
            let pending = vec![ErrorEvent { uuid: of.into(), xid: 48 }];
            Ok(Box::new(FakeEvents { pending, left_out: lost.into_iter().collect() }))
        }
        fn parent(&self, _: &str) -> Result<String, GpuError> {
            Err(GpuError::NotFound)
        }
        fn calls(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_gpu_that_did_not_answer_when_its_errors_were_subscribed_to_is_watched_later() {
        let library = Arc::new(FakeLibrary::default());
        let watch =
            ErrorWatch::start_with(Arc::clone(&library) as Arc<dyn Library>, Duration::from_millis(50));
        let watch = watch.expect("a thread");
        watch.set_gpus(vec!["GPU-a".into(), "GPU-b".into()]);
        let (since, mut seen) = (Instant::now(), Vec::new());
        while seen.len() < 2 {
            assert!(since.elapsed() < Duration::from_secs(20), "{seen:?}");
            seen.extend(watch.take().into_iter().map(|event| event.uuid));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(seen, ["GPU-a", "GPU-b"]);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(library.subscriptions.load(Ordering::Relaxed), 2, "it misses none any more");
    }
}
