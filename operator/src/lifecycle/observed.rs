//! What a step is decided from. The caller fills it from caches that are at least as new as our own last write of
//! this job; a step never asks for more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_api::Reason;
use andreas_api::slim::{SlimPod, SlimPodSpec, SlimTrainingJob};
use andreas_api::training_job::Prediction;
use andreas_core::same_nodes;
use jiff::Timestamp;

/// One job and everything that bears on its next step.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The job as last read or written.
    pub job: &'a SlimTrainingJob,
    /// Every pod with our label whose owner or job-name label is this job: the present attempt's, earlier ones that
    /// are kept, those of an older UID of the same name, forged ones. Who is a member is judged here.
    pub pods: &'a [&'a SlimPod],
    /// Pods of this UID that were seen to go, with what was last seen of them. Kept by the caller until the attempt
    /// has ended; lost when the operator restarts, which makes it wait longer, never less.
    pub gone: &'a [DeletedPodView<'a>],
    /// Every Node that a pod above is bound to, or that the allocation or the decision names. A name that is missing means that **no such
    /// Node exists**, which is proof of death.
    pub nodes: &'a BTreeMap<String, NodeFact>,
    /// Rules in force.
    pub policy: &'a PolicyView,
    /// The instant of this step.
    pub now: Timestamp,
    /// When this process first saw the facts that time-outs count from.
    pub sights: &'a super::Sights,
    /// What the newest plan says of this job.
    pub decision: Option<&'a DecisionFor>,
    /// What the last attempt to make the pods came to.
    pub creation: &'a Creation,
    /// The API server does not make pods of this namespace, for reasons that are no verdict on them.
    pub backoff: Option<&'a Backoff>,
    /// The job may have several nodes and names a claim that only one at a time can mount: which, with its field.
    pub single_node_claim: Option<&'a str>,
    /// What the last server-side dry run of a worker came to.
    pub verdict: Option<&'a Verdict>,
    /// Carrying out the last step failed: a dry run among others.
    pub failing: bool,
    /// When the rules of its namespace (labels, annotations, quotas) last changed, as far as this process has seen: what was
    /// refused before may be good now.
    pub rules_changed: Option<Timestamp>,
    /// What is expected of the job now.
    pub forecast: Option<&'a Prediction>,
    /// Energy and money, for the edges of attempts.
    pub energy: &'a EnergyView,
    /// When this job's status was last written by us, or when this process started.
    pub last_write: Timestamp,
    /// When a report of the present attempt last moved its progress, where this process knows better than the status.
    pub last_progress: Option<Timestamp>,
    /// Until this time reports of the job may not have got through: the endpoint was not served here yet, turned connections away, or
    /// could not check a report of this job.
    pub reports_lost: Option<Timestamp>,
    /// How pods are made.
    pub settings: &'a Settings,
}

impl<'a> Observed<'a> {
    /// Name of the container that trains.
    pub(super) fn training_container(&self) -> Option<&'a str> {
        self.job.spec.training_container()
    }
}

/// A pod that is no more.
#[derive(Clone, Copy, Debug)]
pub struct DeletedPodView<'a> {
    /// The last that was seen of it, from the watch's deletion event.
    pub last: &'a SlimPod,
    /// When its deletion was seen.
    pub at: Timestamp,
    /// With which number its node's agent had been asked who holds GPUs by then. Its answer to a higher one is newer.
    pub look: i64,
}

/// What is known of a Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFact {
    /// Its condition `Ready` is `True`.
    pub ready: bool,
    /// When `Ready` last changed.
    pub ready_changed: Option<Timestamp>,
    /// Its boot ID; empty where the kubelet gives none.
    pub boot_id: String,
    /// UIDs of pods that ran there before it was booted again.
    pub lost: BTreeSet<String>,
    /// It has the taint `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
    /// It is being taken out of use: cordoned, deleted, or tainted by an autoscaler.
    pub leaving: bool,
    /// GPUs of it that no pod uses but those of this job's present attempt: not counted are GPUs of pods of others
    /// and of earlier attempts that are bound and can still run ([`super::pod_in_use`]), and broken ones.
    pub free_gpus: i32,
    /// GPUs of it that are neither held by foreign pods nor broken: what is left if all pods of ours leave.
    pub open_gpus: i32,
    /// Memory of one of its GPUs, MiB, where known.
    pub gpu_memory_mib: Option<i64>,
    /// What its agent says; none where no agent lives: its GPUs then count as awake.
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
            agent: None,
        }
    }
}

/// What a node's agent and its GpuNode say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentFact {
    /// `GpuNode.spec.wake`.
    pub wake: i64,
    /// `GpuNode.status.awake`.
    pub awake: i64,
    /// Pods that hold GPUs, as `namespace/name`.
    pub holders: BTreeSet<String>,
    /// The number of the question that `holders` answers.
    pub looked: i64,
    /// Since when a GPU of the node is unhealthy.
    pub unhealthy_since: Option<Timestamp>,
}

/// The rules of the EnergyPolicy that bear on a job's life, read once.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyView {
    /// A gang not wholly bound in this time is withdrawn, s.
    pub placement_timeout: i64,
    /// How long a node is silent before its jobs are looked at, s.
    pub node_loss_after: i64,
    /// Start again elsewhere instead of waiting for proof of death.
    pub node_loss_restart: bool,
}

impl PolicyView {
    /// The rules out of a policy's spec.
    pub fn of(spec: &andreas_api::EnergyPolicySpec) -> Self {
        Self {
            placement_timeout: spec.placement_timeout.seconds_or(120),
            node_loss_after: spec.node_loss.after.seconds_or(900),
            node_loss_restart: spec.node_loss.action == andreas_api::energy_policy::NodeLossAction::Restart,
        }
    }
}

