//! A plan in the making: which job has which spot, with the ledger that says what is left.

use crate::instance::{Holding, Instance, Spot};
use crate::ledger::{Ledger, Obstacle};

#[derive(Clone)]
pub(crate) struct Board {
    pub ledger: Ledger,
    /// By job.
    pub spots: Vec<Option<Spot>>,
}

impl Board {
    /// What no method may touch: commitments, jobs that are leaving, and running jobs that `keep` names.
    pub fn new(instance: &Instance<'_>, keep: impl Fn(usize, bool) -> bool) -> Self {
        let mut board = Self { ledger: Ledger::empty(instance), spots: vec![None; instance.jobs.len()] };
        for (job, data) in instance.jobs.iter().enumerate() {
            match &data.holding {
                Holding::Nothing => {}
                Holding::Leaving { spot } => board.ledger.take_leaving(instance, job, spot),
                Holding::Committed { target, leaving } => {
                    if let Some(leaving) = leaving {
                        board.ledger.take_leaving(instance, job, leaving);
                    }
                    board.put(instance, job, target.clone());
                }
                Holding::Running { spot, free_to_move } => {
                    if keep(job, *free_to_move) {
                        board.put(instance, job, spot.clone());
                    }
                }
            }
        }
        board
    }

    /// What may not be touched once an earlier decision has been carried out: jobs are at `present`.
    pub fn after(instance: &Instance<'_>, present: &[Option<Spot>], touchable: &[bool]) -> Self {
        let mut board = Self::new(instance, |_, _| false);
        for (job, spot) in present.iter().enumerate() {
            // A commitment may have been taken back, or got another limit, to keep the power budget.
            if touchable[job] || board.spots[job] != *spot {
                board.lift(instance, job);
            }
            if let (Some(spot), false, None) = (spot, touchable[job], &board.spots[job]) {
                board.put(instance, job, spot.clone());
            }
        }
        board
    }

    /// Gives a job a spot, whether there is room or not.
    pub fn put(&mut self, instance: &Instance<'_>, job: usize, spot: Spot) {
        self.ledger.take(instance, job, &spot);
        if let Some(leaving) = instance.jobs[job].leaving() {
            self.ledger.credit_overlap(instance, job, (leaving, &spot), 1);
        }
        self.spots[job] = Some(spot);
    }

    /// Gives a job a spot if there is room.
    pub fn try_put(&mut self, instance: &Instance<'_>, job: usize, spot: Spot) -> Result<(), Obstacle> {
        self.ledger.fits(instance, job, &spot)?;
        self.put(instance, job, spot);
        Ok(())
    }

    /// Takes a job's spot away.
    pub fn lift(&mut self, instance: &Instance<'_>, job: usize) -> Option<Spot> {
        let spot = self.spots[job].take()?;
        if let Some(leaving) = instance.jobs[job].leaving() {
            self.ledger.credit_overlap(instance, job, (leaving, &spot), -1);
        }
        self.ledger.release(instance, job, &spot);
        Some(spot)
    }

    /// Gives a job the first configuration that fits anywhere.
    pub fn place_first(&mut self, instance: &Instance<'_>, job: usize, configs: &[usize]) -> bool {
        for &config in configs {
            if let Ok(nodes) = self.ledger.find(instance, job, config) {
                self.put(instance, job, Spot { config, nodes });
                return true;
            }
        }
        false
    }
}
