//! A job, node or budget that does not exist, in the planner's input.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use andreas_api::names::{LABEL_PROFILE, is_job_name};
use andreas_api::query::{AddedNodes, ChangedJob, JobObject};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::{TrainingJobSpec, key_of};
use andreas_cluster::energy::draws::MeasuredDraws;
use andreas_cluster::index::ClusterIndex;
use andreas_cluster::policy::rules;
use andreas_lifecycle::{Claim, template_problem};
use andreas_model::{GpuCount, JobId, NodeName, StepFunction, Watts};
use andreas_planner::{JobState, Node, Prices, Snapshot, SnapshotError};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::QueryError;
use super::explain::merge;
use super::live::State;
use super::view::{View, options_of_question};
use crate::ledger::Ledger;
use crate::planning::last::Latest;
use crate::planning::plan_valid;
use crate::snapshot::{self, Built, Caches};

/// Name of a posted job without one.
const UNNAMED: &str = "asked";
/// Maximum nodes that a question may add.
const MAX_ADDED: u32 = 256;
/// Maximum GPUs, numbers of GPUs and types of a posted job, as in the definition.
const MAX_GPUS: i32 = 4_096;
const MAX_COUNTS: usize = 64;
const MAX_TYPES: usize = 32;
/// Largest weight, as in the definition.
const MAX_WEIGHT: i32 = 1_000;
/// Fields of a spec that a change may name.
const CHANGEABLE: [&str; 4] = ["deadline", "deadlineAfter", "weight", "gpus"];

/// Plans of a cluster that does not exist, by the same code as the operator's.
pub struct Hypothetical {
    caches: Mutex<Caches>,
    /// Number of the last posted job.
    posted: AtomicU64,
}

impl Hypothetical {
    /// With predictions by these caches.
    pub fn new(caches: Caches) -> Self {
        Self { caches: Mutex::new(caches), posted: AtomicU64::new(0) }
    }

    /// A posted job as the operator would see it, submitted at `now`.
    ///
    /// # Errors
    /// [`QueryError::Invalid`] with the field.
    pub fn posted(
        &self,
        namespace: &str,
        job: &JobObject,
        now: Timestamp,
    ) -> Result<SlimTrainingJob, QueryError> {
        let name = job.metadata.name.as_deref().unwrap_or(UNNAMED);
        if !is_job_name(name) {
            return Err(QueryError::invalid("metadata.name", "is no name of a TrainingJob"));
        }
        let spec = spec(&job.spec)?;
        let number = self.posted.fetch_add(1, Ordering::Relaxed);
        let profile = job.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_PROFILE));
        let labels: BTreeMap<&str, &String> =
            profile.map(|profile| (LABEL_PROFILE, profile)).into_iter().collect();
        let object = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": format!("hypothetical-{number}"),
                         "generation": 1, "creationTimestamp": now, "labels": labels},
            "spec": spec,
        });
        let mut job: SlimTrainingJob =
            serde_json::from_value(object).map_err(|error| QueryError::invalid("spec", error.to_string()))?;
        if job.spec.template.json_or_leave_out().is_none() {
            return Err(QueryError::invalid("spec.template", "is larger than 64 KiB"));
        }
        if let Some(problem) = template_problem(&job.spec) {
            let (field, problem) = problem.split_once(": ").unwrap_or(("spec.template", &problem));
            return Err(QueryError::invalid(field, problem.to_owned()));
        }
        job.spec.suspend = false;
        // Nothing of the cluster is adopted by a question.
        job.spec.adopts = None;
        Ok(job)
    }

    /// The cluster in this state, planned and sampled as after the plan `last`. Nobody carries this plan out.
    ///
    /// # Errors
    /// [`QueryError::NotPlanned`] if the planner refuses the snapshot.
    pub fn view(&self, State { at, index, ledger }: State, last: &Latest) -> Result<View, QueryError> {
        let Built { mut snapshot, draws, .. } =
            self.build(&index, &ledger, (last.plan.prices.clone(), &last.draws), at);
        snapshot.intended = last.plan.intended.clone();
        let options = last.options.clone();
        let with = options_of_question(&options, snapshot.jobs.len());
        let plan = plan_valid(&mut snapshot, &with).map_err(unplanned)?;
        let latest = Latest { at, index, ledger, snapshot, options, plan, draws };
        View::new(Arc::new(latest)).map_err(unplanned)
    }

    /// The cluster of a view with this job: new, or in the place of the one with its name. A job without a status waits.
    ///
    /// # Errors
    /// [`QueryError::Refused`]: the job would not be planned.
    pub fn with_job(&self, view: &View, job: SlimTrainingJob) -> Result<Snapshot, QueryError> {
        let latest = &view.latest;
        let (key, uid) = (key_of(&job), job.metadata.uid.clone().unwrap_or_default());
        let index = latest.index.with_job(job);
        let mut ledger = latest.ledger.clone();
        let memory = ledger.entry(&key, &uid);
        if memory.claim().is_none() {
            memory.set_claim(Claim::Waiting { not_before: None });
        }
        let seen = (latest.snapshot.prices.clone(), &latest.draws);
        let Built { mut snapshot, queued, .. } = self.build(&index, &ledger, seen, latest.at);
        snapshot.intended = latest.snapshot.intended.clone();
        let id = snapshot::job_id(&key);
        // What could not be planned was left out of the view.
        let planned: HashSet<&JobId> = latest.snapshot.jobs.iter().map(|job| &job.id).collect();
        snapshot.jobs.retain(|job| job.id == id || planned.contains(&job.id));
        if snapshot.jobs.iter().any(|job| job.id == id) {
            return Ok(view.moved(snapshot));
        }
        let beyond = queued.iter().find(|(queued, ..)| *queued == key);
        let unknown = || "nothing is known of GPU types yet".to_owned();
        Err(QueryError::Refused(beyond.map_or_else(unknown, |(.., place)| place.message())))
    }

    fn build(
        &self,
        index: &ClusterIndex,
        ledger: &Ledger,
        (prices, seen): (Option<Prices>, &MeasuredDraws),
        at: Timestamp,
    ) -> Built {
        let mut caches = self.caches.lock();
        // What was seen before counts.
        caches.draws = seen.clone();
        snapshot::build(index, ledger, &mut caches, prices, at)
    }
}

