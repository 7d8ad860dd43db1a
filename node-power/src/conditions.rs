//! Conditions of a NodePower. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The power can be read.
pub const REACHABLE: &str = "Reachable";
/// A person must look at the machine.
pub const QUARANTINED: &str = "Quarantined";

/// Sets a condition; its time changes with its status alone.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    holds: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let status = if holds { "True" } else { "False" };
    let message: String = message.chars().take(1024).collect();
    let before = conditions.iter().find(|condition| condition.type_ == type_ && condition.status == status);
    let next = Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
        observed_generation: None,
    };
    conditions.retain(|condition| condition.type_ != type_);
    conditions.push(next);
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
}

/// Whether a condition is `False`.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "False")
}
