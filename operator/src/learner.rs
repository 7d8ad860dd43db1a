//! Fits the predictor over all profiles on its own thread: plans use the newest available model.
//!
//! **In**: [`FitRequest`], the current profiles. **Out**: a [`Model`]. The latest request counts; until its
//! fit is done the previous model is used. Only the first model is waited for, with a time limit: a plan can
//! be made with an empty model.
//!
//! Equal profiles give equal models, in any order and at any time. Rows are bounded, in total and per
//! namespace.
//!
//! **Never here**: async, writes, predictions for a single job (see [`crate::snapshot::tables`]).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use andreas_api::slim::SlimTrainingProfile;
use andreas_predictor::{GpuModel, Predictor, Profile, Refusal};
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;
use parking_lot::{Condvar, Mutex};

use crate::index::{ClusterIndex, Signals};
use crate::metrics::Metrics;

/// Maximum rows per namespace that a fit reads, and in total: the most recently observed profiles. The fit
/// itself uses fewer.
const NAMESPACE_ROWS: usize = 1_024;
const ALL_ROWS: usize = 65_536;
/// A fit that takes longer is logged.
const SLOW: Duration = Duration::from_secs(5);
/// How long the first plan waits for the first model.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// After a fit the thread rests this many times the fit's duration, and at least the next constant. So fits
/// use at most a tenth of a core.
const REST: u32 = 9;
const LEAST_REST: Duration = Duration::from_secs(1);

/// Reason for rows that are not pooled but still used by their own profile.
const CLAIMED: &str = "Claimed";

/// Scope of learned predictions: whose profiles count fully for a job. All others have a small, bounded
/// influence, and none by self-reported values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LearningScope {
    /// Those of its namespace: another namespace can change its predictions by at most 2 %.
    #[default]
    Namespace,
    /// Those of all namespaces: more accurate with many teams and few jobs each, but wrong data of one
    /// affects all.
    Cluster,
}

impl LearningScope {
    /// A profile's name for the predictor.
    pub fn name(self, profile: &str) -> String {
        match self {
            Self::Namespace => profile.to_owned(),
            Self::Cluster => andreas_predictor::together(profile),
        }
    }
}

/// Input of a model: equal input, equal model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Basis {
    trust: LearningScope,
    models: Vec<GpuModel>,
    versions: Vec<(ObjectKey, Option<String>)>,
}

/// A request for a model.
#[derive(Clone, Debug, Default)]
pub struct FitRequest {
    basis: Basis,
    profiles: Vec<(ObjectKey, Arc<SlimTrainingProfile>)>,
}

/// The profiles that a fit reads, and the number of rows left out.
#[derive(Default)]
struct Population {
    families: Vec<Profile>,
    rows: usize,
    /// Self-reported rows and rows above the limit, by namespace.
    claimed: BTreeMap<String, u64>,
    left_out: BTreeMap<String, u64>,
}

impl FitRequest {
    /// From the current profiles, the cluster's GPU types and the scope. Profiles without observations
    /// contribute nothing.
    pub fn of(index: &ClusterIndex, models: Vec<GpuModel>, trust: LearningScope) -> Self {
        let seen = |profile: &SlimTrainingProfile| {
            profile.status.as_ref().is_some_and(|status| !status.observations.is_empty())
        };
        let profiles: Vec<_> = index
            .profiles
            .iter()
            .filter(|(_, profile)| seen(profile))
            .map(|(key, profile)| (key.clone(), Arc::clone(profile)))
            .collect();
        let versions =
            profiles.iter().map(|(key, profile)| (key.clone(), profile.resource_version())).collect();
        Self { basis: Basis { trust, models, versions }, profiles }
    }

    /// The same GPU types without any profile.
    fn bare(&self) -> Self {
        let basis = Basis { versions: Vec::new(), ..self.basis.clone() };
        Self { basis, profiles: Vec::new() }
    }

