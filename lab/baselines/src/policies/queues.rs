//! Preemptive policies that only order jobs with fixed requests: Tiresias and shortest remaining time first.

use andreas_model::{Seconds, Time};
use andreas_planner::JobState;
use andreas_planner::policy::Instance;

use super::ranking::{Preference, Ranking, View, runs};
use crate::candidates;
use crate::memory::Memory;

/// Tiresias with two-dimensional least attained service (Gu et al., NSDI 2019; SymbioticLab/Tiresias at
/// 959f9b08, `simulator/`).
///
/// A job's attained service is its GPU-seconds so far. It drops to the next queue as that passes a threshold.
/// Queues are served in order, and jobs that do not fit are skipped. Inside a queue no running job is stopped
/// for a waiting one (first started, first served). A job that has waited eight times its run time returns to
/// the first queue. The length of jobs is not used.
///
/// Differences: no job is stopped before it has trained for as long as its start took. Otherwise gangs that
/// drop a queue during a start could alternate forever. The original has one GPU type. Here a job takes the
/// fastest type with room and stays on it. The original packs models with skewed tensors on few nodes and
/// spreads the others; here all are packed. The Gittins index is left out.
pub(super) struct Tiresias;

/// GPU-seconds at which a job leaves its queue (`queue_limit` of the published simulator).
const THRESHOLDS: [f64; 3] = [3250.0, 7200.0, 18_000.0];
/// Waiting time, as a multiple of run time, that makes a job new again (the paper's PROMOTEKNOB, with Voda's
/// value).
const PROMOTE: f64 = 8.0;

/// Whether it has trained for less time than its start took.
fn is_still_starting(instance: &Instance<'_>, job: usize) -> bool {
    let JobState::Running { since, .. } = &instance.jobs[job].job.state else { return false };
    (instance.snapshot.now - *since).0 < 2.0 * instance.snapshot.restart.0
}

/// Makes starved jobs new again.
fn reset_starved_jobs(memory: &mut Memory) {
    let now = memory.now;
    for job in memory.jobs.values_mut() {
        let starved = |since: Time| (now - since).0 >= PROMOTE * job.ran.0;
        if job.ran.0 > 0.0 && job.waits_since.is_some_and(starved) {
            (job.service, job.ran) = (Seconds::ZERO, Seconds::ZERO);
        }
    }
}

impl Ranking for Tiresias {
    fn prepare(&self, _: &Instance<'_>, memory: &mut Memory) {
        reset_starved_jobs(memory);
    }

    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference> {
        in_order(view, |job| {
            if is_still_starting(view.instance, job) {
                return -1.0;
            }
            let had = view.memory.job(view.instance, job).map_or(0.0, |m| m.service.0);
            THRESHOLDS.iter().filter(|t| had >= **t).count() as f64
        })
    }
}

/// Shortest remaining time first, preemptive, with known times: an oracle for mean completion times (Schrage
/// 1968). With predicted times it is as good as the predictions.
pub(super) struct Srtf;

impl Ranking for Srtf {
    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference> {
        in_order(view, |job| remaining(view.instance, job))
    }
}

/// Remaining time on the fastest requested configuration; infinite without one.
fn remaining(instance: &Instance<'_>, job: usize) -> f64 {
    let configs = candidates::fixed(instance, job);
    configs.iter().map(|c| instance.jobs[job].configs[*c].time).fold(f64::INFINITY, f64::min)
}

/// Sorts by rank, smallest first, then running jobs first, then by submission.
fn in_order(view: &View<'_, '_>, rank: impl Fn(usize) -> f64) -> Vec<Preference> {
    let submit = |job: usize| view.instance.jobs[job].job.submit;
    let mut jobs: Vec<(f64, usize)> = view.unassigned_jobs().map(|job| (rank(job), job)).collect();
    jobs.sort_by(|(x, a), (y, b)| {
        let running = runs(view, *b).cmp(&runs(view, *a));
        x.total_cmp(y).then(running).then(submit(*a).total_cmp(&submit(*b))).then(a.cmp(b))
    });
    jobs.into_iter()
        .map(|(_, job)| Preference { job, configs: candidates::fixed(view.instance, job) })
        .collect()
}
