//! Workloads of every kind: what is planned for them, and what changes when they are released.

use andreas_api::names::{ANNOTATION_GPUS, ANNOTATION_WEIGHT, LABEL_ADOPT, LABEL_JOB};
use serde_json::{Value, json};

use super::*;

fn pod(gpus: i64) -> Value {
    json!({"spec": {"restartPolicy": "Never", "containers": [{
        "name": "train", "image": "example.org/train",
        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"cpu": "3", "memory": "10Gi"}},
    }]}})
}

fn object(kind: Kind, spec: Value) -> Value {
    json!({
        "apiVersion": kind.api_version(), "kind": kind.name(),
        "metadata": {"name": "a", "namespace": "team", "uid": "8f1d2c", "labels": {LABEL_ADOPT: "true"}},
        "spec": spec,
    })
}

fn job(pods: i64, gpus: i64) -> Value {
    object(
        Kind::Job,
        json!({"suspend": true, "parallelism": pods, "completions": pods, "template": pod(gpus)}),
    )
}

/// Each kind with two pods of two GPUs.
fn all() -> Vec<(Kind, Value)> {
    let set = json!({"suspend": true, "replicatedJobs": [
        {"name": "driver", "replicas": 1, "template": {"spec": {"template": pod(0)}}},
        {"name": "node", "replicas": 2, "template": {"spec": {"template": pod(2)}}}]});
    let roles = json!({"Master": {"replicas": 1, "template": pod(2)}, "Worker": {"template": pod(2)}});
    let ray = json!({"suspend": true, "entrypoint": "python a.py", "rayClusterSpec": {
        "headGroupSpec": {"template": pod(0)},
        "workerGroupSpecs": [{"groupName": "g", "replicas": 2, "template": pod(2)}]}});
    vec![
        (Kind::Job, job(2, 2)),
        (Kind::JobSet, object(Kind::JobSet, set)),
        (
            Kind::PyTorchJob,
            object(Kind::PyTorchJob, json!({"runPolicy": {"suspend": true}, "pytorchReplicaSpecs": roles})),
        ),
        (Kind::RayJob, object(Kind::RayJob, ray)),
    ]
}

fn workload(kind: Kind, object: &Value) -> Workload {
    Workload::from_object(kind, object).expect("a workload")
}

fn directives(hostname: Option<&str>) -> Directives {
    Directives {
        job: "job-a".into(),
        uid: "m1".into(),
        attempt: 3,
        hostname: hostname.map(Into::into),
        pods: None,
    }
}

#[test]
fn every_kind_is_planned_with_the_gpus_of_all_its_pods() {
    for (kind, object) in all() {
        let made = mirror(&workload(kind, &object), &object, &object).expect("adopted");
        let read: andreas_api::TrainingJob = serde_json::from_value(made.clone()).expect("of the API");
        let adopts = read.spec.adopts.expect("adopts");
        assert_eq!((adopts.kind.as_str(), adopts.pods), (kind.name(), 2));
        assert_eq!((read.spec.gpus.min, read.spec.gpus.max_nodes), (4, 2), "{made}");
        // A node may get both pods: requests are those of a GPU.
        let requests = &made["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"];
        assert_eq!((&requests["cpu"], &requests["memory"]), (&json!("1.5"), &json!("5Gi")), "{made}");
        assert!(made["spec"].get("suspend").is_none() && made["metadata"].get("labels").is_none(), "{made}");
    }
}

#[test]
fn gpus_of_a_pod_share_its_devices() {
    for (gpus, share) in [(8, "0.125"), (6, "0.166")] {
        let mut object = job(2, gpus);
        let resources = &mut object["spec"]["template"]["spec"]["containers"][0]["resources"];
        resources["limits"]["rdma/hca"] = json!(1);
        let made = mirror(&workload(Kind::Job, &object), &object, &object).expect("adopted");
        let limits = &made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &json!({"rdma/hca": share}));
    }
}

