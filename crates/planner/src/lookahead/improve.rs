//! Local search: a move is kept if it lowers the cost of the plan and undone otherwise.
//!
//! There are three moves: shift a job to another of its options; insert a job into a node whose other jobs
//! make room (a swap of two jobs is the simplest case); and ruin and recreate (Schrimpf et al. 2000), which
//! empties one to four nodes and refills them with their jobs and some waiting ones. The budget is a number
//! of trials, never time.

use super::search_state::SearchState;
use crate::instance::{Assignment, Nodes};
use crate::rng::Random;

/// Gains below this part of the plan's cost are rounding errors.
const ROUNDING: f64 = 1e-12;
/// Number of options among which most moves draw one: the first ones.
const DRAWN: usize = 6;
/// One move in so many draws among all options: the first ones may all take the same GPUs.
const ANY_ONE_IN: usize = 4;
/// Number of waiting jobs that join a recreation.
const JOINING: usize = 4;

pub(super) struct Improver<'d, 's, 'a, 'b> {
    pub search_state: &'d mut SearchState<'s, 'a, 'b>,
    pub rng: &'d mut Random,
    /// Movable jobs that have options.
    pub jobs: &'d [usize],
    /// Waiting jobs that could run, those with the largest gain.
    pub waiting: Vec<usize>,
}

impl Improver<'_, '_, '_, '_> {
    /// Tries this many moves, or stops once the cost is good enough. Returns the number tried.
    pub fn run(mut self, trials: u64, enough: &impl Fn(f64) -> bool) -> u64 {
        if self.jobs.is_empty() || self.search_state.on.is_empty() {
            return 0;
        }
        for trial in 0..trials {
            let before = self.search_state.cost;
            if enough(before) {
                return trial;
            }
            let tried = match self.rng.below(10) {
                0..=3 => self.shift(),
                4..=6 => self.insert(),
                _ => self.recreate(),
            };
            if tried && self.search_state.cost < before - ROUNDING * before.abs() {
                self.search_state.commit();
            } else {
                self.search_state.rollback(before);
            }
            if trial % 64 == 0 {
                self.refresh();
            }
        }
        trials
    }

    /// Updates the waiting jobs with the largest gain.
    fn refresh(&mut self) {
        let search_state = &self.search_state;
        self.waiting.clear();
        self.waiting
            .extend(self.jobs.iter().copied().filter(|j| search_state.partial.assignments[*j].is_none()));
    }

    fn any_job(&mut self) -> usize {
        self.jobs[self.rng.below(self.jobs.len())]
    }

    /// The configuration of one of a job's options.
    fn any_option(&mut self, job: usize) -> Option<usize> {
        let options = &self.search_state.step.options[job];
        let drawn = if self.rng.below(ANY_ONE_IN) == 0 { options.len() } else { options.len().min(DRAWN) };
        (drawn > 0).then(|| options[self.rng.below(drawn)].config)
    }

    /// Moves a job to another option.
    fn shift(&mut self) -> bool {
        let job = self.any_job();
        let Some(config) = self.any_option(job) else { return false };
        if self.search_state.partial.assignments[job]
            .as_ref()
            .is_some_and(|assignment| assignment.config == config)
        {
            return false;
        }
        self.search_state.unassign(job);
        match self.search_state.place(job, config) {
            Some(assignment) => self.search_state.assign(job, assignment),
            None => return false,
        }
        true
    }

    /// Inserts a job into a node whose jobs make room.
    fn insert(&mut self) -> bool {
        let job = if self.waiting.is_empty() || self.rng.below(2) == 0 {
            self.any_job()
        } else {
            self.waiting[self.rng.below(self.waiting.len())]
        };
        let Some(config) = self.any_option(job) else { return false };
        let search_state = &mut *self.search_state;
        let instance = search_state.step.instance;
        let wanted = &instance.jobs[job].configs[config];
        let nodes = &instance.types[wanted.kind].nodes;
        if wanted.nodes != 1 || !wanted.offered || nodes.is_empty() {
            return false;
        }
        let node = nodes[self.rng.below(nodes.len())];
        let assignment = Assignment { config, nodes: Nodes::One(node) };
        search_state.unassign(job);
        // Jobs with the least gain per GPU leave first.
        let mut there = search_state.on[node as usize].clone();
        there.sort_by(|a, b| {
            gain_per_gpu(search_state, *a).total_cmp(&gain_per_gpu(search_state, *b)).then(a.cmp(b))
        });
        let mut left = Vec::new();
        for other in there {
            if search_state.partial.ledger.fits(instance, job, &assignment).is_ok() {
                break;
            }
            search_state.unassign(other);
            left.push(other);
        }
        if search_state.partial.ledger.fits(instance, job, &assignment).is_err() {
            return false;
        }
        search_state.assign(job, assignment);
        left.reverse();
        self.reinsert(&left);
        true
    }

    /// Empties some nodes and fills them again.
    fn recreate(&mut self) -> bool {
        let count = 1 + self.rng.below(3);
        let mut pool: Vec<usize> = Vec::new();
        for _ in 0..count {
            let job = self.any_job();
            let search_state = &self.search_state;
            let node = match &search_state.partial.assignments[job] {
                Some(assignment) => assignment.nodes.as_slice().first().map_or(0, |n| *n as usize),
                None => self.rng.below(search_state.on.len()),
            };
            pool.extend(&self.search_state.on[node]);
        }
        pool.sort_unstable();
        pool.dedup();
        for &job in &pool {
            self.search_state.unassign(job);
        }
        for _ in 0..JOINING.min(self.waiting.len()) {
            let job = self.waiting[self.rng.below(self.waiting.len())];
            if !pool.contains(&job) && self.search_state.partial.assignments[job].is_none() {
                pool.push(job);
            }
        }
        if pool.is_empty() {
            return false;
        }
        let step = self.search_state.step;
        let mut keyed: Vec<(f64, usize)> = pool
            .iter()
            .map(|&job| {
                let gain = step.options[job].first().map_or(0.0, |o| (step.wait[job] - o.reduced).max(0.0));
                (gain * (0.5 + self.rng.unit_interval()), job)
            })
            .collect();
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let order: Vec<usize> = keyed.into_iter().map(|(_, job)| job).collect();
        self.reinsert(&order);
        true
    }

    fn reinsert(&mut self, jobs: &[usize]) {
        for &job in jobs {
            if let Some((_, assignment)) = self.search_state.best(job) {
                self.search_state.assign(job, assignment);
            }
        }
    }
}

/// Gain of a placed job over waiting, per GPU.
fn gain_per_gpu(search_state: &SearchState<'_, '_, '_>, job: usize) -> f64 {
    let Some(assignment) = &search_state.partial.assignments[job] else { return 0.0 };
    let gpus = search_state.step.instance.jobs[job].configs[assignment.config].total_gpus() as f64;
    (search_state.step.wait[job] - search_state.step.cost(job, assignment)) / gpus.max(1.0)
}
