//! What the devices say: which pods have containers and GPUs on the nodes, whatever the API server shows.
//!
//! A pod that was deleted by force has no object any more, and its containers go on until their grace is over. Only the kubelets
//! know. [`watch`] asks them all the time and notes in [`ClusterHistory::violations`]:
//!
//! - a GPU with two users,
//! - containers of two attempts of a job at once, on nodes that reach the API server,
//! - a training pod that its kubelet refused because another pod, gone from the API server, still held the GPUs (a real kubelet does not
//!   tell whose they were),
//! - a pod that holds GPUs for longer than [`LEFT`] after its object says that it ended,
//! - where a budget is told to it, GPUs that together draw more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_test_nodes::control::{NodeInfo, PodInfo};

use crate::machines::Machines;
use crate::seen::{ClusterHistory, lock};

/// Time between two snapshots.
const EVERY: Duration = Duration::from_millis(200);
/// The kubelet frees GPUs before it says that a pod has ended; what is seen here may be one snapshot older.
const LEFT: Duration = Duration::from_secs(5);
/// Idle GPUs of a node that came (back) count against the budget after this time: nobody plans for machines that are not there, and
/// stopping a run for their idle draw takes a while.
const NEW_NODE: Duration = Duration::from_secs(60);

/// The state of all kubelets at one instant.
#[derive(Debug, Default)]
pub struct KubeletSnapshot {
    /// The nodes.
    pub nodes: Vec<NodeInfo>,
    /// Pods that have not been forgotten.
    pub pods: Vec<PodInfo>,
}

/// Takes snapshots for as long as it is polled.
pub(crate) async fn watch(machines: Arc<dyn Machines>, seen: Arc<Mutex<ClusterHistory>>) {
    loop {
        // Pods first: a holder that ended between the two answers is no second user.
        let pods = machines.pods().await;
        let nodes = machines.nodes().await;
        if let (Ok(nodes), Ok(pods)) = (nodes, pods) {
            let mut seen = lock(&seen);
            let found = seen.check_devices(&KubeletSnapshot { nodes, pods }, Instant::now());
            seen.violations.extend(found);
        }
        tokio::time::sleep(EVERY).await;
    }
}

impl ClusterHistory {
    /// Adds one snapshot; returns the violations in it.
    pub fn check_devices(&mut self, snapshot: &KubeletSnapshot, now: Instant) -> Vec<String> {
        self.devices.snapshots += 1;
        let mut found = shared_gpus(snapshot);
        found.extend(attempts_at_once(snapshot, self.devices.cut_off_nodes_count));
        found.extend(self.over_budget(snapshot, now));
        found.extend(self.refused(snapshot));
        found.extend(self.left_over(snapshot, now));
        let running = snapshot.pods.iter().filter(|pod| !pod.ended && !pod.pids.is_empty());
        let objectless = running.filter(|pod| self.pods.get(&pod.uid).is_some_and(|view| view.deleted));
        let objectless: Vec<String> = objectless.map(|pod| pod.uid.clone()).collect();
        self.devices.ran_without_object.extend(objectless);
        found
    }

    /// Adds up what the drivers say of GPUs of nodes that have an object; a machine whose object was deleted is off.
    fn over_budget(&mut self, snapshot: &KubeletSnapshot, now: Instant) -> Option<String> {
        let there = |name: &String| self.node_gpus.contains_key(name);
        let appears = self.devices.budget_watts.map(|_| now);
        self.devices.nodes_since.retain(|name, _| there(name));
        let (mut watts, mut lines) = (0.0, Vec::new());
        for node in snapshot.nodes.iter().filter(|node| there(&node.name)) {
            let since = *self.devices.nodes_since.entry(node.name.clone()).or_insert(appears);
            let planned = since.is_none_or(|since| now.duration_since(since) > NEW_NODE);
            let idle = |uuid: &str| node.gpus.iter().any(|gpu| gpu.uuid == uuid && gpu.holder.is_none());
            let counted = node.hardware.iter().filter(|gpu| planned || !idle(&gpu.uuid));
            let drawn = counted.fold(0.0, |sum, gpu| sum + gpu.watts);
            watts += drawn;
            let held = node.gpus.iter().filter(|gpu| gpu.holder.is_some()).count();
            let limited = node.hardware.iter().filter(|gpu| !gpu.at_defaults).count();
            lines.push(format!("{} {drawn:.0} W, {held} held, {limited} changed by an agent", node.name));
        }
        let lines = lines.join("; ");
        let budget = self.devices.budget_watts?;
        if watts > self.devices.highest_watts {
            self.devices.highest_watts = watts;
            self.devices.at_highest.clone_from(&lines);
        }
        (watts > budget).then(|| format!("the GPUs draw {watts:.0} W of {budget:.0} W: {lines}"))
    }

