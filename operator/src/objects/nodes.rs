//! Objects per node and cluster that the operator maintains: a GpuNode per GPU node, and the policy's status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use andreas_api::energy_policy::{EnergyPolicyStatus, PowerState};
use andreas_api::gpu_node::{PodPowerLimit, namespaced_pod_name};
use andreas_api::names::{self, DEFAULT_POLICY};
use andreas_api::slim::{SlimEnergyPolicy, SlimGpuNode, SlimPod, SlimTrainingJob};
use andreas_api::{EnergyPolicySpec, Phase, Reason};
use andreas_cluster::energy::budget::{self, BudgetState, Enforcement};
use andreas_cluster::energy::{Exclusion, Inventory, inventory};
use andreas_cluster::index::{ClusterIndex, is_member, is_worker, name_of, owner, takes};
use andreas_cluster::policy::rules;
use andreas_runtime::clock;
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::gpu_nodes;
use super::node_powers;
use super::patches::{AT_ONCE, patch_specs};
use crate::shared::Shared;
use crate::writes::patch;

/// Interval of checking nodes.
const EVERY: Duration = Duration::from_secs(5);
/// Maximum power limits per node: its maximum number of GPUs.
const MAX_LIMITS: usize = 64;

/// Condition of the policy: some GPU nodes are not planned.
const NODES_EXCLUDED: &str = "NodesExcluded";

/// Condition of the policy: the draw of the cluster's GPU types is known.
const POWER_KNOWN: &str = "PowerKnown";
/// Condition of the policy: an autoscaler adds the nodes that are asked for.
const CAPACITY_AVAILABLE: &str = "CapacityAvailable";
/// Maximum GPU types in one message.
const TYPES_NAMED: usize = 5;

/// Maintains them until `shutdown`.
pub async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut enforcement = Enforcement::default();
    let signals = shared.index.lock().signals();
    loop {
        while gpu_nodes::make(&shared).await == AT_ONCE && !shutdown.is_cancelled() {}
        gpu_nodes::describe(&shared).await;
        set_limits(&shared).await;
        request_holders(&shared).await;
        read_templates(&shared).await;
        write_policy_status(&shared, &mut enforcement).await;
        node_powers::want(&shared).await;
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = signals.holders.notified() => {}
            () = signals.power.notified() => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Power limits and guards of pods, by node, for each GpuNode's spec. Only changed nodes. Those of a worker that starts are there before its
/// pod. The limit of a pod whose job was deleted stays as long as the pod: it may draw power for its whole grace period.
fn limits(index: &ClusterIndex) -> Vec<(String, Vec<PodPowerLimit>)> {
    let mut wanted: BTreeMap<&str, Vec<PodPowerLimit>> = BTreeMap::new();
    for (key, job) in index.jobs().iter() {
        add_limits(index, key, job, &mut wanted);
    }
    let mut news = Vec::new();
    for (key, gpu_node) in index.gpu_nodes().iter() {
        let limits = complete(index, gpu_node, wanted.remove(key.name.as_str()).unwrap_or_default());
        if gpu_node.spec.limits != limits {
            news.push((key.name.clone(), limits));
        }
    }
    news
}

/// The same of one node, changed or not.
pub fn limits_of(index: &ClusterIndex, node: &str) -> Vec<PodPowerLimit> {
    let mut wanted = BTreeMap::new();
    for (key, job) in index.allocated_on(node) {
        add_limits(index, key, job, &mut wanted);
    }
    let key = ObjectKey { namespace: String::new(), name: node.to_owned() };
    let wanted = wanted.remove(node).unwrap_or_default();
    index.gpu_nodes().get(&key).map_or_else(Vec::new, |gpu_node| complete(index, gpu_node, wanted))
}

/// Adds the limits of a job's workers: of those that hold GPUs, and with a guard of those that are still to be made.
fn add_limits<'a>(
    index: &'a ClusterIndex,
    key: &ObjectKey,
    job: &'a SlimTrainingJob,
    wanted: &mut BTreeMap<&'a str, Vec<PodPowerLimit>>,
) {
    let Some(status) = &job.status else { return };
    let Some(allocation) = &status.allocation else { return };
    let lowest = [allocation.power_limit_watts, allocation.guard_watts].into_iter().flatten().min();
    let Some(watts) = lowest else { return };
    let members = index.members(key);
    for pod in &members {
        let node = pod.spec.node_name.as_ref().and_then(|node| allocation.nodes.iter().find(|n| *n == node));
        if let (true, Some(node), Some(_)) = (is_worker(pod, job, allocation.attempt), node, takes(pod)) {
            wanted.entry(node).or_default().push(PodPowerLimit { pod: name_of(&pod.metadata), watts });
        }
    }
    if allocation.guard_watts.is_none() || status.phase != Phase::Starting {
        return;
    }
    for (index, node) in allocation.nodes.iter().enumerate() {
        let pod = names::pod_name(&key.name, allocation.attempt, index);
        let pod = namespaced_pod_name(&key.namespace, &pod);
        let bound =
            |member: &Arc<SlimPod>| name_of(&member.metadata) == pod && member.spec.node_name.is_some();
        if !members.iter().any(bound) {
            wanted.entry(node).or_default().push(PodPowerLimit { pod, watts });
        }
    }
}

