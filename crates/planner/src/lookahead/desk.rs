//! A plan on which moves are tried and taken back, with its cost kept up to date.

use super::step::{Choice, Step};
use crate::board::Board;
use crate::instance::{Nodes, Spot};
use crate::reserve::Reservation;

/// Most options of a job looked at when a place is sought.
const LOOKS: usize = 10;
/// Rounds of filling: each places at least one job.
const FILLS: usize = 16;

pub(super) struct Desk<'s, 'a, 'b> {
    pub step: &'s Step<'a, 'b>,
    pub board: Board,
    /// Cost of the plan as it stands.
    pub cost: f64,
    /// By node: jobs there that may be touched.
    pub on: Vec<Vec<usize>>,
    /// By job: whether it may be touched.
    pub open: &'s [bool],
    /// What moves changed since the last commit.
    journal: Vec<(usize, Option<Spot>)>,
}

impl<'s, 'a, 'b> Desk<'s, 'a, 'b> {
    pub fn new(step: &'s Step<'a, 'b>, board: Board, open: &'s [bool]) -> Self {
        let mut desk = Self {
            step,
            cost: 0.0,
            on: vec![Vec::new(); step.instance.nodes.len()],
            board,
            open,
            journal: Vec::new(),
        };
        desk.cost = desk.total();
        for job in 0..open.len() {
            desk.enter(job);
        }
        desk
    }

    fn enter(&mut self, job: usize) {
        if let (true, Some(spot)) = (self.open[job], &self.board.spots[job]) {
            for &node in spot.nodes.as_slice() {
                self.on[node as usize].push(job);
            }
        }
    }

    /// The cost, counted from scratch.
    pub fn total(&self) -> f64 {
        let jobs = 0..self.open.len();
        let of = |job: usize| match &self.board.spots[job] {
            Some(spot) => self.step.cost(job, spot),
            None => self.step.wait[job],
        };
        let nodes = (0_u32..).take(self.step.instance.nodes.len());
        jobs.map(of).sum::<f64>() + nodes.map(|n| self.lonely(n)).sum::<f64>()
    }

    fn lonely(&self, node: u32) -> f64 {
        let instance = self.step.instance;
        let used = instance.nodes[node as usize].free_gpus - self.board.ledger.free_gpus(node);
        self.step.menu.lonely(instance, node, used)
    }

    /// Empty part of the nodes that a spot touches.
    fn lonely_at(&self, spot: &Spot) -> f64 {
        spot.nodes.as_slice().iter().map(|n| self.lonely(*n)).sum()
    }

    pub fn put(&mut self, job: usize, spot: Spot) {
        let before = self.lonely_at(&spot);
        self.cost += self.step.cost(job, &spot) - self.step.wait[job] - before;
        self.board.put(self.step.instance, job, spot);
        self.enter(job);
        if let Some(spot) = &self.board.spots[job] {
            self.cost += self.lonely_at(spot);
        }
        self.journal.push((job, None));
    }

    pub fn lift(&mut self, job: usize) {
        let Some(spot) = &self.board.spots[job] else { return };
        let before = self.lonely_at(spot);
        if let Some(spot) = self.board.lift(self.step.instance, job) {
            self.cost += self.step.wait[job] - self.step.cost(job, &spot) + self.lonely_at(&spot) - before;
            for &node in spot.nodes.as_slice() {
                self.on[node as usize].retain(|j| *j != job);
            }
            self.journal.push((job, Some(spot)));
        }
    }

    /// What a placement would add to the cost.
    fn delta(&self, job: usize, spot: &Spot) -> f64 {
        let instance = self.step.instance;
        let gpus = instance.jobs[job].configs[spot.config].gpus;
        let mut delta = self.step.cost(job, spot) - self.step.wait[job];
        for &node in spot.nodes.as_slice() {
            let used = instance.nodes[node as usize].free_gpus - self.board.ledger.free_gpus(node);
            delta += self.step.menu.lonely(instance, node, used + gpus)
                - self.step.menu.lonely(instance, node, used);
        }
        delta
    }

