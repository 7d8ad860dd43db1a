//! Cache of the jobs' tables, for the newest model.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use andreas_api::EnergyPolicySpec;
use andreas_api::slim::{SlimTrainingJob, SlimTrainingProfile};
use andreas_api::training_job::Allocation;
use andreas_cluster::energy::{TypeFacts, Types};
use andreas_cluster::index::ClusterIndex;
use andreas_cluster::policy::boards::board;
use andreas_cluster::profiles::bars_gpus;
use andreas_model::{Configuration, GpuCount, GpuType, Seconds, Time, TypeDraw, Watts};
use andreas_predictor::estimates::PredictionContext;
use andreas_predictor::progress::Pace;
use andreas_predictor::{GpuModel, Observation, Prior, Profile, prior_run_time};
use kube::ResourceExt;

use super::fit::{FitRequest, Model};
use super::learner::Learner;
use super::table::{self, Table, count};

/// Cache of predictions by model, profile and context.
#[derive(Default)]
pub struct Tables {
    /// Fits in the background; if absent, models are fitted on demand.
    learner: Option<Learner>,
    model: Option<Arc<Model>>,
    run_times: RunTimes,
    tables: HashMap<String, CachedTable>,
    /// Number of the last refresh.
    refreshes: u64,
}

struct CachedTable {
    table: Arc<Table>,
    /// The refresh after which it was used last.
    used: u64,
}

/// Rows of cached tables, some hundred bytes each, beyond which those that the last plan did not use are dropped.
const MAX_ROWS: usize = 250_000;

/// Assumed duration of an unknown run: the median of its own namespace's finished runs, else the policy's
/// `unknownJobs.runTime`. Other namespaces' runs do not count, so no tenant can influence another's jobs.
#[derive(Debug)]
struct RunTimes {
    default: Seconds,
    by_namespace: BTreeMap<String, Seconds>,
}

impl Default for RunTimes {
    fn default() -> Self {
        Self { default: Seconds(14_400.0), by_namespace: BTreeMap::new() }
    }
}

impl RunTimes {
    fn from_index(index: &ClusterIndex, policy: &EnergyPolicySpec) -> Self {
        let default = Seconds(policy.seconds(|policy| &policy.unknown_jobs.run_time).max(1) as f64);
        let mut finished: BTreeMap<&str, Vec<Seconds>> = BTreeMap::new();
        for (key, profile) in index.profiles().iter() {
            let runs = profile.status.iter().flat_map(|status| &status.finished_runs);
            let times = runs.map(|run| Seconds(run.seconds as f64));
            finished.entry(&key.namespace).or_default().extend(times);
        }
        let median = |(namespace, times): (&str, Vec<Seconds>)| {
            (namespace.to_owned(), prior_run_time(&times, default))
        };
        Self { default, by_namespace: finished.into_iter().map(median).collect() }
    }

    /// Run time assumed for unknown runs of a namespace.
    fn for_namespace(&self, namespace: &str) -> Seconds {
        self.by_namespace.get(namespace).copied().unwrap_or(self.default)
    }
}

impl Tables {
    /// Tables with models fitted by this learner.
    pub fn learning(learner: Learner) -> Self {
        Self { learner: Some(learner), ..Self::default() }
    }

    /// Updates to the newest model for the current profiles, policy and types.
    pub fn refresh(&mut self, index: &ClusterIndex, policy: &EnergyPolicySpec, types: &Types) {
        let models: Vec<GpuModel> = types
            .keys()
            .map(|name| {
                let board = board(name.as_str(), policy);
                GpuModel { gpu_type: name.clone(), idle: board.idle, max: board.max }
            })
            .collect();
        self.run_times = RunTimes::from_index(index, policy);
        let wanted = FitRequest::new(index, models);
        let model = match &self.learner {
            Some(learner) => learner.latest(wanted),
            None if self.model.as_ref().is_some_and(|model| model.matches(&wanted)) => return,
            None => Arc::new(wanted.fit()),
        };
        if !self.model.as_ref().is_some_and(|old| Arc::ptr_eq(old, &model)) {
            self.model = Some(model);
            self.tables.clear();
        }
        let last = self.refreshes;
        self.refreshes += 1;
        if self.tables.values().map(|cached| cached.table.rows.len()).sum::<usize>() > MAX_ROWS {
            self.tables.retain(|_, cached| cached.used == last);
        }
    }

