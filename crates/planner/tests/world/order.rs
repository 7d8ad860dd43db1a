//! What is held and drawn at each instant while a plan is carried out, and a cluster in which that happens bit by bit.

use std::collections::BTreeSet;

use andreas_model::{JobId, Seconds};
use andreas_planner::{Decision, Job, JobState, Placement, Plan, Preemption, Snapshot};
use proptest::prelude::*;

use super::{Held, draw, fits, idle_and_hosts};

/// What a job holds now.
pub fn holds(job: &Job) -> Option<&Placement> {
    match &job.state {
        JobState::Running { placement: p, .. } | JobState::Stopping { holds: p, .. } => Some(p),
        JobState::Starting { target, .. } => (!job.promised).then_some(target),
        JobState::Waiting => None,
    }
}

/// Whether a job gives up what it holds.
fn leaves(job: &Job, goes: Option<&Placement>) -> bool {
    let stops = matches!(job.state, JobState::Stopping { .. });
    holds(job).is_some_and(|held| stops || !goes.is_some_and(|goes| goes.same_gpus(held)))
}

/// What is held when these jobs have left, and whatever the plan lets start then has started.
fn held_when(snapshot: &Snapshot, plan: &Plan, gone: &BTreeSet<JobId>, starts: bool) -> Held {
    let mut held = Held::new();
    for (i, job) in snapshot.jobs.iter().enumerate() {
        let decided = &plan.jobs[&job.id];
        let goes = decided.decision.placement();
        let here = holds(job);
        if here.is_some() && !leaves(job, goes) {
            // Where it is, at the power limit of the plan.
            let waits = matches!(job.state, JobState::Starting { .. })
                && !decided.after.iter().all(|j| gone.contains(j));
            held.extend(goes.filter(|_| !waits).map(|goes| (i, goes.clone())));
            continue;
        }
        let here = here.filter(|_| !gone.contains(&job.id));
        let may_start = starts && here.is_none() && decided.after.iter().all(|other| gone.contains(other));
        held.extend(here.or(goes.filter(|_| may_start)).map(|place| (i, place.clone())));
    }
    held
}

/// Draw with these placements, in the scope of the budget.
fn drawn(snapshot: &Snapshot, held: &Held) -> f64 {
    let jobs: f64 = held.iter().map(|(i, place)| draw(&snapshot.jobs[*i], place)).sum();
    (jobs + idle_and_hosts(snapshot, held)) * snapshot.budget.as_ref().map_or(1.0, |b| b.scope_factor)
}

/// Whoever has left of those who leave: what has started by then fits, or takes nothing of what is held too much.
pub fn audit_order(snapshot: &Snapshot, plan: &Plan, pick: u64) -> Result<(), TestCaseError> {
    let leaving: Vec<JobId> = snapshot
        .jobs
        .iter()
        .filter(|job| leaves(job, plan.jobs[&job.id].decision.placement()))
        .map(|job| job.id.clone())
        .collect();
    for job in &snapshot.jobs {
        let after = &plan.jobs[&job.id].after;
        prop_assert!(after.is_sorted() && !after.contains(&job.id));
        let waits_for_who_leaves = after.iter().all(|other| leaving.contains(other));
        prop_assert!(waits_for_who_leaves || holds(job).is_some(), "{} waits for {after:?}", job.id);
    }
    let subset = |bits: u64| -> BTreeSet<JobId> {
        leaving
            .iter()
            .enumerate()
            .filter(|(i, _)| bits >> (i % 64) & 1 == 1)
            .map(|(_, job)| job.clone())
            .collect()
    };
    let one_by_one = (0..=leaving.len().min(63)).map(|count| (1 << count) - 1);
    for bits in one_by_one.chain([u64::MAX, pick, !pick, pick.rotate_left(17) & pick]) {
        let gone = subset(bits);
        let (before, with) =
            (held_when(snapshot, plan, &gone, false), held_when(snapshot, plan, &gone, true));
        // Promises and lowered budgets apart, nobody holds too much.
        prop_assert!(
            !fits(snapshot, &before, true) || fits(snapshot, &with, true),
            "{gone:?} left: {:#?}",
            plan.jobs
        );
        if let Some(allowed) = plan.allowed_power {
            let (idle, watts) = (drawn(snapshot, &before), drawn(snapshot, &with));
            let most = idle.max(allowed.0) + 1e-3;
            prop_assert!(
                watts <= most,
                "{watts} W of {allowed}, {idle} W without starts, when {gone:?} left: {:#?}",
                plan.jobs
            );
        }
    }
    Ok(())
}

/// A later instant: of what the plan decided, these bits say what has happened. Whoever is told to stop may end at once or take its
/// time; whoever may start does so soon or later; some who were not told yet may not be stopped any more.
pub fn carried_out_in_part(snapshot: &Snapshot, plan: &Plan, mut bits: u64) -> Snapshot {
    let mut happens = |one_in: u64| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (bits >> 33).is_multiple_of(one_in)
    };
    let mut next = snapshot.clone();
    let now = snapshot.now;
    let gone_by = now + Seconds(60.0);
    let mut gone = BTreeSet::new();
    for job in &mut next.jobs {
        let goes = plan.jobs[&job.id].decision.placement().cloned();
        if !leaves(job, goes.as_ref()) {
            continue;
        }
        let Some(holds) = holds(job).cloned() else { continue };
        if matches!(job.state, JobState::Stopping { .. }) && happens(2) {
            gone.insert(job.id.clone());
            job.state = JobState::Waiting;
        } else if matches!(job.state, JobState::Stopping { .. }) || happens(2) {
            job.state = JobState::Stopping { holds, target: goes, gone_by };
            job.promised = false;
        } else if happens(4) {
            job.preemption = Preemption::Never;
        }
    }
    for job in &mut next.jobs {
        let decided = &plan.jobs[&job.id];
        match (&mut job.state, &decided.decision) {
            (JobState::Stopping { .. }, _) => {}
            (JobState::Running { placement, .. }, Decision::Run(goes)) if placement.same_gpus(goes) => {
                *placement = goes.clone();
            }
            (JobState::Running { .. }, _) => {}
            (JobState::Starting { target, .. }, decision) if !job.promised => {
                // Whoever was not told yet to leave is where it was.
                if let Some(goes) = decision.placement().filter(|goes| goes.same_gpus(target)).cloned() {
                    job.state = JobState::Running { placement: goes, since: now };
                }
            }
            (_, Decision::Run(goes)) => {
                let may_start = decided.after.iter().all(|other| gone.contains(other));
                let starts = may_start && happens(2);
                job.promised = !starts;
                job.state = match happens(2) {
                    true if starts => JobState::Running { placement: goes.clone(), since: now },
                    _ => JobState::Starting { target: goes.clone(), since: now },
                };
            }
            (state, Decision::Wait { .. }) => {
                *state = JobState::Waiting;
                job.promised = false;
            }
        }
    }
    next
}

/// What is held now, whoever starts next.
pub fn now_held(snapshot: &Snapshot) -> Held {
    let held = |(i, job): (usize, &Job)| holds(job).map(|place| (i, place.clone()));
    snapshot.jobs.iter().enumerate().filter_map(held).collect()
}

/// Whether what is held fits, and its draw.
pub fn use_now(snapshot: &Snapshot) -> (bool, f64) {
    let held = now_held(snapshot);
    (fits(snapshot, &held, true), drawn(snapshot, &held))
}
