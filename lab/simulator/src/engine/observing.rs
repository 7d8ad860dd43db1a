//! What the planner is shown of times and watts, and what epochs tell of them.

use andreas_model::{Seconds, Time};

use super::learning::Learner;
use super::live::ActiveJob;
use super::{Replay, TOGETHER};

impl Replay<'_> {
    /// Updates the planner's view of the jobs.
    pub(super) fn update_view(&mut self) {
        let Some(learner) = &mut self.learner else { return };
        let shared = learner.shared(self.live.iter().filter_map(|live| live.evidence.as_ref()));
        learner.refresh(self.live.iter().filter_map(|live| live.evidence.as_ref()), &shared);
        for (job, live) in self.snapshot.jobs.iter_mut().zip(&mut self.live) {
            if let Some(evidence) = &mut live.evidence {
                learner.update_view(&live.truth, evidence, &shared, job);
                let running_for = live.run.as_ref().map_or(0.0, |run| (self.now - run.ready).0.max(0.0));
                Learner::apply_unknown_rule(&live.truth, evidence, Seconds(running_for), job);
            }
            learner.count_measured(live, self.now, &mut self.power_left, job);
        }
    }

    pub(super) fn next_observation_at(&self, live: &ActiveJob) -> Option<Time> {
        if let Some(learner) = &self.learner {
            return live.first_epoch(self.now).filter(|_| learner.learning);
        }
        if !self.conditions.error.corrected {
            return None;
        }
        let run = live.run.as_ref()?;
        let trained = Seconds((self.now.0 - run.ready.0).max(0.0));
        Some(Time(self.now.0.max(run.ready.0)) + live.next_observation(trained)?)
    }

    /// Updates the predictions of jobs that completed a first epoch on a type.
    pub(super) fn learn(&mut self) {
        if self.learner.as_ref().is_some_and(|learner| learner.learning) {
            let (now, seed) = (self.now, self.conditions.error.seed);
            self.live.iter_mut().for_each(|live| live.observe(now, seed));
            return;
        }
        if !self.conditions.error.corrected {
            return;
        }
        for i in 0..self.live.len() {
            let due = self.next_observation_at(&self.live[i]).is_some_and(|at| at.0 <= self.now.0 + TOGETHER);
            let live = &mut self.live[i];
            let (true, Some(run), Some(noisy)) = (due, &live.run, &mut live.noisy) else { continue };
            noisy.measure(&run.place.gpu_type);
            self.snapshot.jobs[i].estimates = noisy.table(&live.truth.estimates).into();
        }
    }
}