    /// A job's table over its allowed types; call [`Tables::refresh`] first. `None` before the
    /// first refresh.
    pub fn table_of(
        &mut self,
        index: &ClusterIndex,
        job: &SlimTrainingJob,
        types: &Types,
    ) -> Option<Arc<Table>> {
        self.table(index, job, types, None)
    }

    /// The same, corrected by the current attempt's observed pace: its other configurations on that type, and
    /// the comparison of types.
    pub fn corrected(
        &mut self,
        index: &ClusterIndex,
        job: &SlimTrainingJob,
        types: &Types,
        seen: Pace,
    ) -> Option<Arc<Table>> {
        let allocation = job.status.as_ref()?.allocation.as_ref()?;
        self.table(index, job, types, Some(ObservedPace::new(allocation, seen)?))
    }

    fn table(
        &mut self,
        index: &ClusterIndex,
        job: &SlimTrainingJob,
        types: &Types,
        seen: Option<ObservedPace>,
    ) -> Option<Arc<Table>> {
        let predictor = &self.model.as_ref()?.predictor;
        let key = index.profile_key(job);
        let profile = index.profiles().get(&key);
        let run_time = self.run_times.for_namespace(&key.namespace);
        let gpus = &job.spec.gpus;
        let held = job.status.as_ref().and_then(|status| status.allocation.as_ref());
        let mut totals = gpus.totals();
        // A running job keeps a row for its allocation even after its range was edited.
        if let Some(held) = held.filter(|held| !totals.contains(&held.gpus)) {
            totals.push(held.gpus);
        }
        let barred = profile.and_then(|p| p.status.as_ref()).map(|s| s.barred.as_slice()).unwrap_or_default();
        let is_held = |name: &GpuType| held.is_some_and(|held| held.gpu_type == name.as_str());
        let allowed = types.iter().filter(|(name, facts)| {
            // By the type's largest boards; candidates are checked for their own memory.
            gpus.allows_type(name.as_str()) && gpus.memory_fits(facts.memory_mib) || is_held(name)
        });
        let all: Vec<(&GpuType, i32)> =
            allowed.flat_map(|(name, _)| totals.iter().map(move |total| (name, *total))).collect();
        let memory_of = |name: &str| types.get(name).map_or(0, |facts| facts.memory_mib);
        let open = |(name, total): &&(&GpuType, i32)| !bars_gpus(barred, name.as_str(), *total, memory_of);
        let of_held =
            |(name, total): &(&GpuType, i32)| is_held(name) && held.is_some_and(|held| held.gpus == *total);
        // Where no other choice is left, they are made again: the program may need less now, and if not it uses its retries and says so.
        let gives = |(name, total): &(&GpuType, i32)| {
            let most = |facts: &TypeFacts| {
                facts.gpus.min(facts.per_node.saturating_mul(u64::from(count(gpus.max_nodes))))
            };
            gpus.totals().contains(total)
                && types.get(*name).is_some_and(|facts| most(facts) >= u64::from(count(*total)))
        };
        let asked: Vec<(&GpuType, i32)> = if barred.is_empty() || !all.iter().filter(open).any(gives) {
            all
        } else {
            all.iter().filter(|pair| open(pair) || of_held(pair)).copied().collect()
        };
        let mut allowed: Vec<&GpuType> = asked.iter().map(|(name, _)| *name).collect();
        allowed.dedup();
        let least = gpus.totals().first().map_or(1, |total| u64::from(count(*total)));
        let version = profile.and_then(|profile| profile.resource_version()).unwrap_or_default();
        let levels: Vec<&[i32]> =
            allowed.iter().filter_map(|name| Some(types.get(*name)?.levels.as_slice())).collect();
        let known = profile.is_some_and(|profile| {
            let seen = profile.status.as_ref().is_some_and(|status| !status.observations.is_empty());
            seen || !profile.spec.measurements.is_empty()
        });
        // The namespace's run times matter only if the model is unknown or no type fits.
        let otherwise = (!known || allowed.is_empty()).then_some(run_time.0);
        let draws: Vec<Option<TypeDraw>> = allowed.iter().map(|name| types.get(*name)?.draw).collect();
        // Pods of others may be there before their names are known.
        let guarded = job.spec.adopts.is_none();
        let (nodes, epochs) = (gpus.max_nodes, job.spec.epochs);
        // Without a profile, all jobs of the namespace with the same options share a table.
        let subject = if profile.is_some() { key.to_string() } else { format!("{}/", key.namespace) };
        let cache_key = format!(
            "{subject} {version} {asked:?} {levels:?} {nodes} {epochs} {otherwise:?} {seen:?} {draws:?} {guarded}"
        );
        let used = self.refreshes;
        if let Some(cached) = self.tables.get_mut(&cache_key) {
            cached.used = used;
            return Some(Arc::clone(&cached.table));
        }
        let mut input = match profile {
            Some(profile) => predictor_profile(subject, profile),
            None => Profile { name: subject, ..Profile::default() },
        };
        input.observations.extend(seen.as_ref().map(ObservedPace::row));
        let commonest = allowed.iter().max_by_key(|name| types.get(**name).map_or(0, |facts| facts.gpus));
        let prior = Prior {
            run_time,
            epochs: f64::from(job.spec.epochs.max(1)),
            gpu_type: commonest.map_or_else(|| GpuType::from(""), |name| (*name).clone()),
            gpus: GpuCount(u32::try_from(least).unwrap_or(1)),
        };
        let context = PredictionContext { predictor, profile: &input, prior: &prior };
        let table =
            Arc::new(table::predicted(context, &allowed, &asked, count(gpus.max_nodes), (types, guarded)));
        self.tables.insert(cache_key, CachedTable { table: Arc::clone(&table), used });
        Some(table)
    }
}

