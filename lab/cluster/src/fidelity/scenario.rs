//! The demo's cluster, policy and jobs as the simulator takes them, and what a replay came to. Pure.
//!
//! What a restart costs and must be worth is what the policy says, and what a run counts for in the power budget what the
//! operator counts.

use std::collections::BTreeMap;

use andreas_api::EnergyPolicySpec;
use andreas_baselines::Tickets;
use andreas_cluster::policy::rules;
use andreas_demo::nodes::{Nodes, TYPES};
use andreas_demo::policy;
use andreas_e2e::workload::{WorkloadJob, nodes_for};
use andreas_planner::Job;
use andreas_simulator::{Replayed, Scenario};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Figures;

/// Prices that hold where the policy names none: currency per kWh, and the PUE.
const PRICE_PER_KWH: f64 = 0.2;
const PUE: f64 = 1.3;
/// Price that holds where the policy names none: currency per second late and unit of weight.
const LATENESS_PER_SECOND: f64 = 0.02 / 3600.0;
/// A missed deadline costs as much as so many seconds late, where the policy does not say.
const MISSED_AS_S: i64 = 900;

pub(super) fn figures(replayed: &Replayed, jobs: &[WorkloadJob]) -> Figures {
    let weights: BTreeMap<&str, u32> = jobs.iter().map(|job| (job.name.as_str(), job.weight)).collect();
    let tardiness = replayed.jobs.iter().filter_map(|job| {
        let late = job.finish?.0 - job.deadline?.0;
        let name = job.id.as_str().rsplit('/').next().unwrap_or_default();
        Some(late.max(0.0) * f64::from(*weights.get(name)?))
    });
    let totals = &replayed.summary;
    Figures {
        replayed: true,
        finished: totals.jobs - totals.unfinished,
        late: totals.late_jobs,
        weighted_tardiness: tardiness.sum(),
        mean_turnaround_s: totals.mean_turnaround.0,
        energy_kwh: totals.job_energy.0 / 3.6e6,
        host_kwh: totals.host_energy.0 / 3.6e6,
        cost: totals.total.0,
        restarts: totals.restarts,
    }
}

/// What the missed deadlines of a run cost by the fixed price of a miss, whatever the seconds late; `turnarounds` are the seconds in the
/// system by the job's name.
pub(super) fn price_of_misses(
    jobs: &[WorkloadJob],
    turnarounds: &BTreeMap<String, f64>,
    policy: &EnergyPolicySpec,
) -> f64 {
    let missed = |job: &&WorkloadJob| {
        turnarounds.get(&job.name).is_none_or(|time| *time > job.deadline_after_s as f64)
    };
    let weights: f64 = jobs.iter().filter(missed).map(|job| f64::from(job.weight)).sum();
    weights * miss(policy) as f64 * LATENESS_PER_SECOND
}

/// Seconds late that a missed deadline costs.
fn miss(policy: &EnergyPolicySpec) -> i64 {
    policy.prices.missed_deadline_as.seconds_or(MISSED_AS_S)
}

/// The demo's policy.
pub(super) fn demo_policy(nodes: &Nodes) -> Result<EnergyPolicySpec> {
    serde_json::from_value(policy(nodes)).context("the demo's policy")
}

