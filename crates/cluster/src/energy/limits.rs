//! Power limits offered to the planner.
//!
//! Only limits that every GPU of a type supports are offered, as reported by its nodes' agents. A plan counts
//! the limited draw against the budget, so an unsupported limit would break it.

use andreas_api::energy_policy::Limits;
use andreas_api::gpu_node::{GpuCondition, GpuState};
use andreas_api::{EnergyPolicySpec, GpuNodeStatus};
use andreas_model::LOWEST_LIMIT;

/// Limits offered per type, besides none. A job's draw is a smooth function of them; more would only slow
/// down plans.
const LEVELS: u32 = 4;
/// Limits are multiples of this, W.
const STEP: f64 = 5.0;
/// Lowest and highest limit that all healthy GPUs of a node support, W; `None` if one supports none or no agent
/// reports. Nothing is planned on the others, and a run on one counts as unlimited.
pub fn of_node(agent: Option<&GpuNodeStatus>) -> Option<(i32, i32)> {
    let healthy = || agent.into_iter().flat_map(|agent| &agent.gpus).filter(|gpu| is_healthy(gpu));
    let shared = healthy().try_fold((1, i32::MAX), |(low, high), gpu| {
        Some((low.max(gpu.min_limit_watts?), high.min(gpu.max_limit_watts?)))
    })?;
    (healthy().next().is_some() && shared.0 < shared.1).then_some(shared)
}

/// Highest power limit in force on a healthy GPU of a node without a limit of ours, W; `None` if it is not known of all of its `gpus`.
pub fn ceiling(agent: Option<&GpuNodeStatus>, gpus: u64) -> Option<i32> {
    let agent =
        agent.filter(|agent| u64::try_from(agent.gpus.len()).is_ok_and(|reported| reported >= gpus))?;
    let healthy = agent.gpus.iter().filter(|gpu| is_healthy(gpu));
    healthy.map(|gpu| gpu.max_limit_watts).try_fold(1, |highest, each| Some(highest.max(each?)))
}

/// Whether an agent reports only broken GPUs: such a node has no say in what its type supports.
pub fn all_broken(agent: Option<&GpuNodeStatus>) -> bool {
    agent.is_some_and(|agent| !agent.gpus.is_empty() && !agent.gpus.iter().any(is_healthy))
}

fn is_healthy(gpu: &GpuState) -> bool {
    gpu.state != GpuCondition::Unhealthy
}

/// The common range of two nodes.
pub fn shared(one: (i32, i32), other: (i32, i32)) -> Option<(i32, i32)> {
    let both = (one.0.max(other.0), one.1.min(other.1));
    (both.0 < both.1).then_some(both)
}

/// The limits of a type's `range` that are used at all; none if the policy says `Off`.
pub fn usable_range(
    gpu_type: &str,
    range: Option<(i32, i32)>,
    policy: &EnergyPolicySpec,
) -> Option<(i32, i32)> {
    let (low, high) = range.filter(|_| policy.limits != Limits::Off)?;
    let row = policy.gpu_types.iter().find(|row| row.name == gpu_type);
    let least = row.and_then(|row| row.min_limit_watts).unwrap_or(0);
    let low = low.max(least).max((LOWEST_LIMIT * f64::from(high)).ceil() as i32);
    (low < high).then_some((low, high))
}

/// Limits to offer for a type with this `range`, lowest first; none unless the policy says `On`.
pub fn levels(range: Option<(i32, i32)>, policy: &EnergyPolicySpec) -> Vec<i32> {
    let Some((low, high)) = range.filter(|_| policy.limits == Limits::On) else { return Vec::new() };
    let (low, high) = (f64::from(low), f64::from(high));
    let level = |k: u32| {
        let watts = low + (high - low) * f64::from(k) / f64::from(LEVELS);
        let stepped = (watts / STEP).ceil() * STEP;
        (stepped < high).then_some(stepped.round() as i32)
    };
    let mut levels: Vec<i32> = (0..LEVELS).filter_map(level).collect();
    levels.dedup();
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::energy_policy::GpuTypePower;
    use serde_json::{Value, json};

    fn node(gpus: &Value) -> Option<(i32, i32)> {
        let status = json!({ "agentVersion": "1", "gpus": gpus });
        of_node(Some(&serde_json::from_value(status).expect("a status")))
    }

    fn gpu(uuid: &str, range: Option<(i32, i32)>) -> Value {
        let mut gpu = json!({ "uuid": uuid, "state": "Free" });
        if let Some((low, high)) = range {
            gpu["minLimitWatts"] = low.into();
            gpu["maxLimitWatts"] = high.into();
        }
        gpu
    }

    #[test]
    fn a_type_is_limited_as_far_as_all_of_its_gpus_can_be() {
        let (a, b) = (gpu("a", Some((100, 300))), gpu("b", Some((150, 250))));
        assert_eq!(node(&json!([a, b])), Some((150, 250)));
        assert_eq!(node(&json!([a, gpu("c", None)])), None, "one GPU takes no limit");
        assert_eq!(node(&json!([])), None);
        // One that fell off the bus reports no range, and nothing is planned on it.
        let lost = json!({"uuid": "l", "state": "Unhealthy"});
        assert_eq!(node(&json!([a, lost])), Some((100, 300)));
        assert_eq!(node(&json!([lost])), None);
        assert_eq!(of_node(None), None, "no agent, nobody to set it");
        assert_eq!(shared((100, 300), (150, 400)), Some((150, 300)));
        assert_eq!(shared((100, 150), (200, 400)), None);
    }

    #[test]
    fn limits_are_offered_as_the_policy_says_and_not_below_what_is_sane() {
        let mut policy = EnergyPolicySpec { limits: Limits::On, ..EnergyPolicySpec::default() };
        let offered = |range, policy: &EnergyPolicySpec| levels(usable_range("A", range, policy), policy);
        assert_eq!(offered(Some((100, 400)), &policy), [160, 220, 280, 340]);
        assert_eq!(offered(Some((60, 70)), &policy), [60, 65]);
        assert_eq!(offered(None, &policy), [0; 0]);
        policy.gpu_types.push(GpuTypePower {
            name: "A".into(),
            idle_watts: 50,
            max_watts: 400,
            host_idle_watts: None,
            host_busy_watts: None,
            host_off_watts: None,
            min_limit_watts: Some(300),
        });
        assert_eq!(offered(Some((100, 400)), &policy), [300, 325, 350, 375]);
        policy.limits = Limits::Guard;
        assert_eq!(usable_range("A", Some((100, 400)), &policy), Some((300, 400)));
        assert_eq!(offered(Some((100, 400)), &policy), [0; 0], "for guards alone");
        policy.limits = Limits::Off;
        assert_eq!(usable_range("A", Some((100, 400)), &policy), None);
    }
}
