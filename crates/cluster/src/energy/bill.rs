//! Energy and cost of a job so far: energy of its current attempt by the power model, with its share of its hosts,
//! and the costs of energy and lateness.
//!
//! **In**: a job's spec and status, the policy, the instant. **Out**: joules, and cost in millionths of the
//! currency.

use std::collections::BTreeMap;

use andreas_api::EnergyPolicySpec;
use andreas_api::slim::SlimTrainingJob;
use andreas_model::{EnergyPrice, ObjectKey, Seconds, Time, Watts};
use jiff::Timestamp;

use crate::index::ClusterIndex;
use crate::instants::{deadline, since};
use crate::policy::rules;

/// Energy of one or more attempts and its price, J and millionths of the currency. The GPUs' may be measured; hosts' never is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// Energy of the GPUs.
    pub joules: i64,
    /// Its price.
    pub micros: i64,
    /// Share of the hosts' energy.
    pub host_joules: i64,
    /// Its price.
    pub host_micros: i64,
}

/// The current attempt by the power model, while all members ran: priced by this policy's tariff of each instant, PUE
/// included. `until`: of each equal part of the attempt, until when it drew power; empty: none did. Former policies are not
/// kept, so a new price counts for the whole attempt. The hosts' draw is what was known when the attempt was decided
/// ([`andreas_model::HostPower::share`]).
pub fn attempt_energy(job: &SlimTrainingJob, policy: &EnergyPolicySpec, until: &[Timestamp]) -> Bill {
    let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    let Some((allocation, running)) = allocation.and_then(|a| Some((a, a.running_time.as_ref()?.0))) else {
        return Bill::default();
    };
    let draws = [allocation.watts, allocation.host_watts].map(|watts| Watts(f64::from(watts.max(0))));
    let from = running.as_second();
    let mut parts: BTreeMap<i64, usize> = BTreeMap::new();
    for until in until {
        *parts.entry(until.as_second().max(from)).or_default() += 1;
    }
    let (mut joules, mut money) = ([0.0; 2], [0.0; 2]);
    for (to, count) in parts {
        let draws = draws.map(|watts| watts * (count as f64 / until.len() as f64));
        for (length, price) in prices(policy, from, to) {
            for (sum, watts) in money.iter_mut().zip(draws) {
                *sum += (price * (watts * length)).0;
            }
        }
        for (sum, watts) in joules.iter_mut().zip(draws) {
            *sum += (watts * Seconds((to - from) as f64)).0;
        }
    }
    let [joules, host_joules] = joules.map(whole);
    let [micros, host_micros] = money.map(|money| whole(money * 1e6));
    Bill { joules, micros, host_joules, host_micros }
}

/// The current attempt so far: a node that gives no sign may be without power, and is billed until it fell silent.
pub fn energy_so_far(
    index: &ClusterIndex,
    job: &SlimTrainingJob,
    policy: &EnergyPolicySpec,
    now: Timestamp,
) -> Bill {
    let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref());
    let until = |node: &String| {
        let key = ObjectKey { namespace: String::new(), name: node.clone() };
        let conditions = index.nodes().get(&key).map(|node| &node.status.conditions);
        let ready = conditions.and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
        let not_ready = ready.filter(|ready| ready.status != "True");
        not_ready.and_then(|ready| ready.last_transition_time.as_ref()).map_or(now, |since| since.0.min(now))
    };
    let until: Vec<Timestamp> = allocation.iter().flat_map(|held| &held.nodes).map(until).collect();
    attempt_energy(job, policy, &until)
}

/// The price of energy from one second to another, PUE included, in pieces. Day by day, because tariffs are laid out around an
/// instant.
pub fn prices(policy: &EnergyPolicySpec, from: i64, to: i64) -> Vec<(Seconds, EnergyPrice)> {
    let mut pieces = Vec::new();
    let mut start = from;
    while start < to {
        let end = (start + 86_400).min(to);
        let tariff = rules::tariff(policy, start);
        let of_day = tariff.pieces(Time(start as f64), Time(end as f64));
        pieces.extend(of_day.map(|(begin, end, price)| (end - begin, price)));
        start = end;
    }
    pieces
}

