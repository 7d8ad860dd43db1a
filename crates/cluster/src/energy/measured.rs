//! Measured energy of attempts, from the counters of their GPUs as reported by nodes' agents.
//!
//! An agent reports when a pod releases its GPUs. That is shortly after the pod has ended, and so after its
//! attempt was closed. The attempt is closed with the power model's energy and corrected by one more write.

use std::sync::Arc;

use andreas_api::EnergyPolicySpec;
use andreas_api::gpu_node::ReleasedEnergy;
use andreas_api::slim::SlimPod;
use andreas_api::training_profile::Observation;
use andreas_model::{Joules, ObjectKey};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::index::{ClusterIndex, name_of};
use crate::policy::rules;

/// Tolerance for comparing instants of agents with those of the API server, whose time agents take: whole seconds plus a delay.
const SLACK: SignedDuration = SignedDuration::from_secs(5);

/// An agent sees a pod's GPUs within this time. Where it saw them later, it was away, and what it measured is a part.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// Use of a whole gang's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Energy, J.
    pub joules: i64,
    /// How long the gang held them: the maximum over its members, s.
    pub seconds: i64,
}

impl Used {
    /// Mean draw, W; `None` for a very short time.
    pub fn watts(self) -> Option<i32> {
        let watts = self.joules.checked_div(self.seconds).filter(|watts| *watts > 0)?;
        Some(i32::try_from(watts).unwrap_or(i32::MAX))
    }
}

/// A bound pod of a gang.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its node.
    pub node: String,
    /// Its name as the agent reports it.
    pub pod: String,
    /// When it was bound, by the API server's clock, as what agents write.
    pub bound: Timestamp,
    /// When its kubelet accepted it, by the node's clock: later where the kubelet was away, as while the node booted.
    pub accepted: Option<Timestamp>,
}

impl Member {
    /// From a pod; `None` if it is not bound.
    pub fn from_pod(pod: &SlimPod) -> Option<Self> {
        let node = pod.spec.node_name.clone()?;
        let bound = pod.status.conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "True");
        let bound =
            bound.and_then(|c| c.last_transition_time.as_ref()).or(pod.metadata.creation_timestamp.as_ref());
        Some(Self {
            node,
            pod: name_of(&pod.metadata),
            bound: bound.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            accepted: pod.status.start_time.as_ref().map(|time| time.0),
        })
    }

    /// Whether an agent saw its GPUs only when they had been used for a while.
    fn seen_late(&self, since: Option<&Time>) -> bool {
        let late = |since: &Time| {
            // A node's clock that is ahead says that it was accepted after its agent saw it. One that is up to a minute ahead says that a
            // kubelet was away that was not: only a longer time counts, and what is measured after a shorter one is left to the model.
            // A clock that is further ahead passes only where the agent was away as well, for longer than that.
            let possible = |at: &Timestamp| {
                at.duration_since(self.bound) > SEEN_WITHIN && at.duration_since(since.0) <= SLACK
            };
            since.0.duration_since(self.accepted.filter(possible).unwrap_or(self.bound)) > SEEN_WITHIN
        };
        since.is_some_and(late)
    }

    /// Whether an agent's entry is of this pod, not of an earlier one of its name.
    fn owns(&self, entry: &ReleasedEnergy) -> bool {
        let early = |since: &Time| since.0.checked_add(SLACK).unwrap_or(Timestamp::MAX) < self.bound;
        entry.pod == self.pod && !entry.since.as_ref().is_some_and(early)
    }
}

/// The most that a board draws whose driver does not say it, W.
const BOARD_WATTS: i64 = 2_000;

/// Energy and time that these members used; `None` until agents have reported every GPU of each, if one saw only a part of it, and if it
/// is none, or more than the boards draw in that time: a driver's counter may be wrong.
pub fn used_by(index: &ClusterIndex, members: &[Member], gpus_per_worker: i32) -> Option<Used> {
    let mut total = Used { joules: 0, seconds: 0 };
    for member in members {
        let key = ObjectKey { namespace: String::new(), name: member.node.clone() };
        let status = index.gpu_nodes().get(&key)?.status.as_ref()?;
        let own = || status.released.iter().filter(|entry| member.owns(entry));
        let partial = |entry: &ReleasedEnergy| member.seen_late(entry.since.as_ref());
        let board = status.gpus.iter().filter_map(|gpu| gpu.board_watts).max().map_or(BOARD_WATTS, i64::from);
        let possible = |entry: &ReleasedEnergy| {
            let watts = board.saturating_mul(i64::from(entry.gpus));
            let most = watts.saturating_mul(entry.seconds.saturating_add(SLACK.as_secs()));
            (0..=most).contains(&entry.joules) && (entry.joules > 0 || entry.seconds == 0)
        };
        let whole = own().all(|entry| possible(entry) && !partial(entry));
        if own().map(|entry| entry.gpus).sum::<i32>() != gpus_per_worker || !whole {
            return None;
        }
        total.joules = total.joules.saturating_add(own().map(|entry| entry.joules.max(0)).sum());
        total.seconds = total.seconds.max(own().map(|entry| entry.seconds).max().unwrap_or(0));
    }
    (!members.is_empty()).then_some(total)
}

