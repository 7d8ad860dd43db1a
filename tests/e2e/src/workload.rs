//! The demo's workload: 40 consecutive submissions of Microsoft's ITP trace as TrainingJobs. Pure.
//!
//! **In**: `fixtures/itp_40_jobs.csv` (the rows, unchanged) and `fixtures/models.json` (seconds per epoch and watts by
//! model, GPU type and count; sources and derivation in `fixtures/PROVENANCE.md`). **Out**: [`WorkloadJob`]s at
//! a [`TimeScale`], and their manifests. **Never here**: a client, a clock, randomness.
//!
//! Shorter runs come from smaller jobs: the scale divides every epoch's length, every arrival and every deadline's
//! slack. Clocks, leases, grace periods and time-outs are never scaled.
//!
//! What the trace does not say is derived by fixed rules, so that every run of the demo is the same:
//!
//! * **GPU range** (`range`): the trace has one number of GPUs. A job of 1 may use up to 4, one of 4 from 2 to 8,
//!   one of 8 from 4 to 8, one of 16 exactly 16 as a gang over two nodes. Every second job of 8 may span two
//!   nodes; the one of GPT-2 among these asks for V100s, whose nodes have 4: a gang by necessity.
//! * **GPU types**: those for which `models.json` has a table, less those on which the fewest GPUs would take longer
//!   than 9 hours of the trace ([`PATIENCE_S`]); where that leaves none, the fewest GPUs are raised instead.
//! * **Weight** (`weight`): by GPUs requested (1: 10, 2-4: 20, 8: 50, more: 100); every fifth row is urgent (x 5),
//!   every seventh in the background (weight 1).
//! * **Deadline**: the trace's slack at the scale, plus [`START_ALLOWANCE_S`], because starting a pod takes as long for
//!   a small job as for a large one.

use std::collections::BTreeMap;

use andreas_api::names;
use andreas_test_nodes::GPU_WATTS;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// Product label of the nodes with 8 GPUs.
pub const A100: &str = "NVIDIA-A100-SXM4-80GB";
/// Product label of the nodes with 4 V100s.
pub const V100: &str = "Tesla-V100-SXM2-16GB";
/// Product label of the nodes with 4 T4s.
pub const T4: &str = "Tesla-T4";

/// The demo's cluster: GPU type, nodes, GPUs on each. 12 nodes, 64 GPUs.
pub const CLUSTER: [(&str, usize, usize); 3] = [(A100, 4, 8), (V100, 4, 4), (T4, 4, 4)];

/// Image of the training container; the pretend nodes run the `trainer` program for it.
pub const IMAGE: &str = "andreas.dev/trainer:dev";

/// Seconds added to every scaled deadline.
pub const START_ALLOWANCE_S: f64 = 10.0;

/// Seconds of the trace that no job takes on any configuration it may be given: the users' patience. It also bounds the
/// length of the whole run, whatever a planner decides.
pub const PATIENCE_S: f64 = 32_400.0;

/// How many seconds of the trace are one second of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeScale(pub f64);

impl TimeScale {
    /// The demo: 350 seconds of the trace in one. The longest job, 7 h 8 min on 8 A100s, takes 73 s; jobs arrive over
    /// 32 s.
    pub const DEMO: TimeScale = TimeScale(350.0);
}

/// One row of the trace.
#[derive(Clone, Debug, Deserialize)]
pub struct TraceRow {
    /// Row number in the trace.
    pub job: u32,
    /// Seconds since the trace began.
    pub submission_time: u64,
    /// Iterations of the whole run.
    pub num_iteration: u64,
    /// Model, drawn at random by the trace's authors.
    pub model_name: String,
    /// Seconds since the trace began.
    pub deadline: u64,
    /// Batch over all GPUs.
    pub batch_size: u32,
    /// GPUs that the job asked for.
    pub num_gpu: u32,
    /// Seconds it took on them.
    pub duration: u64,
}

