//! What nodes' agents write, and which of them have stopped writing.
//!
//! An agent writes its node's status on changes, and each `reportSeconds` while a pod holds a GPU that draws power. One
//! that owes that and has missed [`MISSED`] reports has ended, or is cut off from the API server while its node's
//! kubelet is not. What it wrote last says nothing of now: without the operator's Lease it has ended all limits. An
//! agent whose GPUs are all idle writes nothing for days, and is not silent. Nor is one without `reportSeconds`: agents
//! of earlier builds write nothing while a draw stays as it is.
//!
//! The time counts from when a change was seen here, at the earliest from the begin of leadership: after an outage
//! every agent has time to write. No other machine's clock is read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::{GpuCondition, GpuState};
use andreas_api::slim::SlimGpuNode;
use andreas_api::{GpuNodeStatus, key_of};
use andreas_model::ObjectKey;

use super::store::{Change, Origin};
use super::{ClusterIndex, agent_status};

/// Reports in a row that an agent has missed when it is silent: two may fail.
const MISSED: u32 = 3;
/// An agent names the pod that holds a GPU within this time.
const NAMED_WITHIN: Duration = Duration::from_secs(60);

/// What was seen of agents, and of what they have to report, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Agents {
    /// When each was last seen to write.
    reported: BTreeMap<String, Instant>,
    /// Since when each has not answered a request to wake.
    unanswered: BTreeMap<String, Instant>,
    /// Foreign pods that take GPUs, in the order in which they came.
    taken: BTreeMap<String, Vec<Taken>>,
}

/// GPUs of a foreign pod.
#[derive(Clone, Debug)]
struct Taken {
    /// Its name in GpuNodes.
    pod: String,
    gpus: u64,
    /// When that was seen.
    at: Instant,
}

impl Agents {
    /// A foreign pod takes GPUs of a node.
    pub(super) fn foreign_took(&mut self, node: &str, pod: String, gpus: u64) {
        self.taken.entry(node.to_owned()).or_default().push(Taken { pod, gpus, at: Instant::now() });
    }

    /// A foreign pod takes none of a node any more.
    pub(super) fn foreign_left(&mut self, node: &str, pod: &str) {
        let Some(pods) = self.taken.get_mut(node) else { return };
        // A pod that goes from one watch to another one may come before it leaves.
        if let Some(at) = pods.iter().position(|taken| taken.pod == pod) {
            pods.remove(at);
        }
        if pods.is_empty() {
            self.taken.remove(node);
        }
    }
}

/// Status of a node's agent that reports; `None`: no agent, it has ended, or it is silent.
pub fn reporting_agent<'a>(index: &'a ClusterIndex, key: &ObjectKey) -> Option<&'a GpuNodeStatus> {
    let status = agent_status(index, key)?;
    let reported = index.by_node.agents.reported.get(&key.name);
    let overdue = reported.zip(overdue_after(status)).is_some_and(|(at, after)| at.elapsed() >= after);
    (!overdue).then_some(status)
}

/// Time without any report after which an agent is silent; `None`: it owes none, or does not say how often it reports.
fn overdue_after(status: &GpuNodeStatus) -> Option<Duration> {
    let draws = |gpu: &GpuState| gpu.state == GpuCondition::Held && gpu.watts > Some(0);
    let each = u64::try_from(status.report_seconds?).ok()?;
    status.gpus.iter().any(draws).then(|| MISSED * Duration::from_secs(each))
}

impl ClusterIndex {
    /// Leadership begins: whoever is silent is so from now on.
    pub fn expect_reports(&mut self) {
        let now = Instant::now();
        self.by_node.agents.reported.values_mut().for_each(|at| *at = now);
    }

    /// How long a node's agent has not answered a request to wake; `None`: it has answered all.
    pub fn wake_unanswered_for(&self, node: &str) -> Option<Duration> {
        Some(self.by_node.agents.unanswered.get(node)?.elapsed())
    }

    /// Foreign pods that an agent that lives has named by now, with the GPUs that each has requested there.
    pub fn foreign_to_be_named(&self, node: &str) -> impl Iterator<Item = (&str, u64)> {
        let all = self.by_node.agents.taken.get(node).into_iter().flatten();
        all.filter(|taken| taken.at.elapsed() >= NAMED_WITHIN).map(|taken| (taken.pod.as_str(), taken.gpus))
    }

