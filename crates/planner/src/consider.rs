//! The configurations that one job may be given: what each would cost, and what keeps it from starting now.
//!
//! For explanations; no method decides by it. Costs are those of [`candidates`](crate::candidates), by part and at the
//! weight without ageing.

use andreas_model::{GpuCount, GpuType, JobId, Money, Seconds, Watts};

use crate::budget;
use crate::candidates;
use crate::capacity::Obstacle;
use crate::cost::Forecast;
use crate::error::SnapshotError;
use crate::partial::PartialPlan;
use crate::plan::{Decision, Plan};
use crate::snapshot::{JobState, Snapshot};

/// A configuration and its expected cost if the job started on it now.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// GPU type.
    pub gpu_type: GpuType,
    /// GPUs on all nodes.
    pub gpus: GpuCount,
    /// Nodes.
    pub nodes: u32,
    /// Power limit of each GPU; `None`: the board's default.
    pub limit: Option<Watts>,
    /// Mean time for the remaining epochs.
    pub time: Seconds,
    /// Mean draw of all its GPUs.
    pub power: Watts,
    /// Budgeted draw of everything with it beside the plan's other jobs, in the scope of the power budget, if its nodes are empty: what a
    /// budget has to allow for it to start.
    pub budgeted_with: Watts,
    /// Energy of GPUs and nodes at the tariff.
    pub energy: Money,
    /// Expected tardiness and missed deadline.
    pub lateness: Money,
    /// Time in the system from now on.
    pub turnaround: Money,
    /// Probability of meeting the deadline; 1 without a deadline.
    pub on_time: f64,
    /// Why it cannot start now; `None`: it can.
    pub obstacle: Option<Obstacle>,
    /// The plan runs the job on it.
    pub planned: bool,
}

impl Considered {
    /// The whole cost.
    pub fn cost(&self) -> Money {
        self.energy + self.lateness + self.turnaround
    }
}

/// The configurations of a job, cheapest first, with the capacity that the plan's other jobs leave.
///
/// Empty if the snapshot lacks the job or no node has GPUs that it may use.
///
/// # Errors
/// [`SnapshotError`] for an invalid snapshot.
pub fn consider(snapshot: &Snapshot, plan: &Plan, job: &JobId) -> Result<Vec<Considered>, SnapshotError> {
    let mut carried_out = snapshot.clone();
    let placed = |id: &JobId| plan.jobs.get(id).and_then(|job_plan| job_plan.decision.placement());
    for other in &mut carried_out.jobs {
        other.state = match placed(&other.id).filter(|_| other.id != *job) {
            Some(placement) => JobState::Running { placement: placement.clone(), since: snapshot.now },
            None => JobState::Waiting,
        };
    }
    carried_out.check()?;
    let instance = budget::prepared(&carried_out);
    let Some(at) = instance.jobs.iter().position(|data| data.job.id == *job) else { return Ok(Vec::new()) };
    let mut partial = PartialPlan::new(&instance, |_, _| true);
    let data = &instance.jobs[at];
    let decided = plan.jobs.get(job).map(|job_plan| &job_plan.decision);
    let weight = data.job.weight.0;
    let rules = &snapshot.lateness;
    let mut all = Vec::new();
    for (index, config) in data.offered() {
        let run = Forecast { delay: 0.0, time: config.time, rel_std: config.rel_std };
        let available = data.deadline - instance.now;
        let whole = run.lateness_cost(available, weight, data.share, 0.0, rules);
        let turnaround = weight * data.share * config.time;
        let of_type = instance.nodes.iter().filter(|node| node.kind == config.kind);
        let overhead = of_type.map(|node| node.overhead_mw).max().unwrap_or_default();
        let alone = instance.alone_mw(config, overhead * i128::from(config.nodes));
        let gpu_type = instance.types[config.kind].name.clone();
        let gpus = GpuCount(u32::try_from(config.total_gpus()).unwrap_or(u32::MAX));
        let planned = matches!(decided, Some(Decision::Run(place))
            if place.gpu_type == gpu_type && place.total_gpus() == gpus
                && u32::try_from(place.nodes.len()) == Ok(config.nodes)
                && place.limit.map(|limit| limit.0) == config.limit);
        all.push(Considered {
            gpu_type,
            gpus,
            nodes: config.nodes,
            limit: config.limit.map(Watts),
            time: Seconds(config.time),
            power: Watts(config.power),
            budgeted_with: instance.in_scope(partial.ledger.power() + alone),
            energy: Money(candidates::run_energy(&instance, config)),
            lateness: Money((whole - turnaround).max(0.0)),
            turnaround: Money(turnaround),
            on_time: run.within(available),
            obstacle: partial.ledger.find(&instance, at, index).err().filter(|_| !planned),
            planned,
        });
    }
    all.sort_by(|a, b| {
        a.cost().total_cmp(&b.cost()).then(a.time.total_cmp(&b.time)).then(a.gpus.cmp(&b.gpus))
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Options, plan};

    fn snapshot(state: Value, deadline: f64) -> Snapshot {
        let job = |name: &str, gpus: [u32; 2], state: Value| {
            let rows: Vec<Value> = gpus
                .into_iter()
                .map(|n| {
                    json!({"gpu_type": "A", "gpus": n,
                "epoch": 100.0 / f64::from(n), "power": 300.0 * f64::from(n), "rel_std": 0.1})
                })
                .collect();
            json!({"id": format!("team/{name}"), "namespace": "team", "submit": 0.0, "deadline": deadline, "weight": 0.001,
                   "epochs_left": 10.0, "estimates": rows, "state": state})
        };
        serde_json::from_value(json!({
            "now": 100.0, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
            "lateness": {"turnaround_share": 0.1},
            "nodes": [{"name": "n", "gpu_type": "A", "gpus": 4, "free_gpus": 4}],
            "jobs": [job("holder", [3, 4], state), job("asked", [1, 2], json!("Waiting"))],
        }))
        .expect("a snapshot")
    }

    #[test]
    fn each_configuration_has_its_cost_by_part_and_what_is_in_its_way() {
        let runs = json!({"Running": {"placement": {"gpu_type": "A", "nodes": ["n"], "gpus_per_node": 3}, "since": 0.0}});
        let snapshot = snapshot(runs, 1_300.0);
        let plan = plan(&snapshot, &Options { method: crate::MethodName::Fifo, ..Options::default() })
            .expect("a plan");
        let all = consider(&snapshot, &plan, &JobId::new("team/asked")).expect("considered");
        let of = |gpus: u32| all.iter().find(|c| c.gpus.0 == gpus).expect("listed");
        // Three of four GPUs are held: one is free.
        assert_eq!((of(1).obstacle, of(2).obstacle), (None, Some(Obstacle::Nodes)));
        assert!(of(1).planned && !of(2).planned);
        // Twice as fast at twice the watts: the same energy, half the time in the system.
        assert!((of(1).energy.0 / of(2).energy.0 - 1.0).abs() < 1e-9);
        assert!((of(1).turnaround.0 / of(2).turnaround.0 - 2.0).abs() < 1e-9);
        assert!(of(1).on_time > 0.9 && of(2).on_time > 0.999);
        assert!(all.windows(2).all(|pair| pair[0].cost().0 <= pair[1].cost().0), "cheapest first");
    }

    #[test]
    fn a_job_that_the_snapshot_lacks_has_none() {
        let snapshot = snapshot(json!("Waiting"), 1_300.0);
        let plan = plan(&snapshot, &Options::default()).expect("a plan");
        assert_eq!(consider(&snapshot, &plan, &JobId::new("team/none")), Ok(Vec::new()));
    }
}
