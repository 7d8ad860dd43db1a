//! The end of an attempt: its record, the counters, profile updates and the next phase.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::names;
use andreas_api::phase::condition;
use andreas_api::slim::SlimPod;
use andreas_api::training_job::{Allocation, AttemptRecord, Consumption, Progress};
use andreas_api::training_profile::{FinishedRun, Observation, ObservedRestart};
use andreas_api::{Outcome, Phase, Reason};
use andreas_cluster::instants::{self, after, seconds_between};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::action::{Action, DeleteReason, ProfileUpdate};
use super::draft::{Draft, MAX_UNEXPLAINED};
use super::ends;
use super::judge::Judgement;
use super::member::{Members, is_over, number};
use super::status::{self, ConditionValue, energy_text, money_text};

/// Maximum attempts in a status's history.
const HISTORY: usize = 16;
/// Restarts are counted over so long (`snapshot::restarts`), s.
const DAY: i64 = 86_400;
/// Maximum consecutive withdrawn attempts of the same reason among them.
const WITHDRAWN_IN_A_ROW: usize = 6;
/// Initial backoff after a cluster failure, a second user failure and a refusal, s.
const AFTER_CLUSTER: i64 = 5;
const AFTER_USER: i64 = 10;
const AFTER_REFUSAL: i64 = 10;
/// A run without reports of progress that lasted so long was a good one, s.
const LONG_RUN: i64 = 3_600;
/// Thousandths of an epoch that must be timed before a pace counts as measured.
const MIN_TIMED: i64 = 100;
/// Maximum backoff, s.
const MAX_BACK_OFF: i64 = 300;
/// Maximum seconds of an observed restart, as in the schema.
const MAX_RESTART: i64 = 3_600;

/// Reasons in the record of an attempt, by its outcome. The set is closed, so that counters of ended attempts can begin at 0 for each.
pub const ENDS: [(Outcome, &[Reason]); 5] = [
    (Outcome::Finished, &[Reason::Completed, Reason::CompletedEarly]),
    (
        Outcome::Stopped,
        &[
            Reason::Preempted,
            Reason::PowerBudget,
            Reason::BudgetInfeasible,
            Reason::DeferredForEnergy,
            Reason::Suspended,
            Reason::Stopping,
        ],
    ),
    // The last two: cluster failures in a row that no fault of a node explains.
    (
        Outcome::UserFailure,
        &[
            Reason::ContainerFailed,
            Reason::OutOfMemory,
            Reason::UnsupportedHardware,
            Reason::StartTimeout,
            Reason::ProgressTimeout,
            Reason::MaxRunTime,
            Reason::ClusterFailure,
            Reason::Vanished,
        ],
    ),
    (
        Outcome::ClusterFailure,
        &[Reason::ClusterFailure, Reason::NodeNotReady, Reason::StartTimeout, Reason::Vanished],
    ),
    // StartTimeout, ContainerFailed and UnsupportedHardware: of adopted jobs, whose own end alone counts as their user's failure.
    (
        Outcome::Withdrawn,
        &[
            Reason::PlacementTimeout,
            Reason::StartTimeout,
            Reason::ContainerFailed,
            Reason::UnsupportedHardware,
            Reason::QuotaExceeded,
            Reason::TemplateRejected,
            Reason::NameInUse,
            Reason::NotAdopted,
            Reason::NodeNotReady,
            Reason::WaitingForRelease,
            Reason::WaitingForCapacity,
            Reason::ClusterFailure,
        ],
    ),
];

/// Closes the attempt.
pub(super) fn close_attempt(
    d: &mut Draft<'_>,
    allocation: &Allocation,
    members: &Members<'_>,
    judgement: &Judgement,
) {
    let ended = instants::time(ends::ends(d.o, allocation, members).at);
    update_profile(d, allocation, judgement, &ended);
    let teaches_more = teaches_more(d, allocation, judgement);
    record_attempt(d, allocation, judgement, ended.clone());
    add_consumption(d);
    d.exclude(&judgement.exclude);
    if ends_unexplained(d, allocation, judgement.outcome, &ended) {
        d.status.unexplained_failures = 0;
    }
    d.status.allocation = None;
    d.status.display.nodes = None;
    d.status.stop = None;
    d.status.reason = None;
    let ran = allocation.running_time.is_some();
    match judgement.outcome {
        Outcome::Finished => return succeed(d, judgement, ended),
        Outcome::Stopped => d.status.restarts = d.status.restarts.saturating_add(i32::from(ran)),
        Outcome::UserFailure if teaches_more => {}
        Outcome::UserFailure => d.status.user_failures = d.status.user_failures.saturating_add(1),
        Outcome::ClusterFailure => d.status.cluster_failures = d.status.cluster_failures.saturating_add(1),
        Outcome::Withdrawn => {}
    }
    let used_up = d.status.user_failures > d.o.job.spec.retries || d.o.job.spec.adopts.is_some();
    if judgement.outcome == Outcome::UserFailure && (used_up || judgement.reason == Reason::MaxRunTime) {
        return fail(d, judgement, ended);
    }
    wait_again(d, judgement);
}

