//! A job that was submitted and has not ended.

use std::collections::VecDeque;
use std::sync::Arc;

use andreas_model::{Joules, Seconds, Time};
use andreas_planner::{Job, Placement};

use super::error::NoisyPredictions;
use super::learning::JobEvidence;
use super::run::Run;

const DAY: Seconds = Seconds(86_400.0);

/// True state of a job; the planner sees only its `Job`.
#[derive(Debug)]
pub(super) struct ActiveJob {
    /// Its index in the scenario.
    pub index: usize,
    /// True times, powers, deadline and weight.
    pub truth: Arc<Job>,
    /// Its present run.
    pub run: Option<Run>,
    /// Remaining epochs.
    pub epochs_left: f64,
    /// Epochs that it announces besides and never trains.
    pub unfinished: f64,
    /// Training time since the last checkpoint.
    pub unsaved: Seconds,
    /// Epochs that its last stop lost, until its next run reports.
    pub unheard_loss: Option<f64>,
    /// Its starts so far.
    pub starts: Starts,
    /// Time on its GPUs so far, without that in the queue.
    pub ran: Seconds,
    /// Energy of its GPUs so far.
    pub energy: Joules,
    /// Predictions, in replays with prediction errors.
    pub noisy: Option<NoisyPredictions>,
    /// Observations, in replays with predicted times.
    pub evidence: Option<JobEvidence>,
}

/// Starts of a job.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// The first one.
    pub first: Option<Time>,
    /// Number of those after the first.
    pub restarts: u32,
    /// Restarts of the last day after a stop by the plan, in order.
    by_plan: VecDeque<Time>,
    /// The last run ended because a node failed.
    node_failed: bool,
}

impl Starts {
    /// Whether the last run was stopped by the plan.
    pub fn was_stopped(&self) -> bool {
        self.first.is_some() && !self.node_failed
    }

    /// Records a start. Returns whether it is a restart.
    pub fn record(&mut self, now: Time) -> bool {
        if self.first.is_none() {
            self.first = Some(now);
            return false;
        }
        self.restarts += 1;
        // As in the operator, a failure does not use up the restarts that a plan may make.
        if !std::mem::take(&mut self.node_failed) {
            self.by_plan.push_back(now);
        }
        true
    }

    /// A node's failure ended the run: the plan did not cause the next restart.
    pub fn node_failed(&mut self) {
        self.node_failed = true;
    }

    /// Restarts by the plan in the last 24 hours; forgets older ones.
    pub fn by_plan_last_day(&mut self, now: Time) -> u32 {
        while self.by_plan.front().is_some_and(|at| *at + DAY <= now) {
            self.by_plan.pop_front();
        }
        u32::try_from(self.by_plan.len()).unwrap_or(u32::MAX)
    }
}

impl ActiveJob {
    /// True seconds per epoch and watts of a placement; `None` if the job cannot run there.
    pub fn pace(&self, place: &Placement) -> Option<(f64, f64)> {
        let job = &self.truth;
        let total = place.total_gpus();
        let row = job.estimates.iter().find(|r| r.gpu_type == place.gpu_type && r.gpus == total)?;
        let span = place.nodes.len();
        let spread = match span {
            1 => 1.0,
            _ => job.spread.iter().find(|s| s.nodes as usize == span)?.time_factor,
        };
        let (slower, power_factor) = match place.limit {
            None => (1.0, 1.0),
            Some(limit) => {
                let effect = job.limits.iter().find(|l| l.gpu_type == place.gpu_type && l.limit == limit)?;
                (effect.time_factor, effect.power_factor)
            }
        };
        Some((row.epoch.0 * spread * slower, row.power.0 * power_factor))
    }

    /// End of the job if it keeps its current GPUs; `None` while it holds none.
    pub fn projected_end(&self, now: Time) -> Option<Time> {
        let run = self.run.as_ref()?;
        Some(Time(run.ready.0.max(now.0) + self.epochs_left * run.pace))
    }

    /// End of its first whole epoch on an unmeasured type.
    pub fn next_observation(&self, trained: Seconds) -> Option<Seconds> {
        let (run, noisy) = (self.run.as_ref()?, self.noisy.as_ref()?);
        noisy.lacks_measurement(&run.place.gpu_type).then(|| Seconds((run.pace - trained.0).max(0.0)))
    }

    /// End of its first whole epoch on an unobserved configuration.
    pub fn first_epoch(&self, now: Time) -> Option<Time> {
        let (run, evidence) = (self.run.as_ref()?, self.evidence.as_ref()?);
        let left = (1.0 - run.epochs).max(0.0) * run.pace;
        evidence.lacks_measurement(&run.place).then(|| Time(run.ready.0.max(now.0) + left))
    }

    /// Observes the whole epochs since the last call; the seed is that of their noise.
    pub fn observe(&mut self, now: Time, seed: u64) {
        let (Some(run), Some(evidence)) = (&mut self.run, &mut self.evidence) else { return };
        // An epoch that ends with the event counts as ended.
        let whole = (run.epochs + 1e-9) as u32;
        if whole > run.observed {
            evidence.observe(run, whole - run.observed, now, (seed, self.index as u64));
            run.observed = whole;
        }
    }

    /// Trains between two instants.
    pub fn train(&mut self, from: Time, to: Time, checkpoint: Seconds) {
        let Some(run) = &mut self.run else { return };
        let drawn = Seconds((to.0 - run.draws_from.0.max(from.0)).max(0.0));
        self.energy += Joules(run.watts * drawn.0);
        self.ran += drawn;
        let trained = to.0 - run.ready.0.max(from.0);
        if trained > 0.0 {
            self.epochs_left -= trained / run.pace;
            run.epochs += trained / run.pace;
            if checkpoint.0 > 0.0 {
                self.unsaved = Seconds((self.unsaved.0 + trained) % checkpoint.0);
            }
        }
    }

    /// Stops the run; work since the last checkpoint is lost. Returns the run and the loss.
    pub fn stop(&mut self) -> Option<(Run, Seconds)> {
        let run = self.run.take()?;
        let lost = std::mem::take(&mut self.unsaved);
        self.epochs_left += lost.0 / run.pace;
        self.unheard_loss = Some(lost.0 / run.pace);
        Some((run, lost))
    }
}
