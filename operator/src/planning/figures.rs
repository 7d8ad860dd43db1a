//! The figures of a plan for the metrics.

use andreas_cluster::policy::rules;
use andreas_planner::Plan;
use andreas_runtime::clock;

use crate::metrics::LastPlan;

/// The figures of a plan that was made just now.
pub fn figures(plan: &Plan) -> LastPlan {
    LastPlan {
        at: clock::now(),
        asked_over_available: plan.asked_over_available,
        gpus_left_free: plan.gpus_left_free,
        budgeted: plan.budgeted_power.0,
        allowed: plan.allowed_power.filter(|watts| rules::is_limit(*watts)).map(|watts| watts.0),
    }
}

#[cfg(test)]
mod tests {
    use andreas_api::slim::{SlimEnergyPolicy, SlimNode};
    use andreas_cluster::index::ClusterIndex;
    use andreas_planner::Options;
    use andreas_runtime::watch::Index;
    use serde_json::json;

    use super::*;
    use crate::ledger::Ledger;
    use crate::planning::{FromLastPlan, make};
    use crate::snapshot::Caches;
    use crate::testing::{at, gpu_node};

    #[test]
    fn a_budget_of_windows_alone_allows_any_power_between_them() {
        // Given a window from four hours after the beginning on.
        let window = json!({"from": "12:00", "to": "13:00", "watts": 20_000});
        let policy = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "default", "resourceVersion": "1"}, "spec": {"powerBudget": {"windows": [window]}}});
        let mut index = ClusterIndex::new();
        index.apply(serde_json::from_value::<SlimEnergyPolicy>(policy).expect("a policy"));
        let node = gpu_node("n1", "NVIDIA-A100-SXM4-80GB", 8);
        index.apply(serde_json::from_value::<SlimNode>(node).expect("a node"));
        let allowed = |hours: i64| {
            let now = at(hours * 3_600);
            let with = (FromLastPlan::default(), now);
            let (_, _, planned) =
                make(&index, &Ledger::new(now), Caches::default(), with, &Options::default());
            let (plan, _) = planned.expect("a plan");
            figures(&plan).allowed
        };
        assert_eq!((allowed(0), allowed(6)), (None, None));
        // Less the margin.
        assert!(allowed(4).is_some_and(|watts| (watts - 19_000.0).abs() < 1.0), "{:?}", allowed(4));
    }
}
