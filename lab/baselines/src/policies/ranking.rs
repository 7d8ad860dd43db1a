//! What a policy is here: its input, its rule, and the preferences that it returns.

use andreas_model::Seconds;
use andreas_planner::policy::{Assignment, Config, Instance, PartialPlan};

use crate::candidates;
use crate::memory::Memory;
use crate::tickets::Tickets;

/// Minimum length of a round, as in Gavel.
pub(super) const ROUND: Seconds = Seconds(360.0);

/// A job and its allowed configurations, best first. A job may occur several times.
pub(super) struct Preference {
    pub job: usize,
    pub configs: Vec<usize>,
}

/// Input of a policy.
pub(super) struct View<'a, 'b> {
    pub instance: &'a Instance<'b>,
    /// The cluster without the movable jobs.
    pub base: &'a PartialPlan,
    /// Current assignments.
    pub current: &'a [Option<Assignment>],
    pub memory: &'a Memory,
    pub tickets: &'a Tickets,
}

impl View<'_, '_> {
    /// Jobs without an assignment in `base`.
    pub fn unassigned_jobs(&self) -> impl Iterator<Item = usize> {
        (0..self.instance.jobs.len()).filter(|job| self.base.assignments[*job].is_none())
    }

    /// GPUs of a type that no immovable job holds.
    pub fn free_gpus_of_type(&self, kind: usize) -> i64 {
        self.instance.types[kind].nodes.iter().map(|n| self.base.ledger.free_gpus(*n).max(0)).sum()
    }

    pub fn config(&self, job: usize, config: usize) -> &Config {
        &self.instance.jobs[job].configs[config]
    }
}

/// A rule for the order of jobs and their configurations.
pub(super) trait Ranking {
    /// Updates the memory before it is used.
    fn prepare(&self, _instance: &Instance<'_>, _memory: &mut Memory) {}

    /// Preferences, highest priority first. Jobs without one may get leftovers.
    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference>;

    /// Configurations that a job may have from the leftovers, best first.
    fn leftovers(&self, instance: &Instance<'_>, job: usize) -> Vec<usize> {
        candidates::fixed(instance, job)
    }
}

/// Configurations without power limit on a GPU type, one per number of GPUs (on the fewest nodes), in order
/// of GPUs.
pub(super) fn levels(instance: &Instance<'_>, job: usize, kind: usize) -> Vec<usize> {
    let configs = &instance.jobs[job].configs;
    let mut levels: Vec<usize> = (0..configs.len())
        .filter(|c| configs[*c].offered && configs[*c].kind == kind && configs[*c].limit.is_none())
        .collect();
    levels.sort_by_key(|c| (configs[*c].total_gpus(), configs[*c].nodes));
    levels.dedup_by_key(|c| configs[*c].total_gpus());
    levels
}

/// Whether a job holds a placement that counts as started.
pub(super) fn runs(view: &View<'_, '_>, job: usize) -> bool {
    view.current[job].is_some()
}
