//! The reason why a job waits, with the blocking jobs as a list.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use andreas_model::{JobId, Seconds, Time};

use crate::capacity::Obstacle;
use crate::instance::{Assignment, Config, Demand, Holding, Instance};
use crate::outcome::Outcome;
use crate::partial::PartialPlan;
use crate::plan::{Decision, WaitReason};

/// Of a run that is stopped for others.
const MAKES_ROOM: &str = "it makes room for jobs that need it more";
/// How far ahead prices of energy and power budgets are looked at, s: the last period of the prices of GPUs begins then.
const AHEAD: f64 = 64.0 * 3600.0;

/// Maximum number of blocking jobs named.
pub(crate) const BLOCKERS: usize = 8;

pub(crate) struct Explainer<'a, 'b> {
    instance: &'a Instance<'b>,
    /// The finished plan.
    partial: PartialPlan,
    /// By node: (GPUs, job) of each holder.
    holders: Vec<Vec<(i64, usize)>>,
    reserved_for: Option<usize>,
    stopped: Vec<usize>,
    /// Whether the method may defer a start although capacity is free.
    deferred: bool,
    /// Nodes on which a job could start that waits for no better hour.
    left_free: BTreeSet<u32>,
    /// By type: how many nodes have so many GPUs.
    gpus: HashMap<usize, Vec<usize>>,
    /// Number of each different worker.
    workers: HashMap<(&'a [Demand], usize), usize>,
    /// By worker and type: how many empty nodes could hold one with so many GPUs.
    fitting: HashMap<(usize, usize), Vec<usize>>,
}

/// By number of GPUs: how many of these have so many or more.
fn suffix_counts(gpus: impl Iterator<Item = i64>) -> Vec<usize> {
    let mut counts = Vec::new();
    for gpus in gpus.filter_map(|gpus| usize::try_from(gpus).ok()) {
        if counts.len() <= gpus {
            counts.resize(gpus + 1, 0);
        }
        counts[gpus] += 1;
    }
    for gpus in (1..counts.len()).rev() {
        counts[gpus - 1] += counts[gpus];
    }
    counts
}

fn count_of(counts: &[usize], gpus: i64) -> usize {
    usize::try_from(gpus).ok().and_then(|gpus| counts.get(gpus)).copied().unwrap_or(0)
}

impl<'a, 'b> Explainer<'a, 'b> {
    pub fn new(instance: &'a Instance<'b>, partial: PartialPlan, outcome: &Outcome) -> Self {
        let mut holders = vec![Vec::new(); instance.nodes.len()];
        for (job, data) in instance.jobs.iter().enumerate() {
            for assignment in partial.assignments[job].iter().chain(data.leaving()) {
                for &node in assignment.nodes.as_slice() {
                    holders[node as usize].push((data.configs[assignment.config].gpus, job));
                }
            }
        }
        for list in &mut holders {
            list.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            list.dedup_by_key(|h| h.1);
        }
        Self {
            instance,
            partial,
            holders,
            reserved_for: outcome.reserved_for,
            stopped: outcome.stopped.clone(),
            deferred: outcome.prices.is_some(),
            left_free: BTreeSet::new(),
            gpus: HashMap::new(),
            workers: HashMap::new(),
            fitting: HashMap::new(),
        }
    }

    /// Free GPUs of nodes on which a job could start that was asked about and waits for no better hour.
    pub fn gpus_left_free(&self) -> u64 {
        let free = |node: &u32| u64::try_from(self.partial.ledger.free_gpus(*node)).unwrap_or(0);
        self.left_free.iter().map(free).sum()
    }

    pub fn wait(&mut self, job: usize) -> Decision {
        let (reason, blockers, message) = self.wait_reason(job);
        let blockers = blockers.into_iter().map(|b| self.id(b)).collect();
        Decision::Wait { reason, blockers, message }
    }

    fn id(&self, job: usize) -> JobId {
        self.instance.jobs[job].job.id.clone()
    }

