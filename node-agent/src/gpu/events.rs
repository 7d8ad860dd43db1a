//! A thread that waits for critical errors of the node's GPUs.
//!
//! One subscription for all: it costs a call every few seconds, where a check of each GPU would cost one a second. A call for a
//! GPU that hangs may never return, and the errors of the others are not seen meanwhile. So only GPUs that answer reads are asked
//! for; and where there is a subscription, no other one is made while a read hangs.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{ErrorEvent, ErrorEvents, Library};

/// Longest wait for an error: as long as the thread may take to notice that another GPU answers.
const WAIT: Duration = Duration::from_secs(5);
/// Pause after a failed subscription.
const RETRY: Duration = Duration::from_secs(5);
/// Interval between subscriptions while one leaves out a GPU that answers.
const COMPLETE: Duration = Duration::from_secs(30);
/// Most errors that are kept until they are taken; further ones are dropped, since the first ones say enough.
const MAX_EVENTS: usize = 256;

/// How reads of the node's GPUs went last.
#[derive(Clone, Default)]
struct Reads {
    /// GPUs that answered.
    answering: BTreeSet<String>,
    /// Whether one hangs.
    hang: bool,
}

#[derive(Default)]
struct State {
    reads: Reads,
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

    /// How reads went: GPUs that answer are watched, from some seconds on. `hang`: whether a read of any GPU does.
    pub fn set_reads(&self, answering: BTreeSet<String>, hang: bool) {
        let mut state = self.shared.state.lock();
        if state.reads.answering.is_empty() && !answering.is_empty() {
            self.shared.changed.notify_one();
        }
        state.reads = Reads { answering, hang };
    }

    /// The errors since the last call, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<ErrorEvent> {
        std::mem::take(&mut self.shared.state.lock().events)
    }
}

/// A subscription, the GPUs for which it was made, and when the last one was asked for.
struct Subscription {
    events: Box<dyn ErrorEvents>,
    uuids: BTreeSet<String>,
    asked: Instant,
}

impl Subscription {
    /// Whether another one is to be asked for: a GPU answers that is not in this one, or was left out a while ago.
    fn is_due(&self, reads: &Reads, complete: Duration) -> bool {
        let left_out = self.events.left_out();
        let again = || {
            let answers = reads.answering.iter().any(|uuid| left_out.contains_key(uuid));
            answers && self.asked.elapsed() >= complete
        };
        !reads.hang && (!reads.answering.is_subset(&self.uuids) || again())
    }
}