/// Whether an attempt of this outcome ends the count of unexplained failures: it was a good one, or failed by the user.
fn ends_unexplained(d: &Draft<'_>, allocation: &Allocation, outcome: Outcome, ended: &Time) -> bool {
    match outcome {
        Outcome::Finished => true,
        // Otherwise a suspend now and then would let a program fail for ever.
        Outcome::Stopped => {
            let stepped =
                d.status.progress.as_ref().is_some_and(|p| p.first_step(allocation.attempt).is_some());
            let ran = allocation.running_time.as_ref().map_or(0, |since| seconds_between(since.0, ended.0));
            stepped || ran >= LONG_RUN
        }
        Outcome::UserFailure => d.status.unexplained_failures < MAX_UNEXPLAINED,
        Outcome::ClusterFailure | Outcome::Withdrawn => false,
    }
}

/// Whether another choice of the plan failed than in earlier attempts: what is learned so uses one retry in all.
fn teaches_more(d: &Draft<'_>, allocation: &Allocation, judgement: &Judgement) -> bool {
    let of_choice = |record: &&AttemptRecord| {
        let reasons = [Reason::OutOfMemory, Reason::UnsupportedHardware].map(Reason::as_str);
        record.outcome == Outcome::UserFailure && reasons.contains(&record.reason.as_str())
    };
    let same = |record: &AttemptRecord| {
        record.reason == judgement.reason.as_str()
            && record.gpu_type == allocation.gpu_type
            && (record.gpus >= allocation.gpus || judgement.reason != Reason::OutOfMemory)
    };
    let mut earlier = d.status.history.iter().filter(of_choice).peekable();
    judgement.barred.is_some() && earlier.peek().is_some() && !earlier.any(same)
}

fn record_attempt(d: &mut Draft<'_>, allocation: &Allocation, judgement: &Judgement, ended: Time) {
    let progress = d.status.progress.as_ref().filter(|p| p.attempt == allocation.attempt);
    let stopped = judgement.outcome == Outcome::Stopped;
    let planned_stop = d.status.stop.as_ref().filter(|stop| stop.planned && stopped);
    let record = AttemptRecord {
        attempt: allocation.attempt,
        outcome: judgement.outcome,
        reason: judgement.reason.as_str().into(),
        exit_code: judgement.exit_code,
        message: judgement.message.clone(),
        gpu_type: allocation.gpu_type.clone(),
        gpus: allocation.gpus,
        placement: status::placement_text(&allocation.nodes),
        started: allocation.running_time.clone(),
        planned_stop: planned_stop.map(|stop| stop.since.clone()),
        ended,
        milli_percent: progress.map_or(0, |p| p.milli_percent),
        joules: d.o.energy.attempt.joules.max(0),
        host_joules: d.o.energy.attempt.host_joules.max(0),
        measured: d.o.energy.measured,
    };
    let alike = |r: &AttemptRecord| {
        r.outcome == Outcome::Withdrawn && r.outcome == record.outcome && r.reason == record.reason
    };
    let row = d.status.history.iter().rev().take_while(|r| alike(r)).count();
    if row >= WITHDRAWN_IN_A_ROW {
        // Repeated refusals must not push out the attempts that ran.
        let first = d.status.history.len() - row;
        d.status.history.remove(first);
    }
    d.status.history.push(record);
    while d.status.history.len() > HISTORY {
        // Restarts of the last day are counted by their records.
        let counts =
            |r: &AttemptRecord| r.planned_stop.is_some() && seconds_between(r.ended.0, d.o.now) < DAY;
        let oldest =
            d.status.history.iter().position(|r| !counts(r)).filter(|at| at + 1 < d.status.history.len());
        d.status.history.remove(oldest.unwrap_or(0));
    }
}