    /// Stores a state of a GpuNode.
    pub(super) fn apply_gpu_node(&mut self, node: SlimGpuNode, origin: Origin) {
        let key = key_of(&node);
        let old = match self.gpu_nodes.apply(node, origin) {
            Change::Nothing => return,
            Change::New { .. } => None,
            Change::Newer { old } => Some(old),
        };
        self.mark_jobs_on(&key.name);
        self.mark_jobs_with_energy_report(&key);
        self.agent_reported(&key);
        let awake = self.gpu_nodes.get(&key).is_none_or(|node| {
            let answered = node.status.as_ref().map_or(0, |status| status.observed_wake_generation);
            node.spec.wake_generation <= answered
        });
        let unanswered = &mut self.by_node.agents.unanswered;
        if awake {
            unanswered.remove(&key.name);
        } else {
            unanswered.entry(key.name.clone()).or_insert_with(Instant::now);
        }
        let new = self.gpu_nodes.get(&key).and_then(|node| node.status.as_ref());
        let before = old.as_ref().and_then(|node| node.status.as_ref());
        // The operator writes the spec alone.
        if old.is_none() || before != new {
            self.by_node.agents.reported.insert(key.name.clone(), Instant::now());
        }
        if !same_power(before, new) && self.limits_power() {
            self.replan_soon();
        }
    }

    /// A GpuNode was deleted.
    pub(super) fn gpu_node_gone(&mut self, key: &ObjectKey) {
        self.by_node.agents.reported.remove(&key.name);
        self.by_node.agents.unanswered.remove(&key.name);
        self.mark_jobs_on(&key.name);
    }

    /// For tests: all that was seen of agents was seen so much earlier.
    #[cfg(any(test, feature = "testing"))]
    pub fn age_reports(&mut self, by: Duration) {
        let agents = &mut self.by_node.agents;
        let taken = agents.taken.values_mut().flatten().map(|taken| &mut taken.at);
        for at in agents.reported.values_mut().chain(agents.unanswered.values_mut()).chain(taken) {
            *at = at.checked_sub(by).expect("this machine is up for minutes");
        }
    }
}

/// Whether two reports are the same for plans with a power budget: the generation in force and, of each GPU, its
/// holder, its draw while held, and its power limits. Small changes of a draw wait for the next plan.
fn same_power(old: Option<&GpuNodeStatus>, new: Option<&GpuNodeStatus>) -> bool {
    let registered = |status: &&GpuNodeStatus| status.agent_version.is_some();
    match (old.filter(registered), new.filter(registered)) {
        (Some(old), Some(new)) => {
            old.observed_generation == new.observed_generation
                && old.gpus.len() == new.gpus.len()
                && old.gpus.iter().zip(&new.gpus).all(|(a, b)| same_gpu(a, b))
        }
        (old, new) => old.is_none() && new.is_none(),
    }
}

fn same_gpu(a: &GpuState, b: &GpuState) -> bool {
    let watts = |gpu: &GpuState| gpu.watts.unwrap_or(0);
    let near = watts(a).abs_diff(watts(b)) <= (watts(a).unsigned_abs() / 10).max(5)
        && a.watts.is_some() == b.watts.is_some();
    a.uuid == b.uuid
        && a.holder == b.holder
        && (a.holder.is_none() || near)
        && a.min_limit_watts == b.min_limit_watts
        && a.max_limit_watts == b.max_limit_watts
}

#[cfg(test)]
mod tests {
    use andreas_model::Index;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::ForeignPod;
    use crate::testing::key_in;

