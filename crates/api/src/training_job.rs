//! `TrainingJob` (`tj`): a deep-learning training run with a deadline and a weight.

mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::DurationText;
use crate::known;
use crate::names;
use crate::shared_template::SharedTemplate;

pub use status::*;

/// What a user may say of a training run.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "andreas.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    namespaced,
    status = "TrainingJobStatus",
    doc = "A deep-learning training run with a deadline and a weight. The operator decides how many GPUs of which type it gets, where, when and at which power."
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobSpec {
    /// When the run should be done, an instant (RFC 3339). Default: none, then only its time in the system counts. Later than this the
    /// run costs `weight` times the policy's price of lateness; it is neither rejected nor ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The deadline as a duration from the creation of the object, for example `36h` or `1h30m`. Default: none. Not together with `deadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_after: Option<DurationText>,
    /// How much the run's lateness and time in the system count against those of other runs, 1 to 1000. Default: 10. The namespace's
    /// annotation `andreas.dev/max-weight` bounds it; without one the installation does, at 50 by default.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: i32,
    /// Length of the whole run in units of progress: epochs, or any other unit that the program counts in. Default: 1. Times in
    /// TrainingProfiles are of one such unit.
    #[serde(default = "default_epochs")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub epochs: i32,
    /// Number of GPUs, their types, and number of nodes. Default: one GPU of any type.
    #[serde(default)]
    pub gpus: GpuRequest,
    /// The TrainingProfile of this namespace that describes such runs: same model, data and batch. Its times and watts are what
    /// the run is planned with. Default: the profile of earlier runs of the same program, see `profileMatching`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_ref: Option<ProfileRef>,
    /// `Auto`: without `profileRef` the run shares a TrainingProfile with earlier runs of the same program: same image, command line and
    /// variables but for seeds, learning rates, output folders and names of runs. `Off`: it has one of its own name. Default: `Auto`.
    /// `status.profile` shows the profile. The label `andreas.dev/profile` names one as `profileRef` does.
    #[serde(default, deserialize_with = "known::or_default")]
    pub profile_matching: ProfileMatching,
    /// Name of the container that trains: it gets the GPUs and the environment, and its end is the end of the run. Default: the first one
    /// of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// `Worker`: the template's requests are those of a whole worker. `Gpu`: they are those of one GPU and are multiplied by the worker's
    /// GPUs. Default: `Worker`.
    #[serde(default, deserialize_with = "known::or_default")]
    pub resources_per: ResourcesPer,
    /// Pod template of a worker. The operator sets GPU counts, scheduler, node, names, grace period and restart policy.
    pub template: SharedTemplate,
    /// Which variables tell a worker where the others are. `Torchrun`: those of torchrun (`PET_NNODES`, `PET_NODE_RANK`...). `Env`: also
    /// `MASTER_ADDR`, `MASTER_PORT`, `RANK` (index of the worker) and `WORLD_SIZE` (number of workers), for programs that start one
    /// process per worker without torchrun. `Slurm`: each worker runs the container's command as a batch script, with Slurm's variables,
    /// `MASTER_ADDR`, `MASTER_PORT` and the programs `srun`, `scontrol` and `sbatch`. Default: `Torchrun`.
    #[serde(default, deserialize_with = "known::or_default")]
    pub rendezvous: Rendezvous,
    /// Size of `/dev/shm` in the training container, MiB; 0 leaves the runtime's own (usually 64 MiB). What is written there counts as
    /// memory of the container. Default: no size of its own, so that it ends with the pod's memory limit, or else the node's memory.
    #[serde(rename = "sharedMemoryMiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4_194_304))]
    pub shared_memory_mib: Option<i32>,
    /// Where the run saves its state. Default: nowhere, and a run that is stopped starts again from its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// `Allowed`: plans may stop the run in favour of others, or move it. `Never`: only its user, a drain or an exceeded power budget stops
    /// it. Default: `Allowed`.
    #[serde(default)]
    pub preemption: Preemption,
    /// How many failures of the program itself are tried again, 0 to 100. Default: 3. Failures of the cluster do not count.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: i32,
    /// Longest time from the binding of all workers until all run (image, volumes), at most `4h`. Default: `15m`. Then the attempt ends
    /// with the reason `StartTimeout`.
    #[serde(default = "default_start_timeout")]
    pub start_timeout: DurationText,
    /// Longest time without progress of a running attempt, for example `30m`. Default: none. Then the attempt ends and uses a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout: Option<DurationText>,
    /// Longest run of one attempt, for example `48h`. Default: none. Then the job fails at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_time: Option<DurationText>,
    /// `true` holds a waiting run, and stops a running one with a checkpoint. `false` lets it go on. Default: `false`.
    #[serde(default)]
    pub suspend: bool,
    /// Seconds from the record of the job's end (condition `Finished`) to the deletion of the object. Default: it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// How many ended attempts keep their pods for `kubectl logs`, 0 to 20. Default: 3.
    #[serde(default = "default_history_limit")]
    #[schemars(range(min = 0, max = 20))]
    pub history_limit: i32,
    /// The job of another kind that this TrainingJob stands for. Only the operator sets it, when it adopts a job with the label
    /// `andreas.dev/adopt`. Its pods are that job's own; they are started and stopped by that job's switch `suspend`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopts: Option<AdoptedJob>,
}

/// A TrainingProfile of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A job of another kind that a TrainingJob stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedJob {
    /// Its API group and version, for example `batch/v1`.
    #[schemars(length(min = 1, max = 128))]
    pub api_version: String,
    /// Its kind: Job, JobSet, TrainJob, PyTorchJob or RayJob.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Its name, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its UID.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// Number of its pods with GPUs; with `gpusPerPod` the most that it may have.
    #[schemars(range(min = 1, max = 4096))]
    pub pods: i32,
    /// GPUs of each pod, where the number of pods follows the plan. Default: none, and it has `pods` pods whatever the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub gpus_per_pod: Option<i32>,
}

