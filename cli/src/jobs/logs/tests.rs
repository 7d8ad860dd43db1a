//! Which workers are shown, and in which order.

use std::sync::{Arc, Mutex};

use andreas_api::names;
use clap::Parser as _;
use futures::TryStreamExt as _;
use serde_json::{Value, json};

use super::*;
use crate::cluster::testing::{self, refusal};
use crate::inventory::testing::jobs;

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: LogsArgs,
}

fn job(name: &str) -> SlimTrainingJob {
    let jobs: Vec<SlimTrainingJob> = serde_json::from_value(jobs()).unwrap();
    jobs.into_iter().find(|job| job.metadata.name.as_deref() == Some(name)).unwrap()
}

fn pod(attempt: i64, rank: usize, end: Option<(i32, &str)>) -> SlimPod {
    let state = match end {
        Some((code, at)) => json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}}),
        None => json!({"running": {}}),
    };
    let phase = if end.is_some() { "Failed" } else { "Running" };
    let name = format!("bert-large-{attempt}-{rank}");
    let labels = json!({names::LABEL_ATTEMPT: attempt.to_string(), names::LABEL_INDEX: rank.to_string()});
    let pod: Value = json!({
        "metadata": {"name": name, "labels": labels}, "spec": {"nodeName": "gpu-1"},
        "status": {"phase": phase, "containerStatuses": [{"name": "train", "state": state}]}});
    serde_json::from_value(pod).unwrap()
}

#[test]
fn the_worker_that_failed_first_comes_first() {
    let pods = vec![
        pod(1, 0, None),
        pod(2, 0, None),
        pod(2, 3, Some((1, "2026-11-24T11:00:09Z"))),
        pod(2, 2, Some((134, "2026-11-24T11:00:02Z"))),
        pod(2, 1, Some((0, "2026-11-24T11:00:00Z"))),
    ];
    let found = workers(&job("bert-large"), pods, None, None, "train").unwrap();
    assert_eq!(found.iter().map(|worker| worker.rank).collect::<Vec<_>>(), [2, 3, 0, 1]);
    assert_eq!(found[0].failure.as_deref(), Some("exit code 134 (Error) on gpu-1"));
    assert_eq!((found[0].pod.as_str(), found[0].ended, found[2].ended), ("bert-large-2-2", true, false));
}

#[test]
fn an_attempt_and_a_rank_can_be_named() {
    let pods = || vec![pod(1, 0, None), pod(1, 1, None), pod(2, 0, None)];
    let found = workers(&job("bert-large"), pods(), Some(1), Some(1), "train").unwrap();
    assert_eq!(found.iter().map(|worker| worker.pod.as_str()).collect::<Vec<_>>(), ["bert-large-1-1"]);
    let error = workers(&job("bert-large"), pods(), None, Some(7), "train").unwrap_err();
    assert_eq!(error.to_string(), "a worker of rank 7 in attempt 2 does not exist");
}

#[test]
fn pods_of_an_adopted_job_are_its_workers_in_the_order_of_their_numbers() {
    let mut adopting = job("bert-large");
    let adopts = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": "u", "pods": 2});
    adopting.spec.adopts = Some(serde_json::from_value(adopts).unwrap());
    let of = |name: &str, index: usize, attempt: i64| {
        let mut pod = pod(attempt, 0, None);
        pod.metadata.name = Some(name.into());
        let labels = [
            ("andreas.dev/adopted-attempt", attempt.to_string()),
            ("batch.kubernetes.io/job-completion-index", index.to_string()),
        ];
        pod.metadata.labels = Some(labels.map(|(label, value)| (label.into(), value)).into());
        pod
    };
    let pods = || vec![of("tune-10-a", 10, 2), of("tune-2-x", 2, 2), of("tune-2-b", 2, 1)];
    let shown = |attempt| workers(&adopting, pods(), attempt, None, "train").unwrap();
    let names = |attempt| shown(attempt).into_iter().map(|worker| worker.pod).collect::<Vec<_>>();
    assert_eq!(names(None), ["tune-2-x", "tune-10-a"]);
    assert_eq!(names(Some(1)), ["tune-2-b"]);
}

#[test]
fn without_pods_it_is_said_what_is_known_of_the_attempt() {
    let error = |name: &str, attempt| {
        workers(&job(name), Vec::new(), attempt, None, "train").unwrap_err().to_string()
    };
    assert_eq!(error("waits", None), "a pod of waits (it is Pending, WaitingForCapacity) does not exist");
    assert!(
        error("broken", Some(1)).contains("it ended with ContainerFailed: No such file"),
        "{}",
        error("broken", Some(1))
    );
}