/// A job of the cluster with another spec.
///
/// # Errors
/// [`QueryError::Invalid`] with the field.
pub fn changed(job: &SlimTrainingJob, asked: &ChangedJob) -> Result<SlimTrainingJob, QueryError> {
    let invalid =
        |field: &str, problem: &str| QueryError::invalid(format!("changed.patch{field}"), problem.to_owned());
    let patch = asked.patch.as_object().ok_or_else(|| invalid("", "is no object"))?;
    if let Some(field) = patch.keys().find(|field| !CHANGEABLE.contains(&field.as_str())) {
        return Err(invalid(&format!(".{field}"), "cannot be asked about"));
    }
    // The pods of a workload are its own: with another number of GPUs its plan would not fit them.
    if job.spec.adopts.is_some() && patch.contains_key("gpus") {
        return Err(invalid(".gpus", "the pods of an adopted job are its workload's"));
    }
    let of_spec = |error: serde_json::Error| QueryError::invalid("spec", error.to_string());
    let mut posted = serde_json::to_value(&job.spec).map_err(of_spec)?;
    merge(&mut posted, &asked.patch);
    let new = spec(&posted)?;
    if !(1..=MAX_WEIGHT).contains(&new.weight) {
        return Err(QueryError::invalid("spec.weight", format!("is not from 1 to {MAX_WEIGHT}")));
    }
    let mut changed = job.clone();
    // The template stays the shared one.
    let parts = (new.deadline, new.deadline_after, new.weight, new.gpus);
    let spec = &mut changed.spec;
    (spec.deadline, spec.deadline_after, spec.weight, spec.gpus) = parts;
    if let Some(status) = &mut changed.status {
        // That of the old spec.
        status.deadline = None;
    }
    Ok(changed)
}

/// The spec of a posted job. The API server judges manifests, and the command asks it; here only what a plan could not bear is refused.
fn spec(posted: &Value) -> Result<TrainingJobSpec, QueryError> {
    let mut spec = TrainingJobSpec::deserialize(posted)
        .map_err(|error| QueryError::invalid("spec", error.to_string()))?;
    let gpus = &spec.gpus;
    let most = 1..=MAX_GPUS;
    if !most.contains(&gpus.min) || !most.contains(&gpus.max_total()) || gpus.min > gpus.max_total() {
        return Err(QueryError::invalid("spec.gpus", format!("min and max are not from 1 to {MAX_GPUS}")));
    }
    if gpus.counts.len() > MAX_COUNTS || gpus.types.len() > MAX_TYPES {
        return Err(QueryError::invalid("spec.gpus", "has too many counts or types"));
    }
    // A job of another kind is read by its own object alone.
    spec.adopts = None;
    Ok(spec)
}