#[test]
fn a_released_workload_runs_on_its_node_and_is_as_found_when_it_is_given_back() {
    for (kind, found) in all() {
        let groups = groups(kind, &found);
        let mut object = found.clone();
        write_directives(&mut object, &groups, &directives(Some("n1")));
        release(kind, &mut object, 3);
        let seen = workload(kind, &object);
        assert_eq!((seen.suspended, seen.attempt()), (false, Some(3)));
        for group in &groups {
            let template = object.pointer(&group.template).expect("a template");
            assert_eq!(template["spec"]["nodeSelector"]["kubernetes.io/hostname"], "n1");
            assert_eq!(template["metadata"]["labels"][LABEL_JOB], "job-a");
            assert!(template["spec"].get("schedulingGates").is_none());
        }
        // Stopped, and released again on several nodes.
        hold(kind, &mut object);
        assert!(workload(kind, &object).suspended);
        write_directives(&mut object, &groups, &directives(None));
        for group in &groups {
            let spec = &object.pointer(&group.template).expect("a template")["spec"];
            assert_eq!(spec["schedulingGates"], json!([{"name": "andreas.dev/node"}]));
            assert_eq!(spec["nodeSelector"], json!({}));
        }
        assert!(restore(&mut object));
        object["metadata"].as_object_mut().expect("metadata").remove("annotations");
        assert_eq!(object, found);
    }
}

/// An Indexed Job with so many pods and the annotation `andreas.dev/gpus`.
fn elastic(pods: i64, gpus: i64, may: &str) -> Value {
    let mut object = job(pods, gpus);
    object["metadata"]["annotations"] = json!({ANNOTATION_GPUS: may});
    object["spec"]["completionMode"] = json!("Indexed");
    object
}

#[test]
fn the_pods_of_an_elastic_job_follow_the_plan_and_are_restored() {
    for (may, gpus, adopts) in [
        ("2-6", json!({"min": 2, "max": 6, "counts": [2, 4, 6], "maxNodes": 3}), 3),
        ("8, 2", json!({"min": 2, "max": 8, "counts": [2, 8], "maxNodes": 4}), 4),
        ("4", json!({"min": 4, "max": 4, "maxNodes": 2}), 2),
    ] {
        let object = elastic(2, 2, may);
        let made = mirror(&workload(Kind::Job, &object), &object, &object).expect("adopted");
        assert_eq!(made["spec"]["gpus"], gpus, "{may}");
        let read: andreas_api::TrainingJob = serde_json::from_value(made).expect("of the API");
        let of = read.spec.adopts.expect("adopts");
        assert_eq!((of.pods, of.gpus_per_pod, of.pods_on(2)), (adopts, Some(2), 1));
    }
    let found = elastic(2, 2, "2-6");
    let mut object = found.clone();
    let groups = groups(Kind::Job, &object);
    for pods in [3, 1] {
        write_directives(&mut object, &groups, &Directives { pods: Some(pods), ..directives(Some("n1")) });
        assert_eq!(
            (&object["spec"]["parallelism"], &object["spec"]["completions"]),
            (&json!(pods), &json!(pods))
        );
    }
    assert!(restore(&mut object));
    let expected = (&found["spec"]["parallelism"], &found["spec"]["completions"]);
    assert_eq!((&object["spec"]["parallelism"], &object["spec"]["completions"]), expected);
    // Where pods take turns, only those at once change.
    object["spec"]["completions"] = json!(10);
    write_directives(&mut object, &groups, &Directives { pods: Some(3), ..directives(None) });
    assert_eq!((&object["spec"]["parallelism"], &object["spec"]["completions"]), (&json!(3), &json!(10)));
}

#[test]
fn a_number_of_gpus_that_cannot_follow_the_plan_is_refused_with_the_annotation() {
    let refused = |kind: Kind, object: &Value| {
        let refused = mirror(&workload(kind, object), object, object).expect_err("refused");
        assert!(refused.to_string().starts_with("annotation andreas.dev/gpus: "), "{refused}");
    };
    for text in ["", "0-4", "4-2", "many", "1,,2", "5000"] {
        refused(Kind::Job, &elastic(1, 1, text));
    }
    refused(Kind::Job, &elastic(1, 2, "3"));
    refused(Kind::Job, &elastic(1, 2, "1-4000"));
    let mut fixed = elastic(2, 1, "1-4");
    fixed["spec"]["completionMode"] = json!("NonIndexed");
    refused(Kind::Job, &fixed);
    for (kind, mut object) in all().into_iter().filter(|(kind, _)| *kind != Kind::Job) {
        object["metadata"]["annotations"] = json!({ANNOTATION_GPUS: "2-4"});
        refused(kind, &object);
    }
}

