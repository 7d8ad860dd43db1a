//! The input of a step. The caller fills it from caches that include the operator's own last write of this
//! job. A step reads nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::Reason;
use andreas_api::slim::{SlimPod, SlimPodSpec, SlimTrainingJob};
use andreas_api::training_job::{Allocation, Prediction, UsedProfile};
use andreas_cluster::energy::LateEnergy;
use andreas_cluster::energy::bill::Bill;
use andreas_model::same_nodes;
use andreas_workloads::adopt::Workload;
use jiff::Timestamp;

use super::first_seen::{FirstSeen, TimedFact};
use super::pod_events::KubeletEvents;

/// One job and everything its next step depends on.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The job as last read or written.
    pub job: &'a SlimTrainingJob,
    /// The workload of another kind that the job stands for. `None`: it stands for none, or the workload is not known.
    pub workload: Option<&'a Workload>,
    /// Every pod with our label whose owner or job-name label is this job. That includes kept earlier
    /// attempts, older UIDs of the same name and forged pods. Membership is decided here.
    pub pods: &'a [&'a SlimPod],
    /// Deleted pods with this job's name, with their last observed state. The caller keeps its own until the attempt ends, and
    /// those of older UIDs while they may run. After an operator restart they are lost: its own are waited for longer
    /// then, those of older UIDs not at all.
    pub deleted: &'a [DeletedPodView<'a>],
    /// Every Node named by a pod above, the allocation or the decision. A missing name means that **the Node
    /// does not exist**, which proves its pods dead.
    pub nodes: &'a BTreeMap<String, NodeFact>,
    /// The policy in force.
    pub policy: &'a PolicyView,
    /// The instant of this step.
    pub now: Timestamp,
    /// When this process first saw the facts that time-outs count from.
    pub first_seen: &'a FirstSeen,
    /// The newest plan's decision for this job.
    pub decision: Option<&'a DecisionFor>,
    /// The decided placement's share of its nodes' draw besides their GPUs, W.
    pub host_watts: i32,
    /// The result of the last attempt to create the pods.
    pub creation: &'a Creation,
    /// The API server does not create pods in this namespace, for reasons unrelated to their content.
    pub backoff: Option<&'a Backoff>,
    /// Field and name of a claim that only one node at a time can mount, while the job may use several.
    pub single_node_claim: Option<&'a str>,
    /// The result of the last server-side dry run of a worker.
    pub dry_run: Option<&'a DryRunResult>,
    /// The executor failed to run the last step's actions, for example a dry run.
    pub failing: bool,
    /// When the namespace's rules (labels, annotations, quotas) last changed, as seen by this process. A
    /// refused template may be accepted now.
    pub rules_changed: Option<Timestamp>,
    /// The current forecast for the job.
    pub forecast: Option<&'a Prediction>,
    /// The TrainingProfile that the job is planned with.
    pub profile: &'a UsedProfile,
    /// Energy and cost, added when attempts start and end.
    pub energy: &'a EnergyView,
    /// When the operator last wrote this job's status, or when this process started.
    pub last_write: Timestamp,
    /// When a report last moved the current attempt's progress, if newer than in the status.
    pub last_progress: Option<Timestamp>,
    /// Reports up to this instant may be lost. The endpoint was not served here yet, was not found by its name,
    /// rejected connections, could not authenticate a report of this job, or had a certificate that it does not
    /// trust.
    pub reports_lost: Option<Timestamp>,
    /// What kubelets said of the pods that were asked about ([`super::questions`]).
    pub kubelet_events: &'a KubeletEvents,
    /// Pod settings.
    pub settings: &'a Settings,
}