    /// A place for an option: where the job is, if that is it, else the best fit.
    pub fn place(&mut self, job: usize, config: usize) -> Option<Spot> {
        let instance = self.step.instance;
        if let Some(present) = &self.step.present[job] {
            let configs = &instance.jobs[job].configs;
            let (old, new) = (&configs[present.config], &configs[config]);
            if old.kind == new.kind && old.gpus == new.gpus && old.nodes == new.nodes {
                let spot = Spot { config, nodes: present.nodes.clone() };
                if self.board.ledger.fits(instance, job, &spot).is_ok() {
                    return Some(spot);
                }
            }
            if !new.offered {
                return None;
            }
        }
        let nodes: Nodes = self.board.ledger.find(instance, job, config).ok()?;
        Some(Spot { config, nodes })
    }

    /// The cheapest of a job's places, looking at the first few options that fit; none if waiting is cheaper.
    pub fn best(&mut self, job: usize) -> Option<(f64, Spot)> {
        let step = self.step;
        let mut best: Option<(f64, Spot)> = None;
        let mut last = usize::MAX;
        let mut looks = 0;
        for option in &step.options[job] {
            if option.config == last {
                continue;
            }
            last = option.config;
            let limit = best.as_ref().map_or(0.0, |(d, _)| *d);
            let fills = step.menu.items[step.menu.of(job).start + option.config].fills;
            if option.cost - step.wait[job] - fills >= limit && !step.instance.jobs[job].overdue {
                continue;
            }
            if let Some(spot) = self.place(job, option.config) {
                let delta = self.delta(job, &spot);
                let wanted = delta < 0.0 || step.instance.jobs[job].overdue;
                if wanted && best.as_ref().is_none_or(|(d, _)| delta < *d) {
                    best = Some((delta, spot));
                }
                looks += 1;
                if looks >= LOOKS {
                    break;
                }
            }
        }
        best
    }

    /// Places jobs in an order, each on the first of its options at the dual's prices that fits.
    pub fn construct(&mut self, order: &[usize]) {
        let step = self.step;
        for &job in order {
            let forced = step.instance.jobs[job].overdue;
            let wanted = |o: &&Choice| o.reduced < step.wait[job] || forced;
            let found = step.options[job].iter().filter(wanted).find_map(|o| self.place(job, o.config));
            if let Some(spot) = found {
                self.put(job, spot);
            }
        }
    }

    /// Places whoever is cheaper placed than waiting, until nobody is. Room that is kept for another job is used by
    /// those that are expected to be done before it is needed.
    pub fn fill(&mut self, queue: &[usize], kept: Option<&Reservation>) {
        for _ in 0..FILLS {
            let mut placed = false;
            for &job in queue {
                if self.board.spots[job].is_some() || kept.is_some_and(|k| k.job == job) {
                    continue;
                }
                if let Some((_, spot)) = self.best(job) {
                    self.put(job, spot);
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
        // Nobody else can use it until then: its price does not count.
        let items = step.menu.of(job).start;
        let mut short: Vec<(f64, usize)> = (0..step.menu.of(job).len())
            .filter(|c| instance.jobs[job].configs[*c].offered && step.menu.items[items + c].possible())
            .filter(|c| crate::candidates::run(instance, job, *c) <= kept.ready)
            .map(|c| (step.menu.now(items + c), c))
            .filter(|(cost, _)| *cost < step.wait[job])
            .collect();
        short.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.board.ledger.release(instance, kept.job, &kept.spot);
        let found = short.into_iter().find_map(|(_, config)| self.place(job, config));
        self.board.ledger.take(instance, kept.job, &kept.spot);
        let Some(spot) = found else { return false };
        self.put(job, spot);
        true
    }

    /// Keeps what was done since the last commit.
    pub fn commit(&mut self) {
        self.journal.clear();
    }

    /// Takes back what was done since the last commit; `cost` is what it was then.
    pub fn rollback(&mut self, cost: f64) {
        while let Some((job, old)) = self.journal.pop() {
            let now = self.board.lift(self.step.instance, job);
            for node in now.iter().flat_map(|s| s.nodes.as_slice()) {
                self.on[*node as usize].retain(|j| *j != job);
            }
            if let Some(old) = old {
                self.board.put(self.step.instance, job, old);
                self.enter(job);
            }
        }
        self.cost = cost;
    }
}
