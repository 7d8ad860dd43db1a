//! ResourceQuotas for the planner: what is left per quota and resource, and what a worker uses.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_api::quantity::{thousandths, units};
use andreas_api::slim::{SlimPodSpec, SlimQuota, SlimResources, SlimScopeExpression};
use andreas_cluster::index::ClusterIndex;
use andreas_cluster::index::amounts::{at_most, of_whole_pods};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

/// Amounts by `<quota>/<resource>`: CPU in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<Arc<str>, u64>;

/// A pod resource as named by quotas.
enum Named<'a> {
    Requests(&'a str),
    Limits(&'a str),
}

/// `cpu`, `requests.cpu`, `limits.cpu`, `requests.nvidia.com/gpu`, `requests.ephemeral-storage`...; `None`:
/// not a pod resource (`requests.storage` is for claims).
fn named(resource: &str) -> Option<Named<'_>> {
    if let Some(name) = resource.strip_prefix("requests.") {
        return (name != "storage").then_some(Named::Requests(name));
    }
    if let Some(name) = resource.strip_prefix("limits.") {
        return Some(Named::Limits(name));
    }
    let plain =
        matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with("hugepages-");
    plain.then_some(Named::Requests(resource))
}

fn read(resource: &str, quantity: &Quantity) -> u64 {
    match named(resource) {
        Some(Named::Requests("cpu") | Named::Limits("cpu")) => thousandths(quantity),
        _ => units(quantity),
    }
}

/// Whether a quota counts a pod of ours. It never has `activeDeadlineSeconds`, and requests GPUs. Extended resources
/// do not count for `BestEffort`, which depends on CPU and memory.
fn counts(quota: &SlimQuota, best_effort: bool, class: Option<&str>) -> bool {
    let plain = quota.spec.scopes.iter().all(|scope| match scope.as_str() {
        "Terminating" => false,
        "NotTerminating" => true,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        _ => false,
    });
    let selected =
        quota.spec.scope_selector.iter().flat_map(|s| &s.match_expressions).all(
            |expression| match expression.scope_name.as_str() {
                "PriorityClass" => selects(expression, class),
                "Terminating" => false,
                "NotTerminating" => true,
                "BestEffort" => best_effort,
                "NotBestEffort" => !best_effort,
                _ => false,
            },
        );
    plain && selected
}