/// Adds energy and cost when an attempt starts or ends.
fn add_consumption(d: &mut Draft<'_>) {
    let attempt = d.o.energy.attempt;
    let mut total: Consumption = d.status.consumption.clone().unwrap_or_default();
    for (sum, more) in [
        (&mut total.joules, attempt.joules),
        (&mut total.energy_cost_micros, attempt.micros),
        (&mut total.host_joules, attempt.host_joules),
        (&mut total.host_cost_micros, attempt.host_micros),
    ] {
        *sum = sum.saturating_add(more.max(0));
    }
    total.lateness_cost_micros = d.o.energy.lateness_micros.max(0);
    d.status.consumption = Some(total);
    total_up(d);
}

/// Totals, source and texts over all attempts.
fn total_up(d: &mut Draft<'_>) {
    let Some(total) = &mut d.status.consumption else { return };
    // Attempts that never ran used no measurable energy.
    let mut counted = d.status.history.iter().filter(|record| record.measured || record.joules > 0);
    let measured = counted.clone().filter(|record| record.measured).count();
    total.source = match measured {
        0 => "Predicted",
        _ if counted.all(|record| record.measured) => "Measured",
        _ => "Mixed",
    }
    .into();
    total.currency.clone_from(&d.o.policy.currency);
    let price = total.energy_cost_micros.saturating_add(total.host_cost_micros);
    let display = &mut d.status.display;
    display.energy = Some(energy_text(total.joules.saturating_add(total.host_joules)));
    display.energy_cost = Some(money_text(price, &total.currency));
    display.lateness_cost = Some(money_text(total.lateness_cost_micros, &total.currency));
}

/// Replaces the predicted energy of a closed attempt's GPUs by the agents' measurement.
pub(super) fn correct_energy(d: &mut Draft<'_>) {
    let Some(late) = &d.o.energy.late else { return };
    let record =
        d.status.history.iter_mut().find(|record| record.attempt == late.attempt && !record.measured);
    let (Some(record), Some(total)) = (record, &mut d.status.consumption) else { return };
    let more = late.joules.saturating_sub(record.joules);
    (record.joules, record.measured) = (late.joules, true);
    total.joules = total.joules.saturating_add(more).max(0);
    total.energy_cost_micros = total.energy_cost_micros.saturating_add(late.micros_more).max(0);
    total_up(d);
}

/// Records what the attempt shows about the job's profile.
fn update_profile(d: &mut Draft<'_>, allocation: &Allocation, judgement: &Judgement, ended: &Time) {
    d.learned.extend(judgement.barred.clone().map(ProfileUpdate::Barred));
    let Some(started) = allocation.running_time.clone() else { return };
    let epochs = i64::from(d.o.job.spec.epochs.max(1));
    let seconds = seconds_between(started.0, ended.0);
    let finished = judgement.outcome == Outcome::Finished;
    let progress = d.status.progress.as_ref().filter(|p| p.attempt == allocation.attempt);
    let timed =
        progress.filter(|p| p.stepwise && p.millis_per_epoch > 0 && p.timed_milli_epochs >= MIN_TIMED);
    // The whole run happened in one attempt, so its start and end time it.
    let first = d.status.history.iter().all(|record| record.started.is_none());
    let whole = finished && judgement.reason != Reason::CompletedEarly && first && seconds > 0;
    let whole =
        whole && d.status.progress.as_ref().is_none_or(|p| p.attempt_start == 0 && progress.is_some());
    // Epoch time, the timed share, and whether it is self-reported only.
    let observed = match (timed, progress) {
        _ if allocation.limit_changed || allocation.guard_reached => None,
        (Some(p), _) => Some((p.millis_per_epoch, p.timed_milli_epochs, false)),
        _ if whole => Some(((seconds * 1000 / epochs).max(1), epochs * 1000, false)),
        (None, Some(p)) if p.millis_per_epoch > 0 => {
            let done = i64::from(p.milli_percent - p.attempt_start).max(0) * epochs / 100;
            Some((p.millis_per_epoch, done, true))
        }
        _ => None,
    };
    let run = format!("{}-{}", d.o.job.metadata.name.as_deref().unwrap_or_default(), allocation.attempt);
    if let Some((millis_per_epoch, milli_epochs, claimed)) = observed.filter(|(_, e, _)| *e > 0) {
        d.learned.push(ProfileUpdate::Observation(Observation {
            run: run.clone(),
            gpu_type: allocation.gpu_type.clone(),
            gpus: allocation.gpus,
            nodes: i32::try_from(allocation.nodes.len()).unwrap_or(i32::MAX),
            power_limit_watts: allocation.power_limit_watts,
            millis_per_epoch,
            milli_epochs,
            watts: d.o.energy.measured_watts,
            claimed,
            at: ended.clone(),
        }));
    }
    if let Some(restart) = observed_restart(d, allocation, &run) {
        d.learned.push(ProfileUpdate::Restart(restart));
    }
    // Of attempts that left the history nobody knows how long they ran.
    let all_known = d.status.history.len() < HISTORY;
    if finished && judgement.reason != Reason::CompletedEarly && all_known {
        let earlier = d
            .status
            .history
            .iter()
            .filter_map(|r| r.started.as_ref().map(|s| seconds_between(s.0, r.ended.0).max(0)));
        let seconds = earlier.sum::<i64>().saturating_add(seconds.max(0)).max(1);
        d.learned.push(ProfileUpdate::Finished(FinishedRun { run, seconds, at: ended.clone() }));
    }
}

