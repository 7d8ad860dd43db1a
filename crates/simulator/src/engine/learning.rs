//! Replays with predicted times and watts, by the product's predictor.
//!
//! **In**: the user's data of a job (features, possibly an inaccurate table) and its trained epochs. **Out**:
//! the table for the planner. Each job has its own profile: observations are not shared, but the model name
//! is known. Only whole epochs are observed; watts are as an agent measures them.

use std::collections::BTreeMap;

use andreas_core::{Configuration, GpuCount, GpuType, Seconds, Time, Watts};
use andreas_estimates::{PredictionContext, RunFacts, unknown_rule};
use andreas_planner::{Estimate, Job, MultiNodeEffect, Node, Placement};
use andreas_predictor::{
    Features, GpuModel, Observation, Prediction, Predictor, Prior, Profile, TableRow, prior_run_time,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::error::normal;
use super::live::Run;
use crate::scenario::Scenario;

/// Noise of single epochs in time and watts: standard deviation of the logarithm.
const EPOCH_NOISE: f64 = 0.05;
/// Assumed time of an unknown run while none has ended: the product's `unknownJobs.runTime`.
const DEFAULT_RUN: Seconds = Seconds(14_400.0);
/// Maximum ended jobs in a fit, the newest; the predictor has its own limits beside.
const REMEMBERED: usize = 512;
/// Share of new profiles that triggers another fit: early jobs give the most information.
const NEW_SHARE: f64 = 0.05;

/// What the planner knows of times and watts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Knowledge {
    /// Times with the errors of [`super::PredictionError`]; exact watts.
    #[default]
    Tables,
    /// Predictions from the user's data at submission, never updated.
    Unlearned,
    /// Predictions that learn from every epoch and every job, with the product's rule for unknown jobs.
    Learning,
}

/// Observations of one job.
#[derive(Debug, Default)]
pub(super) struct JobEvidence {
    given: Vec<TableRow>,
    features: Features,
    rows: Vec<Row>,
    /// The last predictions, and the length of a run that they assume.
    predicted: Vec<Prediction>,
    usual_run: Seconds,
    /// Configurations and whole epochs at the last table; `None` before the first.
    shown_at: Option<(usize, f64)>,
}

/// Observations of one configuration.
#[derive(Debug)]
struct Row {
    at: Configuration,
    pace: f64,
    watts: f64,
    epochs: f64,
    /// Sums of the noise of its epochs.
    noise: (f64, f64),
    seen: Time,
    rng: ChaCha8Rng,
}

impl JobEvidence {
    fn profile(&self, job: &Job) -> Profile {
        let observations = self.rows.iter().filter(|row| row.epochs >= 1.0);
        let observations = observations.map(|row| Observation {
            configuration: row.at.clone(),
            epoch: Some(Seconds(row.pace * libm::exp(EPOCH_NOISE * row.noise.0 / row.epochs))),
            watts_per_gpu: Some(Watts(
                row.watts * libm::exp(EPOCH_NOISE * row.noise.1 / row.epochs)
                    / f64::from(row.at.total_gpus().0),
            )),
            epochs: row.epochs,
            at: row.seen,
            gpus: None,
            batch: None,
            claimed: false,
        });
        Profile {
            name: format!("{}/{}", job.namespace, job.id),
            given: self.given.clone(),
            features: self.features.clone(),
            observations: observations.collect(),
        }
    }

    /// Whether a whole epoch on this configuration would be the first.
    pub fn lacks_measurement(&self, place: &Placement) -> bool {
        let at = configuration(place);
        !self.rows.iter().any(|row| row.at == at && row.epochs >= 1.0)
    }

    /// Adds whole epochs trained there; seed and stream are those of their noise.
    pub fn observe(&mut self, run: &Run, epochs: u32, now: Time, (seed, stream): (u64, u64)) {
        let (at, pace, watts) = (configuration(&run.place), run.pace, run.watts);
        let row = match self.rows.iter().position(|row| row.at == at) {
            Some(i) => &mut self.rows[i],
            None => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                // Separate from the streams of the jobs' own errors.
                rng.set_stream((stream + 1) << 16 | self.rows.len() as u64);
                self.rows.push(Row { at, pace, watts, epochs: 0.0, noise: (0.0, 0.0), seen: now, rng });
                let last = self.rows.len() - 1;
                &mut self.rows[last]
            }
        };
        for _ in 0..epochs {
            row.noise.0 += normal(&mut row.rng);
            row.noise.1 += normal(&mut row.rng);
        }
        row.epochs += f64::from(epochs);
        row.seen = now;
    }

    fn seen(&self) -> (usize, f64) {
        (self.rows.len(), self.rows.iter().map(|row| row.epochs).sum())
    }

    /// Whether a new table is due: a new configuration, or twice as many epochs.
    fn is_outdated(&self) -> bool {
        let (rows, epochs) = self.seen();
        self.shown_at.is_none_or(|(shown_rows, shown_epochs)| {
            rows > shown_rows || epochs >= 2.0 * shown_epochs.max(0.5)
        })
    }
}

fn configuration(place: &Placement) -> Configuration {
    Configuration {
        gpu_type: place.gpu_type.clone(),
        nodes: u32::try_from(place.nodes.len()).unwrap_or(u32::MAX),
        gpus_per_node: place.gpus_per_node,
        limit: place.limit,
    }
}

/// The predictor and its training data.
#[derive(Debug)]
pub(super) struct Learner {
    /// Whether observations are used.
    pub learning: bool,
    models: Vec<GpuModel>,
    /// GPUs of each type.
    counts: BTreeMap<GpuType, u32>,
    predictor: Predictor,
    ended: Vec<Profile>,
    run_times: Vec<Seconds>,
    /// Profiles that are new since the last fit.
    new_profiles: usize,
    /// Profiles in the last fit.
    fitted_profiles: usize,
    /// Number of fits; tables of an older one are renewed.
    pub version: u32,
}

