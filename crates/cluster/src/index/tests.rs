//! Given a sequence of objects; when queried; then the index returns the right state.

use std::collections::HashSet;

use andreas_model::Index;
use serde_json::json;

use super::*;
use crate::testing::{key, owner, slim_job};

fn pod(name: &str, version: u64, owned: bool, node: Option<&str>, phase: &str) -> SlimPod {
    let owners = if owned { json!([owner("bert", "j1")]) } else { json!([]) };
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": version.to_string(),
                     "labels": {"andreas.dev/job": "bert", "andreas.dev/job-uid": "j1"}, "ownerReferences": owners},
        "spec": {"nodeName": node, "containers": [{"name": "train", "resources": {"requests": {"nvidia.com/gpu": "2", "cpu": "4"}}}]},
        "status": {"phase": phase},
    }))
    .expect("a pod")
}

#[test]
fn a_pod_is_ours_by_label_and_owner_and_an_orphan_is_foreign_use() {
    let mut index = ClusterIndex::new();
    index.apply(pod("bert-1-0", 5, true, Some("n1"), "Running"));
    index.apply(pod("orphan", 6, false, Some("n1"), "Running"));
    // The step decides membership; both carry the name.
    assert_eq!(index.members(&key("bert")).len(), 2);
    assert_eq!(index.foreign_use("n1"), Amounts { gpus: 2, cpu_milli: 4_000, pods: 1, ..Amounts::default() });

    // An orphaning delete removes the owner: the same pod is foreign from then on.
    index.apply(pod("bert-1-0", 7, false, Some("n1"), "Running"));
    assert_eq!(index.foreign_use("n1").gpus, 4);

    // An ended pod uses nothing.
    index.apply(pod("orphan", 8, false, Some("n1"), "Failed"));
    <ClusterIndex as Index<SlimPod>>::delete(&mut index, &key("bert-1-0"), None);
    assert_eq!(index.foreign_use("n1"), Amounts::default());
}

#[test]
fn foreign_pods_come_move_and_go_with_what_they_take() {
    let asking = |name: &str, version: u64, node: Option<&str>, memory: &str| -> ForeignPod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": version.to_string()},
            "spec": {"nodeName": node, "containers": [{"name": "x", "resources": {"requests": {"memory": memory}}}]},
        }))
        .expect("a pod")
    };
    let foreign = |name: &str, version: u64, node: Option<&str>| asking(name, version, node, "1Gi");
    let mut index = ClusterIndex::new();
    index.apply(foreign("a", 1, None));
    assert_eq!(index.foreign_use("n1").pods, 0);
    index.apply(foreign("a", 2, Some("n1")));
    index.apply(foreign("b", 3, Some("n1")));
    assert_eq!(index.foreign_use("n1"), Amounts { memory: 2 << 30, pods: 2, ..Amounts::default() });
    // One that asks for more than any node has goes, and leaves what the others take.
    index.apply(asking("c", 4, Some("n1"), &u64::MAX.to_string()));
    let present = HashSet::from([key("a"), key("b")]);
    <ClusterIndex as Index<ForeignPod>>::reset(&mut index, &present);
    assert_eq!(index.foreign_use("n1"), Amounts { memory: 2 << 30, pods: 2, ..Amounts::default() });
    let present = HashSet::from([key("b")]);
    <ClusterIndex as Index<ForeignPod>>::reset(&mut index, &present);
    assert_eq!(index.foreign_use("n1").pods, 1);
}

#[test]
fn our_own_status_write_is_seen_before_the_watch_shows_it() {
    let mut index = ClusterIndex::new();
    index.apply(slim_job(10, &json!({"phase": "Pending"})));
    assert_eq!(index.take_dirty().len(), 1);
    index.wrote_job(slim_job(20, &json!({"phase": "Starting", "attempts": 1})));
    index.take_dirty();

    // Older than our write: ignored, and no signal is sent.
    index.apply(slim_job(15, &json!({"phase": "Pending"})));
    assert!(index.take_dirty().is_empty());
    let held = index.jobs.get(&key("bert")).expect("held");
    assert_eq!(held.status.as_ref().expect("status").attempts, 1);
}

#[test]
fn a_pod_marks_its_job_and_a_node_those_who_depend_on_it() {
    let node = |version: u64, ready: &str| -> SlimNode {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": version.to_string()},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .expect("a node")
    };
    let mut index = ClusterIndex::new();
    index.apply(slim_job(1, &json!(null)));
    index.take_dirty();
    index.apply(pod("bert-1-0", 2, true, Some("n1"), "Pending"));
    assert_eq!(index.take_dirty(), BTreeSet::from([key("bert")]));
    index.apply(node(3, "True"));
    assert_eq!(index.take_dirty(), BTreeSet::from([key("bert")]));
    index.apply(node(4, "True"));
    assert!(index.take_dirty().is_empty(), "a heartbeat is no news");
    index.apply(node(5, "False"));
    assert_eq!(index.take_dirty(), BTreeSet::from([key("bert")]));
}

