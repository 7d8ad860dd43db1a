//! A plan on which moves are tried and undone, with an incrementally updated cost.

use super::step::{Choice, Step};
use crate::instance::{Assignment, Nodes};
use crate::partial::PartialPlan;
use crate::reserve::Reservation;

/// Maximum rounds of filling: each places at least one job.
const FILL_ROUNDS: usize = 16;

pub(super) struct SearchState<'s, 'a, 'b> {
    pub step: &'s Step<'a, 'b>,
    pub partial: PartialPlan,
    /// Cost of the current plan.
    pub cost: f64,
    /// By node: its movable jobs.
    pub on: Vec<Vec<usize>>,
    /// By job: whether it is movable.
    pub open: &'s [bool],
    /// Changes since the last commit.
    journal: Vec<(usize, Option<Assignment>)>,
}

impl<'s, 'a, 'b> SearchState<'s, 'a, 'b> {
    pub fn new(step: &'s Step<'a, 'b>, partial: PartialPlan, open: &'s [bool]) -> Self {
        let mut search_state = Self {
            step,
            cost: 0.0,
            on: vec![Vec::new(); step.instance.nodes.len()],
            partial,
            open,
            journal: Vec::new(),
        };
        search_state.cost = search_state.total();
        for job in 0..open.len() {
            search_state.enter(job);
        }
        search_state
    }

    fn enter(&mut self, job: usize) {
        if let (true, Some(assignment)) = (self.open[job], &self.partial.assignments[job]) {
            for &node in assignment.nodes.as_slice() {
                self.on[node as usize].push(job);
            }
        }
    }

    /// The cost, computed from scratch.
    pub fn total(&self) -> f64 {
        let jobs = 0..self.open.len();
        let of = |job: usize| match &self.partial.assignments[job] {
            Some(assignment) => self.step.cost(job, assignment),
            None => self.step.wait[job],
        };
        let nodes = (0_u32..).take(self.step.instance.nodes.len());
        jobs.map(of).sum::<f64>() + nodes.map(|n| self.fragmentation(n)).sum::<f64>()
    }

    fn fragmentation(&self, node: u32) -> f64 {
        let instance = self.step.instance;
        let used = instance.nodes[node as usize].free_gpus - self.partial.ledger.free_gpus(node);
        self.step.cost_table.fragmentation(instance, node, used)
    }

    /// Fragmentation cost of the nodes of an assignment.
    fn fragmentation_at(&self, assignment: &Assignment) -> f64 {
        assignment.nodes.as_slice().iter().map(|n| self.fragmentation(*n)).sum()
    }

    pub fn assign(&mut self, job: usize, assignment: Assignment) {
        let before = self.fragmentation_at(&assignment);
        self.cost += self.step.cost(job, &assignment) - self.step.wait[job] - before;
        self.partial.assign(self.step.instance, job, assignment);
        self.enter(job);
        if let Some(assignment) = &self.partial.assignments[job] {
            self.cost += self.fragmentation_at(assignment);
        }
        self.journal.push((job, None));
    }

    pub fn unassign(&mut self, job: usize) {
        let Some(assignment) = &self.partial.assignments[job] else { return };
        let before = self.fragmentation_at(assignment);
        if let Some(assignment) = self.partial.unassign(self.step.instance, job) {
            self.cost += self.step.wait[job] - self.step.cost(job, &assignment)
                + self.fragmentation_at(&assignment)
                - before;
            for &node in assignment.nodes.as_slice() {
                self.on[node as usize].retain(|j| *j != job);
            }
            self.journal.push((job, Some(assignment)));
        }
    }

    /// Cost that an assignment would add.
    fn delta(&self, job: usize, assignment: &Assignment) -> f64 {
        let instance = self.step.instance;
        let gpus = instance.jobs[job].configs[assignment.config].gpus;
        let mut delta = self.step.cost(job, assignment) - self.step.wait[job];
        for &node in assignment.nodes.as_slice() {
            let used = instance.nodes[node as usize].free_gpus - self.partial.ledger.free_gpus(node);
            delta += self.step.cost_table.fragmentation(instance, node, used + gpus)
                - self.step.cost_table.fragmentation(instance, node, used);
        }
        delta
    }