impl<'a> Observed<'a> {
    /// Name of the training container.
    pub(super) fn training_container(&self) -> Option<&'a str> {
        self.job.spec.training_container()
    }

    /// Whether the spec allows this many GPUs of this type on these nodes; `Err` says why not.
    pub(super) fn allows(&self, gpus: i32, gpu_type: &str, nodes: &[String]) -> Result<(), String> {
        let spec = &self.job.spec.gpus;
        if !spec.totals().contains(&gpus) {
            return Err(format!("spec.gpus does not allow {gpus} GPUs"));
        }
        if !spec.allows_type(gpu_type) {
            return Err(format!("spec.gpus.types does not allow {gpu_type}"));
        }
        if nodes.len() > usize::try_from(spec.max_nodes).unwrap_or(1) {
            return Err(format!("spec.gpus.maxNodes does not allow {} nodes", nodes.len()));
        }
        if let Some(gib) = spec.memory_gib {
            // A node without a known memory size keeps its job; plans never choose such a node.
            let fits = |n: &String| {
                self.nodes.get(n).and_then(|f| f.gpu_memory_mib).is_none_or(|mib| spec.memory_fits(mib))
            };
            if !nodes.iter().all(fits) {
                return Err(format!("spec.gpus.memoryGiB does not allow GPUs with less than {gib} GiB"));
            }
        }
        Ok(())
    }

    /// Start of a node's current `Ready` value: its transition time, but not later than first seen.
    pub(super) fn ready_changed(&self, node: &str) -> Option<Timestamp> {
        let stamp = self.nodes.get(node)?.ready_changed?;
        Some(stamp.min(self.readiness_seen(node)))
    }

    /// When a node's `Ready` changed during an attempt. A transition time after we first saw it comes from a
    /// clock that is ahead. Such a change counts only if first seen after all pods were bound.
    pub(super) fn ready_changed_during(&self, node: &str, allocation: &Allocation) -> Option<Timestamp> {
        let stamp = self.nodes.get(node)?.ready_changed?;
        let seen = self.readiness_seen(node);
        if stamp <= seen {
            return Some(stamp).filter(|at| *at >= allocation.since.0);
        }
        let bound = self.first_seen.get(&TimedFact::Bound { attempt: allocation.attempt })?;
        Some(seen).filter(|at| at > bound)
    }

    /// When this process first saw a node's current `Ready` value.
    pub(super) fn readiness_seen(&self, node: &str) -> Timestamp {
        let changed = self.nodes.get(node).and_then(|fact| fact.ready_changed);
        let fact = TimedFact::Readiness { node: node.to_owned(), changed };
        self.first_seen.get(&fact).copied().unwrap_or(self.now)
    }
}

/// A deleted pod.
#[derive(Clone, Copy, Debug)]
pub struct DeletedPodView<'a> {
    /// Its last observed state, from the watch's deletion event.
    pub last: &'a SlimPod,
    /// When its deletion was seen.
    pub at: Timestamp,
    /// The last `holdersGeneration` of its node by then. The agent's answer to a later request is newer.
    pub holders_requested: i64,
}

/// State of a Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFact {
    /// Its condition `Ready` is `True`.
    pub ready: bool,
    /// When `Ready` last changed.
    pub ready_changed: Option<Timestamp>,
    /// Its boot ID; empty if the kubelet reports none.
    pub boot_id: String,
    /// UIDs of pods that ran there before its last reboot.
    pub lost: BTreeSet<String>,
    /// It has the taint `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
    /// It is being taken out of use: cordoned, deleted, or tainted by an autoscaler.
    pub leaving: bool,
    /// GPUs free for this job's current attempt. Excluded are broken ones and those of bound pods of others
    /// and of earlier attempts that can still run ([`super::pod_in_use`]).
    pub free_gpus: i32,
    /// GPUs that are neither held by foreign pods nor broken: free if all our pods leave.
    pub open_gpus: i32,
    /// Memory of one GPU, MiB, if known.
    pub gpu_memory_mib: Option<i64>,
    /// Its processors' architecture, by its label; empty without one.
    pub architecture: String,
    /// The agent's state. Without an agent the GPUs count as awake.
    pub agent: Option<AgentFact>,
}

impl Default for NodeFact {
    fn default() -> Self {
        Self {
            ready: true,
            ready_changed: None,
            boot_id: String::new(),
            lost: BTreeSet::new(),
            out_of_service: false,
            leaving: false,
            free_gpus: i32::MAX,
            open_gpus: i32::MAX,
            gpu_memory_mib: None,
            architecture: String::new(),
            agent: None,
        }
    }
}

