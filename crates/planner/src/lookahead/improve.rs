//! Local search on a plan: moves are tried, kept if the plan becomes cheaper, else taken back.
//!
//! Three kinds of moves: a job to another of its options; a job onto a node whose other jobs make room for it and
//! look for new places (with an exchange of two jobs as the simplest case); and ruin and recreate: one to four
//! nodes are emptied and filled again with their jobs and some that wait (Schrimpf et al. 2000). The number of
//! trials is the budget, never the clock.

use super::desk::Desk;
use crate::dice::Dice;
use crate::instance::{Nodes, Spot};

/// Gains below this part of the plan's cost are rounding.
const ROUNDING: f64 = 1e-12;
/// Options among which one is drawn for a move.
const DRAWN: usize = 6;
/// Waiting jobs that join a recreation.
const JOINING: usize = 4;

pub(super) struct Improver<'d, 's, 'a, 'b> {
    pub desk: &'d mut Desk<'s, 'a, 'b>,
    pub dice: &'d mut Dice,
    /// Jobs that may be touched and have options.
    pub jobs: &'d [usize],
    /// Jobs that gain most by running, of those that could.
    pub waiting: Vec<usize>,
}

impl Improver<'_, '_, '_, '_> {
    /// Tries so many moves, or until the cost is good enough; says how many.
    pub fn run(mut self, trials: u64, enough: &impl Fn(f64) -> bool) -> u64 {
        if self.jobs.is_empty() || self.desk.on.is_empty() {
            return 0;
        }
        for trial in 0..trials {
            let before = self.desk.cost;
            if enough(before) {
                return trial;
            }
            let tried = match self.dice.below(10) {
                0..=3 => self.shift(),
                4..=6 => self.insert(),
                _ => self.recreate(),
            };
            if tried && self.desk.cost < before - ROUNDING * before.abs() {
                self.desk.commit();
            } else {
                self.desk.rollback(before);
            }
            if trial % 64 == 0 {
                self.refresh();
            }
        }
        trials
    }

    /// Who waits now and would gain most by running.
    fn refresh(&mut self) {
        let desk = &self.desk;
        self.waiting.clear();
        self.waiting.extend(self.jobs.iter().copied().filter(|j| desk.board.spots[*j].is_none()));
    }

    fn any_job(&mut self) -> usize {
        self.jobs[self.dice.below(self.jobs.len())]
    }

    /// A job to another option.
    fn shift(&mut self) -> bool {
        let job = self.any_job();
        let options = &self.desk.step.options[job];
        if options.is_empty() {
            return false;
        }
        let config = options[self.dice.below(options.len().min(DRAWN))].config;
        if self.desk.board.spots[job].as_ref().is_some_and(|spot| spot.config == config) {
            return false;
        }
        self.desk.lift(job);
        match self.desk.place(job, config) {
            Some(spot) => self.desk.put(job, spot),
            None => return false,
        }
        true
    }

    /// A job onto a node whose jobs make room.
    fn insert(&mut self) -> bool {
        let job = if self.waiting.is_empty() || self.dice.below(2) == 0 {
            self.any_job()
        } else {
            self.waiting[self.dice.below(self.waiting.len())]
        };
        let desk = &mut *self.desk;
        let instance = desk.step.instance;
        let options = &desk.step.options[job];
        if options.is_empty() {
            return false;
        }
        let config = options[self.dice.below(options.len().min(DRAWN))].config;
        let wanted = &instance.jobs[job].configs[config];
        let nodes = &instance.types[wanted.kind].nodes;
        if wanted.nodes != 1 || !wanted.offered || nodes.is_empty() {
            return false;
        }
        let node = nodes[self.dice.below(nodes.len())];
        let spot = Spot { config, nodes: Nodes::One(node) };
        desk.lift(job);
        // The least useful per GPU leave first.
        let mut there = desk.on[node as usize].clone();
        there.sort_by(|a, b| worth(desk, *a).total_cmp(&worth(desk, *b)).then(a.cmp(b)));
        let mut left = Vec::new();
        for other in there {
            if desk.board.ledger.fits(instance, job, &spot).is_ok() {
                break;
            }
            desk.lift(other);
            left.push(other);
        }
        if desk.board.ledger.fits(instance, job, &spot).is_err() {
            return false;
        }
        desk.put(job, spot);
        left.reverse();
        self.reinsert(&left);
        true
    }

    /// Some nodes are emptied and filled again.
    fn recreate(&mut self) -> bool {
        let count = 1 + self.dice.below(3);
        let mut pool: Vec<usize> = Vec::new();
        for _ in 0..count {
            let job = self.any_job();
            let desk = &self.desk;
            let node = match &desk.board.spots[job] {
                Some(spot) => spot.nodes.as_slice().first().map_or(0, |n| *n as usize),
                None => self.dice.below(desk.on.len()),
            };
            pool.extend(&self.desk.on[node]);
        }
        pool.sort_unstable();
        pool.dedup();
        for &job in &pool {
            self.desk.lift(job);
        }
        for _ in 0..JOINING.min(self.waiting.len()) {
            let job = self.waiting[self.dice.below(self.waiting.len())];
            if !pool.contains(&job) && self.desk.board.spots[job].is_none() {
                pool.push(job);
            }
        }
        if pool.is_empty() {
            return false;
        }
        let step = self.desk.step;
        let mut keyed: Vec<(f64, usize)> = pool
            .iter()
            .map(|&job| {
                let gain = step.options[job].first().map_or(0.0, |o| (step.wait[job] - o.reduced).max(0.0));
                (gain * (0.5 + self.dice.roll()), job)
            })
            .collect();
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let order: Vec<usize> = keyed.into_iter().map(|(_, job)| job).collect();
        self.reinsert(&order);
        true
    }

    fn reinsert(&mut self, jobs: &[usize]) {
        for &job in jobs {
            if let Some((_, spot)) = self.desk.best(job) {
                self.desk.put(job, spot);
            }
        }
    }
}

/// What a placed job saves against waiting, per GPU.
fn worth(desk: &Desk<'_, '_, '_>, job: usize) -> f64 {
    let Some(spot) = &desk.board.spots[job] else { return 0.0 };
    let gpus = desk.step.instance.jobs[job].configs[spot.config].total_gpus() as f64;
    (desk.step.wait[job] - desk.step.cost(job, spot)) / gpus.max(1.0)
}
