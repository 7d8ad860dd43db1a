//! Expected starts of waiting jobs: a rough estimate for people, never for decisions.
//!
//! GPUs of each type are a pool that refills as running jobs finish. Waiting jobs take from it in turn,
//! nearest deadline first, each on the configuration that finishes first. Fragmentation, the power budget and
//! future submissions are ignored, so the intervals are wide.

use std::collections::BTreeMap;

use andreas_core::{GpuType, JobId, Seconds, Time};
use andreas_planner::{Decision, Plan, Snapshot};

/// Maximum waiting jobs with an estimate; those behind them get none.
const MAX_ESTIMATED_JOBS: usize = 2_000;
/// Assumed remaining time of a running job if the plan gives none.
const UNKNOWN: Seconds = Seconds(3_600.0);

/// GPUs by the instant at which they become free, earliest first.
#[derive(Default)]
struct Pool {
    free: Vec<(Time, u32)>,
}

impl Pool {
    fn add(&mut self, from: Time, gpus: u32) {
        if gpus > 0 {
            let at = self.free.partition_point(|(time, _)| *time <= from);
            self.free.insert(at, (from, gpus));
        }
    }

    /// The first instant with this many free GPUs.
    fn start(&self, gpus: u32) -> Option<Time> {
        let mut sum = 0_u32;
        self.free.iter().find_map(|(from, free)| {
            sum = sum.saturating_add(*free);
            (sum >= gpus).then_some(*from)
        })
    }

    fn take(&mut self, mut gpus: u32) {
        while gpus > 0 && !self.free.is_empty() {
            let taken = self.free[0].1.min(gpus);
            gpus -= taken;
            self.free[0].1 -= taken;
            if self.free[0].1 == 0 {
                self.free.remove(0);
            }
        }
    }
}

/// Expected starts of the jobs that wait in the plan.
pub fn expected_starts(snapshot: &Snapshot, plan: &Plan) -> BTreeMap<JobId, Time> {
    let now = snapshot.now;
    let mut pools: BTreeMap<&GpuType, Pool> = BTreeMap::new();
    let mut idle: BTreeMap<&GpuType, u32> = BTreeMap::new();
    for node in &snapshot.nodes {
        *idle.entry(&node.gpu_type).or_default() += node.free_gpus.0;
    }
    for job_plan in plan.jobs.values() {
        let Some(place) = job_plan.decision.placement() else { continue };
        let gpus = place.total_gpus().0;
        if let Some((name, idle)) = idle.iter_mut().find(|(name, _)| ***name == place.gpu_type) {
            *idle = idle.saturating_sub(gpus);
            let end = job_plan.finish.filter(|end| end.is_finite()).unwrap_or(now + UNKNOWN);
            pools.entry(name).or_default().add(if end > now { end } else { now }, gpus);
        }
    }
    for (name, gpus) in idle {
        pools.entry(name).or_default().add(now, gpus);
    }

    let waits = |id: &JobId| matches!(plan.jobs.get(id).map(|p| &p.decision), Some(Decision::Wait { .. }));
    let mut waiting: Vec<_> = snapshot.jobs.iter().filter(|job| waits(&job.id)).collect();
    let due = |job: &andreas_planner::Job| job.deadline.unwrap_or(Time(f64::INFINITY));
    waiting.sort_by(|a, b| {
        due(a).total_cmp(&due(b)).then(a.submit.total_cmp(&b.submit)).then_with(|| a.id.cmp(&b.id))
    });
    let mut starts = BTreeMap::new();
    for job in waiting.into_iter().take(MAX_ESTIMATED_JOBS) {
        let options = job.estimates.iter().filter_map(|row| {
            let start = pools.get(&row.gpu_type)?.start(row.gpus.0)?;
            Some((start + row.epoch * job.epochs_left, start, row))
        });
        let best = options.min_by(|(a, _, x), (b, _, y)| a.total_cmp(b).then(x.gpus.cmp(&y.gpus)));
        if let Some((end, start, row)) = best
            && let Some(pool) = pools.get_mut(&row.gpu_type)
        {
            pool.take(row.gpus.0);
            pool.add(end, row.gpus.0);
            starts.insert(job.id.clone(), start);
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_planner::Options;
    use serde_json::{Value, json};

    fn job(name: &str, gpus: u32, epochs: f64, deadline: Option<f64>, state: Value) -> Value {
        json!({"id": format!("team/{name}"), "namespace": "team", "submit": 0.0, "deadline": deadline, "weight": 0.001,
            "epochs_left": epochs, "estimates": [{"gpu_type": "A", "gpus": gpus, "epoch": 10.0, "power": 300.0}], "state": state})
    }

    #[test]
    fn jobs_start_one_after_the_other_as_gpus_become_free() {
        let runs = json!({"Running": {"placement": {"gpu_type": "A", "nodes": ["n"], "gpus_per_node": 4}, "since": 0.0}});
        let snapshot: Snapshot = serde_json::from_value(json!({
            "now": 100.0, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
            "nodes": [{"name": "n", "gpu_type": "A", "gpus": 4, "free_gpus": 4}],
            "jobs": [
                job("runs", 4, 30.0, None, runs),
                job("later", 4, 10.0, Some(9_000.0), json!("Waiting")),
                job("sooner", 2, 20.0, Some(5_000.0), json!("Waiting")),
                job("never", 8, 20.0, Some(1_000.0), json!("Waiting")),
            ],
        }))
        .expect("a snapshot");
        let options = Options { method: "fifo".parse().expect("a method"), ..Options::default() };
        let plan = andreas_planner::plan(&snapshot, &options).expect("a plan");
        let starts = expected_starts(&snapshot, &plan);
        let start = |name: &str| starts.get(&JobId::new(format!("team/{name}"))).map(|time| time.0);
        let end = plan.jobs[&JobId::new("team/runs")].finish.expect("an end").0;
        assert_eq!(start("sooner"), Some(end));
        assert_eq!(start("later"), Some(end + 200.0), "it needs the two that the other takes first");
        assert_eq!(start("never"), None);
        assert_eq!(start("runs"), None);
    }
}