    /// Reason, blocking jobs and message for a job that waits.
    fn wait_reason(&mut self, job: usize) -> (WaitReason, Vec<usize>, String) {
        let instance = self.instance;
        let data = &instance.jobs[job];
        let none = Vec::new();
        let budget_is_infeasible = instance.budget_mw.is_some_and(|allowed| instance.floor_mw > allowed);
        if self.stopped.contains(&job) && !budget_is_infeasible {
            let message = "it was stopped to keep the power budget".to_owned();
            return (WaitReason::PowerBudget, self.jobs_with_most_power(job), message);
        }
        let listed = || data.configs.iter().enumerate().filter(|(_, c)| c.listed);
        if !listed().any(|(_, c)| self.has_gpus(c)) {
            return (
                WaitReason::NoFeasibleGpuType,
                none,
                "no node has GPUs of a type and number it can use".into(),
            );
        }
        if !listed().any(|(_, c)| self.fits_empty_cluster(job, c)) {
            let message = "nodes with such GPUs do not admit its workers (CPU, memory, other resources, pods, taints, \
                           selectors, or it just failed to be placed there)";
            return (WaitReason::NoFeasibleNode, none, message.into());
        }
        let ever_quota =
            |c: &Config| data.quota_demand.iter().all(|d| d.of_job(c) <= instance.quotas[d.what]);
        if !listed().any(|(_, c)| ever_quota(c) && self.fits_empty_cluster(job, c)) {
            return (
                WaitReason::QuotaExceeded,
                none,
                "the quota of its namespace is too small for it".into(),
            );
        }
        if let Some(allowed) = instance.budget_mw
            && instance.floor_mw > allowed
        {
            let message = format!(
                "nodes draw {:.0} without any job, the budget allows {:.0}",
                instance.in_scope(instance.floor_mw),
                instance.in_scope(allowed)
            );
            return (WaitReason::BudgetInfeasible, none, message);
        }
        let first = data.configs.iter().position(|c| c.listed && self.fits_empty_cluster(job, c));
        self.reason_now(job, first)
    }

    /// The reason for a job that fits the cluster, but not now.
    fn reason_now(&mut self, job: usize, some: Option<usize>) -> (WaitReason, Vec<usize>, String) {
        let instance = self.instance;
        let data = &instance.jobs[job];
        let none = Vec::new();
        let (mut power, mut quota, mut room) = (false, false, BTreeSet::new());
        for config in (0..data.configs.len()).filter(|c| data.configs[*c].offered) {
            match self.partial.ledger.find(instance, job, config) {
                Ok(nodes) => room.extend(nodes.as_slice().iter().copied()),
                Err(Obstacle::Power) => power = true,
                Err(Obstacle::Quota) => quota = true,
                Err(Obstacle::Nodes) => {}
            }
        }
        if !room.is_empty()
            && let Some(kept_for) = self.reserved_for
        {
            let message = "room is kept for a job that has waited for it".to_owned();
            return (WaitReason::WaitingForCapacity, vec![kept_for], message);
        }
        let held = matches!(data.holding, Holding::Running { .. } | Holding::Committed { .. });
        if !room.is_empty() && self.deferred {
            let better = self.better_hour();
            if better.is_none() {
                self.left_free.append(&mut room);
            }
            return match (better, held) {
                (Some(message), _) => (WaitReason::DeferredForEnergy, none, message),
                (None, true) => (WaitReason::Preempted, none, MAKES_ROOM.to_owned()),
                (None, false) => {
                    let message = "what is free now would cost it or others more than what is free soon";
                    (WaitReason::WaitingForCapacity, none, message.to_owned())
                }
            };
        }
        if let Holding::Running { assignment: at, .. } = &data.holding {
            let taken_by = self.takers(job, at);
            if !taken_by.is_empty() {
                return (WaitReason::Preempted, taken_by, MAKES_ROOM.to_owned());
            }
        }
        if power {
            return (WaitReason::PowerBudget, self.jobs_with_most_power(job), self.watts(job));
        }
        if !data.job.movable && matches!(data.holding, Holding::Leaving { .. }) {
            let message = "it may not be moved: it goes on once it has left".to_owned();
            return (WaitReason::WaitingForCapacity, Vec::new(), message);
        }
        if quota {
            let message = "other jobs of its namespace use up the quota".to_owned();
            return (WaitReason::QuotaExceeded, self.same_namespace(job), message);
        }
        let blockers = some.map_or_else(Vec::new, |config| self.holders_of_nearest_node(job, config));
        if held {
            return (WaitReason::Preempted, blockers, MAKES_ROOM.to_owned());
        }
        (WaitReason::WaitingForCapacity, blockers, "other jobs hold what it needs".into())
    }

