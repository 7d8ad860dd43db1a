//! Given a job that does not exist; when it is asked about; then the answer is that of the job submitted now.

use andreas_api::query::request::JobMetadata;
use andreas_api::query::{Can, QueuedJob};

use super::*;

/// A job whose pod has also this.
fn posted(gpus: u32, epochs: u32, pod: &Value) -> JobObject {
    let mut template = json!({"spec": {"containers": [{"name": "t", "image": "x"}]}});
    explain::merge(&mut template["spec"], pod);
    let spec = spec(gpus, gpus, json!({"epochs": epochs, "template": template}));
    JobObject { metadata: JobMetadata::default(), spec }
}

fn can(view: &View, job: JobObject) -> Can {
    let asked = CanRequest { job, deadline: None, deadline_after: None };
    what_if::can(view, &Hypothetical::new(Caches::default()), "team", &asked).expect("an answer")
}

fn what_if_added(view: &View, job: JobObject) -> QueuedJob {
    let nodes = vec![AddedNodes { count: 1, gpu_type: "a100".into(), gpus: 8 }];
    let asked = WhatIfRequest { job: Some(job), nodes, ..WhatIfRequest::default() };
    let answer = what_if::what_if(view, &Hypothetical::new(Caches::default()), "team", &asked);
    answer.expect("an answer").job.expect("the job")
}

/// Seconds from the view's instant to the median start.
fn start(view: &View, job: &QueuedJob) -> i64 {
    let expected = job.expected.as_ref().unwrap_or_else(|| panic!("no start: {job:?}"));
    expected.start.p50.0.duration_since(view.instant()).as_secs()
}

/// A node that takes no new workers, where a job of another namespace runs until 150 s from now.
fn closed_node(index: &mut ClusterIndex, name: &str) {
    let mut node = gpu_node(name, GPU, 8);
    node["spec"] = json!({"unschedulable": true});
    index.apply(object::<SlimNode>(node));
    add(index, "rival", &format!("secret-{name}"), &spec(8, 8, json!({})), running(name, 8));
}

/// One node, held by a job of another namespace for more than five hours.
fn held_for_long() -> ClusterIndex {
    let mut index = cluster(1);
    add(&mut index, "rival", "secret", &spec(8, 8, json!({"epochs": 1_000})), running("n0", 8));
    index
}

#[test]
fn an_added_node_is_for_a_posted_job_that_not_every_node_admits() {
    let mut index = held_for_long();
    index.apply(object::<SlimNode>(gpu_node("t0", "Tesla-T4", 8)));
    let view = view(&index);
    let job = posted(8, 10, &json!({"nodeSelector": {"nvidia.com/gpu.product": GPU}}));
    assert!(start(&view, &can(&view, job.clone()).job) > 10_000);
    let added = start(&view, &what_if_added(&view, job));
    assert!(added < 60, "{added}");
}

#[test]
fn an_added_node_is_open_although_closed_ones_of_its_type_run_jobs() {
    let mut index = held_for_long();
    closed_node(&mut index, "n1");
    closed_node(&mut index, "a1");
    let view = view(&index);
    let added = start(&view, &what_if_added(&view, posted(8, 10, &json!({}))));
    assert!(added < 60, "{added}");
}

/// Long lists are not copied for each job and each added node.
#[test]
fn equal_workers_share_their_list_of_nodes_with_the_added_ones_too() {
    let mut index = held_for_long();
    index.apply(object::<SlimNode>(gpu_node("t0", "Tesla-T4", 8)));
    let pod =
        json!({"nodeSelector": {"nvidia.com/gpu.product": GPU}, "containers": [{"name": "t", "image": "x"}]});
    for name in ["first", "second"] {
        add(&mut index, "team", name, &spec(8, 8, json!({"template": {"spec": pod}})), json!(null));
    }
    let mut snapshot = view(&index).snapshot().clone();
    let nodes = [AddedNodes { count: 2, gpu_type: "a100".into(), gpus: 8 }];
    hypothetical::add_nodes(&mut snapshot, &nodes).expect("a type of the cluster");
    let lists: Vec<_> = snapshot.jobs.iter().filter_map(|job| job.candidates.as_ref()).collect();
    let [first, second] = lists.as_slice() else { panic!("{lists:?}") };
    assert!(Arc::ptr_eq(first, second) && first.len() == 3, "{first:?}");
}

#[test]
fn a_closed_node_that_still_runs_a_job_is_not_for_a_posted_one() {
    let mut index = held_for_long();
    closed_node(&mut index, "n1");
    let view = view(&index);
    let found = start(&view, &can(&view, posted(8, 10, &json!({}))).job);
    assert!(found > 10_000, "it waits for the other node: {found}");
}

#[test]
fn a_resource_that_no_other_job_asks_for_is_counted_for_a_posted_one() {
    let with_hcas = |hcas: &str| {
        let mut index = cluster(0);
        let mut node = gpu_node("n0", GPU, 8);
        node["status"]["allocatable"]["rdma/hca"] = json!(hcas);
        index.apply(object::<SlimNode>(node));
        let container = json!({"name": "t", "image": "x", "resources": {"limits": {"rdma/hca": "1"}}});
        can(&view(&index), posted(8, 10, &json!({"containers": [container]}))).job
    };
    let none = with_hcas("0");
    assert_eq!((none.expected.is_none(), none.reason.as_deref()), (true, Some("NoFeasibleNode")), "{none:?}");
    assert!(with_hcas("1").expected.is_some());
}

#[test]
fn the_label_of_a_posted_job_names_its_profile() {
    let view = view(&cluster(1));
    let named = posted(8, 10, &json!({}));
    let mut unnamed = named.clone();
    unnamed.spec.as_object_mut().expect("a spec").remove("profileRef");
    let mut labelled = unnamed.clone();
    labelled.metadata.labels = Some([("andreas.dev/profile".to_owned(), "Known".to_owned())].into());
    let expected = |job: JobObject| can(&view, job).job.expected.expect("expected");
    assert_eq!(expected(labelled), expected(named.clone()));
    assert_ne!(expected(unnamed), expected(named));
}