/// State of a node's agent and its GpuNode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentFact {
    /// `GpuNode.spec.wakeGeneration`.
    pub wake: i64,
    /// `GpuNode.status.observedWakeGeneration`.
    pub awake: i64,
    /// Since when a request to wake is unanswered.
    pub unanswered_since: Option<Timestamp>,
    /// It sets power limits on every GPU that works, and what `GpuNode.spec` says is in force.
    pub sets_limits: bool,
    /// `GpuNode.spec.limits`: power limit of a GPU, W, by pod as `namespace/name`.
    pub limits: BTreeMap<String, i32>,
    /// Pods that hold GPUs, as `namespace/name`.
    pub holders: BTreeSet<String>,
    /// `GpuNode.status.observedHoldersGeneration`: the request that `holders` answers.
    pub holders_observed: i64,
    /// Holders of GPUs on which an idle process that is in no pod, or not known to be in one, has a context; empty: of GPUs without a holder.
    pub beside_parked: BTreeSet<String>,
    /// When the last of its unhealthy GPUs became unhealthy.
    pub unhealthy_since: Option<Timestamp>,
    /// Pods of ours, as `namespace/name`, that give way: their kubelet gave a GPU of theirs to an older or foreign pod too.
    pub doubled: BTreeSet<String>,
}

/// The parts of the EnergyPolicy that a job's lifecycle uses.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyView {
    /// A gang that is not fully bound after this time is withdrawn, s.
    pub placement_timeout: i64,
    /// Seconds that a node must be unreachable before its jobs are handled.
    pub node_loss_after: i64,
    /// Restart elsewhere instead of waiting for proof of death.
    pub node_loss_restart: bool,
    /// Label of all prices.
    pub currency: String,
}

impl PolicyView {
    /// Reads a policy's spec.
    pub fn from_spec(spec: &andreas_api::EnergyPolicySpec) -> Self {
        Self {
            placement_timeout: spec.seconds(|spec| &spec.placement_timeout),
            node_loss_after: spec.seconds(|spec| &spec.node_loss.after),
            node_loss_restart: spec.node_loss.action == andreas_api::energy_policy::NodeLossAction::Restart,
            currency: spec.currency.clone(),
        }
    }
}

impl Default for PolicyView {
    fn default() -> Self {
        Self::from_spec(&andreas_api::EnergyPolicySpec::default())
    }
}

/// The newest plan's decision for one job.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionFor {
    /// `status.decisions` (0 if absent) of the job in the plan's snapshot. A decision for another generation
    /// is not carried out.
    pub basis: i64,
    /// Run or wait.
    pub planned: Planned,
}

/// Run or wait.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// Run here. If equal to the current allocation: continue.
    Run {
        /// GPU type.
        gpu_type: String,
        /// Nodes in order of the members' index, at least one.
        nodes: Vec<String>,
        /// GPUs of each worker, at least 1.
        gpus_per_worker: i32,
        /// Power limit of each GPU, W.
        limit_watts: Option<i32>,
        /// Predicted draw of the whole gang, W.
        watts: i32,
        /// Power limit of each GPU until its draw is measured.
        guard: Guard,
    },
    /// Wait; a running job stops.
    Wait {
        /// Machine-readable reason.
        reason: Reason,
        /// Human-readable text that names the blocking jobs.
        message: String,
    },
}

/// A run's power limit until its draw is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// The limit of each GPU, W; `None`: none.
    pub watts: Option<i32>,
    /// The run has drawn as much as a guard of it allowed.
    pub reached: bool,
}

impl Planned {
    /// Runs with this many GPUs on each of these nodes, in any order.
    pub fn runs_on(&self, on: &[String], gpus_on_each: i32) -> bool {
        matches!(self, Self::Run { nodes, gpus_per_worker, .. }
            if *gpus_per_worker == gpus_on_each && same_nodes(nodes, on))
    }
}

/// The result of the last attempt to create an attempt's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Creation {
    /// Generation of its allocation; results for another generation are ignored.
    generation: i64,
    /// When this process first saw room for that allocation.
    since: Option<Timestamp>,
    /// Why the last try created no or not all pods, if the API server gave no verdict.
    error_message: Option<String>,
    outcome: CreationOutcome,
}

impl Creation {
    /// Whether it is about the allocation of this generation.
    pub fn is_for(&self, generation: i64) -> bool {
        self.generation == generation
    }

    /// When this process first saw room for the allocation of this generation.
    pub fn room_since(&self, generation: i64) -> Option<Timestamp> {
        self.since.filter(|_| self.is_for(generation))
    }

    /// Why the last try created no or not all pods, if the API server gave no verdict.
    pub fn error_message(&self) -> Option<&str> {
        self.error_message.as_deref()
    }

    /// The result.
    pub fn outcome(&self) -> &CreationOutcome {
        &self.outcome
    }

