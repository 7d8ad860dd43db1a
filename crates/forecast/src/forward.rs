//! One future: the plan is carried out, and made again after every end of a run.

use andreas_model::{Seconds, Time};
use andreas_planner::{IntendedChange, Job, JobState, Options, Plan, Prices, Snapshot, SnapshotError};

use crate::dispatch;
use crate::hosts::Hosts;
use crate::job_forecast::Run;
use crate::live::{Live, NOTHING};

/// Minimum time between two plans of a future.
const APART: Seconds = Seconds(1.0);

/// Jobs that did not start for this long while nothing ran never do: windows of tariff and budget repeat each week,
/// or are means after some days, as in an operator's snapshots. A job that needs more watts than such a mean has no end in futures
/// that reach so far, though it may start in each high window.
const NEVER: Seconds = Seconds(8.0 * 86_400.0);
/// The same at the last plan of a future.
const NEVER_AT_LAST: Seconds = Seconds(86_400.0);

/// Maximum waiting jobs that get GPUs at the end of a future; those behind them have no start.
const MAX_DISPATCHED: usize = 20_000;

/// Simulates one future from the snapshot on, with a standard normal number of each job. Returns the run of each job in the snapshot's order; `None` if it never
/// starts.
pub(crate) fn run(
    snapshot: &Snapshot,
    plan: &Plan,
    options: &Options,
    plans: usize,
    (normals, hosts): (&[f64], &Hosts<'_>),
) -> Result<Vec<Option<Run>>, SnapshotError> {
    let mut now = snapshot.now;
    let count = snapshot.jobs.len();
    let jobs = snapshot.jobs.iter().zip(normals);
    let mut all: Vec<Live<'_>> = jobs.map(|(job, normal)| Live::new(job, *normal, now, hosts)).collect();
    let tariff = &snapshot.tariff;
    let mut made: Option<Plan> = None;
    // A plan costs as much as it has jobs.
    let mut left = plans.saturating_mul(count);
    let mut idle_since = None;
    let ends = |all: Vec<Live<'_>>| all.into_iter().map(|live| live.ended).collect();
    loop {
        let plan = made.as_ref().unwrap_or(plan);
        for live in all.iter_mut().filter(|live| live.ended.is_none()) {
            if let Some(job_plan) = plan.jobs.get(&live.job.id) {
                live.apply(&job_plan.decision, now, snapshot.restart, hosts);
            }
        }
        let idle = idle_since.map_or(Seconds::ZERO, |since| now - since);
        let open = all.iter().filter(|live| live.ended.is_none()).count();
        let over = left < open;
        let alone = all.iter().all(|live| live.active.is_none());
        let never = idle_since.is_some() && (idle >= NEVER || over && idle >= NEVER_AT_LAST);
        if never && alone {
            dispatch::dispatch_rest((snapshot, hosts), &mut all, (now, 0));
            return Ok(ends(all));
        }
        if over || all.iter().all(|live| live.ended.is_some() || live.active.is_some()) {
            dispatch::dispatch_rest((snapshot, hosts), &mut all, (now, MAX_DISPATCHED));
            return Ok(ends(all));
        }
        let free = all.iter().filter(|live| live.ended.is_none()).filter_map(|live| Some(live.holds(now)?.1));
        let asked = plan.next_event;
        let next = free.filter(|end| end.is_finite()).reduce(Time::min);
        let edge = tariff
            .next_edge(now)
            .into_iter()
            .chain(snapshot.budget.as_ref().and_then(|budget| budget.watts.next_edge(now)));
        let next = match next {
            Some(end) => {
                if alone {
                    idle_since.get_or_insert(now);
                } else {
                    idle_since = None;
                }
                edge.fold(end, Time::min)
            }
            // All jobs wait: for an edge of tariff or budget, or for what the plan waits for.
            None => match edge.chain(asked).reduce(Time::min) {
                Some(at) => {
                    idle_since.get_or_insert(now);
                    at
                }
                // Nothing will ever happen: what waits has no start.
                None => {
                    dispatch::dispatch_rest((snapshot, hosts), &mut all, (now, 0));
                    return Ok(ends(all));
                }
            },
        };
        let next = next.max(now + APART);
        for live in all.iter_mut().filter(|live| live.ended.is_none()) {
            live.advance(now, next, tariff);
        }
        now = next;
        left = left.saturating_sub(open);
        let kept = (plan.prices.clone(), plan.intended.clone());
        made = Some(andreas_planner::plan(&snapshot_at(snapshot, &all, now, kept), options)?);
    }
}

/// The simulated state at `now` as a planner's snapshot.
fn snapshot_at(
    snapshot: &Snapshot,
    all: &[Live<'_>],
    now: Time,
    (prices, intended): (Option<Prices>, Vec<IntendedChange>),
) -> Snapshot {
    let jobs = all.iter().filter(|live| live.ended.is_none()).map(|live| Job {
        epochs_left: live.epochs_left.max(NOTHING),
        state: match (&live.active, &live.leaving) {
            (Some(active), _) => JobState::Running { placement: active.place.clone(), since: active.since },
            (None, Some((place, until))) if *until > now => {
                JobState::Stopping { holds: place.clone(), target: None, gone_by: *until }
            }
            _ => JobState::Waiting,
        },
        ..live.job.clone()
    });
    // Only small snapshots are planned in a future, so a whole copy is cheap.
    Snapshot { now, jobs: jobs.collect(), prices, intended, ..snapshot.clone() }
}