    /// Training pods that were refused for GPUs of a pod that the API server no longer shows.
    fn refused(&self, snapshot: &KubeletSnapshot) -> Vec<String> {
        let ours =
            |uid: &String| self.pods.get(uid).filter(|pod| !pod.label(names::LABEL_JOB_UID).is_empty());
        let hidden = |uid: &&String| self.pods.get(*uid).is_some_and(|pod| pod.deleted);
        let all =
            snapshot.nodes.iter().flat_map(|node| node.refused_for_gpus.iter().map(move |one| (node, one)));
        all.filter_map(|(node, refused)| {
            let pod = ours(&refused.pod_uid)?;
            let holder = refused.holders.iter().find(hidden)?;
            let name = pod.pod.metadata.name.clone().unwrap_or_default();
            Some(format!("{}: {name} was refused, {holder} without object held its GPUs", node.name))
        })
        .collect()
    }

    /// Pods that hold GPUs although their objects have said for a while that they ended.
    fn left_over(&mut self, snapshot: &KubeletSnapshot, now: Instant) -> Vec<String> {
        let mut left = BTreeMap::new();
        let mut found = Vec::new();
        for (node, uid) in holders(snapshot) {
            let ended = self
                .pods
                .get(uid)
                .is_some_and(|view| matches!(view.pod.status.phase.as_str(), "Succeeded" | "Failed"));
            if !ended || !node.online {
                continue;
            }
            let since = self.devices.left.get(uid).copied().unwrap_or(now);
            left.insert(uid.to_owned(), since);
            if now.duration_since(since) > LEFT {
                found.push(format!("{}: pod {uid} has ended and holds GPUs", node.name));
            }
        }
        self.devices.left = left;
        found
    }
}

fn holders(snapshot: &KubeletSnapshot) -> impl Iterator<Item = (&NodeInfo, &str)> {
    let gpus = snapshot.nodes.iter().flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)));
    gpus.filter_map(|(node, gpu)| Some((node, gpu.holder.as_deref()?)))
}

/// GPUs that two pods with running containers were given.
fn shared_gpus(snapshot: &KubeletSnapshot) -> Vec<String> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pod in snapshot.pods.iter().filter(|pod| !pod.ended && !pod.pids.is_empty()) {
        for gpu in &pod.gpus {
            users.entry(gpu).or_default().push(&pod.name);
        }
    }
    let shared = users.into_iter().filter(|(_, users)| users.len() > 1);
    shared.map(|(gpu, users)| format!("{gpu} has {} users: {}", users.len(), users.join(", "))).collect()
}