/// What the restart before this attempt took. The attempt before it must have been stopped by the plan, and the pace
/// must be timed: what was trained before the first report is not part of the restart. Nor is the time in the queue.
fn observed_restart(d: &Draft<'_>, allocation: &Allocation, run: &str) -> Option<ObservedRestart> {
    let progress = d.status.progress.as_ref().filter(|p| p.attempt == allocation.attempt)?;
    let first = progress.first.as_ref()?;
    let before = d.status.history.iter().rev().find(|record| record.started.is_some())?;
    let stop = seconds_between(before.planned_stop.as_ref()?.0, before.ended.0).max(0);
    if !progress.stepwise || progress.millis_per_epoch <= 0 || progress.timed_milli_epochs < MIN_TIMED {
        return None;
    }
    let done = i64::from((first.milli_percent - progress.attempt_start).max(0));
    let epochs = i64::from(d.o.job.spec.epochs.max(1));
    let trained = done.saturating_mul(epochs).saturating_mul(progress.millis_per_epoch) / 100_000_000;
    let start = (seconds_between(allocation.since.0, first.at.0) - trained).max(0);
    let seconds = stop.saturating_add(start).clamp(1, MAX_RESTART);
    Some(ObservedRestart { run: run.to_owned(), seconds, at: first.at.clone() })
}

/// An adopted workload ended without an attempt of ours.
pub(super) fn ended_unplanned(d: &mut Draft<'_>, judgement: &Judgement) {
    let now = d.now();
    match judgement.outcome {
        Outcome::Finished => succeed(d, judgement, now),
        _ => fail(d, judgement, now),
    }
}

fn succeed(d: &mut Draft<'_>, judgement: &Judgement, ended: Time) {
    d.status.phase = Phase::Succeeded;
    complete_at(d, ended.clone());
    d.status.not_before = None;
    d.status.excluded_nodes.clear();
    if judgement.reason == Reason::CompletedEarly {
        d.status.reason = Some(Reason::CompletedEarly.as_str().into());
        d.set_condition(
            condition::PROGRESSING,
            ConditionValue::False,
            Reason::CompletedEarly,
            &judgement.message,
        );
    } else {
        let attempt = d.status.attempts;
        let progress = d.status.progress.get_or_insert_with(|| unreported_end(attempt, ended));
        progress.milli_percent = 100_000;
        d.status.display.progress = Some(status::percent_text(100_000));
    }
    d.clear_condition(condition::SCHEDULED);
    d.set_condition(condition::RUNNING, ConditionValue::False, Reason::Completed, &judgement.message);
    for kind in [condition::FINISHED, condition::COMPLETE] {
        d.set_condition(kind, ConditionValue::True, judgement.reason, &judgement.message);
    }
    d.event(judgement.reason == Reason::CompletedEarly, judgement.reason, judgement.message.clone());
}

/// Sets the end of the run, and its duration if it ever ran.
fn complete_at(d: &mut Draft<'_>, ended: Time) {
    let started = d.status.start_time.as_ref().map(|started| started.0);
    d.status.display.duration =
        started.map(|started| status::duration_text(seconds_between(started, ended.0)));
    d.status.completion_time = Some(ended);
}

/// The progress of a run that finished and never reported: without it the column would stay empty.
fn unreported_end(attempt: i64, at: Time) -> Progress {
    Progress {
        milli_percent: 0,
        attempt,
        attempt_start: 0,
        at,
        millis_per_epoch: 0,
        timed_milli_epochs: 0,
        ended: true,
        stepwise: false,
        first: None,
    }
}

