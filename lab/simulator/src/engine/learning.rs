//! Replays with predicted times and watts, by the product's predictor.
//!
//! **In**: the user's data of a job (features, possibly an inaccurate table) and its trained epochs. **Out**:
//! the table for the planner. Each job has its own profile, unless jobs of one program share one
//! ([`Scenario::programs`]). Only whole epochs are observed; watts are as an agent measures them.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_model::{Configuration, GpuCount, GpuType, LOWEST_LIMIT, Seconds, Time, TypeDraw, Watts};
use andreas_planner::{Estimate, Job, MultiNodeEffect, Node, Placement};
use andreas_predictor::estimates::{PredictionContext, RunFacts, unknown_rule};
use andreas_predictor::{
    Features, GpuModel, LogNormal, Observation, Prediction, Predictor, Prior, Profile, TableRow,
    prior_run_time,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::Conditions;
use super::error::normal;
use super::live::ActiveJob;
use super::product::{Stops, measured_draw};
use super::run::Run;
use crate::scenario::Scenario;

/// Noise of single epochs in time and watts: standard deviation of the logarithm.
const EPOCH_NOISE: f64 = 0.05;
/// Assumed time of an unknown run while none has ended: the product's `unknownJobs.runTime`.
const DEFAULT_RUN: Seconds = Seconds(14_400.0);
/// Maximum ended jobs in a fit, the newest; the predictor has its own limits beside.
const REMEMBERED: usize = 512;
/// Maximum observations of a program, the newest; as in a TrainingProfile.
const MAX_SHARED: usize = 64;
/// Share of new profiles that triggers another fit: early jobs give the most information.
const NEW_SHARE: f64 = 0.05;

/// What the planner knows of times and watts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Knowledge {
    /// Times with the errors of [`super::PredictionError`]; exact watts.
    Tables,
    /// Predictions from the user's data at submission, never updated.
    Unlearned,
    /// As the product: predictions that learn from every epoch and every job, its rule for unknown jobs, and what stops lose and
    /// restarts take as far as it was observed.
    #[default]
    Learning,
    /// The same, but each job by itself: jobs of one program do not share a profile.
    LearningApart,
}

impl Knowledge {
    /// Whether observations are used.
    pub(super) const fn learns(self) -> bool {
        matches!(self, Self::Learning | Self::LearningApart)
    }
}

/// Observations of one job.
#[derive(Debug, Default)]
pub(super) struct JobEvidence {
    /// Epochs that it announces; it may train fewer.
    epochs: f64,
    given: Vec<TableRow>,
    features: Features,
    /// Name of its profile if it has one of its own.
    name: String,
    /// The profile that it shares with others.
    program: Option<String>,
    rows: Vec<Row>,
    /// The last predictions, and the length of a run that they assume.
    predicted: Vec<Prediction>,
    usual_run: Seconds,
    /// Configurations and whole epochs at the last table; `None` before the first.
    shown_at: Option<(usize, f64)>,
    /// The fit that the predictions are from.
    version: u32,
    /// The table for the planner, as long as the run is not measured.
    rows_shown: Option<Arc<[Estimate]>>,
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

/// Observations of the jobs that share a profile, by its name; the oldest first.
pub(super) type Shared = BTreeMap<String, Vec<Observation>>;

impl JobEvidence {
    /// What was observed of the job itself.
    fn observations(&self) -> impl Iterator<Item = Observation> {
        self.rows.iter().filter(|row| row.epochs >= 1.0).map(|row| Observation {
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
        })
    }

    /// Name of its profile.
    pub fn profile_name(&self) -> &str {
        self.program.as_deref().unwrap_or(&self.name)
    }