/// Cost of lateness and time in the system up to now or completion, millionths. `weight` is the effective one
/// ([`super::weight`]), without ageing.
pub fn lateness_micros(job: &SlimTrainingJob, weight: i32, policy: &EnergyPolicySpec, now: Timestamp) -> i64 {
    let Some(created) = job.metadata.creation_timestamp.as_ref().map(|time| time.0) else { return 0 };
    let ended = job.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|time| time.0);
    let until = ended.unwrap_or(now);
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref()).map(|deadline| deadline.0);
    let charges = rules::lateness(policy).charges(due.map(|due| since(due, until)), since(created, until));
    whole((rules::late_rate(policy, weight) * charges.sum()).0 * 1e6)
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

    /// A job whose GPUs draw 300 W, and its share of its hosts so much; it runs from that second on.
    fn job(running: i64, host_watts: Option<i32>) -> SlimTrainingJob {
        let mut job: Value = json!({
            "metadata": {"name": "a", "creationTimestamp": at(0)},
            "spec": {"epochs": 10, "deadlineAfter": "30m", "weight": 10, "template": {"spec": {"containers": []}}},
            "status": {"phase": "Running", "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1,
                "gpusPerWorker": 1, "nodes": ["n"], "since": at(0), "runningTime": at(running), "watts": 300}},
        });
        if let Some(watts) = host_watts {
            job["status"]["allocation"]["hostWatts"] = watts.into();
        }
        serde_json::from_value(job).expect("a job")
    }

    #[test]
    fn a_share_of_the_hosts_is_billed_by_the_price_of_each_instant() {
        // From 21:00 to 23:00: an hour by day, an hour by night.
        let night = json!({"windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.1"}]});
        let policy = json!({"pue": "1.5", "prices": {"energyPerKWh": "0.2", "tariff": night}});
        let policy: EnergyPolicySpec = serde_json::from_value(policy).expect("a policy");
        let bill = attempt_energy(&job(13 * 3_600, Some(1_000)), &policy, &[at(15 * 3_600)]);
        assert_eq!((bill.joules, bill.host_joules), (300 * 7_200, 1_000 * 7_200));
        // 1 kWh at 0.2 and 1 kWh at 0.1, each times 1.5; the GPUs' three tenths of it.
        for (micros, wanted) in [(bill.host_micros, 450_000), (bill.micros, 135_000)] {
            assert!((micros - wanted).abs() <= 1, "{bill:?}");
        }
        // Nothing before all members run.
        let mut starting = job(0, Some(1_000));
        starting.status.as_mut().and_then(|s| s.allocation.as_mut()).expect("an allocation").running_time =
            None;
        assert_eq!(attempt_energy(&starting, &policy, &[at(3_600)]), Bill::default());
    }

    #[test]
    fn each_part_of_an_attempt_is_billed_until_it_ended() {
        let policy = EnergyPolicySpec { pue: "1".into(), ..EnergyPolicySpec::default() };
        let bill = attempt_energy(&job(0, Some(1_000)), &policy, &[at(3_600), at(7_200), at(-5)]);
        assert_eq!((bill.joules, bill.host_joules), (100 * 10_800, 3_600_000));
        assert_eq!(attempt_energy(&job(0, Some(1_000)), &policy, &[]), Bill::default());
    }

    #[test]
    fn energy_and_lateness_have_their_price() {
        let policy = EnergyPolicySpec { pue: "1".into(), ..EnergyPolicySpec::default() };
        let job = job(0, None);
        // 300 W for an hour = 0.3 kWh at 0.20. Earlier releases wrote no draw of hosts.
        let bill = Bill { joules: 1_080_000, micros: 60_000, ..Bill::default() };
        assert_eq!(attempt_energy(&job, &policy, &[at(3_600)]), bill);
        // 30 min late + 15 min for the miss + a tenth of an hour, at 10 x 0.02 an hour.
        let lateness = lateness_micros(&job, 10, &policy, at(3_600));
        assert!((lateness - 170_000).abs() <= 1, "{lateness}");
        assert_eq!(lateness_micros(&job, 1, &policy, at(3_600)), lateness / 10, "by the weight that counts");
    }
}
