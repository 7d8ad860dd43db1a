//! One future: the plan is carried out, and made again after every end of a run, with what was submitted until then.

use std::collections::VecDeque;

use andreas_core::{Seconds, Time};
use andreas_planner::{IntendedChange, Job, JobState, Options, Plan, Prices, Snapshot, SnapshotError};

use crate::dispatch;
use crate::hosts::Hosts;
use crate::job_forecast::Run;
use crate::live::{Delays, Live, NOTHING};

/// Minimum time between two plans of a future.
const APART: Seconds = Seconds(1.0);

/// Jobs that did not start for this long while nothing ran never do: windows of tariff and budget repeat each week,
/// or are means after some days, as in an operator's snapshots. A job that needs more watts than such a mean has no end in futures
/// that reach so far, though it may start in each high window.
const NEVER: Seconds = Seconds(8.0 * 86_400.0);
/// The same at the last plan of a future.
const NEVER_AT_LAST: Seconds = Seconds(86_400.0);

/// Plans at most for jobs of the snapshot that have waited for long while others came.
const LAST_PLANS: usize = 16;

/// Maximum waiting jobs that get GPUs at the end of a future; those behind them have no start.
const MAX_DISPATCHED: usize = 20_000;

/// What a future draws.
pub(crate) struct Drawn<'a> {
    /// Standard normal numbers of the snapshot's jobs.
    pub now: &'a [f64],
    /// Jobs that will be submitted, in that order.
    pub later: &'a [Job],
    /// Theirs.
    pub then: &'a [f64],
    /// The snapshot's hosts: not drawn, the same in all futures.
    pub hosts: &'a Hosts<'a>,
}

/// Simulates one future from the snapshot on. Returns the run of each job in the snapshot's order; `None` if it never
/// starts.
pub(crate) fn run(
    snapshot: &Snapshot,
    plan: &Plan,
    options: &Options,
    (plans, delays): (usize, Delays),
    drawn: &Drawn<'_>,
) -> Result<Vec<Option<Run>>, SnapshotError> {
    let mut now = snapshot.now;
    let count = snapshot.jobs.len();
    let mut all: Vec<Live<'_>> = snapshot
        .jobs
        .iter()
        .zip(drawn.now)
        .map(|(job, normal)| Live::new(job, *normal, now, delays, drawn.hosts))
        .collect();
    let mut later: VecDeque<Live<'_>> = drawn
        .later
        .iter()
        .zip(drawn.then)
        .map(|(job, normal)| Live::new(job, *normal, job.submit, delays, drawn.hosts))
        .collect();
    let tariff = &snapshot.tariff;
    let mut made: Option<Plan> = None;
    // A plan costs as much as it has jobs.
    let mut left = plans.saturating_mul(count);
    let mut idle_since = None;
    let ends = |all: Vec<Live<'_>>| all.into_iter().take(count).map(|live| live.ended).collect();
    loop {
        let plan = made.as_ref().unwrap_or(plan);
        for live in all.iter_mut().filter(|live| live.ended.is_none()) {
            if let Some(job_plan) = plan.jobs.get(&live.job.id) {
                live.apply(&job_plan.decision, now, snapshot.restart, drawn.hosts);
            }
        }
        let idle = idle_since.map_or(Seconds::ZERO, |since| now - since);
        let open = all.iter().filter(|live| live.ended.is_none()).count();
        let mut over = left < open;
        // Whether a job that waits alone ever starts does not depend on those that come.
        let alone = all[..count].iter().all(|live| live.active.is_none());
        if alone && plans > 0 && (over || idle >= NEVER_AT_LAST) && (all.len() > count || !later.is_empty()) {
            all.truncate(count);
            later.clear();
            left = left.max(LAST_PLANS.min(plans) * count);
            (over, idle_since) = (false, None);
        }
        let never = idle_since.is_some() && (idle >= NEVER || over && idle >= NEVER_AT_LAST);
        if never && all.iter().all(|live| live.active.is_none()) {
            dispatch::dispatch_rest((snapshot, drawn.hosts), &mut all, VecDeque::new(), (now, 0));
            return Ok(ends(all));
        }
        if over || all[..count].iter().all(|live| live.ended.is_some() || live.active.is_some()) {
            dispatch::dispatch_rest((snapshot, drawn.hosts), &mut all, later, (now, MAX_DISPATCHED));
            return Ok(ends(all));
        }
        let free = all.iter().filter(|live| live.ended.is_none()).filter_map(|live| Some(live.holds(now)?.1));
        let asked = plan.next_event;
        let next = free.filter(|end| end.is_finite()).reduce(Time::min).map(|end| end + delays.reaction);
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
                    dispatch::dispatch_rest((snapshot, drawn.hosts), &mut all, VecDeque::new(), (now, 0));
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
        while let Some(live) = later.pop_front_if(|live| live.job.submit <= now) {
            all.push(live);
        }
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