    /// Its profile, with what `shared` has for its program.
    fn profile(&self, shared: &Shared) -> Profile {
        let observations = match &self.program {
            Some(program) => shared.get(program).cloned().unwrap_or_default(),
            None => self.observations().collect(),
        };
        let name = self.profile_name().to_owned();
        Profile { name, given: self.given.clone(), features: self.features.clone(), observations }
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

    /// Configurations and whole epochs that its profile knows.
    fn seen(&self, shared: &Shared) -> (usize, f64) {
        match &self.program {
            Some(program) => {
                let rows = shared.get(program).map(Vec::as_slice).unwrap_or_default();
                (rows.len(), rows.iter().map(|row| row.epochs).sum())
            }
            None => (self.rows.len(), self.rows.iter().map(|row| row.epochs).sum()),
        }
    }

    /// Whether a new table is due: a new configuration, or twice as many epochs.
    fn is_outdated(&self, shared: &Shared) -> bool {
        let (rows, epochs) = self.seen(shared);
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
    /// What stops and restarts have shown.
    pub stops: Stops,
    models: Vec<GpuModel>,
    /// GPUs of each type.
    counts: BTreeMap<GpuType, u32>,
    /// What GPUs of each type count for where power is limited: agents set limits on all of them.
    draws: BTreeMap<GpuType, TypeDraw>,
    predictor: Predictor,
    ended: Vec<Profile>,
    /// Observations of ended jobs that share a profile.
    shared: Shared,
    run_times: Vec<Seconds>,
    /// Profiles that are new since the last fit.
    new_profiles: usize,
    /// Profiles in the last fit.
    fitted_profiles: usize,
    /// Number of fits; tables of an older one are renewed.
    version: u32,
}

impl Learner {
    /// `None` where tables are known.
    pub fn new(scenario: &Scenario, conditions: &Conditions) -> Option<Self> {
        if conditions.knowledge == Knowledge::Tables {
            return None;
        }
        let learning = conditions.knowledge.learns();
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
        let draw = |model: &GpuModel| {
            let (idle, max) = (model.idle.0, model.max.0);
            let guards = Some((LOWEST_LIMIT * max, max));
            (model.gpu_type.clone(), TypeDraw { idle, max, unmeasured: max, guards })
        };
        let limited = scenario.budget.is_some() && conditions.policy.guards;
        Some(Self {
            draws: models.iter().filter(|_| limited).map(draw).collect(),
            learning,
            stops: Stops::default(),
            models,
            counts,
            predictor,
            ended: Vec::new(),
            shared: Shared::new(),
            run_times: Vec::new(),
            new_profiles: 0,
            fitted_profiles: 0,
            version: 0,
        })
    }

    /// Evidence of a job that announces so many epochs, at its submission; `table` holds the user's times, if any, and
    /// `program` names the profile that it shares.
    pub fn evidence_at_submission(
        job: &Job,
        epochs: f64,
        features: Option<&Features>,
        table: Option<&[Estimate]>,
        program: Option<&String>,
    ) -> JobEvidence {
        let given = table.unwrap_or_default().iter().map(|row| TableRow {
            gpu_type: row.gpu_type.clone(),
            gpus: row.gpus,
            nodes: Some(1),
            epoch: Some(row.epoch),
            power: Some(row.power),
        });
        JobEvidence {
            epochs,
            name: format!("{}/{}", job.namespace, job.id),
            given: given.collect(),
            features: features.cloned().unwrap_or_default(),
            program: program.cloned(),
            ..JobEvidence::default()
        }
    }

    /// Records that a job has ended after this time on its GPUs. As in the operator, the usual run is of those that
    /// finished.
    pub fn ended(&mut self, job: &Job, evidence: &JobEvidence, run_time: Seconds) {
        if !self.learning {
            return;
        }
        if evidence.epochs <= job.epochs_left {
            self.run_times.push(run_time);
        }
        self.new_profiles += 1;
        if let Some(program) = &evidence.program {
            let rows = self.shared.entry(program.clone()).or_default();
            rows.extend(evidence.observations());
            rows.drain(..rows.len().saturating_sub(MAX_SHARED));
            return;
        }
        if self.ended.len() >= REMEMBERED {
            self.ended.remove(0);
        }
        self.ended.push(evidence.profile(&self.shared));
    }

    /// Observations of all jobs that share a profile, with those of live ones.
    pub fn shared<'a>(&self, live: impl Iterator<Item = &'a JobEvidence>) -> Shared {
        let mut all = self.shared.clone();
        for (program, evidence) in live.filter_map(|evidence| Some((evidence.program.as_ref()?, evidence))) {
            all.entry(program.clone()).or_default().extend(evidence.observations());
        }
        all
    }

    /// Fits again if enough data is new.
    pub fn refresh<'a>(&mut self, live: impl Iterator<Item = &'a JobEvidence>, shared: &Shared) {
        let due = (NEW_SHARE * self.fitted_profiles as f64).max(1.0);
        if (self.new_profiles as f64) < due {
            return;
        }
        let mut population = self.ended.clone();
        let alone = live.filter(|l| l.program.is_none() && !l.rows.is_empty());
        population.extend(alone.map(|l| l.profile(shared)));
        let programs = shared.iter().filter(|(_, rows)| !rows.is_empty());
        population.extend(programs.map(|(name, rows)| Profile {
            name: name.clone(),
            observations: rows.clone(),
            ..Profile::default()
        }));
        self.predictor = Predictor::fit(&self.models, &population);
        (self.new_profiles, self.fitted_profiles) = (0, population.len());
        self.version += 1;
    }