impl AdoptedJob {
    /// Its pods on so many GPUs.
    #[must_use]
    pub fn pods_on(&self, gpus: i32) -> i32 {
        self.gpus_per_pod.map_or(self.pods, |each| gpus / each.max(1))
    }
}

fn default_weight() -> i32 {
    10
}
fn default_epochs() -> i32 {
    1
}
fn default_retries() -> i32 {
    3
}
fn default_start_timeout() -> DurationText {
    DurationText("15m".into())
}
fn default_history_limit() -> i32 {
    3
}
fn one() -> i32 {
    1
}
fn default_grace() -> i32 {
    60
}
fn default_checkpoint_path() -> String {
    names::CHECKPOINT_FOLDER.into()
}

/// GPUs of a run. Never mixed types; the same number on every node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRequest {
    /// Fewest GPUs in total. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub min: i32,
    /// Most GPUs in total. Default: `min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub max: Option<i32>,
    /// Totals that the program can use, each between `min` and `max`. Default: `min`, `max` and the powers of two between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 4096)))]
    pub counts: Vec<i32>,
    /// GPU types allowed: values of the nodes' type label, for example `NVIDIA-A100-SXM4-80GB`. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub types: Vec<String>,
    /// Least memory of one GPU, GiB. Default: any.
    #[serde(rename = "memoryGiB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub memory_gib: Option<i32>,
    /// Most nodes the run may use; each gives the same number of GPUs. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 512))]
    pub max_nodes: i32,
}

impl Default for GpuRequest {
    fn default() -> Self {
        Self { min: 1, max: None, counts: Vec::new(), types: Vec::new(), memory_gib: None, max_nodes: 1 }
    }
}

impl TrainingJobSpec {
    /// Name of the TrainingProfile that `profileRef` names.
    pub fn profile(&self) -> Option<&str> {
        self.profile_ref.as_ref().map(|profile| profile.name.as_str())
    }

    /// Name of the container that trains: `container`, else the first of the template. A pod may have others before it,
    /// which admission put there.
    pub fn training_container(&self) -> Option<&str> {
        let first =
            || self.template.spec.as_ref()?.containers.first().map(|container| container.name.as_str());
        self.container.as_deref().or_else(first)
    }
}

impl GpuRequest {
    /// Most GPUs in total.
    pub fn max_total(&self) -> i32 {
        self.max.unwrap_or(self.min).max(self.min)
    }

    /// Whether GPUs of this type may be given.
    pub fn allows_type(&self, gpu_type: &str) -> bool {
        self.types.is_empty() || self.types.iter().any(|allowed| allowed == gpu_type)
    }

    /// The totals that may be given, ascending, without repetition: `counts` within `min..=max`, else `min`, `max`
    /// and the powers of two between.
    pub fn totals(&self) -> Vec<i32> {
        let (min, max) = (self.min.max(1), self.max_total().max(1));
        let mut totals: Vec<i32> = if self.counts.is_empty() {
            (0..12).map(|p| 1 << p).chain([min, max]).collect()
        } else {
            self.counts.clone()
        };
        totals.retain(|t| (min..=max).contains(t));
        totals.sort_unstable();
        totals.dedup();
        totals
    }

    /// GPUs of a worker that its totals allow on nodes with that many GPUs, descending.
    pub fn worker_sizes(&self, largest_node: i32) -> Vec<i32> {
        let totals = self.totals();
        let on = |nodes: i32| {
            let each = totals.iter().filter(move |total| *total % nodes == 0).map(move |total| total / nodes);
            each.filter(|each| (1..=largest_node).contains(each))
        };
        let sizes: std::collections::BTreeSet<i32> = (1..=self.max_nodes.max(1)).flat_map(on).collect();
        sizes.into_iter().rev().collect()
    }
}

/// What the requests of the template mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResourcesPer {
    /// Those of one worker, whatever its number of GPUs.
    #[default]
    Worker,
    /// Those of one GPU: multiplied by the worker's GPUs.
    Gpu,
}

/// Whether a run without a profile shares that of earlier runs of its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProfileMatching {
    /// It shares theirs.
    #[default]
    Auto,
    /// It has one of its own name.
    Off,
}

/// Which variables tell a worker where the others are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Rendezvous {
    /// Those of torchrun.
    #[default]
    Torchrun,
    /// Those of PyTorch's `env://`, for one process per worker, beside torchrun's.
    Env,
    /// Those of Slurm, with `srun`, for a batch script, beside torchrun's.
    Slurm,
}

/// Whether a run may be stopped in favour of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Preemption {
    /// It may.
    #[default]
    Allowed,
    /// Only its user, a drain or a power emergency stops it. A word of another release counts as this one.
    #[serde(other)]
    Never,
}

/// Where a run saves its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// PersistentVolumeClaim of the namespace that is mounted at `path`. Default: none, the template mounts its own storage. With several
    /// nodes it must be `ReadWriteMany`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
    /// Folder in the container, also in the environment as `CHECKPOINT_DIR`. Default: `/checkpoint`.
    #[serde(default = "default_checkpoint_path")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/"))]
    pub path: String,
    /// Seconds between SIGTERM and SIGKILL, the time to save, 0 to 3600. Default: 60.
    #[serde(default = "default_grace")]
    #[schemars(range(min = 0, max = 3600))]
    pub grace_seconds: i32,
    /// `true`: two attempts that write at once would damage it. The job of a node that is not ready then waits until the node is proven
    /// dead. Default: `false`.
    #[serde(default)]
    pub exclusive: bool,
}