    /// Records that there is room for the allocation of this generation.
    pub fn record_room(&mut self, generation: i64, now: Timestamp) {
        self.for_generation(generation).since.get_or_insert(now);
    }

    /// Records a try that the API server gave no verdict on.
    pub fn record_failure(&mut self, generation: i64, message: String) {
        self.for_generation(generation).error_message = Some(message);
    }

    /// Records the result.
    pub fn record_outcome(&mut self, generation: i64, outcome: CreationOutcome) {
        let creation = self.for_generation(generation);
        (creation.outcome, creation.error_message) = (outcome, None);
    }

    /// The result for the allocation of this generation; that of another generation is dropped.
    fn for_generation(&mut self, generation: i64) -> &mut Self {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
        self
    }
}

/// A namespace's planning backoff: the API server does not create its pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// End of the backoff; may be in the past.
    pub until: Timestamp,
    /// The API server's message.
    pub message: String,
    /// The namespace's last dry run got no verdict: jobs without an earlier dry run are not planned.
    pub untried: bool,
}

/// The result of creating the pods. After a refusal the executor has deleted the created ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CreationOutcome {
    /// Not tried by this process.
    #[default]
    NotTried,
    /// All were created, or existed with our UID and attempt.
    Made,
    /// The server refused one.
    Refused {
        /// `QuotaExceeded` or `TemplateRejected`.
        reason: Reason,
        /// The server's message.
        message: String,
    },
    /// A required pod or Service name belongs to another owner.
    NameInUse {
        /// Its name.
        name: String,
    },
}

/// The result of a worker's server-side dry run. 409, 429 and 5xx are no verdict: the executor retries
/// silently.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRunResult {
    /// GPUs of the tested worker.
    pub gpus: i32,
    /// GPUs of a smaller one, to which the rest refers, and why all larger ones are refused.
    pub smaller: Option<(i32, String)>,
    /// When.
    pub at: Timestamp,
    /// `None`: accepted. Else `QuotaExceeded` or `TemplateRejected`, with the server's message.
    pub refusal: Option<(Reason, String)>,
    /// The worker after admission. `None` if it requests no more than what was sent, or if unknown.
    pub admitted: Option<Arc<Admitted>>,
}

/// A worker before and after admission: quantities (LimitRange defaults, injected containers), and which nodes take it.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// As sent.
    pub sent: SlimPodSpec,
    /// As the API server would store it; without affinity where that is the template's.
    pub kept: SlimPodSpec,
}

/// Energy and cost of the job, added when attempts start and end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnergyView {
    /// Energy of the current attempt so far and its cost, PUE included.
    pub attempt: Bill,
    /// True if its GPUs' energy is measured by their counters, false if from the power model.
    pub measured: bool,
    /// Cost of lateness and turnaround so far, millionths of the currency.
    pub lateness_micros: i64,
    /// Mean measured draw of the current attempt, W.
    pub measured_watts: Option<i32>,
    /// Measured energy of an ended attempt. Agents report it shortly after the pods have ended.
    pub late: Option<LateEnergy>,
}

/// Pod settings from the operator's flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `schedulerName` of pods. `None` in affinity mode: the cluster's own scheduler binds.
    pub scheduler: Option<String>,
    /// PriorityClass of pods.
    pub priority_class: Option<String>,
    /// Address for progress reports; `None` if not served.
    pub progress: Option<ProgressEndpoint>,
    /// GPUs of the largest managed node, the maximum that a dry run requests.
    pub largest_node_gpus: Option<i32>,
    /// Minimum seconds between status writes that change only texts and forecasts. At least 60; more if many
    /// jobs wait, because a plan changes them all.
    pub text_interval_seconds: i64,
    /// Seconds after creation before an unplanned job gets a waiting reason. A few; more during a start
    /// burst, when all are placed soon.
    pub first_plan_seconds: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler: Some(andreas_api::names::SCHEDULER.into()),
            priority_class: Some(andreas_api::names::PRIORITY_CLASS.into()),
            progress: None,
            largest_node_gpus: None,
            text_interval_seconds: 60,
            first_plan_seconds: 3,
        }
    }
}

/// Address for progress reports.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressEndpoint {
    /// Address without path, for example `https://andreas-operator.andreas.svc:8443`.
    pub base_url: String,
    /// Certificate of its CA, PEM.
    pub ca_pem: String,
}
