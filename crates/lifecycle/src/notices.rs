//! Events about what a status shows, without a transition of the run: a wait begins, the risk changes class,
//! the predicted end slips.
//!
//! Each event is a write, so they are few: of each kind at most one per job in [`INTERVAL`], and only when a
//! status was written anyway. What they leave out stands in the status.

use std::collections::BTreeMap;

use andreas_api::phase::condition;
use andreas_api::training_job::Prediction;
use andreas_api::{Phase, Reason, TrainingJobStatus};
use andreas_cluster::instants::{after, seconds_between};
use jiff::Timestamp;

use super::action::EventNote;
use super::status::{bounded, condition as find_condition, duration_text};

/// Minimum seconds between two events of one kind about one job.
const INTERVAL: i64 = 600;
/// A slip of the predicted end below this many seconds is no event.
const MIN_SLIP: i64 = 60;
/// A slip is an event if it is at least the remaining time divided by this.
const SLIP_DIVISOR: i64 = 4;

/// Reasons by which plans make a job wait.
const WAITS: [Reason; 8] = [
    Reason::WaitingForCapacity,
    Reason::DeferredForEnergy,
    Reason::PowerBudget,
    Reason::BudgetInfeasible,
    Reason::NoFeasibleGpuType,
    Reason::NoFeasibleNode,
    Reason::QuotaExceeded,
    Reason::QueueFull,
];

/// Kinds of events, each with its own interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Wait,
    Risk,
    Slip,
}

/// A predicted end, and when it was predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Predicted {
    at: Timestamp,
    finish: Timestamp,
}

/// What the events of one job have announced. Lost at a restart, which at most leaves one event out.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    risk: Option<String>,
    end: Option<Predicted>,
    last: BTreeMap<Kind, Timestamp>,
}

impl Announced {
    /// The events of a status that has just been written over `before`.
    pub fn update(
        &mut self,
        before: Option<&TrainingJobStatus>,
        written: &TrainingJobStatus,
        now: Timestamp,
    ) -> Vec<EventNote> {
        if written.phase.is_terminal() {
            *self = Self::default();
            return Vec::new();
        }
        let known = before.and_then(|status| status.prediction.as_ref());
        let prediction = written.prediction.as_ref();
        let wait = self.wait(before, written, now);
        let risk = prediction.and_then(|prediction| self.risk(known, prediction, now));
        let slip = prediction.and_then(|prediction| self.slip(known, prediction, now));
        [wait, risk, slip].into_iter().flatten().collect()
    }

    fn due(&mut self, kind: Kind, now: Timestamp) -> bool {
        let due = self.last.get(&kind).is_none_or(|last| after(*last, INTERVAL) <= now);
        if due {
            self.last.insert(kind, now);
        }
        due
    }

    fn wait(
        &mut self,
        before: Option<&TrainingJobStatus>,
        written: &TrainingJobStatus,
        now: Timestamp,
    ) -> Option<EventNote> {
        let reason = waits(written).filter(|_| before.and_then(waits).is_none())?;
        let message = find_condition(&written.conditions, condition::SCHEDULED)?.message.clone();
        self.due(Kind::Wait, now).then(|| note(false, reason, &format!("waits: {message}")))
    }

    fn risk(&mut self, known: Option<&Prediction>, new: &Prediction, now: Timestamp) -> Option<EventNote> {
        let announced = self.risk.clone().or_else(|| known.map(|known| known.risk.clone()));
        let announced = announced.filter(|risk| risk != "None");
        let serious = new.is_at_risk();
        let changed = match &announced {
            Some(announced) => *announced != new.risk,
            // The first prediction of a job is worth an event only if it is bad.
            None => serious,
        };
        let event = new.risk != "None" && changed && (new.risk == "Late" || self.due(Kind::Risk, now));
        let keep = !event && new.risk != "None";
        self.risk = announced.clone().filter(|_| keep).or_else(|| Some(new.risk.clone()));
        event.then(|| {
            let from = announced.map(|from| format!(", was {from}")).unwrap_or_default();
            let chance = match new.on_time_percent {
                _ if new.risk == "Late" => "the deadline has passed".to_owned(),
                Some(percent) => format!("on time with a probability of {percent} %"),
                None => String::new(),
            };
            note(serious, Reason::RiskChanged, &format!("risk {}{from}: {chance}", new.risk))
        })
    }

    fn slip(&mut self, known: Option<&Prediction>, new: &Prediction, now: Timestamp) -> Option<EventNote> {
        let finish = new.finish_time.as_ref()?.0;
        let present = Predicted { at: now, finish };
        let known = known
            .and_then(|known| known.finish_time.as_ref())
            .map(|end| Predicted { at: now, finish: end.0 });
        let base = *self.end.get_or_insert(known.unwrap_or(present));
        let later = seconds_between(base.finish, finish);
        if later < 0 {
            // Later slips count from the earlier end.
            self.end = Some(present);
        }
        if !is_delayed(base.at, base.finish, finish) || !self.due(Kind::Slip, now) {
            return None;
        }
        self.end = Some(present);
        let (from, by) = (base.finish, duration_text(later));
        Some(note(
            false,
            Reason::FinishDelayed,
            &format!("predicted to end at {finish}, {by} later than {from}"),
        ))
    }
}

/// Whether an end that was predicted then for `before` is now so much later that people are told: by a quarter of the time that was left,
/// and a minute.
pub fn is_delayed(predicted_at: Timestamp, before: Timestamp, now: Timestamp) -> bool {
    let left = seconds_between(predicted_at, before);
    seconds_between(before, now) >= (left / SLIP_DIVISOR).max(MIN_SLIP)
}