    /// A place for an option: the present one if it matches, else the best fit.
    pub fn place(&mut self, job: usize, config: usize) -> Option<Assignment> {
        let instance = self.step.instance;
        if let Some(current) = &self.step.current[job] {
            let configs = &instance.jobs[job].configs;
            let (old, new) = (&configs[current.config], &configs[config]);
            if new.same_hardware(old) {
                let assignment = Assignment { config, nodes: current.nodes.clone() };
                if self.partial.ledger.fits(instance, job, &assignment).is_ok() {
                    return Some(assignment);
                }
            }
            if !new.offered {
                return None;
            }
        }
        let nodes: Nodes = self.partial.ledger.find(instance, job, config).ok()?;
        Some(Assignment { config, nodes })
    }

    /// The cheapest option that fits; `None` if waiting is cheaper.
    pub fn best(&mut self, job: usize) -> Option<(f64, Assignment)> {
        let step = self.step;
        let mut best: Option<(f64, Assignment)> = None;
        let mut last = usize::MAX;
        for option in &step.options[job] {
            if option.config == last {
                continue;
            }
            last = option.config;
            let limit = best.as_ref().map_or(0.0, |(d, _)| *d);
            let fills = step.cost_table.items[step.cost_table.columns_of(job).start + option.config].fills;
            if option.cost - step.wait[job] - fills >= limit && !step.instance.jobs[job].fully_aged {
                continue;
            }
            if let Some(assignment) = self.place(job, option.config) {
                let delta = self.delta(job, &assignment);
                let wanted = delta < 0.0 || step.instance.jobs[job].fully_aged;
                if wanted && best.as_ref().is_none_or(|(d, _)| delta < *d) {
                    best = Some((delta, assignment));
                }
            }
        }
        best
    }

    /// Places jobs in an order, each on its first fitting option at the dual prices.
    pub fn construct(&mut self, order: &[usize]) {
        let step = self.step;
        for &job in order {
            let forced = step.instance.jobs[job].fully_aged;
            let wanted = |o: &&Choice| o.reduced < step.wait[job] || forced;
            let found = step.options[job].iter().filter(wanted).find_map(|o| self.place(job, o.config));
            if let Some(assignment) = found {
                self.assign(job, assignment);
            }
        }
    }

    /// Places jobs that are cheaper placed than waiting, until none is left. Jobs that are expected to end
    /// before a reservation starts may use its capacity.
    pub fn fill(&mut self, queue: &[usize], kept: Option<&Reservation>) {
        for _ in 0..FILL_ROUNDS {
            let mut placed = false;
            for &job in queue {
                if self.partial.assignments[job].is_some() || kept.is_some_and(|k| k.job == job) {
                    continue;
                }
                if let Some((_, assignment)) = self.best(job) {
                    self.assign(job, assignment);
                    placed = true;
                } else if let Some(kept) = kept {
                    placed |= self.backfill(job, kept);
                }
            }
            if !placed {
                break;
            }
        }
        self.journal.clear();
    }

    fn backfill(&mut self, job: usize, kept: &Reservation) -> bool {
        let step = self.step;
        let instance = step.instance;
        // No other job can use it until then, so its price does not count.
        let items = step.cost_table.columns_of(job).start;
        let mut short: Vec<(f64, usize)> = (0..step.cost_table.columns_of(job).len())
            .filter(|c| instance.jobs[job].configs[*c].offered && step.cost_table.items[items + c].possible())
            .filter(|c| crate::candidates::run(instance, job, *c) <= kept.ready)
            .map(|c| (step.cost_table.now(items + c), c))
            .filter(|(cost, _)| *cost < step.wait[job])
            .collect();
        short.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.partial.ledger.release(instance, kept.job, &kept.assignment);
        let found = short.into_iter().find_map(|(_, config)| self.place(job, config));
        self.partial.ledger.take(instance, kept.job, &kept.assignment);
        let Some(assignment) = found else { return false };
        self.assign(job, assignment);
        true
    }

    /// Keeps the changes since the last commit.
    pub fn commit(&mut self) {
        self.journal.clear();
    }

    /// Undoes the changes since the last commit; `cost` is the cost at that time.
    pub fn rollback(&mut self, cost: f64) {
        while let Some((job, old)) = self.journal.pop() {
            let now = self.partial.unassign(self.step.instance, job);
            for node in now.iter().flat_map(|s| s.nodes.as_slice()) {
                self.on[*node as usize].retain(|j| *j != job);
            }
            if let Some(old) = old {
                self.partial.assign(self.step.instance, job, old);
                self.enter(job);
            }
        }
        self.cost = cost;
    }
}