/// Jobs of which two attempts have running containers. On a node that is cut off a run may go on while a policy that does not wait
/// starts another.
fn attempts_at_once(snapshot: &KubeletSnapshot, cut_off_nodes_count: bool) -> Vec<String> {
    let online: BTreeSet<&str> =
        snapshot.nodes.iter().filter(|n| n.online).map(|n| n.name.as_str()).collect();
    let mut attempts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let running = snapshot.pods.iter().filter(|pod| !pod.ended && !pod.pids.is_empty());
    for pod in running.filter(|pod| cut_off_nodes_count || online.contains(pod.node.as_str())) {
        let label = |name: &str| pod.labels.get(name).map(String::as_str);
        if let (Some(uid), Some(attempt)) = (label(names::LABEL_JOB_UID), label(names::LABEL_ATTEMPT)) {
            attempts.entry(uid).or_default().insert(attempt);
        }
    }
    let twice = attempts.into_iter().filter(|(_, attempts)| attempts.len() > 1);
    twice
        .map(|(uid, attempts)| format!("job {uid}: containers of attempts {attempts:?} run at once"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, holders: &[Option<&str>]) -> serde_json::Value {
        let gpus: Vec<_> = holders
            .iter()
            .enumerate()
            .map(|(i, holder)| json!({"uuid": format!("GPU-{name}-{i}"), "holder": holder}))
            .collect();
        json!({"name": name, "online": true, "bootId": "b", "gpus": gpus, "refusedForGpus": [], "hardware": []})
    }

    fn pod(uid: &str, attempt: &str, gpus: &[&str]) -> serde_json::Value {
        json!({
            "namespace": "team", "name": format!("x-{attempt}-0"), "uid": uid, "node": "n", "ip": "", "gpus": gpus,
            "labels": {(names::LABEL_JOB_UID): "j", (names::LABEL_ATTEMPT): attempt},
            "pids": {"train": 1}, "ended": false,
        })
    }

    fn snapshot(node: serde_json::Value, pods: &[serde_json::Value]) -> KubeletSnapshot {
        let nodes = vec![serde_json::from_value(node).unwrap()];
        KubeletSnapshot {
            nodes,
            pods: pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect(),
        }
    }

    #[test]
    fn one_user_of_each_gpu_and_one_attempt_of_a_job_are_right() {
        let one = snapshot(node("n", &[Some("a"), None]), &[pod("a", "1", &["GPU-n-0"])]);
        let mut seen = ClusterHistory::default();
        assert_eq!(seen.check_devices(&one, Instant::now()), Vec::<String>::new());
    }

    #[test]
    fn two_users_of_a_gpu_and_two_attempts_at_once_are_noted() {
        let pods = [pod("a", "1", &["GPU-n-0"]), pod("b", "2", &["GPU-n-0"])];
        let found = ClusterHistory::default()
            .check_devices(&snapshot(node("n", &[Some("b")]), &pods), Instant::now());
        assert!(found.iter().any(|text| text.contains("GPU-n-0 has 2 users")), "{found:?}");
        assert!(found.iter().any(|text| text.contains("run at once")), "{found:?}");
        let mut silent = node("n", &[Some("b")]);
        silent["online"] = json!(false);
        let pods = [pod("a", "1", &["GPU-n-0"]), pod("b", "2", &["GPU-n-1"])];
        assert_eq!(
            ClusterHistory::default().check_devices(&snapshot(silent, &pods), Instant::now()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_runs_on_a_node_that_is_cut_off_counts_where_it_shall() {
        let mut silent = node("n", &[Some("b")]);
        silent["online"] = json!(false);
        let pods = [pod("a", "1", &["GPU-n-0"]), pod("b", "2", &["GPU-n-1"])];
        let mut seen = ClusterHistory::default();
        seen.devices.cut_off_nodes_count = true;
        let found = seen.check_devices(&snapshot(silent, &pods), Instant::now());
        assert!(found.iter().any(|text| text.contains("run at once")), "{found:?}");
    }

    #[test]
    fn a_draw_above_the_budget_is_noted() {
        let drawing = |watts: f64| {
            let mut drawing = node("n", &[Some("a"), None]);
            drawing["hardware"] = json!([0, 1].map(|i| {
                json!({
                    "uuid": format!("GPU-n-{i}"), "watts": if i == 0 { watts } else { 50.0 }, "joules": 0.0,
                    "limitWatts": 400.0, "lockedMhz": null, "atDefaults": true,
                })
            }));
            snapshot(drawing, &[])
        };
        let mut seen = ClusterHistory::default();
        seen.devices.budget_watts = Some(400.0);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(
            seen.check_devices(&drawing(900.0), start).is_empty(),
            "a machine without a Node object is off"
        );
        seen.node_gpus.insert("n".into(), 2);
        assert!(seen.check_devices(&drawing(390.0), after(1)).is_empty(), "nobody planned for its idle GPU");
        assert_eq!(seen.check_devices(&drawing(410.0), after(2)).len(), 1);
        assert_eq!(seen.check_devices(&drawing(390.0), after(70)).len(), 1);
        assert_eq!(seen.devices.highest_watts, 440.0);
    }

    #[test]
    fn a_refusal_for_gpus_of_a_pod_without_object_is_noted() {
        let mut seen = ClusterHistory::default();
        for (uid, deleted) in [("hidden", true), ("new", false)] {
            let pod = json!({"metadata": {"name": uid, "uid": uid, "labels": {(names::LABEL_JOB_UID): "j"}}, "spec": {}});
            let pod = serde_json::from_value(pod).unwrap();
            seen.pods.insert(uid.into(), crate::seen::PodView { pod, deleted });
        }
        let mut refusing = node("n", &[Some("hidden")]);
        refusing["refusedForGpus"] = json!([{"podUid": "new", "holders": ["hidden"]}]);
        let found = seen.check_devices(&snapshot(refusing, &[]), Instant::now());
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