    fn population(&self) -> Population {
        let newest = |profile: &SlimTrainingProfile| {
            let rows = profile.status.iter().flat_map(|status| &status.observations);
            rows.map(|row| row.at.0).max()
        };
        let mut order: Vec<_> =
            self.profiles.iter().map(|(key, profile)| (newest(profile), key, profile)).collect();
        order.sort_by(|(a, x, _), (b, y, _)| b.cmp(a).then(x.cmp(y)));
        let mut all = Population::default();
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, key, profile) in order {
            let rows = profile.status.as_ref().map_or(0, |status| status.observations.len());
            let of_namespace = taken.entry(&key.namespace).or_default();
            if *of_namespace + rows > NAMESPACE_ROWS || all.rows + rows > ALL_ROWS {
                *all.left_out.entry(key.namespace.clone()).or_default() += rows as u64;
                continue;
            }
            *of_namespace += rows;
            all.rows += rows;
            let name = self.basis.trust.name(&key.to_string());
            let family = andreas_profiles::family(name, &profile.spec, profile.status.as_ref());
            let claimed = family.observations.iter().filter(|row| row.claimed).count() as u64;
            if claimed > 0 {
                *all.claimed.entry(key.namespace.clone()).or_default() += claimed;
            }
            all.families.push(family);
        }
        all
    }

    /// Fits the model. The time grows with the rows, up to a bound.
    pub fn fit(self) -> Model {
        let began = Instant::now();
        let population = self.population();
        let predictor = Predictor::fit(&self.basis.models, &population.families);
        let mut refused: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut refused_of: BTreeMap<String, u64> = BTreeMap::new();
        let mut count = |namespace: &str, reason: &'static str, rows: u64| {
            *refused.entry(reason).or_default() += rows;
            *refused_of.entry(namespace.to_owned()).or_default() += rows;
        };
        for (namespace, reasons) in predictor.refused() {
            reasons.iter().for_each(|(reason, rows)| count(namespace, reason.as_str(), *rows));
        }
        for (reason, by_namespace) in
            [(Refusal::TooMany.as_str(), &population.left_out), (CLAIMED, &population.claimed)]
        {
            by_namespace.iter().for_each(|(namespace, rows)| count(namespace, reason, *rows));
        }
        let fit = Fit {
            took: began.elapsed(),
            families: population.families.len(),
            rows: population.rows,
            refused,
            refused_of,
        };
        Model { basis: self.basis, predictor, fit }
    }
}

/// Statistics of a fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fit {
    /// How long it took.
    pub took: Duration,
    /// Profiles read.
    pub families: usize,
    /// Their rows.
    pub rows: usize,
    /// Rows that were not pooled, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// The same by namespace.
    pub refused_of: BTreeMap<String, u64>,
}

/// A fitted predictor.
#[derive(Debug)]
pub struct Model {
    /// Its input.
    pub basis: Basis,
    /// For predictions.
    pub predictor: Predictor,
    /// Statistics of the fit.
    pub fit: Fit,
}

impl Model {
    /// It matches this request.
    pub fn is(&self, wanted: &FitRequest) -> bool {
        self.basis == wanted.basis
    }
}

#[derive(Default)]
struct State {
    /// Input of the last request.
    asked: Option<Basis>,
    wish: Option<FitRequest>,
    model: Option<Arc<Model>>,
    /// The wait for the first model timed out: no caller waits again.
    given_up: bool,
    /// When the current fit began, and whether it was logged as slow.
    fitting: Option<(Instant, bool)>,
}

#[derive(Default)]
struct FitState {
    state: Mutex<State>,
    changed: Condvar,
}

/// The fit function; replaced in tests.
type Fitting = dyn Fn(FitRequest) -> Model + Send + Sync;

/// Handle of the thread. The thread ends with the last handle, after its current fit.
#[derive(Clone)]
pub struct Learner {
    desk: Arc<FitState>,
    metrics: Metrics,
}

