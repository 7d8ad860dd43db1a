//! Energy and cost of a job so far: energy of its current attempt by the power model, and the costs of energy
//! and lateness.
//!
//! **In**: a job's spec and status, the policy, the instant. **Out**: joules, and cost in millionths of the
//! currency.

use andreas_api::EnergyPolicySpec;
use andreas_api::slim::SlimTrainingJob;
use andreas_core::{Joules, Seconds, Watts};
use jiff::Timestamp;

use super::rules;
use crate::instants::{deadline, since};

/// Joules of the current attempt so far by the power model, and their cost in millionths: by this policy's tariff of each
/// instant, PUE included. Former policies are not kept, so a new price counts for the whole attempt.
pub fn attempt_energy(job: &SlimTrainingJob, policy: &EnergyPolicySpec, now: Timestamp) -> (i64, i64) {
    let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    let Some((watts, running)) = allocation.and_then(|a| Some((a.watts, a.running_time.as_ref()?.0))) else {
        return (0, 0);
    };
    let watts = Watts(f64::from(watts.max(0)));
    let (from, to) = (running.as_second(), now.as_second().max(running.as_second()));
    let mut money = 0.0;
    // Day by day, because tariffs are laid out around an instant.
    let mut start = from;
    while start < to {
        let end = (start + 86_400).min(to);
        for (a, b, price) in rules::tariff(policy, start)
            .pieces(andreas_core::Time(start as f64), andreas_core::Time(end as f64))
        {
            money += (price * (watts * (b - a))).0;
        }
        start = end;
    }
    let Joules(joules) = watts * Seconds((to - from) as f64);
    (whole(joules), whole(money * 1e6))
}

/// Cost of lateness and time in the system up to now or completion, millionths. `weight` is the effective one
/// ([`super::weight`]), without ageing.
pub fn lateness_micros(job: &SlimTrainingJob, weight: i32, policy: &EnergyPolicySpec, now: Timestamp) -> i64 {
    let Some(created) = job.metadata.creation_timestamp.as_ref().map(|time| time.0) else { return 0 };
    let ended = job.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|time| time.0);
    let until = ended.unwrap_or(now);
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref()).map(|deadline| deadline.0);
    let late = due.map_or(Seconds::ZERO, |due| since(due, until));
    let lateness = rules::lateness(policy);
    let missed = if late.0 > 0.0 { lateness.late_fixed } else { Seconds::ZERO };
    let counted = late + missed + since(created, until) * lateness.share(due.is_some());
    whole((rules::late_rate(policy, weight) * counted).0 * 1e6)
}

/// An amount in whole units, at least 0.
pub fn whole(value: f64) -> i64 {
    if value.is_finite() { value.clamp(0.0, 9e18) as i64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::at;

    #[test]
    fn energy_and_lateness_have_their_price() {
        let policy = EnergyPolicySpec { pue: "1".into(), ..EnergyPolicySpec::default() };
        let job: Value = json!({
            "metadata": {"name": "a", "creationTimestamp": at(0)},
            "spec": {"epochs": 10, "deadlineAfter": "30m", "weight": 10, "template": {"spec": {"containers": []}}},
            "status": {"phase": "Running", "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1,
                "gpusPerWorker": 1, "nodes": ["n"], "placement": "n", "since": at(0), "runningTime": at(0), "watts": 300}},
        });
        let job: SlimTrainingJob = serde_json::from_value(job).expect("a job");
        // 300 W for an hour = 0.3 kWh at 0.20.
        assert_eq!(attempt_energy(&job, &policy, at(3_600)), (1_080_000, 60_000));
        // 30 min late + 15 min for the miss + a tenth of an hour, at 10 x 0.02 an hour.
        let lateness = lateness_micros(&job, 10, &policy, at(3_600));
        assert!((lateness - 170_000).abs() <= 1, "{lateness}");
        assert_eq!(lateness_micros(&job, 1, &policy, at(3_600)), lateness / 10, "by the weight that counts");
    }
}