/// With the same numbers as the mirror, or without the annotation where that is refused.
#[test]
fn a_file_with_the_annotation_asks_for_what_the_job_would_get() {
    let converted = |object: &Value| crate::convert::object(object, &[]).expect("read").expect("a job");
    for (gpus, may) in [(2, "2-8"), (2, "3-8"), (2, "2,3,4"), (4, "4"), (1, "1-4"), (1, "1,2,4")] {
        let object = elastic(2, gpus, may);
        let made = mirror(&workload(Kind::Job, &object), &object, &object).expect("adopted");
        let one = converted(&object);
        assert_eq!(one.job["spec"]["gpus"], made["spec"]["gpus"], "{gpus} {may}");
        assert_eq!(one.job["spec"]["resourcesPer"], "Gpu", "{gpus} {may}");
    }
    let mut fixed = elastic(2, 1, "1-4");
    fixed["spec"]["completionMode"] = json!("NonIndexed");
    let others = all().into_iter().filter(|(kind, _)| *kind != Kind::Job).map(|(_, mut object)| {
        object["metadata"]["annotations"] = json!({ANNOTATION_GPUS: "2-8"});
        object
    });
    for object in others.chain([fixed, elastic(1, 2, "3")]) {
        let mut without = object.clone();
        without["metadata"].as_object_mut().expect("metadata").remove("annotations");
        let (one, plain) = (converted(&object), converted(&without));
        assert_eq!(one.job, plain.job);
        let said = one.notes.iter().any(|note| note.field == "metadata.annotations.andreas.dev/gpus");
        assert!(said, "{:?}", one.notes);
    }
}

#[test]
fn a_node_selector_by_instance_type_is_no_gpu_type() {
    let selector = json!({"node.kubernetes.io/instance-type": "p4d.24xlarge"});
    let mut object = job(1, 1);
    object["spec"]["template"]["spec"]["nodeSelector"] = selector.clone();
    let made = mirror(&workload(Kind::Job, &object), &object, &object).expect("adopted");
    assert_eq!(made["spec"]["gpus"], json!({"min": 1}));
    assert_eq!(made["spec"]["template"]["spec"]["nodeSelector"], selector);
}

#[test]
fn a_job_that_ran_is_converted_as_it_was_found() {
    let converted = |object: &Value| crate::convert::object(object, &[]).expect("read").expect("a job");
    let mut cases = all();
    cases.push((Kind::Job, elastic(2, 2, "2-6")));
    for (kind, found) in cases {
        let groups = groups(kind, &found);
        let pods = (kind == Kind::Job).then_some(3);
        for hostname in [Some("n1"), None] {
            let mut object = found.clone();
            write_directives(&mut object, &groups, &Directives { pods, ..directives(hostname) });
            release(kind, &mut object, 3);
            hold(kind, &mut object);
            assert_eq!(converted(&object), converted(&found), "{kind:?} {hostname:?}");
        }
    }
}

#[test]
fn what_another_program_starts_is_left_alone() {
    let mut kueue = job(1, 1);
    kueue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = json!("q");
    let mut other = job(1, 1);
    other["spec"]["managedBy"] = json!("example.com/other");
    for object in [kueue, other] {
        let refused = mirror(&workload(Kind::Job, &object), &object, &object).expect_err("left alone");
        assert!(matches!(refused, AdoptError::ManagedByOther(_)), "{refused}");
    }
    let owned_by = |version: &str, kind: &str| {
        let mut owned = job(1, 1);
        owned["metadata"]["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": "nightly", "uid": "u", "controller": true}]);
        let refused = mirror(&workload(Kind::Job, &owned), &owned, &owned).expect_err("left alone");
        assert!(matches!(refused, AdoptError::ManagedByOther(_)), "{refused}");
        refused.to_string()
    };
    let refused = owned_by("jobset.x-k8s.io/v1alpha2", "JobSet");
    assert!(refused.ends_with("JobSet nightly made it and starts it: label that instead"), "{refused}");
    for (version, kind) in [("batch/v1", "CronJob"), ("example.org/v1", "JobSet")] {
        let refused = owned_by(version, kind);
        let words = format!(
            "{kind} nightly made it and starts it: only these kinds can be labelled, and only if nothing else makes them: \
             Job, JobSet, TrainJob, PyTorchJob, RayJob"
        );
        assert!(refused.ends_with(&words), "{refused}");
    }
    let none = job(1, 0);
    let refused = mirror(&workload(Kind::Job, &none), &none, &none).expect_err("no GPUs");
    assert!(matches!(refused, AdoptError::Gpus(_)), "{refused}");
}

