//! Objects per node and per cluster that the operator keeps: a GpuNode for every managed node, the policy's status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::gpu_node::PodPowerLimit;
use andreas_api::names::{DEFAULT_POLICY, LABEL_ATTEMPT};
use andreas_api::slim::{SlimEnergyPolicy, SlimGpuNode, SlimNode};
use andreas_api::{EnergyPolicySpec, GpuNode, GpuNodeSpec, Reason};
use andreas_runtime::watch::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use kube::ResourceExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::budget::{self, Enforcement, Met};
use crate::executor::Shared;
use crate::executor::refusal::Refusal;
use crate::index::{ClusterIndex, number, takes};
use crate::lifecycle::is_member;
use crate::snapshot::{is_managed, left_alone};

/// How often nodes are looked through.
const EVERY: Duration = Duration::from_secs(5);
/// GpuNodes made in one go: others write between.
const AT_ONCE: usize = 32;
/// Power limits of one node: as many as it may have GPUs.
const MOST_LIMITS: usize = 64;

/// Keeps them until `shutdown`.
pub async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut enforcement = Enforcement::default();
    loop {
        while make_gpu_nodes(&shared).await == AT_ONCE && !shutdown.is_cancelled() {}
        set_limits(&shared).await;
        let met = look_at_budget(&shared, &mut enforcement);
        tell_policy(&shared, &met).await;
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// Owned by its Node: the garbage collector removes it with the node.
fn gpu_node(node: &SlimNode) -> GpuNode {
    let mut object = GpuNode::new(&node.name_any(), GpuNodeSpec::default());
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    object
}

/// Makes some of those that are missing; how many.
async fn make_gpu_nodes(shared: &Arc<Shared>) -> usize {
    let missing: Vec<GpuNode> = {
        let index = shared.index.lock();
        let default = EnergyPolicySpec::default();
        let policy = index.policy().map_or(&default, |policy| &policy.spec);
        let managed = index.nodes.iter().filter(|(key, node)| {
            is_managed(node, policy) && left_alone(node).is_none() && index.gpu_nodes.get(key).is_none()
        });
        managed.map(|(_, node)| gpu_node(node)).take(AT_ONCE).collect()
    };
    let made = missing.iter().map(|object| async move {
        match shared.writer.create::<GpuNode, SlimGpuNode>("node", None, object, false).await {
            Ok(answer) => {
                shared.index.lock().wrote_gpu_node(answer);
                return true;
            }
            Err(error) if error.refusal() == Refusal::Exists => {}
            Err(error) => tracing::warn!(
                node = object.name_any(),
                error = &error as &dyn std::error::Error,
                "no GpuNode made"
            ),
        }
        false
    });
    futures::future::join_all(made).await.into_iter().filter(|made| *made).count()
}

/// Power limits of the pods that run under one, by node: what each GpuNode's spec is to say. Only nodes where that is news.
fn limits(index: &ClusterIndex) -> Vec<(String, Vec<PodPowerLimit>)> {
    let mut wanted: BTreeMap<&str, Vec<PodPowerLimit>> = BTreeMap::new();
    let limited = index.jobs.iter().filter_map(|(key, job)| {
        let allocation = job.status.as_ref()?.allocation.as_ref()?;
        Some((key, job, allocation, allocation.power_limit_watts?))
    });
    for (key, job, allocation, watts) in limited {
        for pod in index.members(key) {
            let own =
                is_member(&pod, job) && number(&pod.metadata, LABEL_ATTEMPT) == Some(allocation.attempt);
            let node =
                pod.spec.node_name.as_ref().and_then(|node| allocation.nodes.iter().find(|n| *n == node));
            if let (true, Some(node), Some(pod_uid), Some(_)) = (own, node, pod.uid(), takes(&pod)) {
                wanted.entry(node).or_default().push(PodPowerLimit { pod_uid, watts });
            }
        }
    }
    let mut news = Vec::new();
    for (key, gpu_node) in index.gpu_nodes.iter() {
        let mut limits = wanted.remove(key.name.as_str()).unwrap_or_default();
        limits.sort_by(|a, b| a.pod_uid.cmp(&b.pod_uid));
        limits.truncate(MOST_LIMITS);
        if gpu_node.spec.limits != limits {
            news.push((key.name.clone(), limits));
        }
    }
    news
}

async fn set_limits(shared: &Arc<Shared>) {
    let news = limits(&shared.index.lock());
    let writes = news.iter().map(|(node, limits)| async move {
        match shared.writer.patch_gpu_node(node, &json!({ "spec": { "limits": limits } })).await {
            Ok(answer) => shared.index.lock().wrote_gpu_node(answer),
            Err(error) => {
                tracing::warn!(node, error = &error as &dyn std::error::Error, "power limits not written");
            }
        }
    });
    futures::future::join_all(writes).await;
}

/// Whether the stops that the power budget needs have begun in their time.
fn look_at_budget(shared: &Shared, enforcement: &mut Enforcement) -> Met {
    let now = Timestamp::now();
    let index = shared.index.lock();
    let default = EnergyPolicySpec::default();
    let policy = index.policy().map_or(&default, |policy| &policy.spec);
    let draw = budget::draw(&index, policy, now);
    let met = enforcement.judge(draw, policy, now);
    let over = draw.map_or(0.0, |draw| (draw.whole - draw.allowed).max(0.0));
    shared.metrics.looked_at_budget(over, met.met);
    met
}

/// Says on the policy which generation is in force, which nodes are left alone and whether the budget is met.
async fn tell_policy(shared: &Arc<Shared>, met: &Met) {
    let Some((generation, conditions)) = ({
        let index = shared.index.lock();
        index.policy().and_then(|policy| wanted(policy, &alone(&index, &policy.spec), met, Timestamp::now()))
    }) else {
        return;
    };
    let body = json!({ "status": { "observedGeneration": generation, "conditions": conditions } });
    match shared.writer.patch_cluster_status::<SlimEnergyPolicy>("policy", DEFAULT_POLICY, &body).await {
        Ok(answer) => {
            shared.index.lock().policies.apply(answer, crate::index::Seen::Written);
        }
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "policy status not written"),
    }
}

