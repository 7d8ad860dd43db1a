//! ResourceQuotas as the planner reads them: what is left per quota object and resource, and what a worker takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_api::names::PRIORITY_CLASS;
use andreas_api::slim::{SlimQuota, SlimScopeExpression};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use crate::index::quantity::{thousandths, units};

/// Amounts by `<quota>/<resource>`: CPU in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<Arc<str>, u64>;

fn read(resource: &str, quantity: &Quantity) -> u64 {
    if matches!(resource, "cpu" | "requests.cpu" | "limits.cpu") {
        thousandths(quantity)
    } else {
        units(quantity)
    }
}

/// Whether a quota counts our pods. Ours never have `activeDeadlineSeconds`, have the training PriorityClass, and ask for
/// GPUs, so they are never `BestEffort` (extended resources do not count there: judged by CPU and memory).
fn counts(quota: &SlimQuota, best_effort: bool) -> bool {
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
                "PriorityClass" => selects(expression, PRIORITY_CLASS),
                "Terminating" => false,
                "NotTerminating" => true,
                "BestEffort" => best_effort,
                "NotBestEffort" => !best_effort,
                _ => false,
            },
        );
    plain && selected
}

fn selects(expression: &SlimScopeExpression, value: &str) -> bool {
    let listed = expression.values.iter().any(|v| v == value);
    match expression.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => true,
        _ => false,
    }
}

fn scoped(quota: &SlimQuota) -> bool {
    !quota.spec.scopes.is_empty()
        || quota.spec.scope_selector.as_ref().is_some_and(|s| !s.match_expressions.is_empty())
}

/// The resources of a quota that a training run takes of.
fn concerns(resource: &str) -> bool {
    matches!(
        resource,
        "pods"
            | "count/pods"
            | "cpu"
            | "memory"
            | "requests.cpu"
            | "requests.memory"
            | "limits.cpu"
            | "limits.memory"
            | "services"
            | "count/services"
            | "requests.nvidia.com/gpu"
    )
}

/// What a quota leaves of each resource that concerns us; nothing below 0.
pub fn left(quota: &SlimQuota) -> Amounts {
    let name = quota.name_any();
    let concerned = quota.status.hard.iter().filter(|(resource, _)| concerns(resource));
    concerned
        .map(|(resource, hard)| {
            let used = quota.status.used.get(resource).map_or(0, |used| read(resource, used));
            (Arc::from(format!("{name}/{resource}")), read(resource, hard).saturating_sub(used))
        })
        .collect()
}

/// What one pod of that spec takes of a namespace's quotas.
pub fn pod_takes(quotas: &[&SlimQuota], spec: &PodSpec) -> Amounts {
    let sums = Sums::of(spec);
    let best_effort = sums.best_effort;
    take(quotas, |quota, resource| {
        if !counts(quota, best_effort) {
            return 0;
        }
        match resource {
            "pods" | "count/pods" => 1,
            "cpu" | "requests.cpu" => sums.requests("cpu", thousandths),
            "memory" | "requests.memory" => sums.requests("memory", units),
            "limits.cpu" => sums.limits("cpu", thousandths),
            "limits.memory" => sums.limits("memory", units),
            "requests.nvidia.com/gpu" => sums.requests("nvidia.com/gpu", units),
            _ => 0,
        }
    })
}

/// What a gang takes once: its Service.
pub fn gang_takes(quotas: &[&SlimQuota]) -> Amounts {
    take(quotas, |quota, resource| {
        u64::from(matches!(resource, "services" | "count/services") && !scoped(quota))
    })
}

fn take(quotas: &[&SlimQuota], of: impl Fn(&SlimQuota, &str) -> u64) -> Amounts {
    let mut amounts = Amounts::new();
    for quota in quotas {
        let name = quota.name_any();
        for resource in quota.status.hard.keys().filter(|resource| concerns(resource)) {
            let amount = of(quota, resource);
            if amount > 0 {
                amounts.insert(Arc::from(format!("{name}/{resource}")), amount);
            }
        }
    }
    amounts
}

/// Requests and limits of a pod's containers, as quotas count them: containers and sidecars together, or the largest
/// ordinary init container with the sidecars before it where that is more.
struct Sums<'a> {
    spec: &'a PodSpec,
    best_effort: bool,
}

impl<'a> Sums<'a> {
    fn of(spec: &'a PodSpec) -> Self {
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let best_effort = all.filter_map(|c| c.resources.as_ref()).all(|resources| {
            let none = |map: &Option<BTreeMap<String, Quantity>>| {
                map.iter().flatten().all(|(name, _)| name != "cpu" && name != "memory")
            };
            none(&resources.requests) && none(&resources.limits)
        });
        Self { spec, best_effort }
    }

    fn requests(&self, name: &str, read: fn(&Quantity) -> u64) -> u64 {
        // A limit without request is a request.
        self.sum(|resources| {
            let request = resources.requests.as_ref().and_then(|map| map.get(name));
            request.or_else(|| resources.limits.as_ref().and_then(|map| map.get(name))).map_or(0, read)
        })
    }

    fn limits(&self, name: &str, read: fn(&Quantity) -> u64) -> u64 {
        self.sum(|resources| resources.limits.as_ref().and_then(|map| map.get(name)).map_or(0, read))
    }

    fn sum(&self, of: impl Fn(&k8s_openapi::api::core::v1::ResourceRequirements) -> u64) -> u64 {
        let mut sidecars = 0_u64;
        let mut initial = 0_u64;
        for init in self.spec.init_containers.iter().flatten() {
            let amount = init.resources.as_ref().map_or(0, &of);
            if init.restart_policy.as_deref() == Some("Always") {
                sidecars = sidecars.saturating_add(amount);
                initial = initial.max(sidecars);
            } else {
                initial = initial.max(sidecars.saturating_add(amount));
            }
        }
        let running = self.spec.containers.iter().filter_map(|c| c.resources.as_ref()).map(of);
        running.fold(sidecars, u64::saturating_add).max(initial)
    }
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

    fn worker() -> PodSpec {
        serde_json::from_value(json!({
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
            left(&quota),
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