/// A node's limits with those of pods that outlive their jobs.
fn complete(
    index: &ClusterIndex,
    gpu_node: &SlimGpuNode,
    mut limits: Vec<PodPowerLimit>,
) -> Vec<PodPowerLimit> {
    let outlives_its_job = |limit: &&PodPowerLimit| {
        let (namespace, name) = limit.pod.split_once('/')?;
        let pod = index.pods().get(&ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() })?;
        let (job, _) = owner(&pod.metadata)?;
        takes(pod)?;
        (!index.jobs().get(&job).is_some_and(|job| is_member(pod, job))).then_some(())
    };
    limits.extend(gpu_node.spec.limits.iter().filter(|l| outlives_its_job(l).is_some()).cloned());
    limits.sort_by(|a, b| a.pod.cmp(&b.pod));
    limits.truncate(MAX_LIMITS);
    limits
}

async fn set_limits(shared: &Arc<Shared>) {
    let news = limits(&shared.index.lock());
    let specs = news.into_iter().map(|(node, limits)| (node, json!({ "limits": limits })));
    patch_specs(shared, specs.collect(), "power limits not written").await;
}

/// Finds what disappeared pods still hold. The API server tells whether foreign ones have ended; agents are
/// asked about the rest.
async fn request_holders(shared: &Arc<Shared>) {
    let unconfirmed = shared.index.lock().take_unconfirmed();
    let reads = unconfirmed.iter().map(|(node, key, uid)| async move {
        // An existing pod has ended or reappears in the watch. An error, or a new pod of that name, proves
        // nothing.
        if let Ok(Some(pod)) = shared.writer.get::<SlimPod>(key).await
            && pod.uid().as_deref() == Some(uid)
        {
            shared.index.lock().confirm_ended(node, key);
        }
    });
    futures::future::join_all(reads).await;
    let requests = {
        let mut index = shared.index.lock();
        index.expire_vanished();
        index.holder_requests()
    };
    let specs = requests.into_iter().map(|(node, request)| (node, json!({ "holdersGeneration": request })));
    patch_specs(shared, specs.collect(), "holders not requested from the agent").await;
}

/// Reads templates that were left out, where there is room for them by now.
async fn read_templates(shared: &Arc<Shared>) {
    let left_out = shared.index.lock().templates_with_room(AT_ONCE);
    let reads = left_out.iter().map(|key| async move {
        if let Ok(Some(job)) = shared.writer.get::<SlimTrainingJob>(key).await {
            shared.index.lock().read_template(job);
        }
    });
    futures::future::join_all(reads).await;
}

/// Judges whether the stops for the power budget have begun in time, and writes the policy's status: the generation in force, what is
/// drawn, excluded nodes, and whether the budget is met.
async fn write_policy_status(shared: &Arc<Shared>, enforcement: &mut Enforcement) {
    let Some(changes) = ({
        let (index, now) = (shared.index.lock(), clock::now());
        let inventory = Inventory::from_index(&index);
        let draw = budget::draw(&inventory, now);
        let met = enforcement.judge(draw, inventory.policy(), now);
        shared.metrics.set_budget_met(met.met);
        let power = budget::power_state(draw, inventory.policy(), now);
        let excluded = without_plan(&index, &inventory);
        let policy = index.policy();
        let missing = index.missing_capacity();
        policy.and_then(|policy| {
            changes(policy, (&excluded, &missing), inventory.unknown(), (&met, power), now)
        })
    }) else {
        return;
    };
    let body = json!({ "status": changes });
    let key = ObjectKey { namespace: String::new(), name: DEFAULT_POLICY.to_owned() };
    match shared.writer.patch_status::<SlimEnergyPolicy>("policy", &key, &body).await {
        Ok(answer) => {
            shared.index.lock().wrote_policy(answer);
        }
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "policy status not written"),
    }
}

fn without_plan(index: &ClusterIndex, inventory: &Inventory<'_>) -> Vec<(String, Exclusion)> {
    let nodes = index.nodes().iter();
    nodes.filter_map(|(key, node)| Some((key.name.clone(), inventory.node_use(node).exclusion()?))).collect()
}