/// The present state is at fault, and not the change; the error names jobs of all namespaces.
fn unplanned(error: SnapshotError) -> QueryError {
    tracing::error!(%error, "the present state cannot be planned for a question");
    QueryError::NotPlanned
}

/// Adds nodes like those of the cluster.
///
/// # Errors
/// If the cluster has no such GPU type, or the number is too large.
pub fn add_nodes(snapshot: &mut Snapshot, added: &[AddedNodes]) -> Result<(), QueryError> {
    let count: u32 = added.iter().map(|nodes| nodes.count).fold(0, u32::saturating_add);
    if count > MAX_ADDED || added.iter().any(|nodes| nodes.count == 0 || !(1..=64).contains(&nodes.gpus)) {
        return Err(QueryError::invalid("nodes", "are 1 to 256 nodes with 1 to 64 GPUs each"));
    }
    for (kind, nodes) in added.iter().enumerate() {
        let like = like(snapshot, &nodes.gpu_type)?;
        // Kubernetes allows no such name for a node.
        let name = |number: u32| NodeName::new(format!("added/{kind}-{number:03}"));
        let names: Vec<NodeName> = (0..nodes.count).map(name).collect();
        // Equal workers share a list, also with these nodes.
        let mut lists: HashMap<*const NodeName, Option<Arc<[NodeName]>>> = HashMap::new();
        for job in &mut snapshot.jobs {
            let Some(all) = &job.candidates else { continue };
            let longer = lists.entry(all.as_ptr()).or_insert_with(|| {
                all.contains(&like.name).then(|| names.iter().chain(all.iter()).cloned().collect())
            });
            if let Some(longer) = longer {
                job.candidates = Some(Arc::clone(longer));
            }
        }
        let gpus = GpuCount(nodes.gpus);
        snapshot.nodes.extend(names.into_iter().map(|name| Node {
            name,
            gpus,
            boards: gpus,
            free_gpus: gpus,
            foreign_power: None,
            sleep: None,
            ..like.clone()
        }));
    }
    Ok(())
}

/// A node with GPUs of that type, by its full name or a part that one type alone has: the emptiest that a waiting job may have.
fn like(snapshot: &Snapshot, asked: &str) -> Result<Node, QueryError> {
    let mut types: Vec<&str> = snapshot.nodes.iter().map(|node| node.gpu_type.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    let lower = asked.to_ascii_lowercase();
    let found: Vec<&str> = match types.iter().find(|name| **name == asked) {
        Some(exact) => vec![exact],
        None => types.iter().copied().filter(|name| name.to_ascii_lowercase().contains(&lower)).collect(),
    };
    let [found] = found.as_slice() else {
        let problem = format!("{asked:?} is not one of the cluster's types: {}", types.join(", "));
        return Err(QueryError::invalid("nodes.gpuType", problem));
    };
    let mut nodes: Vec<&Node> =
        snapshot.nodes.iter().filter(|node| node.gpu_type.as_str() == *found).collect();
    nodes.sort_by_key(|node| Reverse(node.free_gpus));
    // One that is closed may have as many free GPUs, and is no example for any job. Equal workers share a list.
    let waiting = || snapshot.jobs.iter().filter(|job| matches!(job.state, JobState::Waiting));
    let lists: HashMap<*const NodeName, &[NodeName]> =
        waiting().filter_map(|job| job.candidates.as_deref()).map(|all| (all.as_ptr(), all)).collect();
    let listed: HashSet<&NodeName> = lists.into_values().flatten().collect();
    let all_open = waiting().any(|job| job.candidates.is_none());
    let open = |node: &Node| all_open || listed.contains(&node.name);
    let chosen = nodes.iter().find(|node| open(node)).or(nodes.first());
    chosen.map(|node| (*node).clone()).ok_or_else(|| QueryError::invalid("nodes.gpuType", "has no node"))
}

/// Sets the power budget at all times.
pub fn set_budget(latest: &Latest, snapshot: &mut Snapshot, watts: f64) {
    let mut policy = latest.index.policy().map(|policy| policy.spec.clone()).unwrap_or_default();
    policy.power_budget.watts = Some(watts as i64);
    policy.power_budget.windows = Vec::new();
    let mut budget = rules::budget(&policy, snapshot.now.0 as i64);
    if let Some(budget) = &mut budget {
        budget.watts = StepFunction::flat(Watts(watts));
    }
    snapshot.budget = budget;
}
