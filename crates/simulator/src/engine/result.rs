//! What a replay returns: sums over the window and the outcome of each job.

use std::collections::BTreeMap;

use andreas_core::{JobId, Money, Seconds, Time};
use andreas_planner::Job;

use super::Replay;
use super::live::ActiveJob;
use crate::outcome::{JobOutcome, Replayed, percentile};

impl Replay<'_> {
    /// Ends what still runs and sums up.
    pub(super) fn finish(mut self) -> Replayed {
        self.meter.finish(self.scenario, self.now, &mut self.sum);
        self.sum.unfinished = self.live.iter().filter(|live| self.scenario.counts(&live.truth)).count();
        for i in 0..self.live.len() {
            self.stop(i);
            let live = &self.live[i];
            self.done.push(outcome(live, None, Money::ZERO, self.scenario.counts(&live.truth)));
        }
        let mut jobs: Vec<Option<JobOutcome>> = vec![None; self.scenario.jobs.len()];
        let index: BTreeMap<&JobId, usize> =
            self.scenario.jobs.iter().enumerate().map(|(i, j): (usize, &Job)| (&j.id, i)).collect();
        for job in self.done {
            if let Some(i) = index.get(&job.id) {
                jobs[*i] = Some(job);
            }
        }
        let sum = &mut self.sum;
        self.turnarounds.sort_by(f64::total_cmp);
        let count = self.turnarounds.len().max(1) as f64;
        sum.mean_turnaround = Seconds(self.turnarounds.iter().sum::<f64>() / count);
        sum.p95_turnaround = Seconds(percentile(&self.turnarounds, 0.95));
        sum.total = sum.energy_cost + sum.tardiness_cost + sum.miss_cost + sum.turnaround_cost;
        sum.total_with_idle = sum.total + sum.idle_cost;
        sum.makespan = self.scenario.jobs.first().map_or(Seconds::ZERO, |j| self.last_end - j.submit);
        let mean = |(sum, count): (f64, usize)| (count > 0).then(|| sum / count as f64);
        (sum.mean_gap, sum.mean_missed_saving) = (mean(self.gaps), mean(self.missed_savings));
        Replayed {
            summary: self.sum,
            jobs: jobs.into_iter().flatten().collect(),
            segments: self.segments,
            power: self.meter.power,
        }
    }
}

/// The outcome of a job that ended, or did not.
pub(super) fn outcome(
    live: &ActiveJob,
    finish: Option<Time>,
    lateness_cost: Money,
    counted: bool,
) -> JobOutcome {
    JobOutcome {
        id: live.truth.id.clone(),
        submit: live.truth.submit,
        deadline: live.truth.deadline,
        start: live.start,
        finish,
        energy: live.energy,
        lateness_cost,
        restarts: live.restarts,
        counted,
    }
}
