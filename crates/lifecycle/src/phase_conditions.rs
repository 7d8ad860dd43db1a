//! Conditions that follow from the phase: `Suspended`, `Progressing`.

use andreas_api::phase::condition;
use andreas_api::{Phase, Reason, TrainingJobStatus};
use jiff::Timestamp;

use super::status::{self, ConditionUpdate, ConditionValue};

/// Sets them. Only where the status is written anyway: none of them is worth a write of its own.
pub(super) fn phase_conditions(status: &mut TrainingJobStatus, generation: Option<i64>, now: Timestamp) {
    let reason = |kind| status::condition(&status.conditions, kind).map(|condition| condition.reason.clone());
    let (phase, suspended) = (status.phase, reason(condition::SUSPENDED).is_some());
    let progressing = reason(condition::PROGRESSING);
    let is = |reason: Reason| progressing.as_deref() == Some(reason.as_str());
    let mut set = |kind, truth, reason, message| {
        let update = ConditionUpdate { kind, truth, reason, message };
        status::set_condition(&mut status.conditions, &update, generation, now);
    };
    if phase == Phase::Suspended {
        set(condition::SUSPENDED, ConditionValue::True, Reason::Suspended, "held by spec.suspend");
    } else if suspended {
        set(condition::SUSPENDED, ConditionValue::False, Reason::AsExpected, "no longer suspended");
    }
    match phase {
        Phase::Running if is(Reason::ProgressUnknown) => {}
        Phase::Succeeded if is(Reason::CompletedEarly) => {}
        Phase::Running => {
            set(condition::PROGRESSING, ConditionValue::True, Reason::AsExpected, "all workers run");
        }
        _ => set(condition::PROGRESSING, ConditionValue::False, Reason::NotRunning, "it does not run"),
    }
}