    /// Updates the planner's view of a job: its rows and its spread.
    pub fn update_view(&self, truth: &Job, evidence: &mut JobEvidence, shared: &Shared, shown: &mut Job) {
        let refitted = std::mem::replace(&mut evidence.version, self.version) != self.version;
        if evidence.shown_at.is_some() && !(self.learning && (refitted || evidence.is_outdated(shared))) {
            return;
        }
        evidence.shown_at = Some(evidence.seen(shared));
        let profile = evidence.profile(shared);
        let prior = self.prior(truth, evidence.epochs);
        let context = PredictionContext { predictor: &self.predictor, profile: &profile, prior: &prior };
        let predicted = context.on_one_node(truth.estimates.iter().map(|row| (&row.gpu_type, row.gpus)));
        let row = |(prediction, truth): (&Prediction, &Estimate)| {
            let row = andreas_predictor::estimates::planner_estimate(prediction);
            let draw = self.draws.get(&row.gpu_type).map(|draw| {
                let LogNormal { median, .. } = prediction.power;
                Watts(draw.of_start(median, prediction.power.p90(), row.power.0, row.gpus.0))
            });
            Estimate { draw: truth.draw.or(draw), ..row }
        };
        let rows: Vec<Estimate> = predicted.iter().zip(truth.estimates.iter()).map(row).collect();
        let alike = |s: &MultiNodeEffect| MultiNodeEffect { nodes: s.nodes, time_factor: 1.0 };
        let spread = |s: &MultiNodeEffect| context.spread(&predicted, s.nodes).unwrap_or_else(|| alike(s));
        shown.spread = truth.spread.iter().map(spread).collect();
        evidence.usual_run = prior.run_time;
        evidence.predicted = predicted;
        shown.estimates = rows.into();
        evidence.rows_shown = Some(Arc::clone(&shown.estimates));
    }

    /// Where power is limited, shows the planner what a measured run counts for.
    pub fn count_measured(&self, live: &mut ActiveJob, now: Time, left: &mut f64, shown: &mut Job) {
        let draw = live.run.as_ref().and_then(|run| self.draws.get(&run.place.gpu_type));
        let rows = live.evidence.as_ref().and_then(|evidence| evidence.rows_shown.clone());
        let Some(rows) = rows.filter(|_| !self.draws.is_empty()) else { return };
        let measured = draw.and_then(|draw| measured_draw(live, &rows, *draw, now, left));
        shown.estimates = measured.map_or(rows, Arc::from);
    }

    /// Applies the rule for unknown runs to the planner's view of a job that has run for this long.
    pub fn apply_unknown_rule(truth: &Job, evidence: &JobEvidence, running_for: Seconds, shown: &mut Job) {
        let facts = RunFacts {
            reported: evidence.rows.iter().any(|row| row.epochs >= 1.0),
            running_for,
            usual_run: evidence.usual_run,
            epochs: evidence.epochs,
            least: truth.estimates.iter().map(|row| row.gpus).min().unwrap_or(GpuCount(1)),
        };
        let rule = unknown_rule(&evidence.predicted, &facts);
        shown.unknown = rule.cost;
        shown.movable = truth.movable && rule.movable;
        shown.limits = if rule.limits { truth.limits.clone() } else { Vec::new() };
    }

    fn prior(&self, job: &Job, epochs: f64) -> Prior {
        let size = |kind: &GpuType| self.counts.get(kind).copied().unwrap_or(0);
        let mut kinds: Vec<&GpuType> = job.estimates.iter().map(|row| &row.gpu_type).collect();
        kinds.sort_by(|a, b| size(b).cmp(&size(a)).then(a.cmp(b)));
        let commonest = kinds.first().map_or_else(|| GpuType::from(""), |kind| (*kind).clone());
        let counts: Vec<GpuCount> =
            job.estimates.iter().filter(|row| row.gpu_type == commonest).map(|row| row.gpus).collect();
        let asked = job.requested_gpus.filter(|gpus| counts.contains(gpus));
        let gpus = asked.or(counts.into_iter().min()).unwrap_or(GpuCount(1));
        let run_time = prior_run_time(&self.run_times, DEFAULT_RUN);
        Prior { run_time, epochs, gpu_type: commonest, gpus }
    }
}
