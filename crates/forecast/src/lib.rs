//! Start and end of every job by sampling: the plan run forward into several futures.
//!
//! **In**: a snapshot with its plan, and the planner's options. **Out**: for every job the start, the end and the configuration in each future, and from these quantiles, the probability of being on
//! time, and costs ([`JobForecast`]).
//!
//! A future draws the length of every run from its estimate ([`lengths`]). Then it carries the plan out, plans
//! again after the next end of a run, and so on ([`forward`]).
//! After the work of [`Settings::plans`] plans the jobs that still wait take GPUs in turn, nearest deadline first
//! ([`dispatch`]); large clusters are forecast by this alone.
//! The draws depend on seed, future and job only, so two snapshots that differ in one job share all other
//! draws: their difference is the effect of that job.
//!
//! A forecast counts from the instant of its snapshot. [`later`] moves a snapshot to the present for an answer
//! between two plans.
//!
//! **Not modelled**: failures, later submissions, the start-up of pods. [`dispatch`] also ignores fragmentation, quotas and the power budget.
//!
//! **Not allowed**: I/O, clocks, threads, random numbers without a seed from the caller.

mod calibration;
mod dispatch;
mod forward;
mod hosts;
mod job_forecast;
mod later;
mod lengths;
mod live;

use std::collections::BTreeMap;

use andreas_model::{JobId, Time};
use andreas_planner::{Options, Plan, Snapshot, SnapshotError};

pub use calibration::Calibration;
pub use job_forecast::{JobForecast, Quantiles, Run};
pub use later::advanced_to;

/// Maximum futures of a forecast.
pub const MAX_FUTURES: usize = 64;

/// How much is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Futures, 1 to [`MAX_FUTURES`].
    pub futures: usize,
    /// Plans in each future, of as many jobs as the snapshot has, before the jobs that still wait take GPUs in turn. A plan with
    /// more jobs counts for more than one.
    pub plans: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Settings {
    /// Settings for a snapshot of this size: `work` is the number of futures times jobs times plans.
    #[must_use]
    pub fn within(work: usize, futures: usize, jobs: usize) -> Self {
        let futures = futures.clamp(1, MAX_FUTURES);
        Self { futures, plans: work / futures / jobs.max(1), seed: 0 }
    }
}

/// The futures of all jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The instant of the snapshot.
    pub now: Time,
    /// Number of futures.
    pub futures: usize,
    /// By job.
    pub jobs: BTreeMap<JobId, JobForecast>,
}

impl Forecast {
    /// Replaces the quantiles of the finish of all jobs by calibrated ones.
    pub fn correct(&mut self, calibration: &Calibration) {
        for job in self.jobs.values_mut() {
            job.finish = calibration.corrected(&job.sampled_finish, self.now);
        }
    }

    /// The forecast of a job; `None` if the snapshot lacks it.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<&JobForecast> {
        self.jobs.get(id)
    }
}

/// Samples the futures of a snapshot whose plan is `plan`.
///
/// # Errors
/// [`SnapshotError`] for a snapshot that the planner refuses.
pub fn sample(
    snapshot: &Snapshot,
    plan: &Plan,
    options: &Options,
    settings: &Settings,
) -> Result<Forecast, SnapshotError> {
    let futures = settings.futures.clamp(1, MAX_FUTURES);
    let lengths = lengths::Lengths::new(&snapshot.jobs, futures, settings.seed);
    let hosts = hosts::Hosts::new(snapshot);
    let mut jobs: Vec<Vec<Option<Run>>> = vec![Vec::with_capacity(futures); snapshot.jobs.len()];
    for future in 0..futures {
        let normals: Vec<f64> = (0..snapshot.jobs.len()).map(|job| lengths.normal(job, future)).collect();
        let runs = forward::run(snapshot, plan, options, settings.plans, (&normals, &hosts))?;
        for (all, run) in jobs.iter_mut().zip(runs) {
            all.push(run);
        }
    }
    let jobs =
        snapshot.jobs.iter().zip(jobs).map(|(job, runs)| {
            (job.id.clone(), JobForecast::new(job, &snapshot.lateness, snapshot.now, runs))
        });
    Ok(Forecast { now: snapshot.now, futures, jobs: jobs.collect() })
}

#[cfg(test)]
mod tests;