/// Observed pace of a running attempt, quantized: small changes reuse the table.
#[derive(Debug)]
struct ObservedPace {
    gpu_type: GpuType,
    gpus: u32,
    nodes: u32,
    limit_watts: Option<i32>,
    /// Log of the epoch time in seconds, in steps of [`PACE_STEP`].
    pace: i64,
    /// Log2 of the observed epochs.
    epochs: i64,
    /// Start of the run, seconds since 1970.
    since: i64,
}

/// Step of the log pace.
const PACE_STEP: f64 = 0.02;

impl ObservedPace {
    fn new(allocation: &Allocation, seen: Pace) -> Option<Self> {
        let (pace, epochs) = (seen.epoch.0.ln() / PACE_STEP, seen.epochs.max(0.01).log2());
        (pace.is_finite() && epochs.is_finite()).then(|| Self {
            gpu_type: allocation.gpu_type.as_str().into(),
            gpus: count(allocation.gpus),
            nodes: u32::try_from(allocation.nodes.len()).unwrap_or(1).max(1),
            limit_watts: allocation.power_limit_watts,
            pace: pace.round() as i64,
            epochs: epochs.floor() as i64,
            since: allocation.running_time.as_ref().unwrap_or(&allocation.since).0.as_second(),
        })
    }

    /// As an observation for this job alone.
    fn row(&self) -> Observation {
        Observation {
            configuration: Configuration {
                gpu_type: self.gpu_type.clone(),
                nodes: self.nodes,
                gpus_per_node: GpuCount((self.gpus / self.nodes).max(1)),
                limit: self.limit_watts.map(|watts| Watts(f64::from(watts))),
            },
            epoch: Some(Seconds((self.pace as f64 * PACE_STEP).exp())),
            watts_per_gpu: None,
            epochs: (self.epochs as f64).exp2(),
            at: Time(self.since as f64),
            gpus: (!self.gpus.is_multiple_of(self.nodes)).then_some(GpuCount(self.gpus)),
            batch: None,
            claimed: true,
        }
    }
}

/// A TrainingProfile for the predictor, under the predictor's name.
fn predictor_profile(name: String, profile: &SlimTrainingProfile) -> Profile {
    andreas_cluster::profiles::to_predictor_profile(name, &profile.spec, profile.status.as_ref())
}