fn watch(library: &dyn Library, shared: &Weak<Shared>, complete: Duration) {
    let mut subscription: Option<Subscription> = None;
    let mut unwatched = BTreeSet::new();
    loop {
        let reads = {
            let Some(shared) = shared.upgrade() else { return };
            let mut state = shared.state.lock();
            if subscription.is_none() && state.reads.answering.is_empty() {
                shared.changed.wait_for(&mut state, WAIT);
            }
            state.reads.clone()
        };
        if subscription.is_none() && reads.answering.is_empty() {
            continue;
        }
        if subscription.as_ref().is_none_or(|former| former.is_due(&reads, complete)) {
            if let Some(former) = &mut subscription {
                // Whatever the driver does when it is asked.
                pending(former.events.as_mut()).into_iter().for_each(|event| keep(shared, event));
            }
            let mut uuids = reads.answering;
            uuids.extend(subscription.iter().flat_map(|former| former.uuids.iter().cloned()));
            match library.error_events(&Vec::from_iter(uuids.iter().cloned())) {
                Ok(mut events) => {
                    name_unwatched(events.as_ref(), &mut unwatched);
                    if let Some(mut former) = subscription.take() {
                        take_over(former.events.as_mut(), events.as_mut(), |event| keep(shared, event));
                    }
                    subscription = Some(Subscription { events, uuids, asked: Instant::now() });
                }
                Err(error) => {
                    tracing::debug!(%error, "no subscription to errors of GPUs");
                    let Some(former) = &mut subscription else {
                        std::thread::sleep(RETRY);
                        continue;
                    };
                    former.asked = Instant::now();
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

/// The errors that wait in a subscription.
fn pending(events: &mut dyn ErrorEvents) -> Vec<ErrorEvent> {
    std::iter::from_fn(|| events.wait(Duration::ZERO).ok().flatten()).take(MAX_EVENTS).collect()
}

/// Reports the errors of two subscriptions: what came before the new one began is in the former one alone, what came since in both.
fn take_over(former: &mut dyn ErrorEvents, new: &mut dyn ErrorEvents, mut report: impl FnMut(ErrorEvent)) {
    let mut reported = pending(former);
    reported.iter().cloned().for_each(&mut report);
    for event in pending(new) {
        match reported.iter().position(|known| *known == event) {
            Some(at) => drop(reported.swap_remove(at)),
            None => report(event),
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
    use std::collections::{BTreeMap, VecDeque};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::gpu::{Gpu, GpuError};

    type Pending = Arc<Mutex<VecDeque<ErrorEvent>>>;

    /// A driver.
    #[derive(Default)]
    struct FakeLibrary {
        /// The GPUs of each subscription, and the errors that wait in it.
        subscriptions: Mutex<Vec<(Vec<String>, Pending)>>,
        /// GPUs that take none.
        refuses: Mutex<BTreeSet<String>>,
        /// No further one is made.
        fails: AtomicBool,
        failures: AtomicUsize,
        /// A GPU that has an error while the next one is made.
        errs: Mutex<Option<String>>,
    }

    impl FakeLibrary {
        fn raise(&self, uuid: &str) {
            for (gpus, pending) in self.subscriptions.lock().iter() {
                if gpus.iter().any(|gpu| gpu == uuid) {
                    pending.lock().push_back(ErrorEvent { uuid: uuid.to_owned(), xid: 48 });
                }
            }
        }

        fn made(&self) -> Vec<Vec<String>> {
            self.subscriptions.lock().iter().map(|(gpus, _)| gpus.clone()).collect()
        }
    }

    struct FakeEvents {
        pending: Pending,
        left_out: BTreeMap<String, GpuError>,
    }

    impl ErrorEvents for FakeEvents {
        fn wait(&mut self, timeout: Duration) -> Result<Option<ErrorEvent>, GpuError> {
            std::thread::sleep(timeout.min(Duration::from_millis(5)));
            Ok(self.pending.lock().pop_front())
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
            if self.fails.load(Ordering::Relaxed) {
                self.failures.fetch_add(1, Ordering::Relaxed);
                return Err(GpuError::NoDriver("gone".into()));
            }
            let refuses = self.refuses.lock().clone();
            let (refused, taken): (Vec<String>, Vec<String>) =
                uuids.iter().cloned().partition(|uuid| refuses.contains(uuid));
            let pending = Pending::default();
            self.subscriptions.lock().push((taken, Arc::clone(&pending)));
            if let Some(uuid) = self.errs.lock().take() {
                self.raise(&uuid);
            }
            let left_out = refused.into_iter().map(|uuid| (uuid, GpuError::Lost)).collect();
            Ok(Box::new(FakeEvents { pending, left_out }))
        }
        fn parent(&self, _: &str) -> Result<String, GpuError> {
            Err(GpuError::NotFound)
        }
    }

    /// A driver, and a watch of its GPU a.
    fn watched() -> (Arc<FakeLibrary>, ErrorWatch) {
        let library = Arc::<FakeLibrary>::default();
        let driver = Arc::clone(&library) as Arc<dyn Library>;
        let watch = ErrorWatch::start_with(driver, Duration::from_millis(50)).expect("a thread");
        watch.set_reads(gpus("a"), false);
        until(|| library.made() == [["a"]]);
        (library, watch)
    }

    fn gpus(names: &str) -> BTreeSet<String> {
        names.split(' ').map(str::to_owned).collect()
    }

    fn until(mut holds: impl FnMut() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < Duration::from_secs(20), "it comes to hold");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Longer than the thread needs to ask for another subscription.
    fn a_while() {
        std::thread::sleep(Duration::from_millis(300));
    }

    /// An error of this GPU is reported, once.
    fn is_reported(library: &FakeLibrary, watch: &ErrorWatch, uuid: &str) {
        library.raise(uuid);
        let mut seen = Vec::new();
        until(|| {
            seen.extend(watch.take());
            !seen.is_empty()
        });
        a_while();
        seen.extend(watch.take());
        assert_eq!(seen, [ErrorEvent { uuid: uuid.to_owned(), xid: 48 }]);
    }

    #[test]
    fn a_gpu_is_watched_once_it_answers_and_takes_a_subscription() {
        let (library, watch) = watched();
        library.refuses.lock().insert("b".into());
        a_while();
        assert_eq!(library.made().len(), 1, "it misses none that answers");
        watch.set_reads(gpus("a b"), false);
        until(|| library.made().len() > 3);
        library.refuses.lock().clear();
        until(|| library.made().last().is_some_and(|last| *last == ["a", "b"]));
        let made = library.made().len();
        is_reported(&library, &watch, "b");
        // One that answers no more stays in it.
        watch.set_reads(gpus("b"), false);
        is_reported(&library, &watch, "a");
        assert_eq!(library.made().len(), made, "it misses none any more");
    }

    #[test]
    fn while_a_read_hangs_the_driver_is_asked_for_nothing_and_errors_of_others_are_reported() {
        let (library, watch) = watched();
        watch.set_reads(gpus("a b"), true);
        a_while();
        assert_eq!(library.made(), [["a"]]);
        is_reported(&library, &watch, "a");
        watch.set_reads(gpus("a b"), false);
        until(|| library.made().len() == 2);
    }

    #[test]
    fn a_subscription_goes_on_where_another_one_fails() {
        let (library, watch) = watched();
        library.fails.store(true, Ordering::Relaxed);
        watch.set_reads(gpus("a b"), false);
        until(|| library.failures.load(Ordering::Relaxed) > 1);
        is_reported(&library, &watch, "a");
        library.fails.store(false, Ordering::Relaxed);
        until(|| library.made().len() == 2);
    }

    #[test]
    fn an_error_in_two_subscriptions_counts_once() {
        let (library, watch) = watched();
        *library.errs.lock() = Some("a".into());
        watch.set_reads(gpus("a b"), false);
        until(|| library.made().len() == 2);
        a_while();
        assert_eq!(watch.take(), [ErrorEvent { uuid: "a".into(), xid: 48 }]);
        is_reported(&library, &watch, "a");
    }
}
