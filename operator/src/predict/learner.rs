//! Fits the predictor over all profiles on its own thread: plans use the newest available model.
//!
//! **In**: [`FitRequest`], the current profiles. **Out**: a [`Model`], and what each fit read to a listener. The latest request counts; until its fit is done the previous model is used. Only the first model
//! is waited for, with a time limit: a plan can be made with an empty model.
//!
//! **Never here**: async, writes, predictions for a single job (see [`super::tables`]).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use andreas_cluster::index::Signals;
use parking_lot::{Condvar, Mutex};

use super::fit::{Basis, Fit, FitRequest, Model};

/// A fit that takes longer is logged.
const SLOW: Duration = Duration::from_secs(5);
/// How long the first plan waits for the first model.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// After a fit the thread rests this many times the fit's duration, and at least the next constant. So fits
/// use at most a tenth of a core.
const PAUSE_FACTOR: u32 = 9;
const MIN_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Input of the last request.
    requested: Option<Basis>,
    pending: Option<FitRequest>,
    model: Option<Arc<Model>>,
    /// No caller waits for the first model: the wait timed out or a fit failed.
    first_wait_over: bool,
    /// When the current fit began, and whether it was logged as slow.
    fitting: Option<(Instant, bool)>,
}

#[derive(Default)]
struct FitState {
    state: Mutex<State>,
    changed: Condvar,
}

/// Hears of every new model.
pub type FitListener = dyn Fn(&Fit) + Send + Sync;

/// The fit function; replaced in tests.
type Fitting = dyn Fn(FitRequest) -> Model + Send + Sync;

/// Handle of the thread. The thread ends with the last handle, after its current fit.
#[derive(Clone)]
pub struct Learner {
    shared: Arc<FitState>,
}

impl Learner {
    /// Starts the thread. `signals`: a new model requests a new plan.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(listener: Arc<FitListener>, signals: Arc<Signals>) -> std::io::Result<Self> {
        Self::start_with(listener, signals, Arc::new(FitRequest::fit))
    }

    fn start_with(
        listener: Arc<FitListener>,
        signals: Arc<Signals>,
        fitting: Arc<Fitting>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(FitState::default());
        let weak = Arc::downgrade(&shared);
        thread::Builder::new()
            .name("predictor".into())
            .spawn(move || work(&weak, &*listener, &signals, &*fitting))?;
        Ok(Self { shared })
    }

    /// The newest model; requests a fit if it is outdated. Waits only for the first one, on the caller's
    /// thread.
    pub fn latest(&self, wanted: FitRequest) -> Arc<Model> {
        self.latest_within(wanted, FIRST_WITHIN)
    }

    fn latest_within(&self, wanted: FitRequest, first: Duration) -> Arc<Model> {
        let mut state = self.shared.state.lock();
        if state.requested.as_ref() != Some(&wanted.basis) {
            state.requested = Some(wanted.basis.clone());
            state.pending = Some(wanted.clone());
            self.shared.changed.notify_all();
        }
        let end = Instant::now() + first;
        while state.model.is_none() && !state.first_wait_over {
            state.first_wait_over |= self.shared.changed.wait_until(&mut state, end).timed_out();
        }
        let model = state.model.clone();
        drop(state);
        model.unwrap_or_else(|| Arc::new(wanted.bare().fit()))
    }

    /// Logs a slow fit once. Call it from time to time.
    pub fn log_slow_fit(&self) {
        self.log_fit_slower_than(SLOW);
    }

    /// Whether one was logged.
    fn log_fit_slower_than(&self, slow: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let Some((began, logged)) = state.fitting.as_mut() else { return false };
        let seconds = began.elapsed();
        if seconds < slow || std::mem::replace(logged, true) {
            return false;
        }
        drop(state);
        let seconds = seconds.as_secs_f64();
        tracing::warn!(seconds, "a fit of the predictor takes long; the previous model stays in use");
        true
    }
}

/// Serves requests as long as a handle exists.
fn work(weak: &Weak<FitState>, listener: &FitListener, signals: &Signals, fitting: &Fitting) {
    while let Some(wanted) = next(weak) {
        let began = Instant::now();
        // The fit is pure and total; a panic is a bug that must not end learning for good.
        let fitted = catch_unwind(AssertUnwindSafe(|| fitting(wanted)));
        let took = began.elapsed();
        let Some(shared) = weak.upgrade() else { return };
        let mut state = shared.state.lock();
        state.fitting = None;
        match fitted {
            Ok(model) => {
                let Fit { profiles, rows, .. } = model.fit;
                tracing::debug!(profiles, rows, ?took, "the predictor is fitted");
                listener(&model.fit);
                state.model = Some(Arc::new(model));
                shared.changed.notify_all();
                signals.plan.notify_one();
            }
            Err(_) => {
                state.first_wait_over = true;
                shared.changed.notify_all();
                tracing::error!("a fit of the predictor failed; the previous model stays in use");
            }
        }
        drop(state);
        drop(shared);
        thread::sleep((took * PAUSE_FACTOR).clamp(MIN_PAUSE, Duration::from_secs(60)));
    }
}

/// The next request; `None`: no handle is left.
fn next(weak: &Weak<FitState>) -> Option<FitRequest> {
    loop {
        let shared = weak.upgrade()?;
        let mut state = shared.state.lock();
        if state.pending.is_none() {
            // With a time-out: the last handle may be dropped meanwhile.
            shared.changed.wait_for(&mut state, Duration::from_secs(1));
        }
        if let Some(wanted) = state.pending.take() {
            state.fitting = Some((Instant::now(), false));
            return Some(wanted);
        }
    }
}

#[cfg(test)]
mod tests;