/// Seconds or watts by GPU type and total number of GPUs.
pub type Table = BTreeMap<String, BTreeMap<u32, f64>>;

#[derive(Debug, Deserialize)]
struct Models {
    families: BTreeMap<String, Family>,
}

#[derive(Debug, Deserialize)]
struct Family {
    model: String,
    iterations_per_epoch: u64,
    seconds_per_epoch: Table,
    watts: Table,
}

/// How many GPUs a job may be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuRange {
    /// Fewest in total.
    pub min: u32,
    /// Most in total.
    pub max: u32,
    /// Which totals.
    pub counts: Vec<u32>,
    /// GPU types.
    pub types: Vec<String>,
    /// Most nodes.
    pub max_nodes: u32,
}

/// A job of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadJob {
    /// Name of the TrainingJob.
    pub name: String,
    /// Submitted this long after the first one.
    pub submit_offset_s: f64,
    /// `deadlineAfter`, whole seconds.
    pub deadline_after_s: u64,
    /// 1 to 1000.
    pub weight: u32,
    /// Units of progress.
    pub epochs: u32,
    /// GPUs it may be given.
    pub gpus: GpuRange,
    /// Model.
    pub model: String,
    /// Name of its TrainingProfile: model and batch.
    pub profile: String,
    /// Scaled seconds of one epoch by type and count, of the whole family: what the user knows, and what the trainer
    /// trains at. Holds more configurations than the job may be given ([`WorkloadJob::configurations`]).
    pub seconds_per_epoch: Table,
    /// Watts of all GPUs together by type and count, likewise.
    pub watts: Table,
    /// Where it comes from: `itp/cluster04#10208`.
    pub reference: String,
    /// GPUs that it asked for in the trace, for comparisons with fixed requests.
    pub requested_gpus: u32,
}

impl WorkloadJob {
    /// The same job with the number of GPUs that it asked for in the trace, and no other.
    #[must_use]
    pub fn with_fixed_request(mut self) -> Self {
        let gpus = self.requested_gpus;
        (self.gpus.min, self.gpus.max, self.gpus.counts) = (gpus, gpus, vec![gpus]);
        self
    }

    /// Seconds of the whole run on a configuration; `None` if there is no table for it.
    pub fn run_s(&self, gpu_type: &str, gpus: u32) -> Option<f64> {
        Some(self.seconds_per_epoch.get(gpu_type)?.get(&gpus)? * f64::from(self.epochs))
    }

    /// Every (type, total GPUs, nodes) that it may be given on [`CLUSTER`], over the fewest nodes.
    pub fn configurations(&self) -> Vec<(&str, u32, u32)> {
        let all = self.gpus.types.iter().flat_map(|t| self.gpus.counts.iter().map(move |g| (t.as_str(), *g)));
        all.filter(|(t, g)| self.run_s(t, *g).is_some())
            .map(|(t, g)| (t, g, nodes_for(t, g)))
            .filter(|(.., n)| *n <= self.gpus.max_nodes)
            .collect()
    }
}

/// Fewest nodes of [`CLUSTER`] that hold this many GPUs of a type, the same number on each.
pub fn nodes_for(gpu_type: &str, gpus: u32) -> u32 {
    let each = CLUSTER.iter().find(|(t, ..)| *t == gpu_type).map_or(1, |(.., each)| *each as u32);
    gpus.div_ceil(each)
}

/// The rows of the trace.
///
/// # Errors
/// If the fixture is not what it should be.
pub fn trace() -> Result<Vec<TraceRow>> {
    let mut reader = csv::Reader::from_reader(include_bytes!("../fixtures/itp_40_jobs.csv").as_slice());
    reader.deserialize().collect::<Result<_, _>>().context("itp_40_jobs.csv")
}