/// The plan's reason for which a job waits.
fn waits(status: &TrainingJobStatus) -> Option<Reason> {
    let reason = status.reason.as_deref().and_then(Reason::parse)?;
    (status.phase == Phase::Pending && WAITS.contains(&reason)).then_some(reason)
}

fn note(warning: bool, reason: Reason, message: &str) -> EventNote {
    EventNote { warning, reason, message: bounded(message) }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;
    use andreas_cluster::testing::at;

    fn pending(reason: Reason) -> TrainingJobStatus {
        let scheduled = Condition {
            type_: condition::SCHEDULED.into(),
            status: "False".into(),
            reason: reason.as_str().into(),
            message: "behind 3 jobs".into(),
            last_transition_time: Time(at(0)),
            observed_generation: None,
        };
        TrainingJobStatus {
            reason: Some(reason.as_str().into()),
            conditions: vec![scheduled],
            ..TrainingJobStatus::default()
        }
    }

    fn predicted(risk: &str, finish: i64) -> TrainingJobStatus {
        let prediction = serde_json::from_value(serde_json::json!({
            "finishTime": at(finish).to_string(), "onTimePercent": 40, "risk": risk, "source": "Observed",
        }));
        TrainingJobStatus {
            phase: Phase::Running,
            prediction: Some(prediction.expect("a prediction")),
            ..TrainingJobStatus::default()
        }
    }

    fn reasons(notes: &[EventNote]) -> Vec<Reason> {
        notes.iter().map(|note| note.reason).collect()
    }

    #[test]
    fn an_event_tells_that_a_wait_begins_and_none_that_its_reason_changes() {
        let mut announced = Announced::default();
        let (unplanned, waits) = (pending(Reason::NotPlannedYet), pending(Reason::WaitingForCapacity));
        assert!(announced.update(None, &unplanned, at(0)).is_empty());
        let notes = announced.update(Some(&unplanned), &waits, at(1));
        assert_eq!((notes[0].reason, notes[0].warning), (Reason::WaitingForCapacity, false));
        assert_eq!(notes[0].message, "waits: behind 3 jobs");
        let budget = pending(Reason::PowerBudget);
        assert!(announced.update(Some(&waits), &budget, at(700)).is_empty());
        // It waits again soon after a stop: the status shows it, no event does.
        let running = predicted("None", 1_000);
        assert_eq!(announced.update(Some(&running), &waits, at(500)), []);
        assert_eq!(reasons(&announced.update(Some(&running), &waits, at(601))), [Reason::WaitingForCapacity]);
    }

    #[test]
    fn an_event_tells_of_another_risk_class_and_of_late_at_once() {
        let mut announced = Announced::default();
        let [low, medium, high, late] = ["Low", "Medium", "High", "Late"].map(|risk| predicted(risk, 1_000));
        assert_eq!(announced.update(None, &low, at(0)), []);
        assert_eq!(reasons(&announced.update(Some(&low), &medium, at(1))), [Reason::RiskChanged]);
        // To and fro within minutes: nothing; what remains of it is told later.
        assert_eq!(announced.update(Some(&medium), &high, at(60)), []);
        assert_eq!(announced.update(Some(&high), &high, at(120)), []);
        let notes = announced.update(Some(&high), &high, at(700));
        assert_eq!(
            (notes[0].warning, notes[0].message.as_str()),
            (true, "risk High, was Medium: on time with a probability of 40 %")
        );
        let notes = announced.update(Some(&high), &late, at(701));
        assert_eq!(notes[0].message, "risk Late, was High: the deadline has passed");
        assert_eq!(announced.update(Some(&late), &late, at(9_000)), []);
    }

    #[test]
    fn a_first_prediction_is_an_event_only_if_it_is_bad() {
        let first = |risk| reasons(&Announced::default().update(None, &predicted(risk, 1_000), at(0)));
        assert_eq!(first("None"), []);
        assert_eq!(first("Medium"), []);
        assert_eq!(first("High"), [Reason::RiskChanged]);
    }

    #[test]
    fn small_slips_add_up_to_an_event_of_a_quarter() {
        let mut announced = Announced::default();
        let mut last = predicted("Low", 4_000);
        announced.update(None, &last, at(0));
        let mut step = |finish: i64, now: i64| {
            let next = predicted("Low", finish);
            let notes = announced.update(Some(&last), &next, at(now));
            last = next;
            notes
        };
        assert_eq!(step(4_400, 100), []);
        assert_eq!(step(4_900, 200), []);
        let notes = step(5_000, 300);
        assert_eq!(reasons(&notes), [Reason::FinishDelayed]);
        assert!(
            notes[0].message.ends_with(&format!("16m40s later than {}", at(4_000))),
            "{}",
            notes[0].message
        );
        // From there on again, also from an end that came nearer.
        assert_eq!(step(5_400, 400), []);
        assert_eq!(step(3_000, 500), []);
        assert_eq!(step(3_600, 600), []);
        assert_eq!(reasons(&step(3_700, 1_000)), [Reason::FinishDelayed]);
    }

    #[test]
    fn after_a_restart_the_status_is_what_was_announced() {
        let mut announced = Announced::default();
        let (before, after) = (predicted("Low", 4_000), predicted("Medium", 9_000));
        let notes = announced.update(Some(&before), &after, at(0));
        assert_eq!(reasons(&notes), [Reason::RiskChanged, Reason::FinishDelayed]);
        // An end announces nothing by itself: the end has its own event.
        let done = TrainingJobStatus { phase: Phase::Succeeded, ..TrainingJobStatus::default() };
        assert_eq!(announced.update(Some(&after), &done, at(1)), []);
    }
}