/// The demo's cluster, policy and jobs as the simulator takes them.
pub(super) fn scenario(jobs: &[WorkloadJob], nodes: &Nodes) -> Result<Scenario> {
    let spec = demo_policy(nodes)?;
    let gpu_types = TYPES
        .map(|gpu| json!({"name": gpu.name, "idle": gpu.idle_watts as f64, "max": gpu.max_watts as f64}));
    let nodes = nodes.all().iter().map(|node| {
        json!({
            "name": node.name, "gpu_type": node.gpu.name, "gpus": node.gpus, "free_gpus": node.gpus,
            "host_idle": node.gpu.host_watts[0] as f64, "host_busy": node.gpu.host_watts[1] as f64,
        })
    });
    let all: Vec<Value> = jobs.iter().map(job).collect();
    let lateness = json!({
        "turnaround_share": spec.prices.turnaround_share.value_or(0.1),
        "late_fixed": miss(&spec),
    });
    let price = PRICE_PER_KWH * PUE / 3.6e6;
    let scenario = Scenario {
        name: "demo".to_owned(),
        gpu_types: from(json!(gpu_types))?,
        nodes: from(json!(nodes.collect::<Vec<_>>()))?,
        tariff: from(json!([[0.0, price]]))?,
        budget: Some(from(json!([[0.0, spec.power_budget.watts.map_or(1e9, |watts| watts as f64)]]))?),
        lateness: from(lateness)?,
        restart: rules::restart_time(&spec),
        wear: rules::restart_wear(&spec),
        delays: andreas_simulator::Delays::default(),
        checkpoint: from(json!(0.0))?,
        tick: None,
        catalogue: None,
        failures: Vec::new(),
        sleep: andreas_simulator::SleepModel::default(),
        window: None,
        programs: std::collections::BTreeMap::new(),
        unfinished: std::collections::BTreeMap::new(),
        tickets: Tickets::default(),
        jobs: from::<Vec<Job>>(json!(all))?,
        features: std::collections::BTreeMap::new(),
    };
    Ok(scenario.sorted())
}

fn job(job: &WorkloadJob) -> Value {
    let estimates: Vec<Value> = job
        .configurations()
        .into_iter()
        .filter_map(|(gpu_type, gpus, _)| {
            let epoch = job.seconds_per_epoch.get(gpu_type)?.get(&gpus)?;
            let power = job.watts.get(gpu_type)?.get(&gpus)?;
            // As the operator counts a run that no agent has measured for two minutes: none of the demo's is.
            let most = TYPES.iter().find(|known| known.name == gpu_type)?.max_watts as f64;
            let draw = most * f64::from(gpus);
            Some(json!({"gpu_type": gpu_type, "gpus": gpus, "epoch": epoch, "power": power, "draw": draw}))
        })
        .collect();
    let most = job.configurations().iter().map(|(t, g, _)| nodes_for(t, *g)).max().unwrap_or(1);
    let spread: Vec<Value> = (2..=most).map(|nodes| json!({"nodes": nodes, "time_factor": 1.0})).collect();
    json!({
        "id": format!("demo/{}", job.name),
        "namespace": "demo",
        "submit": job.submit_offset_s,
        "deadline": job.submit_offset_s + job.deadline_after_s as f64,
        "weight": f64::from(job.weight) * LATENESS_PER_SECOND,
        "epochs_left": job.epochs,
        "estimates": estimates,
        "spread": spread,
        "requested_gpus": job.requested_gpus,
        "min_run": 3.0,
        "state": "Waiting",
    })
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_e2e::workload::{self, TimeScale};
    use andreas_simulator::ProductPolicy;

    #[test]
    fn replays_have_the_rules_of_a_policy_that_says_nothing() {
        let (spec, replays) = (EnergyPolicySpec::default(), ProductPolicy::default());
        assert_eq!(replays.aging, rules::lateness(&spec).aging);
        assert_eq!(replays.min_run.0, spec.seconds(|policy| &policy.preemption.min_run_time) as f64);
    }

    #[test]
    fn a_miss_costs_by_the_weight_of_the_job() {
        let jobs = workload::jobs(TimeScale::DEMO).unwrap();
        let heaviest = jobs.iter().max_by_key(|job| job.weight).unwrap();
        let time = |job: &WorkloadJob| job.deadline_after_s as f64 + f64::from(u8::from(job == heaviest));
        let turnarounds = jobs.iter().map(|job| (job.name.clone(), time(job))).collect();
        // 16 GPUs and urgent: a quarter of an hour at 500 x 0.02 an hour.
        assert!((price_of_misses(&jobs, &turnarounds, &EnergyPolicySpec::default()) - 2.5).abs() < 1e-9);
        let all = f64::from(jobs.iter().map(|job| job.weight).sum::<u32>());
        assert!(
            (price_of_misses(&jobs, &BTreeMap::new(), &EnergyPolicySpec::default()) - 2.5 * all / 500.0)
                .abs()
                < 1e-9
        );
    }
}