    fn gpu_node(version: u64, spec: Value, joules: i64, gpu: &str) -> SlimGpuNode {
        let gpus = json!([{"uuid": "a", "state": gpu, "holder": "team/p", "watts": 300, "joules": joules}]);
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": version.to_string()}, "spec": spec,
            "status": {"agentVersion": "1", "reportSeconds": 60, "gpus": gpus}}))
        .expect("a gpu node")
    }

    fn reports(index: &ClusterIndex) -> bool {
        let key = ObjectKey { namespace: String::new(), name: "n1".into() };
        reporting_agent(index, &key).is_some()
    }

    #[test]
    fn an_agent_is_silent_when_a_gpu_is_held_and_its_status_stands_still() {
        let minute = Duration::from_secs(60);
        let mut index = ClusterIndex::new();
        index.apply(gpu_node(1, json!({}), 1_000, "Held"));
        index.age_reports(2 * minute);
        // What the operator writes says nothing of the agent.
        index.wrote_gpu_node(gpu_node(2, json!({"wakeGeneration": 1}), 1_000, "Held"));
        index.apply(gpu_node(3, json!({"wakeGeneration": 2}), 1_000, "Held"));
        assert!(reports(&index), "two reports may fail");
        index.age_reports(minute);
        assert!(!reports(&index));
        // Its energy goes on: it is back, whichever way that is seen first.
        index.apply(gpu_node(4, json!({"wakeGeneration": 2}), 19_000, "Held"));
        assert!(reports(&index));
        index.age_reports(3 * minute);
        index.wrote_gpu_node(gpu_node(5, json!({"wakeGeneration": 3}), 37_000, "Held"));
        assert!(reports(&index));
        // Whoever begins to lead has seen nothing of the time before.
        index.age_reports(3 * minute);
        index.expect_reports();
        assert!(reports(&index));
        index.age_reports(3 * minute);
        assert!(!reports(&index));
    }

    #[test]
    fn an_agent_without_anything_to_report_is_not_silent() {
        for (state, watts) in [("Free", 54), ("Resting", 54), ("Unhealthy", 0), ("Held", 0)] {
            let mut index = ClusterIndex::new();
            let mut node = gpu_node(1, json!({}), 1_000, state);
            node.status.as_mut().expect("a status").gpus[0].watts = Some(watts).filter(|watts| *watts > 0);
            index.apply(node);
            index.age_reports(Duration::from_secs(240));
            assert!(reports(&index), "{state}, {watts} W");
        }
    }

    /// As while an upgrade replaces the agents: a run at an even draw is written once, and nothing after that.
    #[test]
    fn an_agent_that_does_not_say_how_often_it_reports_is_not_silent() {
        let mut index = ClusterIndex::new();
        let mut earlier = gpu_node(1, json!({}), 1_000, "Held");
        earlier.status.as_mut().expect("a status").report_seconds = None;
        index.apply(earlier);
        index.age_reports(Duration::from_secs(240));
        assert!(reports(&index));
        // The agent in its place says so.
        index.apply(gpu_node(2, json!({}), 2_000, "Held"));
        index.age_reports(Duration::from_secs(180));
        assert!(!reports(&index));
    }

    #[test]
    fn each_pod_of_others_has_its_own_minute_to_be_named() {
        let mut index = ClusterIndex::new();
        let pod = |name: &str, version: u64, gpus: u32| -> ForeignPod {
            let resources = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "other", "uid": name, "resourceVersion": version.to_string()},
                "spec": {"nodeName": "n1", "containers": [{"name": "x", "resources": resources}]}}))
            .expect("a pod")
        };
        let due = |index: &ClusterIndex| -> Vec<String> {
            index.foreign_to_be_named("n1").map(|(pod, gpus)| format!("{pod}: {gpus}")).collect()
        };
        index.apply(pod("serves", 1, 4));
        index.age_reports(Duration::from_secs(50));
        index.apply(pod("comes", 2, 1));
        assert!(due(&index).is_empty());
        index.age_reports(Duration::from_secs(10));
        assert_eq!(due(&index), ["other/serves: 4"]);
        index.age_reports(Duration::from_secs(50));
        assert_eq!(due(&index), ["other/serves: 4", "other/comes: 1"]);
        <ClusterIndex as Index<ForeignPod>>::delete(&mut index, &key_in("other", "serves"), None);
        assert_eq!(due(&index), ["other/comes: 1"]);
    }

    #[test]
    fn a_report_each_minute_makes_a_plan_only_if_a_draw_has_moved() {
        let status = |watts: i32, holder: Option<&str>| -> GpuNodeStatus {
            let gpus =
                json!([{"uuid": "a", "state": "Held", "holder": holder, "watts": watts, "joules": watts}]);
            serde_json::from_value(json!({"agentVersion": "1", "gpus": gpus})).expect("a status")
        };
        let of_pod = |watts: i32| status(watts, Some("team/p"));
        assert!(same_power(Some(&of_pod(300)), Some(&of_pod(330))));
        assert!(!same_power(Some(&of_pod(300)), Some(&of_pod(331))));
        assert!(!same_power(Some(&of_pod(300)), Some(&status(300, None))));
        assert!(same_power(Some(&status(50, None)), Some(&status(400, None))), "nobody holds it");
        let ended = GpuNodeStatus { agent_version: None, ..of_pod(300) };
        assert!(!same_power(Some(&of_pod(300)), Some(&ended)) && same_power(Some(&ended), None));
    }
}
