//! What not knowing the future cost: once an hour, the cost of the jobs that ended in the last day, above a lower bound of
//! what they could have cost.
//!
//! **In**: the watched objects. The statuses of ended jobs are all the memory there is: after a restart nothing is lost, and
//! a job that its `ttlSecondsAfterFinished` has deleted counts no more. **Out**: [`Hindsight`] for the metrics.
//!
//! Both sides count the same terms, of the jobs that succeeded:
//!
//! | term | the cost | the bound ([`andreas_planner::clairvoyant`]) |
//! |---|---|---|
//! | energy of GPUs and of the share of hosts | as billed, of all attempts | of the best configurations, at the best times |
//! | tardiness, miss, time in the system | at their end, by the weight without ageing | at the best ends |
//!
//! Idle draw is on neither side. Prices and weights are those of the present policy; energy is as it was billed.
//!
//! The bound knows only the jobs that are counted. It knows no restarts, no failures, no nodes (only how many GPUs of each
//! type there are), no power budget and no quota. All that makes it lower: the true regret is at most what is shown, as far
//! as predictions are right. Times and watts are as now predicted, scaled for each job so that its own run fits. Whatever the
//! predictions are, the bound is not above the cost. Power limits are no choice: each run keeps the one it had.
//!
//! **Never here**: decisions. Nothing waits for this; it runs on a blocking thread and works on a copy.

mod ended;

use std::sync::Arc;
use std::time::Duration;

use andreas_core::Money;
use andreas_planner::clairvoyant::KnownJobs;
use andreas_runtime::clock;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::metrics::Hindsight;
use crate::predict::Tables;
use crate::predict::learner::Learner;
use crate::shared::Shared;

/// Interval of the figures.
const EVERY: Duration = Duration::from_secs(3_600);
/// The same while no job has ended lately.
const UNTIL_FIRST: Duration = Duration::from_secs(60);
/// Rounds of the search for the bound: some seconds for a thousand jobs.
const ROUNDS: usize = 60;

/// Counts until `shutdown`.
pub async fn run(shared: Arc<Shared>, learner: Learner, shutdown: CancellationToken) {
    let mut pause = UNTIL_FIRST;
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = shutdown.cancelled() => return,
        }
        let index = shared.index.lock().for_plan();
        let mut tables = Tables::learning(learner.clone());
        let work = tokio::task::spawn_blocking(move || {
            let ended = ended::known_jobs(&index, &mut tables, clock::now());
            (ended.is_some(), ended.and_then(hindsight))
        });
        let found = tokio::select! {
            found = work => found,
            () = shutdown.cancelled() => return,
        };
        match found {
            Ok((ended, found)) => {
                pause = if ended { EVERY } else { UNTIL_FIRST };
                shared.metrics.set_hindsight(found);
            }
            Err(error) => {
                pause = EVERY;
                tracing::error!(%error, "what ended jobs could have cost was not computed");
            }
        }
    }
}

/// The figures of these jobs, which cost so much; `None` where none could have cost anything.
fn hindsight((known, cost): (KnownJobs, Money)) -> Option<Hindsight> {
    let bound = known.bound(ROUNDS).0;
    (bound > 0.0).then(|| Hindsight { jobs: known.jobs.len(), regret: cost.0 / bound - 1.0 })
}

#[cfg(test)]
mod tests;
