//! Decision table.

use andreas_api::names::{LABEL_JOB, LABEL_JOB_UID, pod_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::*;
use crate::jobs::Allocation;

/// The pod of member 1, attempt 2 of `run`, as the operator creates it for generation 7.
fn pod() -> ObjectMeta {
    let labels = [
        (LABEL_JOB, "run"),
        (LABEL_JOB_UID, "u-1"),
        (LABEL_ATTEMPT, "2"),
        (LABEL_INDEX, "1"),
        (LABEL_ALLOCATION, "7"),
    ];
    ObjectMeta {
        name: Some(pod_name("run", 2, 1)),
        namespace: Some("team".into()),
        uid: Some("p-1".into()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        owner_references: Some(vec![OwnerReference {
            api_version: "andreas.dev/v1alpha1".into(),
            kind: "TrainingJob".into(),
            name: "run".into(),
            uid: "u-1".into(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}

/// The pod's TrainingJob.
fn job() -> Job {
    Job {
        uid: "u-1".into(),
        namespace: "team".into(),
        name: "run".into(),
        version: "100".into(),
        allocation: Some(Allocation {
            attempt: 2,
            generation: 7,
            nodes: ["a".to_owned(), "b".to_owned()].into(),
        }),
    }
}

fn with_label(name: &str, value: Option<&str>) -> ObjectMeta {
    let mut pod = pod();
    let labels = pod.labels.as_mut().unwrap();
    match value {
        Some(value) => labels.insert(name.to_owned(), value.to_owned()),
        None => labels.remove(name),
    };
    pod
}

fn with_owner(change: impl FnOnce(&mut OwnerReference)) -> ObjectMeta {
    let mut pod = pod();
    change(&mut pod.owner_references.as_mut().unwrap()[0]);
    pod
}

fn worker_pod(pod: &ObjectMeta) -> WorkerPod {
    match ownership(pod) {
        Ownership::Ours(worker_pod) => worker_pod,
        other => panic!("not ours: {other:?}"),
    }
}

#[test]
fn a_pod_is_ours_only_with_label_and_controller() {
    assert!(matches!(ownership(&pod()), Ownership::Ours(_)));
    let foreign = [
        ("nothing of ours", ObjectMeta::default()),
        ("no label", with_label(LABEL_JOB_UID, None)),
        ("an empty label and an empty owner", {
            let mut pod = with_owner(|owner| owner.uid.clear());
            pod.labels.as_mut().unwrap().insert(LABEL_JOB_UID.into(), String::new());
            pod
        }),
        ("another job's label", with_label(LABEL_JOB_UID, Some("u-2"))),
        ("no owner", ObjectMeta { owner_references: None, ..pod() }),
        ("owned but not controlled", with_owner(|owner| owner.controller = None)),
        ("controlled by something else", with_owner(|owner| owner.kind = "Job".into())),
        ("of another group", with_owner(|owner| owner.api_version = "andreas.example/v1".into())),
        (
            "of a group that only begins like ours",
            with_owner(|owner| owner.api_version = "andreas.dev.evil/v1".into()),
        ),
    ];
    for (case, pod) in foreign {
        assert_eq!(ownership(&pod), Ownership::Foreign, "{case}");
    }
}

#[test]
fn labels_that_the_operator_would_not_write_are_refused_and_never_panic() {
    for name in [LABEL_ATTEMPT, LABEL_INDEX, LABEL_ALLOCATION] {
        for value in [None, Some(""), Some("x"), Some("1.5"), Some("99999999999999999999999")] {
            assert_eq!(
                ownership(&with_label(name, value)),
                Ownership::Malformed(Refusal::Label(name)),
                "{name}={value:?}"
            );
        }
    }
    assert_eq!(
        ownership(&with_label(LABEL_INDEX, Some("-1"))),
        Ownership::Malformed(Refusal::Label(LABEL_INDEX))
    );
}

#[test]
fn a_pod_without_the_name_of_its_job_is_never_bound_as_a_member() {
    // Pods that the operator's caches would not list under the job, but are otherwise correct.
    for value in [None, Some(""), Some("other")] {
        assert_eq!(
            ownership(&with_label(LABEL_JOB, value)),
            Ownership::Malformed(Refusal::Label(LABEL_JOB)),
            "{value:?}"
        );
    }
    let of_another_name = with_owner(|owner| owner.name = "other".into());
    assert_eq!(ownership(&of_another_name), Ownership::Malformed(Refusal::Label(LABEL_JOB)));
}

#[test]
fn a_member_goes_to_the_node_of_its_index() {
    assert_eq!(allocated_node(&worker_pod(&pod()), Some(&job())), Ok("b"));
}

#[test]
fn anything_that_differs_from_the_allocation_is_refused_with_its_reason() {
    let ours = worker_pod(&pod());
    let changed = |change: fn(&mut Job)| {
        let mut job = job();
        change(&mut job);
        job
    };
    let table: [(Option<Job>, &str); 9] = [
        (None, "no_job"),
        (Some(changed(|job| job.uid = "u-2".into())), "no_job"),
        (Some(changed(|job| job.name = "other".into())), "no_job"),
        (Some(changed(|job| job.namespace = "other".into())), "no_job"),
        (Some(changed(|job| job.allocation = None)), "no_allocation"),
        (Some(changed(|job| job.allocation.as_mut().unwrap().generation = 8)), "generation"),
        (Some(changed(|job| job.allocation.as_mut().unwrap().generation = 6)), "generation"),
        (Some(changed(|job| job.allocation.as_mut().unwrap().attempt = 3)), "attempt"),
        (Some(changed(|job| job.allocation.as_mut().unwrap().nodes = ["a".to_owned()].into())), "index"),
    ];
    for (job, reason) in table {
        assert_eq!(
            allocated_node(&ours, job.as_ref()).map_err(|refusal| refusal.reason()),
            Err(reason),
            "{job:?}"
        );
    }
    let misnamed = ObjectMeta { name: Some("run-2-0".into()), ..pod() };
    assert_eq!(allocated_node(&worker_pod(&misnamed), Some(&job())), Err(Refusal::Name("run-2-1".into())));
}

#[test]
fn a_live_look_is_made_only_when_memory_may_be_behind() {
    let ours = worker_pod(&pod());
    let at = |generation: i64| {
        let mut job = job();
        job.allocation.as_mut().unwrap().generation = generation;
        job
    };
    assert!(cache_may_be_stale(&ours, None));
    assert!(cache_may_be_stale(&ours, Some(&Job { allocation: None, ..job() })));
    assert!(cache_may_be_stale(&ours, Some(&at(6))));
    assert!(!cache_may_be_stale(&ours, Some(&at(7))));
    assert!(!cache_may_be_stale(&ours, Some(&at(8))), "a pod older than what is known cannot become right");
}