#[test]
fn a_bad_annotation_is_named() {
    let mut object = job(1, 1);
    object["metadata"]["annotations"] = json!({ANNOTATION_WEIGHT: "heavy"});
    let refused = mirror(&workload(Kind::Job, &object), &object, &object).expect_err("a bad weight");
    assert_eq!(
        refused.to_string(),
        "annotation andreas.dev/weight: \"heavy\" is no whole number from 1 to 1000"
    );
    object["metadata"]["annotations"] = json!({ANNOTATION_WEIGHT: "50", "andreas.dev/deadline-after": "2h"});
    let made = mirror(&workload(Kind::Job, &object), &object, &object).expect("adopted");
    assert_eq!((&made["spec"]["weight"], &made["spec"]["deadlineAfter"]), (&json!(50), &json!("2h")));
}

#[test]
fn names_are_those_of_training_jobs() {
    let named = |own: &str| {
        let mut object = job(1, 1);
        object["metadata"]["name"] = json!(own);
        name(&workload(Kind::Job, &object))
    };
    assert_eq!(named("bert"), "job-bert");
    assert_eq!(named("bert.v2"), "job-bert-v2-8f1d2");
    assert_eq!(named(&"x".repeat(60)).len(), andreas_api::names::MAX_JOB_NAME);
}

#[test]
fn a_part_of_a_job_set_that_has_succeeded_makes_no_pods_again() {
    let part = |name: &str, replicas: i64, pods: i64, gpus: i64| {
        json!({"name": name, "replicas": replicas,
        "template": {"spec": {"parallelism": pods, "completions": pods, "template": pod(gpus)}}})
    };
    let parts = [part("prepare", 1, 3, 0), part("first", 1, 2, 1), part("rest", 2, 4, 1)];
    let mut set = object(Kind::JobSet, json!({"suspend": true, "replicatedJobs": parts}));
    let left = |set: &Value| workload(Kind::JobSet, set).pods_left;
    assert_eq!(left(&set), None, "its controller has not counted");
    let mut done = |first: i64, rest: i64| {
        let of = |name: &str, succeeded: i64| json!({"name": name, "succeeded": succeeded, "active": 0});
        set["status"] =
            json!({"replicatedJobsStatus": [of("rest", rest), of("first", first), of("prepare", 1)]});
        left(&set)
    };
    assert_eq!(done(0, 0), Some(10), "those with GPUs");
    assert_eq!(done(1, 0), Some(8));
    assert_eq!(done(1, 1), Some(4));
    assert_eq!(done(1, 2), Some(1), "it is about to end");
}

#[test]
fn parts_that_never_have_their_gpus_at_once_are_refused_by_name() {
    let part = |name: &str, gpus: i64, after: Value| {
        let spec = json!({"parallelism": 1, "completions": 1, "template": pod(gpus)});
        json!({"name": name, "dependsOn": after, "template": {"spec": spec}})
    };
    let after = |name: &str, status: &str| json!([{"name": name, "status": status}]);
    let made = |parts: &[Value]| {
        let set = object(Kind::JobSet, json!({"suspend": true, "replicatedJobs": parts}));
        mirror(&workload(Kind::JobSet, &set), &set, &set).map_err(|error| error.to_string())
    };
    let (none, first) = (json!(null), part("first", 1, json!(null)));
    let words = r#"part "second" starts when part "first" has ended, and both ask for GPUs"#;
    let refused = |parts: &[Value]| made(parts).is_err_and(|error| error.contains(words));
    assert!(refused(&[first.clone(), part("second", 1, after("first", "Complete"))]));
    let between = part("copy", 0, after("first", "Complete"));
    assert!(refused(&[part("second", 1, after("copy", "Ready")), first.clone(), between]));
    for parts in [
        [first.clone(), part("second", 1, after("first", "Ready"))],
        [part("data", 0, none), part("second", 1, after("data", "Complete"))],
        [part("first", 1, after("second", "Ready")), part("second", 1, after("first", "Ready"))],
        [first, part("second", 1, after("nowhere", "Complete"))],
    ] {
        assert!(made(&parts).is_ok(), "{:?}", made(&parts));
    }
}

#[test]
fn indexes_of_a_job_that_failed_for_good_make_no_pods_again() {
    let mut job = job(10, 1);
    for (failed, left) in
        [("", 8), ("4", 7), ("1,3-5", 4), (" 1, 3 - 5", 4), ("x,5-3,-", 8), ("0-9223372036854775807", 1)]
    {
        job["status"] = json!({"succeeded": 2, "failedIndexes": failed});
        assert_eq!(workload(Kind::Job, &job).pods_left, Some(left), "{failed}");
    }
    job["spec"]["parallelism"] = json!(3);
    job["status"] = json!({"succeeded": 2});
    assert_eq!(workload(Kind::Job, &job).pods_left, Some(3), "no more at once");
}