/// Energy of a running attempt, J, from the counters of the GPUs that these pods hold, as agents wrote them last: at most a minute ago,
/// if they live. `None` where one is not known.
pub fn so_far(index: &ClusterIndex, pods: &[Arc<SlimPod>], gpus_of_each: i32) -> Option<i64> {
    let mut total: i64 = 0;
    for pod in pods {
        let member = Member::from_pod(pod)?;
        let key = ObjectKey { namespace: String::new(), name: member.node.clone() };
        let status = index.gpu_nodes().get(&key)?.status.as_ref()?;
        let own = status.gpus.iter().filter(|gpu| gpu.holder.as_ref() == Some(&member.pod));
        let own = own.filter(|gpu| !member.seen_late(gpu.held_since.as_ref()));
        let used: Vec<i64> =
            own.filter_map(|gpu| Some(gpu.joules?.saturating_sub(gpu.held_from?).max(0))).collect();
        if i32::try_from(used.len()) != Ok(gpus_of_each) {
            return None;
        }
        total = used.into_iter().fold(total, i64::saturating_add);
    }
    (!pods.is_empty()).then_some(total)
}

/// Cost of measured energy in millionths: the predicted cost, which includes the tariff of each instant, in
/// proportion. Without a prediction, by the tariff of `at`.
pub fn price(policy: &EnergyPolicySpec, micros: i64, predicted: i64, joules: i64, at: Timestamp) -> i64 {
    if predicted > 0 {
        return (micros as f64 * joules as f64 / predicted as f64) as i64;
    }
    let second = at.as_second() as f64;
    let piece = rules::tariff(policy, at.as_second())
        .pieces(andreas_model::Time(second), andreas_model::Time(second + 1.0))
        .next();
    piece.map_or(0, |(.., price)| ((price * Joules(joules as f64)).0 * 1e6) as i64)
}

/// Measured energy of an attempt that was closed with its predicted energy.
#[derive(Clone, Debug, PartialEq)]
pub struct LateEnergy {
    /// The attempt.
    pub attempt: i64,
    /// Energy used, J.
    pub joules: i64,
    /// Difference to the cost already written, millionths of the currency; may be negative.
    pub micros_more: i64,
    /// Mean draw, W.
    pub watts: Option<i32>,
}

/// A closed attempt's energy that agents have not reported yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingEnergy {
    /// The attempt.
    pub attempt: i64,
    /// Its members.
    pub members: Vec<Member>,
    /// GPUs of each.
    pub gpus_per_worker: i32,
    /// The energy written, J, and its cost, millionths.
    pub joules: i64,
    /// See `joules`.
    pub micros: i64,
    /// The observation for its profile, without watts.
    pub observation: Option<Observation>,
}