/// The workload, in order of submission.
///
/// # Errors
/// If a fixture is not what it should be, or the scale is not positive.
pub fn jobs(scale: TimeScale) -> Result<Vec<WorkloadJob>> {
    anyhow::ensure!(scale.0.is_finite() && scale.0 > 0.0, "time scale {} is not positive", scale.0);
    let models: Models =
        serde_json::from_str(include_str!("../fixtures/models.json")).context("models.json")?;
    let rows = trace()?;
    let first = rows.iter().map(|r| r.submission_time).min().unwrap_or(0);
    rows.iter().map(|row| job(row, first, &models, scale)).collect()
}

fn job(row: &TraceRow, first: u64, models: &Models, scale: TimeScale) -> Result<WorkloadJob> {
    let profile = format!("{}-b{}", row.model_name, row.batch_size);
    let family = models.families.get(&profile).with_context(|| format!("models.json has no {profile}"))?;
    let scaled = |counts: &BTreeMap<u32, f64>| {
        counts.iter().map(|(g, s)| (*g, round_to_millis(s / scale.0))).collect()
    };
    let seconds_per_epoch: Table =
        family.seconds_per_epoch.iter().map(|(t, of)| (t.clone(), scaled(of))).collect();
    // At least one, and never less work than the trace has by more than half an epoch.
    let epochs = (row.num_iteration as f64 / family.iterations_per_epoch as f64).round().max(1.0) as u32;
    let slack = row.deadline.saturating_sub(row.submission_time) as f64 / scale.0;
    Ok(WorkloadJob {
        name: format!("itp-{}-{}", row.job, row.model_name),
        submit_offset_s: round_to_millis(row.submission_time.saturating_sub(first) as f64 / scale.0),
        deadline_after_s: (slack + START_ALLOWANCE_S).ceil() as u64,
        weight: weight(row),
        epochs,
        gpus: range(row, epochs, &family.seconds_per_epoch),
        model: family.model.clone(),
        profile,
        seconds_per_epoch,
        watts: family.watts.clone(),
        reference: format!("itp/cluster04#{}", row.job),
        requested_gpus: row.num_gpu,
    })
}

/// Seconds rounded to 1 ms; a positive value stays at least 1 ms.
fn round_to_millis(x: f64) -> f64 {
    ((x * 1000.0).round() / 1000.0).max(if x > 0.0 { 0.001 } else { 0.0 })
}

/// The range of GPUs for the number that the trace has (see the top of this page). `table`: the family's, unscaled.
fn range(row: &TraceRow, epochs: u32, table: &Table) -> GpuRange {
    let (counts, max_nodes, only): (&[u32], u32, Option<&str>) = match row.num_gpu {
        0 | 1 => (&[1, 2, 4], 1, None),
        2..=4 => (&[2, 4, 8], 1, None),
        5..=8 if row.job % 2 == 1 => (&[4, 8], 1, None),
        5..=8 if row.model_name == "gpt2" => (&[8], 2, Some(V100)),
        5..=8 => (&[4, 8], 2, None),
        _ => (&[16], 2, Some(A100)),
    };
    let patient = |gpu_type: &str, gpus: u32| {
        let run = table.get(gpu_type).and_then(|of| of.get(&gpus)).map(|s| s * f64::from(epochs));
        run.is_some_and(|s| s <= PATIENCE_S) && nodes_for(gpu_type, gpus) <= max_nodes
    };
    let types = |fewest: u32| -> Vec<String> {
        table.keys().filter(|t| only.is_none_or(|o| o == *t) && patient(t, fewest)).cloned().collect()
    };
    // The last count stands even where nobody's patience reaches: a job is never left without a configuration.
    let last = counts.len() - 1;
    let from = (0..last).find(|i| !types(counts[*i]).is_empty()).unwrap_or(last);
    let types = match types(counts[from]) {
        none if none.is_empty() => table.keys().filter(|t| only.is_none_or(|o| o == *t)).cloned().collect(),
        some => some,
    };
    GpuRange { min: counts[from], max: counts[last], counts: counts[from..].to_vec(), types, max_nodes }
}