#[test]
fn what_a_job_set_says_of_the_order_and_the_successes_of_its_parts_is_read() {
    let part = |name: &str, completions: i64| json!({"name": name, "template": {"spec": {"parallelism": 2, "completions": completions, "template": pod(1)}}});
    let read = |spec: Value| {
        let workload = workload(Kind::JobSet, &object(Kind::JobSet, spec));
        (workload.pods_succeed_once, workload.parts_in_order)
    };
    let mut after = part("b", 2);
    after["dependsOn"] = json!([{"name": "a", "status": "Complete"}]);
    assert_eq!(read(json!({"replicatedJobs": [part("a", 2), part("b", 2)]})), (true, false));
    assert_eq!(
        read(json!({"replicatedJobs": [part("a", 2), part("b", 5)]})),
        (false, false),
        "others follow"
    );
    assert_eq!(read(json!({"replicatedJobs": [part("a", 2), after]})), (true, true));
    let in_order = json!({"startupPolicyOrder": "InOrder"});
    assert_eq!(read(json!({"replicatedJobs": [part("a", 2)], "startupPolicy": in_order})), (true, true));
    let train_job = workload(Kind::TrainJob, &object(Kind::TrainJob, json!({})));
    assert_eq!((train_job.pods_succeed_once, train_job.parts_in_order), (true, true));
    let job = workload(Kind::Job, &job(1, 1));
    assert_eq!((job.pods_succeed_once, job.parts_in_order), (false, false));
}

#[test]
fn the_end_of_each_kind_is_read() {
    let end = |kind: Kind, status: Value| {
        let mut object = object(kind, json!({}));
        object["status"] = status;
        workload(kind, &object).end.map(|end| end.succeeded)
    };
    let condition = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "message": "m"}]});
    assert_eq!(end(Kind::Job, condition("Complete")), Some(true));
    assert_eq!(end(Kind::Job, condition("Failed")), Some(false));
    assert_eq!(end(Kind::Job, condition("Suspended")), None);
    assert_eq!(end(Kind::JobSet, condition("Completed")), Some(true));
    assert_eq!(end(Kind::TrainJob, condition("Complete")), Some(true));
    assert_eq!(end(Kind::PyTorchJob, condition("Succeeded")), Some(true));
    assert_eq!(
        end(Kind::RayJob, json!({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"})),
        Some(true)
    );
    assert_eq!(
        end(Kind::RayJob, json!({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"})),
        Some(false)
    );
    for failed in ["Failed", "ValidationFailed"] {
        assert_eq!(end(Kind::RayJob, json!({"jobDeploymentStatus": failed})), Some(false), "{failed}");
    }
    for goes_on in ["Running", "Retrying", "Suspending", "Waiting"] {
        assert_eq!(end(Kind::RayJob, json!({"jobDeploymentStatus": goes_on})), None, "{goes_on}");
    }
}

#[test]
fn who_owns_the_switch_besides_us_is_read_from_the_managed_fields() {
    for (kind, fields) in [
        (Kind::Job, json!({"f:spec": {"f:suspend": {}}})),
        (Kind::PyTorchJob, json!({"f:spec": {"f:runPolicy": {"f:suspend": {}}}})),
    ] {
        let mut one = object(kind, json!({"suspend": true}));
        let entry = |manager: &str, time: &str, fields: &Value| json!({"manager": manager, "operation": "Apply", "time": time, "fieldsV1": fields});
        let ours = entry("andreas-operator", "2026-01-03T00:00:00Z", &fields);
        one["metadata"]["managedFields"] = json!([
            entry("kubectl", "2026-01-01T00:00:00Z", &fields),
            entry("argocd-controller", "2026-01-02T00:00:00Z", &fields),
            entry("kube-controller-manager", "2026-01-02T00:00:00Z", &json!({"f:status": {"f:suspend": {}}})),
            ours,
        ]);
        assert_eq!(workload(kind, &one).switched_by.as_deref(), Some("argocd-controller"));
        let edited = entry("kubectl-edit", "2026-01-04T00:00:00Z", &fields);
        one["metadata"]["managedFields"] = json!([ours, edited, null, 7]);
        assert_eq!(workload(kind, &one).switched_by, None);
    }
}
