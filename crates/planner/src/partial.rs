//! A plan under construction: the assignment of each job, and the remaining capacity.

use crate::capacity::{Capacity, Obstacle};
use crate::instance::{Assignment, Holding, Instance};

/// A plan under construction.
#[derive(Clone)]
pub struct PartialPlan {
    /// What its assignments leave free. Only a reservation changes it directly.
    pub ledger: Capacity,
    /// By job: its assignment, if it has one.
    pub assignments: Vec<Option<Assignment>>,
}

impl PartialPlan {
    /// A plan with the immovable jobs only: commitments, leaving jobs, and running jobs selected by `keep`,
    /// which gets the job and whether it may be moved.
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

    /// A plan with the jobs that stay immovable after an earlier decision; jobs are at `current`.
    pub fn after(instance: &Instance<'_>, current: &[Option<Assignment>], movable: &[bool]) -> Self {
        let mut partial = Self::new(instance, |_, _| false);
        for (job, assignment) in current.iter().enumerate() {
            // A commitment may have been withdrawn or limited to meet the power budget.
            if movable[job] || partial.assignments[job] != *assignment {
                partial.unassign(instance, job);
            }
            if let (Some(assignment), false, None) = (assignment, movable[job], &partial.assignments[job]) {
                partial.assign(instance, job, assignment.clone());
            }
        }
        partial
    }

    /// Assigns a job without checking capacity.
    pub fn assign(&mut self, instance: &Instance<'_>, job: usize, assignment: Assignment) {
        self.ledger.take(instance, job, &assignment);
        if let Some(leaving) = instance.jobs[job].leaving() {
            self.ledger.credit_overlap(instance, job, (leaving, &assignment), 1);
        }
        self.assignments[job] = Some(assignment);
    }

    /// Assigns a job if it fits.
    ///
    /// # Errors
    /// The first [`Obstacle`]; then nothing is changed.
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

    /// Removes the assignment of a job and returns it.
    pub fn unassign(&mut self, instance: &Instance<'_>, job: usize) -> Option<Assignment> {
        let assignment = self.assignments[job].take()?;
        if let Some(leaving) = instance.jobs[job].leaving() {
            self.ledger.credit_overlap(instance, job, (leaving, &assignment), -1);
        }
        self.ledger.release(instance, job, &assignment);
        Some(assignment)
    }

    /// Assigns a job to its first configuration that fits anywhere. Returns whether there is one.
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