#[test]
fn logs_are_read_worker_by_worker_with_the_flags() {
    let args = Flags::parse_from(["logs", "bert-large", "--tail", "5", "--since", "1m"]).args;
    let answer = |request: &str, _: Value| {
        assert!(request.contains("container=train") && request.contains("tailLines=5"), "{request}");
        assert!(request.contains("sinceSeconds=60"), "{request}");
        match request.contains("bert-large-2-1/log") {
            true => refusal(400, "BadRequest", "container is waiting to start: ContainerCreating", ""),
            false => (200, json!("a line")),
        }
    };
    let found =
        workers(&job("bert-large"), vec![pod(2, 0, None), pod(2, 1, None)], None, None, "train").unwrap();
    let read = block_on(async {
        let cluster = testing::cluster(answer);
        Ok(streams(&cluster, "team-a", &args, Some("train"), &found).collect::<Vec<_>>().await)
    })
    .unwrap();
    assert!(matches!(&read[0], Line::Text { rank: 0, text } if text == b"\"a line\""), "{read:?}");
    assert!(
        matches!(&read[1], Line::Missing { rank: 1, why } if why.contains("waiting to start")),
        "{read:?}"
    );
}

#[test]
fn where_no_log_can_be_read_that_is_an_error() {
    let args = Flags::parse_from(["logs", "bert-large"]).args;
    let wrong = "container trian is not valid for pod bert-large-2-0";
    for (first, second, shown) in [
        (None, None, None),
        (Some("a line"), None, Some("[0] \"a line\"\n")),
        (None, Some("a line"), Some("[1] \"a line\"\n")),
    ] {
        let answer = move |request: &str, _: Value| {
            let text = if request.contains("bert-large-2-0/log") { first } else { second };
            text.map_or_else(|| refusal(400, "BadRequest", wrong, ""), |text| (200, json!(text)))
        };
        let pods = vec![pod(2, 0, None), pod(2, 1, None)];
        let found = workers(&job("bert-large"), pods, None, None, "train").unwrap();
        let mut out = Vec::new();
        let ended = block_on(async {
            let cluster = testing::cluster(answer);
            let open = streams(&cluster, "team-a", &args, Some("train"), &found);
            show(open, found.len(), &args, false, &mut out).await
        });
        let printed = String::from_utf8(out).unwrap();
        assert_eq!(ended.is_ok().then_some(printed.as_str()), shown, "{ended:?}");
    }
}

#[test]
fn a_log_that_ends_early_is_an_error() {
    for flags in [&["logs", "bert-large"][..], &["logs", "bert-large", "--follow"]] {
        let args = Flags::parse_from(flags).args;
        let lost = std::io::Error::other("connection lost");
        let first = stream::iter([Ok("one\ntw"), Err(lost)]).into_async_read();
        let open = lines(3, first).boxed().chain(lines(0, &b"all\n"[..])).boxed();
        let mut out = Vec::new();
        let ended = block_on(show(open, 2, &args, false, &mut out)).unwrap_err().to_string();
        assert_eq!(ended, "the log is not complete: rank 3");
        assert_eq!(String::from_utf8(out).unwrap(), "[3] one\n[0] all\n");
    }
}

/// The lines of a pod with `--follow`, and the requests, where the API server answers so by the number of the request.
fn follow_log(
    pod: SlimPod,
    answer: impl Fn(usize) -> (u16, Value) + Clone + Send + 'static,
) -> (Vec<Line>, Vec<String>) {
    let args = Flags::parse_from(["logs", "bert-large", "--follow"]).args;
    let found = workers(&job("bert-large"), vec![pod], None, None, "train").unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let answer = move |request: &str, _: Value| {
        let mut asked = asked.lock().unwrap();
        asked.push(request.split(['?', ' ']).nth(1).unwrap_or_default().to_owned());
        answer(asked.len())
    };
    let read = block_on(async {
        let cluster = testing::cluster(answer);
        Ok(streams(&cluster, "team-a", &args, Some("train"), &found).collect::<Vec<_>>().await)
    });
    let seen = seen.lock().unwrap().clone();
    (read.unwrap(), seen)
}

const LOG: &str = "/api/v1/namespaces/team-a/pods/bert-large-2-0/log";

