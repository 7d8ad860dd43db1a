//! A reservation for the longest-waiting job, so that every job starts eventually at any load.
//!
//! Once a job's planning weight has stopped growing (ten times its weight) it goes to the front. If it still
//! does not fit, it reserves the nodes that will be free for it first. New jobs may use them only if they end
//! before that (EASY backfilling, Lifka 1995). There is one reservation at a time; more would empty the
//! cluster.

use crate::instance::{Assignment, Holding, Instance, Nodes};
use crate::partial::PartialPlan;

/// Capacity reserved for a job.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The job.
    pub job: usize,
    /// The reserved capacity, taken from the plan's ledger.
    pub assignment: Assignment,
    /// Seconds from now until it is expected to be free.
    pub ready: f64,
}

/// Reserves capacity for a job, if the cluster could ever hold it in one of the requested configurations.
pub fn reserve(
    instance: &Instance<'_>,
    partial: &mut PartialPlan,
    job: usize,
    configs: &[usize],
) -> Option<Reservation> {
    let data = &instance.jobs[job];
    if !data.job.movable && !matches!(data.holding, Holding::Nothing) {
        // Until it has left it is offered only what it held; afterwards it may need other capacity, or none.
        return None;
    }
    let (ready, assignment) = earliest(instance, partial, job, configs)?;
    partial.ledger.take(instance, job, &assignment);
    Some(Reservation { job, assignment, ready })
}

/// The assignment of a job that is free first, by the expected ends of running jobs.
fn earliest(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    job: usize,
    configs: &[usize],
) -> Option<(f64, Assignment)> {
    let data = &instance.jobs[job];
    let holders = holders(instance, partial);
    let mut best: Option<(f64, i64, Assignment)> = None;
    let mut asked = configs.to_vec();
    asked.sort_unstable();
    for (i, config) in asked.into_iter().map(|i| (i, &data.configs[i])).filter(|(_, c)| c.offered) {
        if data.quota_demand.iter().any(|d| d.of_job(config) > instance.quotas[d.what]) {
            continue;
        }
        let mut ready: Vec<(f64, u32)> = instance.types[config.kind]
            .nodes
            .iter()
            .filter(|n| instance.admits(data.admits, **n))
            .filter_map(|&n| {
                Some((ready_at(instance, partial, job, config.gpus, n, &holders[n as usize])?, n))
            })
            .collect();
        let gang = config.nodes as usize;
        ready.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if gang > 1 {
            // The class that has enough nodes first.
            let class_of = |node: u32| instance.nodes[node as usize].gang_class;
            let mut counts = std::collections::BTreeMap::new();
            let complete = ready.iter().map(|(_, node)| class_of(*node)).find(|class| {
                let count = counts.entry(*class).or_insert(0);
                *count += 1;
                *count == gang
            });
            let Some(class) = complete else { continue };
            ready.retain(|(_, node)| class_of(*node) == class);
        }
        if ready.len() < gang {
            continue;
        }
        ready.truncate(gang);
        let nodes: Vec<u32> = ready.iter().map(|(_, n)| *n).collect();
        let assignment = Assignment {
            config: i,
            nodes: if let [node] = nodes.as_slice() { Nodes::One(*node) } else { Nodes::Many(nodes.into()) },
        };
        if !power_could_fit(instance, job, &assignment) {
            continue;
        }
        let at = ready.last().map_or(0.0, |(at, _)| *at);
        let gpus = config.total_gpus();
        let better = best.as_ref().is_none_or(|(t, g, _)| at.total_cmp(t).then(gpus.cmp(g)).is_lt());
        if better {
            best = Some((at, gpus, assignment));
        }
    }
    best.map(|(ready, _, assignment)| (ready, assignment))
}

/// By node: expected end, holder and its GPUs there.
fn holders(instance: &Instance<'_>, partial: &PartialPlan) -> Vec<Vec<(f64, usize, i64)>> {
    let mut holders = vec![Vec::new(); instance.nodes.len()];
    let mut add = |job: usize, assignment: &Assignment, end: f64| {
        let config = &instance.jobs[job].configs[assignment.config];
        for &node in assignment.nodes.as_slice() {
            holders[node as usize].push((end, job, config.gpus));
        }
    };
    for (job, data) in instance.jobs.iter().enumerate() {
        if let Some(assignment) = &partial.assignments[job] {
            add(job, assignment, data.configs[assignment.config].time);
        }
        let gone = match &data.job.state {
            crate::JobState::Stopping { gone_by, .. } => (gone_by.0 - instance.now).max(0.0),
            _ => 0.0,
        };
        match &data.holding {
            Holding::Leaving { assignment } | Holding::Committed { leaving: Some(assignment), .. } => {
                add(job, assignment, gone)
            }
            _ => {}
        }
    }
    for list in &mut holders {
        list.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }
    holders
}

/// Time when a node can hold a worker of the job; `None` if it is too small.
fn ready_at(
    instance: &Instance<'_>,
    partial: &PartialPlan,
    job: usize,
    gpus: i64,
    node: u32,
    holders: &[(f64, usize, i64)],
) -> Option<f64> {
    let data = &instance.jobs[job];
    let at = node as usize * instance.kinds;
    let enough = |d: &crate::instance::Demand, back: i128| {
        partial.ledger.left(instance, node, d.what) + back >= d.of_worker(gpus)
    };
    let whole = &instance.nodes[node as usize];
    let ever = whole.free_gpus >= gpus
        && data.node_demand.iter().all(|d| instance.resources[at + d.what] >= d.of_worker(gpus));
    if !ever {
        return None;
    }
    let mut when = 0.0;
    for count in 0..=holders.len() {
        let gone = &holders[..count];
        if let Some((end, _, _)) = gone.last() {
            when = *end;
        }
        let gpus_back: i64 = gone.iter().map(|h| h.2).sum();
        let back = |what: usize| -> i128 {
            let of = |(_, holder, held): &(f64, usize, i64)| {
                let demand = &instance.jobs[*holder].node_demand;
                demand.iter().filter(|d| d.what == what).map(|d| d.of_worker(*held)).sum::<i128>()
            };
            gone.iter().map(of).sum()
        };
        let fits = partial.ledger.free_gpus(node) + gpus_back >= gpus
            && data.node_demand.iter().all(|d| enough(d, back(d.what)));
        if fits {
            return Some(when);
        }
    }
    // A restart in place was counted once but its parts were released twice: cap the result.
    Some(when)
}

/// Whether the budget could hold the job if no other job of ours ran.
pub(crate) fn power_could_fit(instance: &Instance<'_>, job: usize, assignment: &Assignment) -> bool {
    let Some(allowed) = instance.budget_mw else { return true };
    let config = &instance.jobs[job].configs[assignment.config];
    let overhead = |n: &u32| instance.nodes[*n as usize].overhead_mw;
    let overhead_mw = assignment.nodes.as_slice().iter().map(overhead).sum();
    instance.floor_mw + instance.alone_mw(config, overhead_mw) <= allowed
}
