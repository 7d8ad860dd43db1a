//! Fully aged jobs are placed before all others, the longest-waiting one first.
//!
//! **Idle room comes first.** A job that waits takes GPUs from running jobs only where no idle ones will do. A job that
//! runs keeps its place, or gets a better configuration that fits beside all others; no younger job displaces it.
//! Where the budget no longer allows its draw, a power limit in place comes before a restart.

use super::step::Step;
use super::{Context, HYSTERESIS};
use crate::budget;
use crate::candidates;
use crate::capacity::Capacity;
use crate::fill;
use crate::instance::{Assignment, Instance};
use crate::partial::PartialPlan;
use crate::reserve::{self, Reservation};

/// What fully aged jobs have taken.
#[derive(Default)]
pub(super) struct Served {
    /// The reservation of the first that does not fit.
    pub kept: Option<Reservation>,
    /// Capacity before any of them took more than it held; `None`: none did.
    pub before: Option<Capacity>,
}

/// The plan with every job where it is. Only aids the search for idle room, so it may be over-full.
struct Unmoved {
    plan: PartialPlan,
    /// By node: the jobs that run there.
    on: Vec<Vec<usize>>,
}

impl Unmoved {
    fn new(instance: &Instance<'_>, current: &[Option<Assignment>], base: &PartialPlan) -> Self {
        let mut unmoved = Self { plan: base.clone(), on: vec![Vec::new(); instance.nodes.len()] };
        for (job, assignment) in current.iter().enumerate() {
            if let (Some(assignment), None) = (assignment, &base.assignments[job]) {
                unmoved.plan.assign(instance, job, assignment.clone());
                assignment.nodes.as_slice().iter().for_each(|node| unmoved.on[*node as usize].push(job));
            }
        }
        // A lowered budget leaves less.
        budget::enforce(instance, &mut unmoved.plan);
        unmoved
    }

    /// Adds a job that displaces those in its way.
    fn displace(&mut self, instance: &Instance<'_>, job: usize, assignment: &Assignment, base: &PartialPlan) {
        for &node in assignment.nodes.as_slice() {
            for other in std::mem::take(&mut self.on[node as usize]) {
                if base.assignments[other].is_none() {
                    self.plan.unassign(instance, other);
                }
            }
        }
        self.plan.assign(instance, job, assignment.clone());
    }
}

impl Context<'_, '_> {
    /// Places fully aged jobs in `base`; the first that does not fit gets a reservation.
    pub(super) fn serve_fully_aged(&self, current: &[Option<Assignment>], base: &mut PartialPlan) -> Served {
        let instance = self.instance;
        let open = |job: usize| instance.jobs[job].fully_aged && base.assignments[job].is_none();
        if !(0..instance.jobs.len()).any(open) {
            return Served::default();
        }
        let queue = fill::queue(instance, base, fill::by_submission);
        let step = self.step(current, base);
        let mut unmoved = Unmoved::new(instance, current, base);
        let mut before = base.ledger.clone();
        let (mut kept, mut more) = (None, false);
        for job in queue {
            if !instance.jobs[job].fully_aged {
                break;
            }
            if let Some(held) = &current[job] {
                let present = unmoved.plan.unassign(instance, job);
                // An older job may have taken what it holds: its GPUs, or its share of a quota.
                let stays = |present: &Assignment| {
                    !base.ledger.is_displaced(instance, job, present, (&before, &base.ledger))
                };
                let goes_on = present
                    .filter(stays)
                    .and_then(|present| self.better_or_same(&step, &mut unmoved.plan, base, job, present))
                    .or_else(|| self.limited_in_place(&step, base, job, held));
                if let Some(assignment) = goes_on {
                    before.take(instance, job, held);
                    more |= assignment != *held;
                    unmoved.plan.assign(instance, job, assignment.clone());
                    base.assign(instance, job, assignment);
                    continue;
                }
            }
            let columns = &self.cost_table.items[self.cost_table.columns_of(job)];
            let mut asked = candidates::cheapest(instance, job);
            // What not even an idle cluster could hold need not be looked for.
            asked.retain(|config| columns[*config].possible());
            if asked.is_empty() {
                continue;
            }
            if unmoved.plan.place_first(instance, job, &asked) {
                let found = unmoved.plan.assignments[job].clone();
                if found.is_some_and(|assignment| base.try_put(instance, job, assignment).is_ok()) {
                    more = true;
                    continue;
                }
                unmoved.plan.unassign(instance, job);
            }
            if base.place_first(instance, job, &asked) {
                more = true;
                if let Some(assignment) = &base.assignments[job] {
                    unmoved.displace(instance, job, assignment, base);
                }
            } else if kept.is_none() {
                kept = reserve::reserve(instance, base, job, &asked);
                if let Some(kept) = &kept {
                    unmoved.plan.ledger.take(instance, job, &kept.assignment);
                }
            }
        }
        Served { kept, before: more.then_some(before) }
    }

    /// The cheapest assignment of a running job that fits beside all others: another one only if it gains enough.
    /// `None` if not even the present one is within the budget.
    fn better_or_same(
        &self,
        step: &Step<'_, '_>,
        unmoved: &mut PartialPlan,
        base: &PartialPlan,
        job: usize,
        present: Assignment,
    ) -> Option<Assignment> {
        let instance = self.instance;
        let data = &instance.jobs[job];
        let first = self.cost_table.columns_of(job).start;
        let cost = step.cost(job, &present);
        let mut best = (cost - HYSTERESIS * cost.abs(), None);
        for (config, of) in data.offered() {
            if config == present.config || !self.cost_table.items[first + config].possible() {
                continue;
            }
            let assignment = if of.same_hardware(&data.configs[present.config]) {
                Assignment { config, nodes: present.nodes.clone() }
            } else if let Ok(nodes) = unmoved.ledger.find(instance, job, config) {
                Assignment { config, nodes }
            } else {
                continue;
            };
            let cost = step.cost(job, &assignment);
            let fits = |plan: &PartialPlan| plan.ledger.fits(instance, job, &assignment).is_ok();
            if cost < best.0 && fits(unmoved) && fits(base) {
                best = (cost, Some(assignment));
            }
        }
        best.1.or_else(|| base.ledger.within_power(instance, job, &present).then_some(present))
    }

    /// The cheapest assignment on the GPUs that a job holds, at any power limit, whatever younger jobs hold.
    fn limited_in_place(
        &self,
        step: &Step<'_, '_>,
        base: &PartialPlan,
        job: usize,
        held: &Assignment,
    ) -> Option<Assignment> {
        let configs = &self.instance.jobs[job].configs;
        let alike = configs.iter().enumerate().filter(|(config, of)| {
            *config == held.config || of.offered && of.same_hardware(&configs[held.config])
        });
        alike
            .map(|(config, _)| Assignment { config, nodes: held.nodes.clone() })
            .filter(|assignment| base.ledger.fits(self.instance, job, assignment).is_ok())
            .min_by(|a, b| step.cost(job, a).total_cmp(&step.cost(job, b)).then(a.config.cmp(&b.config)))
    }
}
