//! What the published method minimises at each step.

use crate::candidates;
use crate::instance::{Instance, Spot};
use crate::method::Accounting;

/// Weight of the worst-case tardiness of a waiting job.
const WAITING: f64 = 100.0;

/// The published proxy: up to the first end F of a job, energy and the lateness reached by then; and for each job
/// that waits a hundredfold lateness as if started now on its slowest configuration.
pub(crate) fn proxy(
    instance: &Instance<'_>,
    accounting: &Accounting,
    running: &[(usize, Spot)],
    waits: impl Fn(usize) -> bool,
) -> f64 {
    let config = |job: usize, spot: &Spot| &instance.jobs[job].configs[spot.config];
    let first = running.iter().map(|(job, spot)| config(*job, spot).time).reduce(f64::min).unwrap_or(0.0);
    let mut used = vec![0_i64; instance.nodes.len()];
    let mut watts = 0.0;
    let mut late = 0.0;
    for (job, spot) in running {
        let (data, config) = (&instance.jobs[*job], config(*job, spot));
        for &node in spot.nodes.as_slice() {
            used[node as usize] += config.gpus;
        }
        watts += config.power;
        late += data.weight * (instance.now + first - data.deadline).max(0.0);
    }
    let busy = instance.nodes.iter().zip(&used).filter(|(_, used)| **used > 0);
    let energy = match accounting {
        Accounting::Predicted => {
            let overhead: f64 = busy.map(|(node, _)| node.overhead).sum();
            instance.prices.energy_cost(watts + overhead, first)
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
