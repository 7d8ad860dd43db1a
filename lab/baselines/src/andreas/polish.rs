//! The published local search on the elite set.
//!
//! It has seven neighbourhoods, those of both public branches:
//! 1. a late job swaps with an expensive job that is in time;
//! 2. a late job swaps with a job under low pressure;
//! 3. a job under low pressure gives its assignment to a waiting job;
//! 4. a late job moves to a faster GPU type;
//! 5. a late job gets twice the GPUs;
//! 6. an expensive job gets half of its GPUs;
//! 7. two jobs of a node share their GPUs in another way.
//!
//! Each side has at most ten jobs, and there are at most ten rounds; each round takes the best neighbour. The
//! public code stops at the first improvement although it intends the best, and it looks up configurations
//! that may not exist. Both are corrected here. Only jobs on a single node take part.

use andreas_planner::policy::{Assignment, Nodes, PartialPlan};

use super::{AssignmentList, EQUAL, Incumbent, Search, WORK};
use crate::options::Accounting;

/// Maximum jobs on each side of a swap, and maximum rounds, as published.
const SIDE: usize = 10;
const ROUNDS: usize = 10;

/// New assignments of some jobs; `None` unassigns.
type Change = Vec<(usize, Option<Assignment>)>;

impl Search<'_, '_> {
    /// Runs the local search on every elite plan and keeps the best result.
    pub(super) fn polish(&mut self) {
        let plans: Vec<AssignmentList> = self.elite.plans.iter().map(|(_, plan)| plan.clone()).collect();
        let partial_plans: Vec<PartialPlan> = plans.iter().map(|plan| self.partial(plan)).collect();
        for mut partial in partial_plans {
            let mut score = self.score(&partial.assignments);
            for _ in 0..ROUNDS {
                let Some((better, change)) = self.best_neighbour(&mut partial) else { break };
                if better >= score - EQUAL * score.abs() {
                    break;
                }
                score = better;
                self.apply(&mut partial, &change);
            }
            self.fill_and_offer(partial);
        }
    }

    fn best_neighbour(&mut self, partial: &mut PartialPlan) -> Option<(f64, Change)> {
        let mut best: Option<(f64, Change)> = None;
        for change in self.neighbours(partial) {
            if self.effort.work > 2 * WORK {
                break;
            }
            if let Some(score) = self.try_change(partial, &change)
                && best.as_ref().is_none_or(|(least, _)| score < *least)
            {
                best = Some((score, change));
            }
        }
        best
    }

    /// The score after a change, if it fits. The partial plan is left unchanged.
    fn try_change(&mut self, partial: &mut PartialPlan, change: &Change) -> Option<f64> {
        self.effort.trials += 1;
        self.effort.work += (self.instance.jobs.len() + self.instance.nodes.len()) as u64;
        let undo = self.apply(partial, change)?;
        let score = self.score(&partial.assignments);
        self.undo(partial, undo);
        Some(score)
    }

    /// Applies a change, or does nothing if it does not fit. Returns the change that undoes it.
    fn apply(&self, partial: &mut PartialPlan, change: &Change) -> Option<Change> {
        let mut undo = Change::new();
        for (job, _) in change {
            undo.push((*job, partial.unassign(self.instance, *job)));
        }
        for (job, assignment) in change {
            if let Some(assignment) = assignment
                && partial.try_put(self.instance, *job, assignment.clone()).is_err()
            {
                self.undo(partial, undo);
                return None;
            }
        }
        Some(undo)
    }

    /// Undoes a change.
    fn undo(&self, partial: &mut PartialPlan, undo: Change) {
        for (job, _) in &undo {
            partial.unassign(self.instance, *job);
        }
        for (job, assignment) in undo {
            if let Some(assignment) = assignment {
                partial.assign(self.instance, job, assignment);
            }
        }
    }

    fn neighbours(&self, partial: &PartialPlan) -> Vec<Change> {
        let instance = self.instance;
        let placed = |job: &usize| {
            let assignment =
                partial.assignments[*job].as_ref().filter(|_| !instance.jobs[*job].fully_aged)?;
            let config = &instance.jobs[*job].configs[assignment.config];
            (config.nodes == 1 && assignment.nodes.as_slice().len() == 1).then_some((*job, config.time))
        };
        let lateness = |job: usize, time: f64| (instance.now + time - instance.jobs[job].deadline).max(0.0);
        let (mut late, mut early): (Vec<_>, Vec<_>) =
            self.queue.order.iter().filter_map(placed).partition(|(job, time)| lateness(*job, *time) > 0.0);
        late.sort_by(|a, b| lateness(b.0, b.1).total_cmp(&lateness(a.0, a.1)).then(a.0.cmp(&b.0)));
        late.truncate(SIDE);
        let mut low_pressure = early.clone();
        let cost = |(job, time): &(usize, f64)| {
            let config = partial.assignments[*job].as_ref().map_or(0, |assignment| assignment.config);
            instance.jobs[*job].configs[config].power * time
        };
        early.sort_by(|a, b| cost(b).total_cmp(&cost(a)).then(a.0.cmp(&b.0)));
        early.truncate(SIDE);
        // The order is by pressure: the last jobs have the lowest.
        let rank: Vec<usize> = rank(&self.queue.order, instance.jobs.len());
        low_pressure.sort_by(|a, b| rank[b.0].cmp(&rank[a.0]));
        low_pressure.truncate(SIDE);
        let kept = self.base.reserved.as_ref().map(|kept| kept.job);
        let waits = |job: &usize| partial.assignments[*job].is_none() && kept != Some(*job);
        let waiting: Vec<usize> = self.queue.order.iter().copied().filter(waits).take(SIDE).collect();
        let mut changes = Vec::new();
        for (job, _) in &late {
            for (other, _) in early.iter().chain(&low_pressure) {
                changes.extend(self.exchange(partial, *job, *other));
            }
            changes.extend(self.other_type(partial, *job));
            changes.extend(self.resize(partial, *job, 2, 1));
        }
        for (job, _) in &low_pressure {
            for other in &waiting {
                let moves_in = partial.assignments[*job]
                    .as_ref()
                    .and_then(|assignment| self.placement_of(*other, *job, assignment));
                changes.extend(moves_in.map(|assignment| vec![(*job, None), (*other, Some(assignment))]));
            }
        }
        for (job, _) in &early {
            changes.extend(self.resize(partial, *job, 1, 2));
        }
        for (job, _) in &late {
            changes.extend(self.redistribute_gpus(partial, *job));
        }
        changes
    }