#[test]
fn a_log_that_never_begins_is_not_waited_for() {
    let wrong = "container train is not valid for pod bert-large-2-0";
    let (read, asked) = follow_log(pod(2, 0, None), move |_| refusal(400, "BadRequest", wrong, ""));
    assert!(matches!(&read[..], [Line::Missing { rank: 0, why }] if why == wrong), "{read:?}");
    assert_eq!(asked, [LOG]);
}

#[test]
fn why_a_log_has_not_begun_is_said_once() {
    let running = serde_json::to_value(pod(2, 0, None)).unwrap();
    // After each refusal the pod is read.
    let (read, asked) = follow_log(pod(2, 0, None), move |number| match number {
        1 => not_available(),
        3 | 5 => refusal(400, "BadRequest", "\"train\" is waiting to start: failing to pull image", ""),
        2 | 4 | 6 => (200, running.clone()),
        _ => (200, json!("a line")),
    });
    let said: Vec<&str> = read
        .iter()
        .map(|line| match line {
            Line::Missing { why, .. } => why.rsplit(' ').next().unwrap_or_default(),
            Line::Text { .. } => "text",
            Line::Cut { .. } | Line::Refused(_) => "refused",
        })
        .collect();
    assert_eq!((said, asked.len()), (vec!["available", "image", "text"], 7));
}

/// Of a container that the pod's status does not have.
fn not_available() -> (u16, Value) {
    refusal(400, "BadRequest", "container \"train\" in pod \"a\" is not available", "")
}

/// As where the kubelet rejects the pod, or evicts it before its start.
#[test]
fn a_pod_that_ends_without_its_container_is_not_waited_for() {
    let running = serde_json::to_value(pod(2, 0, None)).unwrap();
    let failed = serde_json::to_value(pod(2, 0, Some((1, "2026-11-24T11:00:09Z")))).unwrap();
    for (pod_answers, looks) in [(vec![failed.clone()], 2), (vec![running, failed], 3)] {
        let (read, asked) = follow_log(pod(2, 0, None), move |number| match number % 2 {
            1 => not_available(),
            _ => (200, pod_answers[number / 2 - 1].clone()),
        });
        assert!(
            matches!(&read[..], [Line::Missing { why, .. }] if why.contains("is not available")),
            "said once: {read:?}"
        );
        assert_eq!(asked.iter().filter(|path| *path == LOG).count(), looks);
    }
}

#[test]
fn a_pod_that_its_kubelet_does_not_know_yet_is_waited_for_and_one_that_is_gone_is_not() {
    let unknown = || refusal(404, "NotFound", "pod does not exist", "bert-large-2-0");
    let running = serde_json::to_value(pod(2, 0, None)).unwrap();
    let (read, asked) = follow_log(pod(2, 0, None), move |number| match number {
        1 => unknown(),
        2 => (200, running.clone()),
        _ => (200, json!("a line")),
    });
    assert!(matches!(&read[..], [Line::Text { rank: 0, .. }]), "{read:?}");
    assert_eq!(asked.len(), 3);
    let (read, asked) = follow_log(pod(2, 0, None), move |_| unknown());
    assert!(matches!(&read[..], [Line::Missing { why, .. }] if why == "its pod is gone"), "{read:?}");
    assert_eq!(asked.len(), 3);
}

#[test]
fn a_pod_without_a_node_has_no_log_yet() {
    let mut unbound = pod(2, 0, None);
    (unbound.spec.node_name, unbound.status.phase) = (None, "Pending".into());
    let bound = serde_json::to_value(pod(2, 0, None)).unwrap();
    let (read, asked) = follow_log(unbound, move |number| match number {
        1 => (200, bound.clone()),
        _ => (200, json!("a line")),
    });
    assert!(matches!(&read[..], [Line::Text { rank: 0, .. }]), "{read:?}");
    assert_eq!(asked, [LOG.trim_end_matches("/log"), LOG]);
}

#[test]
fn pods_are_those_of_this_job_and_of_no_earlier_one_of_its_name() {
    let mut job = job("bert-large");
    assert_eq!(selector(&job, None), "andreas.dev/job-uid=u1");
    assert_eq!(selector(&job, Some(2)), "andreas.dev/job-uid=u1,andreas.dev/attempt=2");
    let adopts = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": "u", "pods": 2});
    job.spec.adopts = Some(serde_json::from_value(adopts).unwrap());
    assert_eq!(selector(&job, Some(2)), "andreas.dev/adopted=u1,andreas.dev/adopted-attempt=2");
}