impl Default for PolicyView {
    fn default() -> Self {
        Self::of(&andreas_api::EnergyPolicySpec::default())
    }
}

/// What the newest plan says of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionFor {
    /// `status.decisions` (0 when absent) of the job in the snapshot the plan was made from. A decision made for
    /// another state of the job is not carried out.
    pub basis: i64,
    /// Run or wait.
    pub verdict: Planned,
}

/// Run or wait.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// Run there; equal to what it has: go on.
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
    },
    /// Wait; a running job stops.
    Wait {
        /// Why.
        reason: Reason,
        /// For people, the jobs in the way named.
        message: String,
    },
}

impl Planned {
    /// Runs with so many GPUs on each of these nodes, whichever is named first.
    pub fn runs_on(&self, on: &[String], gpus_on_each: i32) -> bool {
        matches!(self, Self::Run { nodes, gpus_per_worker, .. }
            if *gpus_per_worker == gpus_on_each && same_nodes(nodes, on))
    }
}

/// What the last attempt to make an attempt's pods came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Creation {
    /// Generation of the allocation it was for; an outcome for another generation is not looked at.
    pub generation: i64,
    /// When this process first saw room for that allocation, so that its pods could be made.
    pub since: Option<Timestamp>,
    /// Why the last try made no pods, or not all, where the API server gave no verdict.
    pub trouble: Option<String>,
    /// How it went.
    pub outcome: CreationOutcome,
}

impl Creation {
    /// That of an allocation; a new one where another was kept.
    pub fn of(&mut self, generation: i64) -> &mut Self {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
        self
    }
}

/// Until when no job of a namespace is planned because the API server does not make its pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// Not before this instant; it may have passed.
    pub until: Timestamp,
    /// The API server's words.
    pub words: String,
    /// The last dry run in the namespace got no verdict: what has not been tried is not planned.
    pub untried: bool,
}

/// How making the pods went. After a refusal those that were made have been deleted by the executor.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CreationOutcome {
    /// Not tried by this process.
    #[default]
    NotTried,
    /// All were made, or were there with our UID and attempt.
    Made,
    /// The server refused one.
    Refused {
        /// `QuotaExceeded` or `TemplateRejected`.
        reason: Reason,
        /// The server's words.
        message: String,
    },
    /// A pod (or Service) of a name that is needed belongs to somebody else.
    NameInUse {
        /// Its name.
        name: String,
    },
}

/// What a server-side dry run of a worker came to. 409, 429 and 5xx are no verdict: the executor tries again silently.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// GPUs of the worker that was tried.
    pub gpus: i32,
    /// When.
    pub at: Timestamp,
    /// None: accepted. Else `QuotaExceeded` or `TemplateRejected`, and the server's words.
    pub refusal: Option<(Reason, String)>,
    /// The worker as admission left it; none where that asks for no more than what was sent, and where nobody knows.
    pub admitted: Option<Arc<Admitted>>,
}

/// A worker before and after admission (defaults of a LimitRange, injected containers), as far as quantities are read from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// As it was sent.
    pub sent: SlimPodSpec,
    /// As the API server would have kept it.
    pub kept: SlimPodSpec,
}

/// Energy and money of the job, for the edges of attempts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnergyView {
    /// Energy of the present attempt so far, J.
    pub attempt_joules: i64,
    /// Its price, PUE included, millionths of the currency.
    pub attempt_micros: i64,
    /// Measured by the GPUs' counters, else from the power model.
    pub measured: bool,
    /// Price of lateness and turnaround so far, millionths of the currency.
    pub lateness_micros: i64,
    /// Mean draw of the present attempt, W, where measured.
    pub measured_watts: Option<i32>,
    /// What an ended attempt has used, measured: agents tell a moment after the pods have ended.
    pub late: Option<LateEnergy>,
}

/// What an attempt has used that was closed with its predicted energy.
#[derive(Clone, Debug, PartialEq)]
pub struct LateEnergy {
    /// The attempt.
    pub attempt: i64,
    /// What it used, J.
    pub joules: i64,
    /// By how much that costs more than was written, millionths of the currency; may be negative.
    pub micros_more: i64,
    /// Mean draw, W.
    pub watts: Option<i32>,
}

/// How pods are made; from the operator's flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `schedulerName` of pods; none in affinity mode, where the cluster's own scheduler binds.
    pub scheduler: Option<String>,
    /// PriorityClass of pods.
    pub priority_class: Option<String>,
    /// Where progress is posted; none where it is not served.
    pub progress: Option<ProgressEndpoint>,
    /// GPUs of the largest managed node: a dry run does not ask for more.
    pub largest_node_gpus: Option<i32>,
    /// A status is not written again within so many seconds where only texts and forecasts have changed. At least a
    /// minute; more where many jobs wait, because a plan moves them all.
    pub quiet_seconds: i64,
    /// Seconds after its creation before a job that no plan has seen says so. A few; more where many jobs have come at once, which
    /// all are placed soon.
    pub first_plan_seconds: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler: Some(andreas_api::names::SCHEDULER.into()),
            priority_class: Some(andreas_api::names::PRIORITY_CLASS.into()),
            progress: None,
            largest_node_gpus: None,
            quiet_seconds: 60,
            first_plan_seconds: 3,
        }
    }
}

/// Where progress is posted.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressEndpoint {
    /// Address without path, for example `https://andreas-operator.andreas.svc:8443`.
    pub base_url: String,
    /// Certificate of its CA, PEM.
    pub ca_pem: String,
}