#[test]
fn a_deleted_pod_whose_job_is_gone_is_kept_for_its_grace_period() {
    let mut index = ClusterIndex::new();
    index.apply(pod("bert-1-0", 1, true, Some("n1"), "Running"));
    <ClusterIndex as Index<SlimPod>>::delete(&mut index, &key("bert-1-0"), None);
    assert_eq!(index.deleted(&key("bert")).len(), 1);
    // What is seen of its node may show that it has ended.
    assert_eq!(marked_by_its_node(&mut index), BTreeSet::from([key("bert")]));
    for deleted in index.gangs.deleted.values_mut().flatten() {
        let earlier = std::time::Duration::from_secs(31);
        deleted.at = deleted.at.checked_sub(earlier).expect("this machine is up for minutes");
    }
    index.expire_vanished();
    assert!(index.deleted(&key("bert")).is_empty());
    assert_eq!(index.outlived_on("n1").count(), 0);
}

fn marked_by_its_node(index: &mut ClusterIndex) -> BTreeSet<ObjectKey> {
    index.take_dirty();
    index.mark_jobs_on("n1");
    index.take_dirty()
}

#[test]
fn a_node_marks_those_who_wait_for_a_deleted_pod_there_and_not_all_who_ever_had_one() {
    let mut index = ClusterIndex::new();
    index.apply(slim_job(1, &json!(null)));
    index.apply(pod("bert-1-0", 2, true, Some("n1"), "Running"));
    <ClusterIndex as Index<SlimPod>>::delete(&mut index, &key("bert-1-0"), None);
    assert_eq!(index.deleted(&key("bert")).len(), 1);
    assert!(marked_by_its_node(&mut index).is_empty(), "replicas that do not lead keep it for ever");
    // The job is deleted, and made again under its name.
    <ClusterIndex as Index<SlimTrainingJob>>::delete(&mut index, &key("bert"), None);
    assert_eq!(marked_by_its_node(&mut index), BTreeSet::from([key("bert")]));
    let mut again = slim_job(3, &json!(null));
    again.metadata.uid = Some("j2".into());
    index.apply(again);
    assert_eq!(marked_by_its_node(&mut index), BTreeSet::from([key("bert")]));
}

#[test]
fn a_pod_is_lost_in_a_boot_only_if_it_was_seen_started_long_before() {
    use std::time::{Duration, Instant};

    let node = |version: u64, boot: &str| -> SlimNode {
        serde_json::from_value(json!({"metadata": {"name": "n1", "resourceVersion": version.to_string()},
            "status": {"nodeInfo": {"bootID": boot}}}))
        .expect("a node")
    };
    let started = |version: u64| {
        let mut pod = pod("bert-1-0", version, true, Some("n1"), "Running");
        pod.status.container_statuses =
            serde_json::from_value(json!([{"name": "train", "state": {"running": {"startedAt": null}}}]))
                .expect("states");
        pod
    };
    let lost = |index: &ClusterIndex| {
        let members = index.members(&key("bert"));
        let members = members.iter().map(AsRef::as_ref);
        index.lost_in_boot("n1", members, &[]).into_iter().collect::<Vec<_>>()
    };
    let mut index = ClusterIndex::new();
    index.apply(node(1, "a"));
    // Bound and not seen started when its node boots: the kubelet starts it now.
    index.apply(pod("bert-1-0", 2, true, Some("n1"), "Pending"));
    index.apply(node(3, "b"));
    assert!(lost(&index).is_empty());
    // Seen running after the boot: it started then.
    index.apply(started(4));
    assert!(lost(&index).is_empty());
    // Seen running for less than a minute before the next reboot: it may have been seen late, after an
    // earlier boot.
    let ran_for = |index: &mut ClusterIndex, seconds: u64| {
        let since =
            Instant::now().checked_sub(Duration::from_secs(seconds)).expect("this machine is up for minutes");
        index.gangs.started.insert("bert-1-0".into(), since);
    };
    ran_for(&mut index, 50);
    index.apply(node(5, "c"));
    assert!(lost(&index).is_empty());
    // Seen running for longer: it is lost.
    ran_for(&mut index, 70);
    index.apply(node(6, "d"));
    assert_eq!(lost(&index), ["bert-1-0"]);
}
