//! A plan in the making: which job has which spot, with the ledger that says what is left.

use crate::capacity::{Capacity, Obstacle};
use crate::instance::{Assignment, Holding, Instance};

#[derive(Clone)]
pub(crate) struct PartialPlan {
    pub ledger: Capacity,
    /// By job.
    pub assignments: Vec<Option<Assignment>>,
}

impl PartialPlan {
    /// What no method may touch: commitments, jobs that are leaving, and running jobs that `keep` names.
    pub fn new(instance: &Instance<'_>, keep: impl Fn(usize, bool) -> bool) -> Self {
        let mut partial =
            Self { ledger: Capacity::empty(instance), assignments: vec![None; instance.jobs.len()] };
        for (job, data) in instance.jobs.iter().enumerate() {
            match &data.holding {
                Holding::Nothing => {}
                Holding::Leaving { assignment } => partial.ledger.take_leaving(instance, job, assignment),
                Holding::Committed { target, leaving } => {
                    if let Some(leaving) = leaving {
                        partial.ledger.take_leaving(instance, job, leaving);
                    }
                    partial.assign(instance, job, target.clone());
                }
                Holding::Running { assignment, free_to_move } => {
                    if keep(job, *free_to_move) {
                        partial.assign(instance, job, assignment.clone());
                    }
                }
            }
        }
        partial
    }

    /// What may not be touched once an earlier decision has been carried out: jobs are at `present`.
    pub fn after(instance: &Instance<'_>, present: &[Option<Assignment>], touchable: &[bool]) -> Self {
        let mut partial = Self::new(instance, |_, _| false);
        for (job, assignment) in present.iter().enumerate() {
            // A commitment may have been taken back, or got another limit, to keep the power budget.
            if touchable[job] || partial.assignments[job] != *assignment {
                partial.unassign(instance, job);
            }
            if let (Some(assignment), false, None) = (assignment, touchable[job], &partial.assignments[job]) {
                partial.assign(instance, job, assignment.clone());
            }
        }
        partial
    }

    /// Gives a job a spot, whether there is room or not.
    pub fn assign(&mut self, instance: &Instance<'_>, job: usize, assignment: Assignment) {
        self.ledger.take(instance, job, &assignment);
        if let Some(leaving) = instance.jobs[job].leaving() {
            self.ledger.credit_overlap(instance, job, (leaving, &assignment), 1);
        }
        self.assignments[job] = Some(assignment);
    }

    /// Gives a job a spot if there is room.
    pub fn try_put(
        &mut self,
        instance: &Instance<'_>,
        job: usize,
        assignment: Assignment,
    ) -> Result<(), Obstacle> {
        self.ledger.fits(instance, job, &assignment)?;
        self.assign(instance, job, assignment);
        Ok(())
    }

    /// Takes a job's spot away.
    pub fn unassign(&mut self, instance: &Instance<'_>, job: usize) -> Option<Assignment> {
        let assignment = self.assignments[job].take()?;
        if let Some(leaving) = instance.jobs[job].leaving() {
            self.ledger.credit_overlap(instance, job, (leaving, &assignment), -1);
        }
        self.ledger.release(instance, job, &assignment);
        Some(assignment)
    }

    /// Gives a job the first configuration that fits anywhere.
    pub fn place_first(&mut self, instance: &Instance<'_>, job: usize, configs: &[usize]) -> bool {
        for &config in configs {
            if let Ok(nodes) = self.ledger.find(instance, job, config) {
                self.assign(instance, job, Assignment { config, nodes });
                return true;
            }
        }
        false
    }
}