fn alone(index: &ClusterIndex, policy: &EnergyPolicySpec) -> Vec<String> {
    let managed = index.nodes.iter().filter(|(_, node)| is_managed(node, policy));
    managed
        .filter_map(|(key, node): (&ObjectKey, _)| {
            left_alone(node).map(|why| format!("{} ({why})", key.name))
        })
        .collect()
}

/// Generation and conditions of the policy's status; `None` where it says so already.
fn wanted(
    policy: &SlimEnergyPolicy,
    alone: &[String],
    met: &Met,
    now: Timestamp,
) -> Option<(Option<i64>, Vec<Condition>)> {
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
    let named = alone.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
    let message = match alone.len() {
        0 => "all selected nodes have whole GPUs".to_owned(),
        n @ 1..=20 => format!("{n} selected nodes do not have whole GPUs: {named}"),
        n => format!("{n} selected nodes do not have whole GPUs: {named} and others"),
    };
    let mut conditions = vec![
        condition("Ready", true, Reason::AsExpected, "in force".into()),
        condition(
            "NodesLeftAlone",
            !alone.is_empty(),
            if alone.is_empty() { Reason::AsExpected } else { Reason::Invalid },
            message,
        ),
        condition("BudgetMet", met.met, met.reason, met.message.clone()),
    ];
    let ours = ["Ready", "NodesLeftAlone", "BudgetMet"];
    conditions.extend(status.conditions.iter().filter(|c| !ours.contains(&c.type_.as_str())).cloned());
    let same = status.observed_generation == generation && status.conditions == conditions;
    (!same).then_some((generation, conditions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use andreas_api::slim::{SlimPod, SlimTrainingJob};
    use andreas_runtime::watch::Index;

    #[test]
    fn a_node_is_told_the_power_limits_of_the_pods_that_run_there_once() {
        let mut index = ClusterIndex::new();
        let status = json!({"phase": "Running", "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 2,
            "gpusPerWorker": 1, "nodes": ["n1", "n2"], "placement": "", "since": "2026-01-01T00:00:00Z", "watts": 400,
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
        index.apply(gpu_node("n2", 3, json!({"limits": [{"podUid": "gone", "watts": 100}]})));
        index.apply(gpu_node("n3", 4, json!({})));
        let mut pod = testing::pod(0, 5, "j1");
        pod["spec"]["nodeName"] = json!("n1");
        index.apply(serde_json::from_value::<SlimPod>(pod).expect("a pod"));
        let limit = PodPowerLimit { pod_uid: "p0".into(), watts: 250 };
        // The second pod is not bound yet; what its node said of another one is over.
        assert_eq!(limits(&index), [("n1".to_owned(), vec![limit]), ("n2".to_owned(), vec![])]);
        index.apply(gpu_node("n1", 6, json!({"limits": [{"podUid": "p0", "watts": 250}]})));
        index.apply(gpu_node("n2", 7, json!({})));
        assert_eq!(limits(&index), []);
    }

    #[test]
    fn the_policy_names_nodes_left_alone_once_and_then_keeps_quiet() {
        let mut policy: SlimEnergyPolicy =
            serde_json::from_value(json!({"metadata": {"name": "default", "generation": 3}, "spec": {}}))
                .expect("a policy");
        let now = Timestamp::UNIX_EPOCH;
        let met = Met { met: true, reason: Reason::AsExpected, message: "power is not limited".into() };
        let (generation, conditions) = wanted(&policy, &["n1 (MIG)".into()], &met, now).expect("news");
        assert_eq!(generation, Some(3));
        assert!(conditions[1].status == "True" && conditions[1].message.contains("n1 (MIG)"));
        policy.status = Some(andreas_api::EnergyPolicyStatus { observed_generation: generation, conditions });
        assert!(wanted(&policy, &["n1 (MIG)".into()], &met, now).is_none());
        let over = Met { met: false, reason: Reason::PowerBudget, message: "above".into() };
        let (_, said) = wanted(&policy, &["n1 (MIG)".into()], &over, now).expect("news");
        assert_eq!((said[2].type_.as_str(), said[2].status.as_str(), said.len()), ("BudgetMet", "False", 3));
        assert!(wanted(&policy, &[], &met, now).is_some_and(|(_, c)| c[1].status == "False"));
    }
}
