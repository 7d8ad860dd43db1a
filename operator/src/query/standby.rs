//! The plan of a replica that does not lead: made from its own caches, when it is asked.
//!
//! A follower has no claims of steps. It takes them from the statuses that the leader wrote. So does the leader for jobs that no
//! step has seen yet.

use andreas_api::Phase;
use andreas_api::slim::SlimTrainingJob;
use andreas_planner::Options;
use jiff::Timestamp;

use crate::index::ClusterIndex;
use crate::ledger::Ledger;
use crate::lifecycle::pods::grace_seconds;
use crate::lifecycle::{Claim, stops_for_good};
use crate::planning::last::Latest;
use crate::planning::{self, FromLastPlan};
use crate::snapshot::Caches;

/// The claims of steps in `ledger`, and by the jobs' statuses those of all other jobs.
pub fn with_all_claims(mut ledger: Ledger, index: &ClusterIndex, now: Timestamp) -> Ledger {
    for (key, job) in index.jobs().iter() {
        let memory = ledger.entry(key, job.metadata.uid.as_deref().unwrap_or_default());
        if memory.claim().is_none() {
            memory.set_claim(claim(job, now));
        }
    }
    ledger
}

/// The claim of a job by its status.
fn claim(job: &SlimTrainingJob, now: Timestamp) -> Claim {
    let deleted = job.metadata.deletion_timestamp.is_some();
    let Some(status) = &job.status else {
        return if deleted || job.spec.suspend {
            Claim::Nothing
        } else {
            Claim::Waiting { not_before: None }
        };
    };
    let allocation = status.allocation.as_ref();
    let since = |at: Option<Timestamp>| at.unwrap_or(now);
    match status.phase {
        Phase::Suspended | Phase::Succeeded | Phase::Failed => Claim::Nothing,
        Phase::Pending if deleted || job.spec.suspend => Claim::Nothing,
        Phase::Pending => {
            Claim::Waiting { not_before: status.not_before.as_ref().map(|at| at.0).filter(|at| *at > now) }
        }
        Phase::Starting => Claim::Starting { since: since(allocation.map(|held| held.since.0)) },
        Phase::Running => Claim::Running {
            since: since(allocation.and_then(|held| held.running_time.as_ref()).map(|at| at.0)),
        },
        Phase::Stopping => {
            let stop = status.stop.as_ref();
            let asked = stop.map_or(now, |stop| stop.since.0);
            let grace = jiff::SignedDuration::from_secs(grace_seconds(&job.spec));
            Claim::Stopping {
                gone_by: asked.checked_add(grace).ok(),
                goes_on: !deleted && !job.spec.suspend && !stops_for_good(job, status),
            }
        }
    }
}

/// A plan of this replica; `None` if the planner refuses the snapshot.
pub fn plan(
    index: ClusterIndex,
    caches: Caches,
    options: &Options,
    now: Timestamp,
) -> (Caches, Option<Latest>) {
    let ledger = with_all_claims(Ledger::new(now), &index, now);
    let (caches, built, planned) =
        planning::make(&index, &ledger, caches, (FromLastPlan::default(), now), options);
    let latest = match planned {
        Ok((plan, _)) => {
            let (snapshot, options) = (built.snapshot, options.clone());
            Some(Latest { at: now, index, ledger, snapshot, options, plan, draws: built.draws })
        }
        Err(error) => {
            tracing::error!(%error, "no plan for the query API");
            None
        }
    };
    (caches, latest)
}
