//! The objectives of the published methods: the proxy to minimise and the value to maximise.

use andreas_planner::policy::{Assignment, Instance};

use crate::candidates;
use crate::options::Accounting;

/// Weight of the worst-case tardiness of a waiting job.
const WAITING: f64 = 100.0;

/// The published proxy: energy and lateness up to the first end F of a job. Each waiting job adds 100 times
/// its lateness, as if started now on its slowest configuration.
pub(crate) fn proxy(
    instance: &Instance<'_>,
    accounting: &Accounting,
    running: &[(usize, Assignment)],
    waits: impl Fn(usize) -> bool,
) -> f64 {
    let config = |job: usize, assignment: &Assignment| &instance.jobs[job].configs[assignment.config];
    let first =
        running.iter().map(|(job, assignment)| config(*job, assignment).time).reduce(f64::min).unwrap_or(0.0);
    let mut used = vec![0_i64; instance.nodes.len()];
    let mut watts = 0.0;
    let mut late = 0.0;
    for (job, assignment) in running {
        let (data, config) = (&instance.jobs[*job], config(*job, assignment));
        for &node in assignment.nodes.as_slice() {
            used[node as usize] += config.gpus;
        }
        watts += config.power;
        late += data.weight * (instance.now + first - data.deadline).max(0.0);
    }
    let busy = instance.nodes.iter().zip(&used).filter(|(_, used)| **used > 0);
    let energy = match accounting {
        Accounting::Predicted => {
            let overhead: f64 = busy.map(|(node, _)| node.overhead).sum();
            instance.energy_cost(watts + overhead, first)
        }
        Accounting::Catalogue(_) => busy
            .map(|(node, used)| candidates::catalogue_rate(instance, accounting, node.kind, *used) * first)
            .sum(),
    };
    let mut waiting = 0.0;
    for (_, data) in instance.jobs.iter().enumerate().filter(|(job, _)| waits(*job)) {
        waiting += WAITING * data.weight * (instance.now + data.slowest - data.deadline).max(0.0);
    }
    energy + late + waiting
}

/// The value that the local search maximises, summed over running jobs: slowest time divided by the cost of
/// the run. That cost is its share of the nodes, its lateness and `change`. A waiting job adds nothing.
pub(crate) fn value(
    instance: &Instance<'_>,
    accounting: &Accounting,
    assignments: &[Option<Assignment>],
    change: impl Fn(usize) -> f64,
) -> f64 {
    let mut used = vec![0_i64; instance.nodes.len()];
    let placed =
        || assignments.iter().enumerate().filter_map(|(job, assignment)| Some((job, assignment.as_ref()?)));
    for (job, assignment) in placed() {
        for &node in assignment.nodes.as_slice() {
            used[node as usize] += instance.jobs[job].configs[assignment.config].gpus;
        }
    }
    let mut sum = 0.0;
    for (job, assignment) in placed() {
        let data = &instance.jobs[job];
        let config = &data.configs[assignment.config];
        let part = |node: u32| config.gpus as f64 / used[node as usize].max(1) as f64;
        let nodes = assignment.nodes.as_slice().iter().copied();
        let energy = match accounting {
            Accounting::Predicted => {
                let overhead: f64 = nodes.map(|n| instance.nodes[n as usize].overhead * part(n)).sum();
                instance.energy_cost(config.power + overhead, config.time)
            }
            Accounting::Catalogue(_) => nodes
                .map(|n| {
                    let kind = instance.nodes[n as usize].kind;
                    candidates::catalogue_rate(instance, accounting, kind, used[n as usize]) * part(n)
                })
                .map(|rate| rate * config.time)
                .sum(),
        };
        let late = data.weight * (instance.now + config.time - data.deadline).max(0.0);
        sum += data.slowest / (energy + late + change(job)).max(MIN_RUN_COST);
    }
    sum
}

/// Minimum cost of a run, so that none costs nothing.
const MIN_RUN_COST: f64 = 1e-9;