fn fail(d: &mut Draft<'_>, judgement: &Judgement, ended: Time) {
    let retries = d.o.job.spec.retries;
    let (reason, message) = if judgement.reason == Reason::MaxRunTime {
        (Reason::MaxRunTime, judgement.message.clone())
    } else if d.o.job.spec.adopts.is_some() {
        // Retries are its own controller's.
        (Reason::RetriesExhausted, judgement.message.clone())
    } else {
        (Reason::RetriesExhausted, format!("{} (all {retries} retries are used)", judgement.message))
    };
    d.status.phase = Phase::Failed;
    complete_at(d, ended);
    d.status.not_before = None;
    d.status.excluded_nodes.clear();
    d.status.reason = Some(reason.as_str().into());
    d.clear_condition(condition::SCHEDULED);
    d.set_condition(condition::RUNNING, ConditionValue::False, reason, &message);
    for kind in [condition::FINISHED, condition::FAILED] {
        d.set_condition(kind, ConditionValue::True, reason, &message);
    }
    d.event(true, reason, message);
}

/// Pending again. The attempt's reason stays until the plan has a newer one.
fn wait_again(d: &mut Draft<'_>, judgement: &Judgement) {
    d.status.phase = Phase::Pending;
    let row = in_a_row(d, judgement.outcome);
    let pause = match judgement.outcome {
        Outcome::ClusterFailure => doubling(AFTER_CLUSTER, row),
        // The first failure is retried at once; repeated failures back off.
        Outcome::UserFailure if row > 1 => doubling(AFTER_USER, row - 1),
        // The profile is written meanwhile, so that the next plan knows what is barred.
        Outcome::UserFailure if judgement.barred.is_some() => AFTER_CLUSTER,
        Outcome::Withdrawn => match judgement.reason {
            // The next plan already accounts for the change.
            Reason::PlacementTimeout | Reason::WaitingForCapacity | Reason::ClusterFailure => 0,
            _ => doubling(AFTER_REFUSAL, row),
        },
        _ => 0,
    };
    d.status.not_before = (pause > 0).then(|| instants::time(after(d.o.now, pause)));
    let reason = match judgement.reason {
        Reason::Stopping | Reason::Suspended => Reason::NotPlannedYet,
        reason => reason,
    };
    let message = match judgement.outcome {
        Outcome::UserFailure => {
            let left = d.o.job.spec.retries.saturating_sub(d.status.user_failures).max(0).saturating_add(1);
            format!("{} ({left} more to try)", judgement.message)
        }
        _ => judgement.message.clone(),
    };
    d.set_condition(condition::RUNNING, ConditionValue::False, reason, &message);
    d.wait_for(reason, &message);
}

/// Consecutive attempts with this outcome, this one included.
fn in_a_row(d: &Draft<'_>, outcome: Outcome) -> u32 {
    let row = d.status.history.iter().rev().take_while(|r| r.outcome == outcome).count();
    u32::try_from(row).unwrap_or(u32::MAX)
}

fn doubling(first: i64, times: u32) -> i64 {
    first.saturating_mul(1 << times.saturating_sub(1).min(10)).min(MAX_BACK_OFF)
}

/// Succeeded and Failed: only the object's deletion is left.
pub(super) fn ended(d: &mut Draft<'_>) {
    let Some(seconds) = d.o.job.spec.ttl_seconds_after_finished else { return };
    let Some(done) = d.status.completion_time.clone() else { return };
    // Counted from when the end was recorded: before, nobody could read it.
    let finished = status::condition(&d.status.conditions, condition::FINISHED);
    let recorded = finished.map_or(done.0, |finished| finished.last_transition_time.0.max(done.0));
    let due = after(recorded, i64::from(seconds));
    if d.o.now < due {
        return d.requeue_at(due);
    }
    if let Some(uid) = d.o.job.metadata.uid.clone() {
        let version = d.o.job.metadata.resource_version.clone();
        d.actions.push(Action::DeleteJob { uid, version });
    }
}

/// Deletes pods that no attempt needs: ended ones beyond `historyLimit`, and live pods of ended attempts.
pub(super) fn delete_unneeded_pods(d: &mut Draft<'_>) {
    let allocation = d.allocation();
    let members = Members::new(d.o, allocation.as_ref());
    let mut kept: BTreeMap<i64, Vec<&SlimPod>> = BTreeMap::new();
    for pod in members.other.iter().copied() {
        if is_over(pod) {
            kept.entry(number(pod, names::LABEL_ATTEMPT).unwrap_or(0)).or_default().push(pod);
        } else {
            d.delete(pod, DeleteReason::Stop);
        }
    }
    let limit = usize::try_from(d.o.job.spec.history_limit).unwrap_or(0);
    let newest: BTreeSet<i64> = kept.keys().rev().take(limit).copied().collect();
    for (attempt, pods) in kept {
        if !newest.contains(&attempt) {
            for pod in pods {
                d.delete(pod, DeleteReason::History);
            }
        }
    }
}