    /// The hour ahead for which it pays to wait: of the cheapest energy, or of more power. `None` where neither changes for the better.
    fn better_hour(&self) -> Option<String> {
        let (snapshot, now) = (self.instance.snapshot, self.instance.snapshot.now);
        let hours = |at: Time| (at - now).0 / 3600.0;
        let until = now + Seconds(AHEAD);
        let price = snapshot.tariff.at(now)?.0;
        let pieces = snapshot.tariff.pieces(now, until).map(|(from, _, price)| (from, price.0));
        let cheapest = pieces.min_by(|a, b| a.1.total_cmp(&b.1))?;
        if cheapest.1 < price {
            let less = 100.0 * (1.0 - cheapest.1 / price);
            return Some(format!("energy costs {less:.0} % less in {:.1} hours", hours(cheapest.0)));
        }
        let budget = &snapshot.budget.as_ref()?.watts;
        let allowed = budget.at(now)?.0;
        let more = budget.pieces(now, until).find(|(.., watts)| watts.0 > allowed)?;
        Some(format!("the power budget allows {:.0} in {:.1} hours", more.2, hours(more.0)))
    }

    /// The watts that a start needs at least and those that are free.
    fn watts(&self, job: usize) -> String {
        let (instance, ledger) = (self.instance, &self.partial.ledger);
        let more = |config: &Config| {
            let free = |node: &&u32| ledger.free_gpus(**node) >= config.gpus;
            let nodes = instance.types[config.kind].nodes.iter().filter(free).take(config.nodes as usize);
            let nodes: Vec<u32> = nodes.copied().collect();
            let after = || ledger.power_after_start_mw(instance, config, &nodes);
            (nodes.len() == config.nodes as usize).then(|| after() - ledger.power())
        };
        let least = instance.jobs[job].configs.iter().filter(|c| c.offered).filter_map(more).min();
        let (Some(needs), Some(allowed)) = (least, instance.allowed_mw) else {
            return "its GPUs are there, the watts are not".to_owned();
        };
        let free = (allowed - ledger.power()).max(0);
        if needs <= free {
            return "its watts are there now, and not while the power budget is lower later".to_owned();
        }
        let (needs, free) = (instance.in_scope(needs), instance.in_scope(free));
        format!("its GPUs are there, the watts are not: it needs {needs:.0}, {free:.0} are free")
    }

    /// Whether an otherwise empty cluster has enough nodes for it, by GPUs alone.
    fn has_gpus(&mut self, config: &Config) -> bool {
        let instance = self.instance;
        let nodes = &instance.types[config.kind].nodes;
        let counts = self.gpus.entry(config.kind).or_insert_with(|| {
            suffix_counts(nodes.iter().map(|node| instance.nodes[*node as usize].free_gpus))
        });
        count_of(counts, config.gpus) >= config.nodes as usize
    }

    /// Whether an otherwise empty cluster has enough nodes for it, by all resources. Equal workers are held against the nodes
    /// once, whatever their configurations.
    fn fits_empty_cluster(&mut self, job: usize, config: &Config) -> bool {
        let instance = self.instance;
        let data = &instance.jobs[job];
        let nodes = &instance.types[config.kind].nodes;
        let known = self.workers.len();
        let worker = *self.workers.entry((&data.node_demand, data.admits)).or_insert(known);
        let wanted = config.nodes as usize;
        let counts = match self.fitting.entry((worker, config.kind)) {
            Entry::Occupied(counts) => counts.into_mut(),
            Entry::Vacant(_) if instance.first_nodes_fit(data, (config, wanted), nodes) => return true,
            Entry::Vacant(none) => {
                none.insert(suffix_counts(nodes.iter().map(|node| instance.largest_worker(data, *node))))
            }
        };
        count_of(counts, config.gpus) >= wanted
    }

    /// Those to which the plan gives GPUs on the nodes of a placement, where too few are left for it: it is given up for them, whatever
    /// its job lacks elsewhere. One that had room elsewhere, and not the watts, takes them for want of watts.
    fn takers(&mut self, job: usize, at: &Assignment) -> Vec<usize> {
        let (instance, plan) = (self.instance, &mut self.partial);
        let on = |holder: usize, assignment: &Assignment, node: u32| {
            let is_there = assignment.nodes.as_slice().contains(&node);
            if is_there { instance.jobs[holder].configs[assignment.config].gpus } else { 0 }
        };
        let needs = instance.jobs[job].configs[at.config].gpus;
        let mut takers = BTreeMap::new();
        for &node in at.nodes.as_slice().iter().filter(|node| plan.ledger.free_gpus(**node) < needs) {
            for (_, holder) in self.holders[node as usize].iter().filter(|(_, holder)| *holder != job) {
                let Some(new) = &plan.assignments[*holder] else { continue };
                let had = match &instance.jobs[*holder].holding {
                    Holding::Running { assignment: held, .. } | Holding::Committed { target: held, .. } => {
                        on(*holder, held, node)
                    }
                    Holding::Nothing | Holding::Leaving { .. } => 0,
                };
                if on(*holder, new, node) > had {
                    takers.insert(*holder, new.config);
                }
            }
        }
        takers.retain(|holder, config| {
            !matches!(plan.ledger.find(instance, *holder, *config), Err(Obstacle::Power))
        });
        takers.into_keys().take(BLOCKERS).collect()
    }