/// What changes in the policy's status; `None` if it is up to date.
fn changes(
    policy: &SlimEnergyPolicy,
    (excluded, missing): (&[(String, Exclusion)], &str),
    unknown: &BTreeSet<String>,
    (met, power): (&BudgetState, PowerState),
    now: Timestamp,
) -> Option<Value> {
    let status = policy.status.clone().unwrap_or_default();
    let generation = policy.metadata.generation;
    let held = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind);
    let condition = |kind: &str, truth: bool, reason: Reason, message: String| {
        let truth = if truth { "True" } else { "False" };
        let since =
            held(kind).filter(|c| c.status == truth).map_or(Time(now), |c| c.last_transition_time.clone());
        Condition {
            type_: kind.into(),
            status: truth.into(),
            reason: reason.as_str().into(),
            message,
            last_transition_time: since,
            observed_generation: generation,
        }
    };
    // Nodes not matched by the selector are excluded on purpose.
    let some = excluded.iter().any(|(_, why)| *why != Exclusion::NotSelected);
    let message = inventory::summary(excluded, &policy.spec)
        .unwrap_or_else(|| "every node with GPUs is planned".to_owned());
    let mut conditions = vec![
        in_force(&policy.spec, condition),
        condition(NODES_EXCLUDED, some, if some { Reason::Invalid } else { Reason::AsExpected }, message),
        power_known(unknown, condition),
        condition("BudgetMet", met.met, met.reason, met.message.clone()),
    ];
    if !policy.spec.capacity.is_empty() {
        let reason = if missing.is_empty() { Reason::AsExpected } else { Reason::WaitingForCapacity };
        let message = if missing.is_empty() { "nodes come as they are asked for" } else { missing };
        conditions.push(condition(CAPACITY_AVAILABLE, missing.is_empty(), reason, message.into()));
    }
    let ours = ["Ready", NODES_EXCLUDED, POWER_KNOWN, "BudgetMet", CAPACITY_AVAILABLE];
    conditions.extend(status.conditions.iter().filter(|c| !ours.contains(&c.type_.as_str())).cloned());
    let power =
        if budget::is_news(status.power.as_ref(), &power) { Some(power) } else { status.power.clone() };
    let new = EnergyPolicyStatus { observed_generation: generation, power, conditions };
    let json = |status: &EnergyPolicyStatus| serde_json::to_value(status).unwrap_or_default();
    patch::diff(&json(&status), &json(&new))
}

/// Whether all of the policy is in force.
fn in_force(
    policy: &EnergyPolicySpec,
    condition: impl Fn(&str, bool, Reason, String) -> Condition,
) -> Condition {
    let unknown: Vec<&str> = rules::unknown_zones(policy).into_iter().collect();
    if unknown.is_empty() {
        return condition("Ready", true, Reason::AsExpected, "in force".into());
    }
    // The API server knows a zone that this program does not.
    let message = format!("time zone {} is not known: its windows are read in UTC", unknown.join(", "));
    condition("Ready", false, Reason::Invalid, message)
}

/// Reports undescribed GPU types: their energy is assumed, and with a budget their nodes are excluded.
fn power_known(
    unknown: &BTreeSet<String>,
    condition: impl Fn(&str, bool, Reason, String) -> Condition,
) -> Condition {
    if unknown.is_empty() {
        return condition(POWER_KNOWN, true, Reason::AsExpected, "of all GPU types".into());
    }
    let names: Vec<&str> = unknown.iter().map(String::as_str).take(TYPES_NAMED).collect();
    let more = if unknown.len() > names.len() { " and others" } else { "" };
    let message = format!(
        "nobody knows what {}{more} draw: describe them in spec.gpuTypes, or run the node agent there",
        names.join(", ")
    );
    condition(POWER_KNOWN, false, Reason::Invalid, message)
}

#[cfg(test)]
mod tests {
    use andreas_runtime::watch::Index;

    use super::*;
    use crate::testing;