/// The weight of a row (see the top of this page).
fn weight(row: &TraceRow) -> u32 {
    let class = match row.num_gpu {
        0 | 1 => 10,
        2..=4 => 20,
        5..=8 => 50,
        _ => 100,
    };
    match row.job {
        urgent if urgent % 5 == 0 => class * 5,
        background if background % 7 == 0 => 1,
        _ => class,
    }
}

/// The objects of one job, as `kubectl apply` takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifests {
    /// The family's times and watts; the same for all jobs of a family.
    pub profile: Value,
    /// A claim for the checkpoints, named like the job; made before the job.
    pub claim: Value,
    /// The job.
    pub job: Value,
}

/// The objects of one job. Without a namespace: that of the client.
pub fn manifest(job: &WorkloadJob) -> Manifests {
    Manifests { profile: profile(job), claim: claim(job), job: training_job(job) }
}

fn api_version() -> String {
    format!("{}/{}", names::GROUP, names::VERSION)
}

/// TrainingProfile with the model's whole table, so that all jobs of a model yield the same object.
fn profile(job: &WorkloadJob) -> Value {
    let rows = job.seconds_per_epoch.iter().flat_map(|(gpu_type, counts)| {
        counts.iter().map(move |(gpus, seconds)| {
            json!({
                "gpuType": gpu_type,
                "gpus": gpus,
                "nodes": nodes_for(gpu_type, *gpus),
                "millisPerEpoch": ((seconds * 1000.0).round() as i64).max(1),
                "watts": job.watts.get(gpu_type).and_then(|w| w.get(gpus)).map(|w| w.round() as i64),
            })
        })
    });
    json!({
        "apiVersion": api_version(),
        "kind": "TrainingProfile",
        "metadata": {"name": job.profile},
        "spec": {
            "features": {"modelFamily": job.model},
            "measurements": rows.collect::<Vec<_>>(),
        },
    })
}

fn claim(job: &WorkloadJob) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": job.name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// Draw of one GPU by type for the pretend nodes' power meters: the mean over the counts that the family's table has.
fn gpu_watts(job: &WorkloadJob) -> String {
    let mean = |of: &BTreeMap<u32, f64>| {
        of.iter().map(|(gpus, watts)| watts / f64::from(*gpus)).sum::<f64>() / of.len().max(1) as f64
    };
    let each: BTreeMap<&String, f64> =
        job.watts.iter().map(|(gpu_type, of)| (gpu_type, mean(of).round())).collect();
    json!(each).to_string()
}

fn training_job(job: &WorkloadJob) -> Value {
    // Types are named: those without a table would be guessed at by the predictor, and the trainer has no pace there.
    let gpus = json!({
        "min": job.gpus.min,
        "max": job.gpus.max,
        "counts": job.gpus.counts,
        "types": job.gpus.types,
        "maxNodes": job.gpus.max_nodes,
    });
    let variable = |name: &str, value: String| json!({"name": name, "value": value});
    let env = [
        variable("TRAINER_SECONDS_PER_EPOCH", json!(job.seconds_per_epoch).to_string()),
        variable("TRAINER_EPOCHS", job.epochs.to_string()),
        variable("TRAINER_MODEL", job.model.clone()),
    ];
    json!({
        "apiVersion": api_version(),
        "kind": "TrainingJob",
        "metadata": {
            "name": job.name,
            "labels": {"app.kubernetes.io/part-of": "itp-demo"},
            "annotations": {"andreas.dev/trace": job.reference},
        },
        "spec": {
            "deadlineAfter": format!("{}s", job.deadline_after_s),
            "weight": job.weight,
            "epochs": job.epochs,
            "gpus": gpus,
            "profileRef": {"name": job.profile},
            "checkpoint": {"claimName": job.name, "path": "/checkpoint", "graceSeconds": 10},
            "template": {
                "metadata": {"annotations": {GPU_WATTS: gpu_watts(job)}},
                "spec": {
                    "containers": [{
                        "name": "trainer",
                        "image": IMAGE,
                        "env": env,
                        // Real nodes on one machine have the cores of that machine between them.
                        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
                    }],
                },
            },
        },
    })
}