    /// Holders of the node with the least missing capacity.
    fn holders_of_nearest_node(&self, job: usize, config: usize) -> Vec<usize> {
        let config = &self.instance.jobs[job].configs[config];
        let nodes = self.instance.types[config.kind].nodes.iter().copied();
        let nearest = nodes
            .filter(|n| self.instance.empty_node_fits(&self.instance.jobs[job], config, *n))
            .max_by(|a, b| {
                let free = |n: &u32| self.partial.ledger.free_gpus(*n);
                free(a).cmp(&free(b)).then(b.cmp(a))
            });
        let holders = nearest.map_or(&[][..], |n| &self.holders[n as usize][..]);
        holders.iter().map(|h| h.1).filter(|h| *h != job).take(BLOCKERS).collect()
    }

    fn jobs_with_most_power(&self, job: usize) -> Vec<usize> {
        let power = |j: usize| {
            let assignment = self.partial.assignments[j].as_ref()?;
            Some(self.instance.jobs[j].configs[assignment.config].draw_mw())
        };
        self.largest(job, &power)
    }

    fn same_namespace(&self, job: usize) -> Vec<usize> {
        let namespace = &self.instance.jobs[job].job.namespace;
        let gpus = |j: usize| {
            let data = &self.instance.jobs[j];
            let assignment = self.partial.assignments[j].as_ref()?;
            (data.job.namespace == *namespace)
                .then(|| i128::from(data.configs[assignment.config].total_gpus()))
        };
        self.largest(job, &gpus)
    }

    /// The other jobs with the largest `size`, at most [`BLOCKERS`], the largest first. A job without a size is left
    /// out.
    fn largest(&self, job: usize, size: &dyn Fn(usize) -> Option<i128>) -> Vec<usize> {
        let mut all: Vec<(i128, usize)> =
            (0..self.instance.jobs.len()).filter(|j| *j != job).filter_map(|j| Some((size(j)?, j))).collect();
        all.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        all.into_iter().take(BLOCKERS).map(|(_, j)| j).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::instance::LOOKS;
    use crate::{Options, Snapshot, plan};

    /// Tenants choose their jobs' configurations and resources, and a plan may have ten thousand jobs.
    #[test]
    fn a_job_that_fits_nowhere_is_held_against_each_node_a_few_times_whatever_its_configurations() {
        const NODES: usize = 200;
        let looks = |totals: u32, jobs: usize| {
            let node = |i: usize| json!({"name": format!("n{i:03}"), "gpu_type": "A", "gpus": 8, "free_gpus": 8, "free": {"memory_bytes": 1_u64 << 40}});
            let row = |gpus: u32| json!({"gpu_type": "A", "gpus": gpus, "epoch": 3600.0 / f64::from(gpus), "power": 300.0 * f64::from(gpus)});
            let spread: Vec<_> = (2..9).map(|nodes| json!({"nodes": nodes, "time_factor": 1.1})).collect();
            // Each has a worker of its own.
            let job = |i: usize| {
                json!({"id": format!("t/{i:03}"), "namespace": "t", "submit": 0.0, "weight": 1e-3, "epochs_left": 1.0,
                "estimates": (1..=totals).map(row).collect::<Vec<_>>(), "spread": spread,
                "worker": {"fixed": {"memory_bytes": (1_u64 << 50) + i as u64}}, "state": "Waiting"})
            };
            let snapshot: Snapshot = serde_json::from_value(json!({
                "now": 1e6, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
                "lateness": {"turnaround_share": 0.1}, "nodes": (0..NODES).map(node).collect::<Vec<_>>(),
                "namespaces": [], "jobs": (0..jobs).map(job).collect::<Vec<_>>()}))
            .expect("a snapshot");
            LOOKS.set(0);
            plan(&snapshot, &Options::default()).expect("a plan");
            LOOKS.get()
        };
        for (totals, jobs) in [(1, 20), (60, 20), (60, 40)] {
            let looks = looks(totals, jobs);
            assert!(looks <= 3 * jobs * NODES, "{looks} for {jobs} jobs of up to {totals} GPUs");
        }
    }
}
