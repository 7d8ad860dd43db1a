//! Conditions that follow from the phase: `Suspended`, `Progressing`.

use andreas_api::phase::condition;
use andreas_api::{Phase, Reason};

use super::draft::Draft;
use super::status::{self, ConditionValue};

/// Sets them. Only where the status is written anyway: none of them is worth a write of its own.
pub(super) fn phase_conditions(d: &mut Draft<'_>) {
    let reason = |d: &Draft<'_>, kind| {
        status::condition(&d.status.conditions, kind).map(|condition| condition.reason.clone())
    };
    let phase = d.status.phase;
    if phase == Phase::Suspended {
        d.set_condition(
            condition::SUSPENDED,
            ConditionValue::True,
            Reason::Suspended,
            "held by spec.suspend",
        );
    } else if reason(d, condition::SUSPENDED).is_some() {
        d.set_condition(
            condition::SUSPENDED,
            ConditionValue::False,
            Reason::AsExpected,
            "no longer suspended",
        );
    }
    let progressing = reason(d, condition::PROGRESSING);
    let is = |reason: Reason| progressing.as_deref() == Some(reason.as_str());
    match phase {
        Phase::Running if is(Reason::ProgressUnknown) => {}
        Phase::Succeeded if is(Reason::CompletedEarly) => {}
        Phase::Running => {
            d.set_condition(
                condition::PROGRESSING,
                ConditionValue::True,
                Reason::AsExpected,
                "all workers run",
            );
        }
        _ => d.set_condition(
            condition::PROGRESSING,
            ConditionValue::False,
            Reason::NotRunning,
            "it does not run",
        ),
    }
}