    /// The nodes of another job, with the same number of GPUs.
    fn placement_of(&self, job: usize, from: usize, assignment: &Assignment) -> Option<Assignment> {
        let gpus = self.instance.jobs[from].configs[assignment.config].gpus;
        self.single_node_assignment(job, *assignment.nodes.as_slice().first()?, gpus)
    }

    /// An assignment of this many GPUs on one node, if the job has such a configuration.
    fn single_node_assignment(&self, job: usize, node: u32, gpus: i64) -> Option<Assignment> {
        let kind = self.instance.nodes[node as usize].kind;
        let configs = &self.instance.jobs[job].configs;
        let same =
            configs.iter().position(|c| c.offered && c.kind == kind && c.nodes == 1 && c.gpus == gpus)?;
        Some(Assignment { config: same, nodes: Nodes::One(node) })
    }

    fn exchange(&self, partial: &PartialPlan, a: usize, b: usize) -> Option<Change> {
        let (at, bt) = (partial.assignments[a].as_ref()?, partial.assignments[b].as_ref()?);
        (at.nodes != bt.nodes).then(|| {
            Some(vec![(a, Some(self.placement_of(a, b, bt)?)), (b, Some(self.placement_of(b, a, at)?))])
        })?
    }

    /// The same number of GPUs of each faster type, best fit.
    fn other_type(&self, partial: &PartialPlan, job: usize) -> Vec<Change> {
        let Some(assignment) = &partial.assignments[job] else { return Vec::new() };
        let configs = &self.instance.jobs[job].configs;
        let now = &configs[assignment.config];
        let faster = configs.iter().enumerate().filter(|(_, c)| {
            c.offered && c.nodes == 1 && c.gpus == now.gpus && c.kind != now.kind && c.time < now.time
        });
        let mut ledger = partial.ledger.clone();
        faster
            .filter_map(|(config, _)| {
                let nodes = ledger.find(self.instance, job, config).ok()?;
                Some(vec![(job, Some(Assignment { config, nodes }))])
            })
            .collect()
    }

    /// The same node with `up / down` times the GPUs.
    fn resize(&self, partial: &PartialPlan, job: usize, up: i64, down: i64) -> Option<Change> {
        let assignment = partial.assignments[job].as_ref()?;
        let gpus = self.instance.jobs[job].configs[assignment.config].gpus;
        let node = *assignment.nodes.as_slice().first()?;
        (gpus % down == 0)
            .then(|| Some(vec![(job, Some(self.single_node_assignment(job, node, gpus / down * up)?))]))?
    }

    /// A job gets a larger share of the GPUs that it and another job hold on their node.
    fn redistribute_gpus(&self, partial: &PartialPlan, job: usize) -> Vec<Change> {
        let Some(assignment) = &partial.assignments[job] else { return Vec::new() };
        let Some(&node) = assignment.nodes.as_slice().first() else { return Vec::new() };
        let gpus = |job: usize| {
            partial.assignments[job]
                .as_ref()
                .map_or(0, |assignment| self.instance.jobs[job].configs[assignment.config].gpus)
        };
        let mine = gpus(job);
        let neighbours = self.queue.order.iter().copied().filter(|other| {
            *other != job
                && !self.instance.jobs[*other].fully_aged
                && partial.assignments[*other].as_ref().is_some_and(|s| s.nodes == assignment.nodes)
        });
        let shares = |other: usize| {
            let both = mine + gpus(other);
            (mine + 1..both).filter_map(move |more| {
                Some(vec![
                    (other, Some(self.single_node_assignment(other, node, both - more)?)),
                    (job, Some(self.single_node_assignment(job, node, more)?)),
                ])
            })
        };
        neighbours.flat_map(shares).collect()
    }

    /// Fills the free capacity of a plan and makes it the incumbent if it is better.
    fn fill_and_offer(&mut self, partial: PartialPlan) {
        if matches!(self.options.accounting, Accounting::Predicted) {
            self.finish(partial);
            return;
        }
        let score = self.score(&partial.assignments);
        if self.better(score) {
            self.incumbent = Some(Incumbent { score, plan: partial, reserved_for: None });
        }
    }
}

/// Positions of jobs in an order; jobs that are not in it get the last position.
fn rank(order: &[usize], jobs: usize) -> Vec<usize> {
    let mut rank = vec![usize::MAX; jobs];
    for (at, job) in order.iter().enumerate() {
        rank[*job] = at;
    }
    rank
}