impl Learner {
    /// `None` where tables are known.
    pub fn new(scenario: &Scenario, knowledge: Knowledge) -> Option<Self> {
        let learning = match knowledge {
            Knowledge::Tables => return None,
            Knowledge::Unlearned => false,
            Knowledge::Learning => true,
        };
        let models: Vec<GpuModel> = scenario
            .gpu_types
            .iter()
            .map(|t| GpuModel { gpu_type: t.name.clone(), idle: t.idle, max: t.max })
            .collect();
        let mut counts: BTreeMap<GpuType, u32> = BTreeMap::new();
        for Node { gpu_type, gpus, .. } in &scenario.nodes {
            *counts.entry(gpu_type.clone()).or_default() += gpus.0;
        }
        let predictor = Predictor::fit(&models, &[]);
        Some(Self {
            learning,
            models,
            counts,
            predictor,
            ended: Vec::new(),
            run_times: Vec::new(),
            new_profiles: 0,
            fitted_profiles: 0,
            version: 0,
        })
    }

    /// Evidence of a job at its submission; `table` holds the user's times, if any.
    pub fn evidence_at_submission(features: Option<&Features>, table: Option<&[Estimate]>) -> JobEvidence {
        let given = table.unwrap_or_default().iter().map(|row| TableRow {
            gpu_type: row.gpu_type.clone(),
            gpus: row.gpus,
            nodes: Some(1),
            epoch: Some(row.epoch),
            power: Some(row.power),
        });
        JobEvidence {
            given: given.collect(),
            features: features.cloned().unwrap_or_default(),
            ..JobEvidence::default()
        }
    }

    /// Records that a job has ended after this time on its GPUs.
    pub fn ended(&mut self, job: &Job, evidence: &JobEvidence, run_time: Seconds) {
        if !self.learning {
            return;
        }
        self.run_times.push(run_time);
        if self.ended.len() >= REMEMBERED {
            self.ended.remove(0);
        }
        self.ended.push(evidence.profile(job));
        self.new_profiles += 1;
    }

    /// Fits again if enough data is new.
    pub fn refresh<'a>(&mut self, live: impl Iterator<Item = (&'a Job, &'a JobEvidence)>) {
        let due = (NEW_SHARE * self.fitted_profiles as f64).max(1.0);
        if (self.new_profiles as f64) < due {
            return;
        }
        let mut population = self.ended.clone();
        population.extend(live.filter(|(_, l)| !l.rows.is_empty()).map(|(job, l)| l.profile(job)));
        self.predictor = Predictor::fit(&self.models, &population);
        (self.new_profiles, self.fitted_profiles) = (0, population.len());
        self.version += 1;
    }

    /// Updates the planner's view of a job: its rows and its spread.
    pub fn update_view(&self, truth: &Job, evidence: &mut JobEvidence, refitted: bool, shown: &mut Job) {
        if evidence.shown_at.is_some() && !(self.learning && (refitted || evidence.is_outdated())) {
            return;
        }
        evidence.shown_at = Some(evidence.seen());
        let profile = evidence.profile(truth);
        let prior = self.prior(truth);
        let context = PredictionContext { predictor: &self.predictor, profile: &profile, prior: &prior };
        let predicted = context.on_one_node(truth.estimates.iter().map(|row| (&row.gpu_type, row.gpus)));
        let rows: Vec<Estimate> = predicted.iter().map(andreas_estimates::planner_estimate).collect();
        let alike = |s: &MultiNodeEffect| MultiNodeEffect { nodes: s.nodes, time_factor: 1.0 };
        let spread = |s: &MultiNodeEffect| context.spread(&predicted, s.nodes).unwrap_or_else(|| alike(s));
        shown.spread = truth.spread.iter().map(spread).collect();
        evidence.usual_run = prior.run_time;
        evidence.predicted = predicted;
        shown.estimates = rows.into();
    }

    /// Applies the rule for unknown runs to the planner's view of a job that has run for this long.
    pub fn apply_unknown_rule(truth: &Job, evidence: &JobEvidence, running_for: Seconds, shown: &mut Job) {
        let facts = RunFacts {
            reported: evidence.rows.iter().any(|row| row.epochs >= 1.0),
            running_for,
            usual_run: evidence.usual_run,
            epochs: truth.epochs_left,
            least: truth.estimates.iter().map(|row| row.gpus).min().unwrap_or(GpuCount(1)),
        };
        let rule = unknown_rule(&evidence.predicted, &facts);
        shown.unknown = rule.cost;
        shown.movable = truth.movable && rule.movable;
        shown.limits = if rule.limits { truth.limits.clone() } else { Vec::new() };
    }

    fn prior(&self, job: &Job) -> Prior {
        let size = |kind: &GpuType| self.counts.get(kind).copied().unwrap_or(0);
        let mut kinds: Vec<&GpuType> = job.estimates.iter().map(|row| &row.gpu_type).collect();
        kinds.sort_by(|a, b| size(b).cmp(&size(a)).then(a.cmp(b)));
        let commonest = kinds.first().map_or_else(|| GpuType::from(""), |kind| (*kind).clone());
        let counts: Vec<GpuCount> =
            job.estimates.iter().filter(|row| row.gpu_type == commonest).map(|row| row.gpus).collect();
        let asked = job.requested_gpus.filter(|gpus| counts.contains(gpus));
        let gpus = asked.or(counts.into_iter().min()).unwrap_or(GpuCount(1));
        let run_time = prior_run_time(&self.run_times, DEFAULT_RUN);
        Prior { run_time, epochs: job.epochs_left, gpu_type: commonest, gpus }
    }
}