impl PendingEnergy {
    /// The final result, once all is reported.
    pub fn final_energy(
        &self,
        index: &ClusterIndex,
        policy: &EnergyPolicySpec,
        now: Timestamp,
    ) -> Option<LateEnergy> {
        let used = used_by(index, &self.members, self.gpus_per_worker)?;
        let price = price(policy, self.micros, self.joules, used.joules, now);
        Some(LateEnergy {
            attempt: self.attempt,
            joules: used.joules,
            micros_more: price.saturating_sub(self.micros),
            watts: used.watts(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::slim::SlimGpuNode;
    use andreas_model::Index;
    use serde_json::{Value, json};

    fn report(index: &mut ClusterIndex, node: &str, version: u32, released: Value) {
        let node: SlimGpuNode = serde_json::from_value(json!({
            "metadata": {"name": node, "resourceVersion": version.to_string()}, "spec": {}, "status": {"released": released}}))
        .expect("a gpu node");
        index.apply(node);
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// Energy of a pod that was bound at 10,000 s, with the time of its kubelet and that of its agent.
    fn used(accepted: i64, since: i64) -> Option<i64> {
        let bound = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(10_000)});
        let pod: SlimPod = serde_json::from_value(json!({
            "metadata": {"name": "p0", "namespace": "team"}, "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running", "startTime": at(accepted), "conditions": [bound]}}))
        .expect("a pod");
        let member = Member::from_pod(&pod).expect("it is bound");
        let mut index = ClusterIndex::new();
        let entry = json!({"pod": "team/p0", "since": at(since), "joules": 4_000, "seconds": 10, "gpus": 2});
        report(&mut index, "n1", 1, json!([entry]));
        used_by(&index, &[member], 2).map(|used| used.joules)
    }

    /// Its agent takes the API server's time, its kubelet does not.
    #[test]
    fn energy_on_a_node_whose_clock_is_an_hour_off_is_measured_as_on_any_other() {
        for off in [-3_600, 0, 50, 3_600] {
            assert_eq!(used(10_001 + off, 10_002), Some(4_000), "{off}");
            let late = used(10_001 + off, 10_062);
            assert_eq!(late, None, "{off}: its agent came when it had been at work for a minute");
        }
    }

    #[test]
    fn energy_of_a_pod_whose_kubelet_was_away_when_it_was_bound_is_measured() {
        assert_eq!(used(10_300, 10_302), Some(4_000), "its node was booting");
        assert_eq!(used(10_300, 10_362), None, "and its agent came a minute after its kubelet");
        assert_eq!(used(10_300, 10_200), None, "it was there before: the node's clock is ahead");
        assert_eq!(used(10_061, 10_063), Some(4_000), "a short boot");
        assert_eq!(used(10_045, 10_063), None, "a shorter one may be a clock that is ahead");
    }

    /// A counter that jumped while its agent was away, and one that stood still.
    #[test]
    fn energy_that_no_board_draws_in_that_time_is_not_measured() {
        let member = Member { node: "n1".into(), pod: "team/p0".into(), bound: at(1_000), accepted: None };
        let used = |joules: i64, board: Value| {
            let mut index = ClusterIndex::new();
            let entry =
                json!({"pod": "team/p0", "since": at(1_001), "joules": joules, "seconds": 95, "gpus": 2});
            let gpus = json!([{"uuid": "a", "state": "Free", "boardWatts": board}]);
            let node: SlimGpuNode = serde_json::from_value(json!({
                "metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {},
                "status": {"released": [entry], "gpus": gpus}}))
            .expect("a gpu node");
            index.apply(node);
            used_by(&index, std::slice::from_ref(&member), 2).map(|used| used.joules)
        };
        assert_eq!(used(80_000, json!(400)), Some(80_000));
        assert_eq!((used(80_001, json!(400)), used(0, json!(400)), used(-1, json!(400))), (None, None, None));
        assert_eq!((used(400_000, json!(null)), used(400_001, json!(null))), (Some(400_000), None));
    }

    #[test]
    fn a_gang_is_measured_when_every_gpu_of_every_member_was_reported() {
        let mut index = ClusterIndex::new();
        let job = ObjectKey { namespace: "team".into(), name: "bert".into() };
        let bound = Timestamp::from_second(1_000).expect("a time");
        let member = |node: &str, pod: &str| Member {
            node: node.into(),
            pod: format!("team/{pod}"),
            bound,
            accepted: None,
        };
        let members = [member("n1", "p0"), member("n2", "p1")];
        index.await_energy_report(&job, members.iter().map(|member| member.pod.clone()));
        let at = |pod: &str, since: i64, joules, gpus| {
            let since = Timestamp::from_second(since).expect("a time");
            json!({"pod": format!("team/{pod}"), "since": since, "joules": joules, "seconds": 10, "gpus": gpus})
        };
        let entry = |pod: &str, joules, gpus| at(pod, 1_001, joules, gpus);
        report(&mut index, "n1", 1, json!([entry("other", 5, 2), entry("p0", 4_000, 2)]));
        assert!(index.take_dirty().contains(&job));
        assert_eq!(used_by(&index, &members, 2), None);
        // One of its GPUs did not answer: its use is unknown.
        report(&mut index, "n2", 2, json!([entry("p1", 2_000, 1)]));
        assert_eq!(used_by(&index, &members, 2), None);
        // An earlier pod of the name, deleted with its job, used some as well.
        report(&mut index, "n2", 3, json!([at("p1", 900, 9_000, 1), entry("p1", 2_000, 1)]));
        assert_eq!(used_by(&index, &members, 2), None);
        report(
            &mut index,
            "n2",
            4,
            json!([at("p1", 900, 9_000, 1), entry("p1", 2_000, 1), entry("p1", 1_000, 1)]),
        );
        // Its agent came only when it had been at work for a while.
        report(&mut index, "n1", 5, json!([at("p0", 1_061, 4_000, 2)]));
        assert_eq!(used_by(&index, &members, 2), None);
        report(&mut index, "n1", 6, json!([at("p0", 1_060, 4_000, 2)]));
        let used = used_by(&index, &members, 2).expect("all is told");
        assert_eq!((used, used.watts()), (Used { joules: 7_000, seconds: 10 }, Some(700)));

        let pending_energy = PendingEnergy {
            attempt: 1,
            members: members.to_vec(),
            gpus_per_worker: 2,
            joules: 14_000,
            micros: 500,
            observation: None,
        };
        let policy = EnergyPolicySpec::default();
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let late = pending_energy.final_energy(&index, &policy, now).expect("all is told");
        assert_eq!((late.joules, late.micros_more, late.watts), (7_000, -250, Some(700)));
        // Without a prediction: 3.6 MJ at 0.20 a kWh, PUE 1.3.
        assert_eq!(price(&policy, 0, 0, 3_600_000, now), 260_000);
    }
}
