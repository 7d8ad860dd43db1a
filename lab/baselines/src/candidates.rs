//! The order in which a job tries its configurations, in the published greedy and with fixed requests.

use std::cmp::Ordering;

use andreas_planner::policy::{Config, Instance, run_energy, start_delay};

use crate::options::Accounting;

/// Configurations of a job in the order of trial: first those that meet the deadline, then the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    pub order: Vec<usize>,
    /// Number of configurations that meet the deadline.
    pub in_time: usize,
}

fn sorted<T>(mut keyed: Vec<(T, usize)>, mut compare: impl FnMut(&T, &T) -> Ordering) -> Vec<usize> {
    keyed.sort_by(|a, b| compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
    keyed.into_iter().map(|(_, config)| config).collect()
}

/// Cost of the energy of a whole run, as if alone on its nodes.
fn energy(instance: &Instance<'_>, accounting: &Accounting, config: &Config) -> f64 {
    match accounting {
        Accounting::Predicted => run_energy(instance, config),
        Accounting::Catalogue(_) => {
            catalogue_rate(instance, accounting, config.kind, config.gpus)
                * f64::from(config.nodes)
                * config.time
        }
    }
}

/// Cost per second of a node of a type with this many GPUs in use. Beyond the catalogue its last rate grows
/// in proportion.
pub(crate) fn catalogue_rate(
    instance: &Instance<'_>,
    accounting: &Accounting,
    kind: usize,
    used: i64,
) -> f64 {
    let Accounting::Catalogue(rates) = accounting else { return 0.0 };
    let Some(rates) = rates.get(&instance.types[kind].name) else { return 0.0 };
    let Ok(used) = usize::try_from(used) else { return 0.0 };
    match rates.get(used.wrapping_sub(1)) {
        Some(rate) => rate.0,
        None if used == 0 => 0.0,
        None => rates.last().map_or(0.0, |last| last.0 / rates.len() as f64 * used as f64),
    }
}

/// The published order: the cheapest that meet the deadline, then the fastest of the others.
///
/// The cost is the energy of the run plus, where it has a price, the time in the system.
pub(crate) fn published(instance: &Instance<'_>, accounting: &Accounting, job: usize) -> Candidates {
    let data = &instance.jobs[job];
    let delay = start_delay(instance, job);
    let (mut cheap, mut fast) = (Vec::new(), Vec::new());
    for (i, config) in data.offered() {
        if instance.now + delay + config.time <= data.deadline {
            let turnaround = match accounting {
                Accounting::Predicted => data.share * data.weight * config.time,
                Accounting::Catalogue(_) => 0.0,
            };
            cheap.push(((energy(instance, accounting, config) + turnaround, config.time), i));
        } else {
            fast.push(((config.time, config.total_gpus()), i));
        }
    }
    let mut order = sorted(cheap, |a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let in_time = order.len();
    order.extend(sorted(fast, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))));
    Candidates { order, in_time }
}

/// The user's request: that number of GPUs without power limit, on the fewest nodes of each type that could hold it; fewer
/// nodes first, then the fastest type.
///
/// Who asks for four GPUs does not ask for two on each of two nodes. A job may be on more nodes where it may have more GPUs
/// than it asks for, and that must not change what a method with fixed requests does.
pub(crate) fn fixed(instance: &Instance<'_>, job: usize) -> Vec<usize> {
    let data = &instance.jobs[job];
    let all = || data.offered().filter(|(_, c)| c.limit.is_none());
    let smallest = all().map(|(_, c)| c.total_gpus()).min();
    let wanted = data.job.requested_gpus.map(|g| i64::from(g.0)).or(smallest);
    let requested: Vec<(usize, &Config)> = all().filter(|(_, c)| Some(c.total_gpus()) == wanted).collect();
    let fewest = |kind: usize| {
        let possible = requested.iter().filter(|(_, c)| c.kind == kind && instance.could_hold(data, c));
        possible.map(|(_, c)| c.nodes).min()
    };
    let keyed = requested
        .iter()
        .filter(|(_, c)| fewest(c.kind).is_none_or(|least| c.nodes == least))
        .map(|(i, c)| ((c.nodes, c.time), *i))
        .collect();
    sorted(keyed, |a: &(u32, f64), b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
}