fn selects(expression: &SlimScopeExpression, value: Option<&str>) -> bool {
    let listed = expression.values.iter().any(|v| Some(v.as_str()) == value);
    match expression.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

fn scoped(quota: &SlimQuota) -> bool {
    !quota.spec.scopes.is_empty()
        || quota.spec.scope_selector.as_ref().is_some_and(|s| !s.match_expressions.is_empty())
}

/// The resources of a quota that a training run uses.
fn is_used_by_training(resource: &str) -> bool {
    matches!(resource, "pods" | "count/pods" | "services" | "count/services") || named(resource).is_some()
}

/// What a quota leaves of each such resource, apart from what is `ours` of its use; at least 0. One that was lowered below its use is
/// not whole again without us.
pub fn left(quota: &SlimQuota, ours: &Amounts) -> Amounts {
    let name = quota.name_any();
    let concerned = quota.status.hard.iter().filter(|(resource, _)| is_used_by_training(resource));
    concerned
        .map(|(resource, hard)| {
            let used = quota.status.used.get(resource).map_or(0, |used| read(resource, used));
            let key: Arc<str> = Arc::from(format!("{name}/{resource}"));
            let ours = ours.get(&key).copied().unwrap_or(0);
            (key, read(resource, hard).saturating_add(ours).saturating_sub(used))
        })
        .collect()
}

/// The quotas of a namespace.
pub fn of_namespace<'a>(index: &'a ClusterIndex, namespace: &'a str) -> Vec<&'a SlimQuota> {
    index.rules().quotas.in_namespace(namespace).map(|(_, quota)| quota.as_ref()).collect()
}

/// What a pod uses more after admission than before.
pub fn more(quotas: &[&SlimQuota], sent: &SlimPodSpec, kept: &SlimPodSpec) -> Amounts {
    let before = pod_takes(quotas, sent);
    let more = |(key, amount): (Arc<str>, u64)| {
        let more = amount.saturating_sub(before.get(&key).copied().unwrap_or(0));
        (more > 0).then_some((key, more))
    };
    pod_takes(quotas, kept).into_iter().filter_map(more).collect()
}

/// Use of a namespace's quotas by one pod with this spec.
pub fn pod_takes(quotas: &[&SlimQuota], spec: &SlimPodSpec) -> Amounts {
    let (best_effort, class) = (best_effort(spec), spec.priority_class_name.as_deref());
    take(quotas, |quota, resource| {
        if !counts(quota, best_effort, class) {
            return 0;
        }
        match (resource, named(resource)) {
            ("pods" | "count/pods", _) => 1,
            (_, Some(Named::Requests(name))) => requests(spec, name),
            (_, Some(Named::Limits(name))) => limits(spec, name),
            _ => 0,
        }
    })
}

/// Use by a gang once: its Service.
pub fn gang_takes(quotas: &[&SlimQuota]) -> Amounts {
    take(quotas, |quota, resource| {
        u64::from(matches!(resource, "services" | "count/services") && !scoped(quota))
    })
}

fn take(quotas: &[&SlimQuota], of: impl Fn(&SlimQuota, &str) -> u64) -> Amounts {
    let mut amounts = Amounts::new();
    for quota in quotas {
        let name = quota.name_any();
        for resource in quota.status.hard.keys().filter(|resource| is_used_by_training(resource)) {
            let amount = of(quota, resource);
            if amount > 0 {
                amounts.insert(Arc::from(format!("{name}/{resource}")), amount);
            }
        }
    }
    amounts
}

/// No container has a CPU or memory request or limit.
fn best_effort(spec: &SlimPodSpec) -> bool {
    let containers = spec.containers.iter().chain(&spec.init_containers).map(|c| &c.resources);
    containers.chain(&spec.resources).all(|resources| {
        let names = resources.requests.keys().chain(resources.limits.keys());
        names.into_iter().all(|name| name != "cpu" && name != "memory")
    })
}

fn amount(name: &str, of: &BTreeMap<String, Quantity>) -> Option<u64> {
    let read = if name == "cpu" { thousandths } else { units };
    of.get(name).map(read)
}

fn requests(spec: &SlimPodSpec, name: &str) -> u64 {
    // A limit without a request is the request.
    let of = |r: &SlimResources| amount(name, &r.requests).or_else(|| amount(name, &r.limits)).unwrap_or(0);
    let containers = at_most(spec, |c| of(&c.resources), 0, u64::saturating_add, u64::max);
    let whole = spec.resources.as_ref().filter(|_| of_whole_pods(name));
    let asked = whole.and_then(|whole| {
        let limits_as_requests = || (containers == 0).then(|| amount(name, &whole.limits)).flatten();
        amount(name, &whole.requests).or_else(limits_as_requests)
    });
    asked.unwrap_or(containers).saturating_add(amount(name, &spec.overhead).unwrap_or(0))
}

fn limits(spec: &SlimPodSpec, name: &str) -> u64 {
    let of = |r: &SlimResources| amount(name, &r.limits).unwrap_or(0);
    let containers = at_most(spec, |c| of(&c.resources), 0, u64::saturating_add, u64::max);
    let whole = spec.resources.as_ref().filter(|_| of_whole_pods(name));
    let limit = whole.and_then(|whole| amount(name, &whole.limits)).unwrap_or(containers);
    // Overhead counts against a limit if there is one.
    if limit == 0 { 0 } else { limit.saturating_add(amount(name, &spec.overhead).unwrap_or(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn quota(spec: Value, hard: Value, used: Value) -> SlimQuota {
        serde_json::from_value(
            json!({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}}),
        )
        .expect("a quota")
    }

    fn worker() -> SlimPodSpec {
        serde_json::from_value(json!({
            "priorityClassName": "andreas-training",
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "2"}, "limits": {"memory": "8Gi", "nvidia.com/gpu": "2"}}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}],
        }))
        .expect("a spec")
    }

    fn amounts(pairs: &[(&str, u64)]) -> Amounts {
        pairs.iter().map(|(key, amount)| (Arc::from(format!("q/{key}")), *amount)).collect()
    }

    #[test]
    fn what_is_left_and_what_a_worker_takes_have_the_same_keys() {
        let hard = json!({"requests.cpu": "10", "limits.memory": "64Gi", "pods": "5", "requests.nvidia.com/gpu": "4", "secrets": "3", "services": "2"});
        let quota = quota(json!({}), hard, json!({"requests.cpu": "2500m", "pods": "7"}));
        assert_eq!(
            left(&quota, &Amounts::new()),
            amounts(&[
                ("requests.cpu", 7_500),
                ("limits.memory", 64 << 30),
                ("pods", 0),
                ("requests.nvidia.com/gpu", 4),
                ("services", 2)
            ])
        );
        assert_eq!(
            pod_takes(&[&quota], &worker()),
            amounts(&[
                ("requests.cpu", 4_500),
                ("limits.memory", 8 << 30),
                ("pods", 1),
                ("requests.nvidia.com/gpu", 2)
            ])
        );
        assert_eq!(gang_takes(&[&quota]), amounts(&[("services", 1)]));
    }

    #[test]
    fn quotas_of_other_scopes_do_not_count_us() {
        let hard = json!({"pods": "5"});
        for (spec, counted) in [
            (json!({"scopes": ["Terminating"]}), false),
            (json!({"scopes": ["NotTerminating", "NotBestEffort"]}), true),
            (json!({"scopes": ["BestEffort"]}), false),
            (
                json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["andreas-training"]}]}}),
                true,
            ),
            (
                json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}),
                false,
            ),
        ] {
            let takes = pod_takes(&[&quota(spec.clone(), hard.clone(), json!({}))], &worker());
            assert_eq!(!takes.is_empty(), counted, "{spec}");
        }
    }
}