    #[test]
    fn power_limits_of_running_pods_are_written_to_their_node_once() {
        let mut index = ClusterIndex::new();
        let status = json!({"phase": "Running", "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 2,
            "gpusPerWorker": 1, "nodes": ["n1", "n2"], "since": "2026-01-01T00:00:00Z", "watts": 400,
            "powerLimitWatts": 250}});
        let job: SlimTrainingJob = serde_json::from_value(testing::job(1, &status)).expect("a job");
        index.apply(job);
        let gpu_node = |name: &str, version: u64, spec: serde_json::Value| -> SlimGpuNode {
            serde_json::from_value(
                json!({"metadata": {"name": name, "resourceVersion": version.to_string()}, "spec": spec}),
            )
            .expect("a gpu node")
        };
        index.apply(gpu_node("n1", 2, json!({})));
        index.apply(gpu_node("n2", 3, json!({"limits": [{"pod": "team/gone", "watts": 100}]})));
        index.apply(gpu_node("n3", 4, json!({})));
        let mut pod = testing::pod(0, 5, "j1");
        pod["spec"]["nodeName"] = json!("n1");
        index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
        let limit = PodPowerLimit { pod: "team/bert-1-0".into(), watts: 250 };
        // The second pod is not bound yet; its node's earlier limit is removed.
        assert_eq!(limits(&index), [("n1".to_owned(), vec![limit]), ("n2".to_owned(), vec![])]);
        index.apply(gpu_node("n1", 6, json!({"limits": [{"pod": "team/bert-1-0", "watts": 250}]})));
        index.apply(gpu_node("n2", 7, json!({})));
        assert_eq!(limits(&index), []);
        // Another job of the same name makes a pod of the same name: the limit is that of its own allocation, or none.
        let again = |version: u64, limit: Option<i32>| -> SlimTrainingJob {
            let mut job = testing::job(version, &status);
            job["metadata"]["uid"] = json!("j2");
            job["status"]["allocation"]["powerLimitWatts"] = json!(limit);
            serde_json::from_value(job).expect("a job")
        };
        let mut pod = testing::pod(0, 9, "j2");
        pod["spec"]["nodeName"] = json!("n1");
        index.apply(again(8, Some(180)));
        // The former job's pod is there, and keeps its limit as long as it is. Nothing of that is the other's.
        assert_eq!(limits(&index), []);
        index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
        let limit = PodPowerLimit { pod: "team/bert-1-0".into(), watts: 180 };
        assert_eq!(limits(&index), [("n1".to_owned(), vec![limit])]);
        index.apply(again(10, None));
        assert_eq!(limits(&index), [("n1".to_owned(), vec![])]);
    }

    #[test]
    fn the_policy_names_excluded_nodes_once_and_then_keeps_quiet() {
        let mut policy: SlimEnergyPolicy =
            serde_json::from_value(json!({"metadata": {"name": "default", "generation": 3}, "spec": {}}))
                .expect("a policy");
        let now = Timestamp::UNIX_EPOCH;
        let (none, mig) = (BTreeSet::new(), [("n1".to_owned(), Exclusion::MigInUse)]);
        let met =
            BudgetState { met: true, reason: Reason::AsExpected, message: "power is not limited".into() };
        let draw = budget::Draw { whole: 700.0, floor: 100.0, allowed: None };
        let changed = |policy: &SlimEnergyPolicy, excluded: &[(String, Exclusion)], met: &BudgetState| {
            let power = budget::power_state(draw, &policy.spec, now);
            changes(policy, (excluded, ""), &none, (met, power), now)
        };
        let news = changed(&policy, &mig, &met).expect("news");
        assert_eq!((&news["observedGeneration"], &news["power"]["drawnWatts"]), (&json!(3), &json!(700)));
        let of = |news: &Value, at: usize, field: &str| {
            news["conditions"][at][field].as_str().unwrap_or_default().to_owned()
        };
        assert!(
            of(&news, 1, "status") == "True" && of(&news, 1, "message").contains("1 MigInUse (n1)"),
            "{news}"
        );
        policy.status = Some(serde_json::from_value(news).expect("a status"));
        assert_eq!(changed(&policy, &mig, &met), None);
        let over = BudgetState { met: false, reason: Reason::PowerBudget, message: "above".into() };
        let said = changed(&policy, &mig, &over).expect("news");
        assert_eq!((of(&said, 3, "type"), of(&said, 3, "status")), ("BudgetMet".into(), "False".into()));
        assert!(said["conditions"][4].is_null() && said["power"].is_null(), "{said}");
        assert!(changed(&policy, &[], &met).is_some_and(|news| of(&news, 1, "status") == "False"));
        policy.spec.power_budget.time_zone = "Mars/Phobos".into();
        let said = changed(&policy, &mig, &met).expect("news");
        assert_eq!((of(&said, 0, "type"), of(&said, 0, "status")), ("Ready".into(), "False".into()));
        assert_eq!(
            of(&said, 0, "message"),
            "time zone Mars/Phobos is not known: its windows are read in UTC"
        );
        policy.spec.power_budget.time_zone = "Europe/Rome".into();
        let elsewhere = [("n2".to_owned(), Exclusion::NotSelected)];
        assert!(changed(&policy, &elsewhere, &met).is_some_and(|news| of(&news, 1, "status") == "False"));
    }
}
