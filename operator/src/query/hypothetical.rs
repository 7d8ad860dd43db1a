//! A job, node or budget that does not exist, in the planner's input.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use andreas_api::names::{LABEL_PROFILE, is_job_name};
use andreas_api::query::{AddedNodes, JobObject};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::{TrainingJobSpec, key_of};
use andreas_cluster::policy::rules;
use andreas_lifecycle::{Claim, template_problem};
use andreas_model::{GpuCount, NodeName, StepFunction, Watts};
use andreas_planner::{Job, JobState, Node, Snapshot, SnapshotError};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::QueryError;
use super::live::State;
use super::view::{View, options_of_question};
use crate::ledger::Ledger;
use crate::planning::last::Latest;
use crate::planning::plan_valid;
use crate::snapshot::{self, Caches, Runs};

/// Name of a posted job without one.
const UNNAMED: &str = "asked";
/// Maximum nodes that a question may add.
const MAX_ADDED: u32 = 256;
/// Maximum GPUs, numbers of GPUs and types of a posted job, as in the definition.
const MAX_GPUS: i32 = 4_096;
const MAX_COUNTS: usize = 64;
const MAX_TYPES: usize = 32;

/// Converts jobs that do not exist, by the same code as the operator's plans.
pub struct Hypothetical {
    /// For the whole cluster: its tables would push out those of one job, and a build takes long.
    whole: Mutex<Caches>,
    /// For one job, with the number of the last posted one.
    single: Mutex<(Caches, u64)>,
}

impl Hypothetical {
    /// With predictions by these caches.
    pub fn new(caches: impl Fn() -> Caches) -> Self {
        Self { whole: Mutex::new(caches()), single: Mutex::new((caches(), 0)) }
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
        let number = {
            let mut single = self.single.lock();
            single.1 += 1;
            single.1
        };
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
        let built = {
            let mut caches = self.whole.lock();
            // What was seen before counts.
            caches.draws = last.draws.clone();
            snapshot::build(&index, &ledger, &mut caches, last.plan.prices.clone(), at)
        };
        let (mut snapshot, draws) = (built.snapshot, built.draws);
        snapshot.intended = last.plan.intended.clone();
        let options = last.options.clone();
        let with = options_of_question(&options, snapshot.jobs.len());
        let plan = plan_valid(&mut snapshot, &with).map_err(unplanned)?;
        let latest = Latest { at, index, ledger, snapshot, options, plan, draws };
        View::new(Arc::new(latest)).map_err(unplanned)
    }

    /// The job for the planner, with the cluster as it was for a plan. A job without a status waits.
    /// `None`: it would not be planned, because it is held or no prediction is possible.
    pub fn planned(&self, latest: &Latest, job: SlimTrainingJob, now: Timestamp) -> Option<(Job, Snapshot)> {
        let key = key_of(&job);
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let known = latest.ledger.get(&key).filter(|memory| memory.uid() == uid).cloned();
        let mut ledger = Ledger::new(now);
        let memory = ledger.entry(&key, &uid);
        match known {
            Some(known) => *memory = known,
            None => drop(memory.set_claim(Claim::Waiting { not_before: None })),
        }
        let index = latest.index.with_one_job(job);
        let mut seen = latest.draws.clone();
        // They are not in that index, and count for this job as for any other.
        let others = Runs::beside(&key, &latest.index, &latest.ledger, &mut seen, latest.at);
        let mut single = self.single.lock();
        let caches = &mut single.0;
        (caches.draws, caches.others) = (seen, others);
        let built = snapshot::build(&index, &ledger, caches, None, now);
        drop(single);
        let found = built.snapshot.jobs.iter().find(|job| job.id == snapshot::job_id(&key)).cloned()?;
        Some((found, built.snapshot))
    }
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

/// Puts a job into a snapshot, in the place of one with its name. `built` is the snapshot that it was made for, without the
/// other jobs.
pub fn put(snapshot: &mut Snapshot, mut job: Job, built: &Snapshot) {
    let nodes: BTreeMap<&NodeName, &Node> = built.nodes.iter().map(|node| (&node.name, node)).collect();
    // A closed node is there only for the jobs that it runs: not for this one, which may have all nodes that it knows.
    if job.candidates.is_none() && !snapshot.nodes.iter().all(|node| nodes.contains_key(&node.name)) {
        job.candidates = Some(built.nodes.iter().map(|node| node.name.clone()).collect());
    }
    // What no other job names is not counted in the snapshot.
    for node in &mut snapshot.nodes {
        let Some(alone) = nodes.get(&node.name) else { continue };
        for (resource, amount) in &alone.free.others {
            node.free.others.entry(Arc::clone(resource)).or_insert(*amount);
        }
    }
    if !snapshot.namespaces.iter().any(|known| known.name == job.namespace) {
        snapshot.namespaces.extend(built.namespaces.iter().filter(|new| new.name == job.namespace).cloned());
    }
    match snapshot.jobs.iter_mut().find(|known| known.id == job.id) {
        Some(known) => *known = job,
        None => snapshot.jobs.push(job),
    }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use andreas_api::slim::SlimNode;
    use andreas_cluster::index::ClusterIndex;
    use andreas_planner::Options;
    use andreas_runtime::watch::Index;

    use super::*;
    use crate::testing::{at, gpu_node, planned};

    #[test]
    fn a_question_about_one_job_does_not_wait_while_the_cluster_is_built() {
        let mut index = ClusterIndex::new();
        let node = gpu_node("n0", "NVIDIA-A100-SXM4-80GB", 8);
        index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
        let latest = planned(&index, &Options::default(), at(0));
        let spec = json!({"epochs": 10, "gpus": {"min": 1, "max": 1},
            "template": {"spec": {"containers": [{"name": "t", "image": "x"}]}}});
        let job = JobObject { metadata: Default::default(), spec };

        let hypothetical = Arc::new(Hypothetical::new(Caches::default));
        let _being_built = hypothetical.whole.lock();
        let (answers, answer) = mpsc::channel();
        let asked = Arc::clone(&hypothetical);
        thread::spawn(move || {
            let posted = asked.posted("team", &job, at(0)).expect("a job");
            answers.send(asked.planned(&latest, posted, at(0)).is_some())
        });
        assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(true));
    }
}
