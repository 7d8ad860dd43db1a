//! Restarts that the planner made: how many in the last day, and what one takes.

use andreas_api::{Outcome, TrainingJobStatus};
use andreas_cluster::index::ClusterIndex;
use andreas_model::Seconds;
use andreas_runtime::watch::ObjectKey;
use jiff::{SignedDuration, Timestamp};

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Attempts that ran and that the plan stopped within the last 24 hours. Failures and stops by users are none.
pub(super) fn last_day(status: Option<&TrainingJobStatus>, now: Timestamp) -> u32 {
    let history = status.map(|status| status.history.as_slice()).unwrap_or_default();
    let restarts = history.iter().filter(|record| {
        record.outcome == Outcome::Stopped
            && record.planned_stop.is_some()
            && record.started.is_some()
            && now.duration_since(record.ended.0) < DAY
    });
    u32::try_from(restarts.count()).unwrap_or(u32::MAX)
}

/// Time from stop to first progress of runs with this profile; `None` before enough restarts were observed.
pub(super) fn observed_time(index: &ClusterIndex, profile: &ObjectKey) -> Option<Seconds> {
    andreas_cluster::profiles::restart_time(index.profiles().get(profile)?.status.as_ref()?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::at;

    fn attempt(attempt: i64, outcome: &str, ended: i64, planned: bool) -> Value {
        json!({"attempt": attempt, "outcome": outcome, "reason": "Preempted", "gpuType": "A", "gpus": 1, "placement": "n1",
            "started": at(ended - 60), "ended": at(ended), "plannedStop": planned.then(|| at(ended - 10))})
    }

    #[test]
    fn only_stops_by_the_plan_within_a_day_count_as_restarts() {
        let day = 86_400;
        let mut unstarted = attempt(6, "Stopped", day, true);
        unstarted["started"] = Value::Null;
        let history = [
            attempt(1, "Stopped", 100, true),
            attempt(2, "Stopped", 5_000, true),
            attempt(3, "Stopped", 6_000, false),
            attempt(4, "ClusterFailure", 7_000, false),
            attempt(5, "Stopped", day, true),
            unstarted,
        ];
        let status: TrainingJobStatus =
            serde_json::from_value(json!({"history": history})).expect("a status");
        assert_eq!(last_day(Some(&status), at(day + 100)), 2);
        assert_eq!(last_day(None, at(0)), 0);
    }
}