impl Learner {
    /// Starts the thread. `signals`: a new model requests a new plan.
    ///
    /// # Errors If the system cannot create a thread.
    pub fn start(metrics: Metrics, signals: Arc<Signals>) -> std::io::Result<Self> {
        Self::start_with(metrics, signals, Arc::new(FitRequest::fit))
    }

    fn start_with(metrics: Metrics, signals: Arc<Signals>, fitting: Arc<Fitting>) -> std::io::Result<Self> {
        let desk = Arc::new(FitState::default());
        let (door, told) = (Arc::downgrade(&desk), metrics.clone());
        thread::Builder::new()
            .name("predictor".into())
            .spawn(move || work(&door, &told, &signals, &*fitting))?;
        Ok(Self { desk, metrics })
    }

    /// The newest model; requests a fit if it is outdated. Waits only for the first one, on the caller's
    /// thread.
    pub fn latest(&self, wanted: FitRequest) -> Arc<Model> {
        self.latest_within(wanted, FIRST_WITHIN)
    }

    fn latest_within(&self, wanted: FitRequest, first: Duration) -> Arc<Model> {
        let mut state = self.desk.state.lock();
        if state.asked.as_ref() != Some(&wanted.basis) {
            state.asked = Some(wanted.basis.clone());
            state.wish = Some(wanted.clone());
            self.desk.changed.notify_all();
        }
        let end = Instant::now() + first;
        while state.model.is_none() && !state.given_up {
            state.given_up |= self.desk.changed.wait_until(&mut state, end).timed_out();
        }
        let model = state.model.clone();
        drop(state);
        model.unwrap_or_else(|| Arc::new(wanted.bare().fit()))
    }

    /// Logs a slow fit once. Call it from time to time.
    pub fn look(&self) {
        self.look_for(SLOW);
    }

    fn look_for(&self, slow: Duration) {
        let mut state = self.desk.state.lock();
        let Some((began, told)) = state.fitting.as_mut() else { return };
        let seconds = began.elapsed();
        if seconds < slow || std::mem::replace(told, true) {
            return;
        }
        drop(state);
        self.metrics.fits("slow");
        let seconds = seconds.as_secs_f64();
        tracing::warn!(seconds, "a fit of the predictor takes long; the model before goes on");
    }
}

/// Serves requests as long as a handle exists.
fn work(door: &Weak<FitState>, metrics: &Metrics, signals: &Signals, fitting: &Fitting) {
    while let Some(wanted) = next(door) {
        let began = Instant::now();
        // The fit is pure and total; a panic is a bug that must not end learning for good.
        let fitted = catch_unwind(AssertUnwindSafe(|| fitting(wanted)));
        let took = began.elapsed();
        let Some(desk) = door.upgrade() else { return };
        let mut state = desk.state.lock();
        state.fitting = None;
        match fitted {
            Ok(model) => {
                metrics.fitted(&model.fit);
                state.model = Some(Arc::new(model));
                desk.changed.notify_all();
                signals.plan.notify_one();
            }
            Err(_) => {
                metrics.fits("failed");
                state.given_up = true;
                desk.changed.notify_all();
                tracing::error!("a fit of the predictor failed; the model before goes on");
            }
        }
        drop(state);
        drop(desk);
        thread::sleep((took * REST).clamp(LEAST_REST, Duration::from_secs(60)));
    }
}

/// The next request; `None`: no handle is left.
fn next(door: &Weak<FitState>) -> Option<FitRequest> {
    loop {
        let desk = door.upgrade()?;
        let mut state = desk.state.lock();
        if state.wish.is_none() {
            // With a time-out: the last handle may be dropped meanwhile.
            desk.changed.wait_for(&mut state, Duration::from_secs(1));
        }
        if let Some(wanted) = state.wish.take() {
            state.fitting = Some((Instant::now(), false));
            return Some(wanted);
        }
    }
}

#[cfg(test)]
mod tests;
