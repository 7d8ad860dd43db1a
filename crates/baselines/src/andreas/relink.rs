//! The published path relinking, from the best elite plan step by step towards each of the others.
//!
//! A step gives one job its configuration in the guiding plan, on the same or the best-fitting node, or
//! unassigns it as that plan does. The step with the best score is taken; its score is that of the best step
//! that can follow it. There are at most as many steps as nodes, and the best plan on the path is kept. In
//! the public release the pool holds one plan, so path relinking has no effect.

use andreas_planner::policy::{Assignment, PartialPlan};

use super::polish::Change;
use super::{AssignmentList, Search, WORK};

impl Search<'_, '_> {
    /// Relinks the best plan with every elite plan.
    pub(super) fn relink(&mut self) {
        let guides: Vec<AssignmentList> = self.elite.plans.iter().map(|(_, plan)| plan.clone()).collect();
        let Some((start, others)) = guides.split_first() else { return };
        for guide in others {
            let goal = self.partial(guide).assignments;
            let mut partial = self.partial(start);
            let mut met: Option<(f64, PartialPlan)> = None;
            for _ in 0..self.instance.nodes.len() {
                let Some((score, change)) = self.best_step(&mut partial, &goal) else { break };
                if self.apply(&mut partial, &change).is_none() {
                    break;
                }
                if met.as_ref().is_none_or(|(least, _)| score < *least) {
                    met = Some((score, partial.clone()));
                }
            }
            if let Some((_, partial)) = met {
                self.fill_and_offer(partial);
            }
        }
    }

    /// The best step, scored by itself or by the best step that can follow. Returns its own score.
    fn best_step(&mut self, partial: &mut PartialPlan, goal: &[Option<Assignment>]) -> Option<(f64, Change)> {
        let differs =
            |job: &usize| partial.assignments[*job] != goal[*job] && !self.instance.jobs[*job].fully_aged;
        let jobs: Vec<usize> = self.order.iter().copied().filter(differs).collect();
        let mut blocked = Vec::new();
        let mut steps: Vec<(f64, Change)> = Vec::new();
        for job in jobs {
            if self.work > 2 * WORK {
                return None;
            }
            match self.change_towards(partial, goal, job) {
                Some(change) => {
                    if let Some(score) = self.try_change(partial, &change) {
                        steps.push((score, change));
                    }
                }
                None => blocked.push(job),
            }
        }
        let mut best: Option<(f64, f64, Change)> = None;
        for (score, change) in steps {
            let mut value = score;
            if let Some(undo) = self.apply(partial, &change) {
                for job in &blocked {
                    if let Some(next) = self.change_towards(partial, goal, *job)
                        && let Some(score) = self.try_change(partial, &next)
                    {
                        value = value.min(score);
                    }
                }
                self.undo(partial, undo);
            }
            if best.as_ref().is_none_or(|(least, _, _)| value < *least) {
                best = Some((value, score, change));
            }
        }
        best.map(|(_, score, change)| (score, change))
    }

    /// The change that brings a job to its place in the guiding plan, if it fits.
    fn change_towards(
        &self,
        partial: &mut PartialPlan,
        goal: &[Option<Assignment>],
        job: usize,
    ) -> Option<Change> {
        let Some(wanted) = &goal[job] else { return Some(vec![(job, None)]) };
        let current = partial.unassign(self.instance, job);
        let found = if partial.ledger.fits(self.instance, job, wanted).is_ok() {
            Some(wanted.clone())
        } else if self.instance.jobs[job].configs[wanted.config].offered {
            let nodes = partial.ledger.find(self.instance, job, wanted.config).ok();
            nodes.map(|nodes| Assignment { config: wanted.config, nodes })
        } else {
            None
        };
        if let Some(current) = &current {
            partial.assign(self.instance, job, current.clone());
        }
        (found.is_some() && found != current).then(|| vec![(job, found)])
    }
}
