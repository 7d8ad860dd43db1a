//! Instants: whole seconds, as JSON keeps them, and arithmetic that saturates.

use andreas_api::training_job::TrainingJobSpec;
use andreas_model::Seconds;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Assumed clock skew between nodes and API server, s.
pub const CLOCK_SKEW: i64 = 5;

/// An instant as a status keeps it: whole seconds.
pub fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// This many seconds later, saturating at the maximum timestamp.
pub fn after(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Seconds from one instant to another, negative where it is earlier.
pub fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second().saturating_sub(from.as_second())
}

/// Time from one instant to another, at least 0.
pub fn since(then: Timestamp, now: Timestamp) -> Seconds {
    Seconds(now.duration_since(then).as_secs_f64().max(0.0))
}

/// The deadline as an instant: given by the user, or creation plus the given duration.
pub fn deadline(spec: &TrainingJobSpec, created: Option<&Time>) -> Option<Time> {
    if let Some(deadline) = &spec.deadline {
        return Some(time(deadline.0));
    }
    let seconds = spec.deadline_after.as_ref()?.seconds()?;
    Some(time(after(created?.0, seconds)))
}
