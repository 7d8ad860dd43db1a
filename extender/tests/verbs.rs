//! Scenarios of single calls, through the router, against a scripted API server.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use andreas_extender::verbs::Config;
use http::StatusCode;
use serde_json::{Value, json};
use support::*;

fn names(names: &[&str], pod: Value) -> Value {
    json!({"Pod": pod, "Nodes": null, "NodeNames": names})
}

#[tokio::test]
async fn filter_leaves_a_member_only_its_own_node() {
    let bench = bench(Api::binds(), [allocated(7, 1, &["a", "b"])]);
    let answer = bench.ask("/filter", &names(&["a", "b", "c"], member_pod(1, 1, 7))).await;
    assert_eq!(answer["NodeNames"], json!(["b"]));
    assert_eq!((&answer["Error"], &answer["FailedAndUnresolvableNodes"]), (&json!(""), &json!({})));
    assert!(bench.api.paths().is_empty(), "answered from memory");
}

#[tokio::test]
async fn filter_never_names_a_node_that_was_not_sent() {
    let bench = bench(Api::binds(), [allocated(7, 1, &["a"])]);
    let answer = bench.ask("/filter", &names(&["b", "c"], member_pod(0, 1, 7))).await;
    assert_eq!(answer["NodeNames"], json!([]));
    let reason = "andreas: allocation 7 places it on a";
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({"b": reason, "c": reason}));
    let metrics = bench.metrics();
    assert!(metrics.contains(r#"andreas_extender_refusals_total{reason="node"} 1"#), "{metrics}");
    assert!(
        metrics.contains(r#"andreas_extender_requests_total{verb="filter",result="refused"} 1"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn filter_refuses_a_pod_of_an_older_decision_without_asking_anybody() {
    let bench = bench(Api::binds(), [allocated(8, 1, &["a"])]);
    let answer = bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert_eq!(
        answer["FailedAndUnresolvableNodes"]["a"],
        "andreas: made for allocation 7, the current one is 8"
    );
    assert!(bench.api.paths().is_empty());
}

#[tokio::test]
async fn foreign_pods_pass_untouched() {
    let bench = bench(Api::binds(), []);
    let answer = bench.ask("/filter", &names(&["x", "y"], foreign_pod())).await;
    assert_eq!(answer["NodeNames"], json!(["x", "y"]));
    let mut orphan = member_pod(0, 1, 7);
    orphan["metadata"]["ownerReferences"] = json!([]);
    let answer = bench.ask("/filter", &names(&["x"], orphan)).await;
    assert_eq!(answer["NodeNames"], json!(["x"]));
}

#[tokio::test]
async fn whole_nodes_are_answered_with_whole_nodes() {
    let bench = bench(Api::binds(), [allocated(7, 1, &["b"])]);
    let node = |name: &str| json!({"metadata": {"name": name, "labels": {"k": "v"}}, "status": {"x": 1.50}});
    let args = |pod| json!({"pod": pod, "NODES": {"metadata": {}, "items": [node("a"), node("b")]}});
    let answer = bench.ask("/filter", &args(member_pod(0, 1, 7))).await;
    assert_eq!((&answer["Nodes"]["items"], &answer["NodeNames"]), (&json!([node("b")]), &Value::Null));
    let answer = bench.ask("/filter", &args(foreign_pod())).await;
    assert_eq!(answer["Nodes"]["items"], json!([node("a"), node("b")]));
    let answer = bench.ask("/filter", &args(member_pod(5, 1, 7))).await;
    assert_eq!(answer["Nodes"]["items"], json!([]));
    assert_eq!(answer["FailedAndUnresolvableNodes"].as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn a_pod_ahead_of_the_cache_is_looked_up_live_once() {
    let api = Api::new(|call| match call.path.as_str() {
        "/apis/andreas.dev/v1alpha1/namespaces/team/trainingjobs/run" => {
            Some((200, trainingjob(7, 1, &["a"])))
        }
        path if path.ends_with("/binding") => Some((201, status(201, ""))),
        _ => Some((404, status(404, "NotFound"))),
    });
    // given: the watch has brought an older allocation only
    let bench = bench(api, [allocated(6, 1, &["z"])]);
    let answer = bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert_eq!(answer["NodeNames"], json!(["a"]));
    // then: what was learned serves the bind as well
    let answer = bench.ask("/bind", &binding_args(&member_pod(0, 1, 7), "a")).await;
    assert_eq!(answer, json!({"Error": ""}));
    let calls = bench.api.paths();
    assert_eq!(
        calls,
        [
            "GET /apis/andreas.dev/v1alpha1/namespaces/team/trainingjobs/run",
            "POST /api/v1/namespaces/team/pods/run-1-0/binding",
        ]
    );
}

#[tokio::test]
async fn a_job_that_does_not_exist_is_a_refusal_and_one_that_cannot_be_asked_for_is_an_error() {
    let bench_of_nobody = bench(Api::binds(), []);
    let answer = bench_of_nobody.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert_eq!(answer["FailedAndUnresolvableNodes"]["a"], "andreas: its TrainingJob does not exist");
    assert_eq!(answer["Error"], "");

    // a job of that name with another UID is not its job
    let mut other = trainingjob(7, 1, &["a"]);
    other["metadata"]["uid"] = json!("u-2");
    let bench_of_another = bench(Api::new(move |_| Some((200, other.clone()))), []);
    let answer = bench_of_another.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert_eq!(answer["FailedAndUnresolvableNodes"]["a"], "andreas: its TrainingJob does not exist");

    let bench_of_the_broken = bench(Api::new(|_| Some((500, status(500, "etcd")))), []);
    let answer = bench_of_the_broken.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert_eq!((&answer["NodeNames"], &answer["FailedAndUnresolvableNodes"]), (&json!([]), &json!({})));
    assert!(answer["Error"].as_str().unwrap().contains("etcd"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_api_server_costs_a_filter_call_less_than_its_deadline() {
    let bench = bench(Api::new(|_| None), []);
    let started = tokio::time::Instant::now();
    let answer = bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert!(answer["Error"].as_str().unwrap().contains("did not answer"), "{answer}");
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_pod_that_hides_whose_it_is_from_the_books_is_not_placed() {
    // Given a pod with all that a worker pod has but the label that policies and caches select by.
    let bench = bench(Api::binds(), [allocated(7, 1, &["a"])]);
    let mut forged = member_pod(0, 1, 7);
    forged["metadata"]["labels"].as_object_mut().unwrap().remove("andreas.dev/job");
    let answer = bench.ask("/filter", &names(&["a"], forged.clone())).await;
    assert_eq!(answer["NodeNames"], json!([]), "{answer}");
    assert_ne!(bench.ask("/bind", &binding_args(&forged, "a")).await["Error"], "");
    assert!(bench.api.paths().is_empty(), "{:?}", bench.api.paths());
}

#[tokio::test]
async fn names_that_are_paths_reach_no_api_server() {
    let bench = bench(Api::binds(), []);
    for name in ["../../secrets/s", "", ".", "a/b", "a?watch=true", "A", "a b", "a..b", "a-"] {
        let mut pod = member_pod(0, 1, 7);
        pod["metadata"]["ownerReferences"][0]["name"] = json!(name);
        pod["metadata"]["labels"]["andreas.dev/job"] = json!(name);
        let answer = bench.ask("/filter", &names(&["a"], pod)).await;
        assert!(
            answer["Error"].as_str().unwrap().contains("is not the name of an object"),
            "{name:?} {answer}"
        );
        let args = json!({"PodName": name, "PodNamespace": "team", "PodUID": "u", "Node": "a"});
        assert_ne!(bench.ask("/bind", &args).await["Error"], "", "{name:?}");
    }
    assert!(bench.api.paths().is_empty(), "{:?}", bench.api.paths());
}

#[tokio::test]
async fn prioritize_scores_the_members_node_best() {
    let bench = bench(Api::binds(), [allocated(7, 1, &["b"])]);
    let answer = bench.ask("/prioritize", &names(&["a", "b"], member_pod(0, 1, 7))).await;
    assert_eq!(answer, json!([{"Host": "a", "Score": 0}, {"Host": "b", "Score": 10}]));
    let answer = bench.ask("/prioritize", &names(&["a"], foreign_pod())).await;
    assert_eq!(answer, json!([{"Host": "a", "Score": 0}]));
}

#[tokio::test]
async fn bind_writes_the_generation_and_the_uid_into_the_binding() {
    let bench = bench(Api::binds(), [allocated(7, 1, &["a"])]);
    bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    assert_eq!(bench.ask("/bind", &binding_args(&member_pod(0, 1, 7), "a")).await, json!({"Error": ""}));
    let call = bench.api.calls.lock().last().unwrap().clone();
    assert_eq!(
        (call.method.as_str(), call.path.as_str()),
        ("POST", "/api/v1/namespaces/team/pods/run-1-0/binding")
    );
    assert_eq!(
        call.body,
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": "run-1-0", "namespace": "team", "uid": "p-0", "annotations": {"andreas.dev/allocation": "7"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "a"},
        })
    );
}

#[tokio::test]
async fn bind_of_a_foreign_pod_is_plain_and_a_pod_not_seen_before_is_read() {
    let api = Api::new(|call| {
        Some(match call.method.as_str() {
            "GET" => (200, foreign_pod()),
            _ => (201, status(201, "")),
        })
    });
    let bench = bench(api, []);
    assert_eq!(bench.ask("/bind", &binding_args(&foreign_pod(), "x")).await, json!({"Error": ""}));
    let calls = bench.api.calls.lock().clone();
    assert_eq!(calls[0].path, "/api/v1/namespaces/team/pods/notebook");
    assert!(calls[1].body["metadata"].get("annotations").is_none(), "{:?}", calls[1].body);
}

#[tokio::test]
async fn bind_checks_again() {
    let bench = bench(Api::binds(), [allocated(7, 1, &["a"])]);
    bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    let answer = bench.ask("/bind", &binding_args(&member_pod(0, 1, 7), "b")).await;
    assert_eq!(answer["Error"], "andreas: allocation 7 places it on a");
    // when: another decision is made between filter and bind
    bench.jobs.lock().apply_newer(allocated(8, 1, &["c"]));
    let answer = bench.ask("/bind", &binding_args(&member_pod(0, 1, 7), "a")).await;
    assert_eq!(answer["Error"], "andreas: made for allocation 7, the current one is 8");
    assert!(bench.api.paths().is_empty(), "a refused pod reached the API server");
}

#[tokio::test]
async fn a_conflict_is_success_only_if_the_pod_is_on_that_node_already() {
    let on = |node: Value| {
        move |call: &Call| {
            let mut pod = member_pod(0, 1, 7);
            pod["spec"]["nodeName"] = node.clone();
            Some(if call.method == "GET" { (200, pod) } else { (409, status(409, "already assigned")) })
        }
    };
    for (node, error) in [
        (json!("a"), ""),
        (json!("b"), "andreas: the pod is bound to b already"),
        (Value::Null, "andreas: the binding was refused: already assigned"),
    ] {
        let bench = bench(Api::new(on(node)), [allocated(7, 1, &["a"])]);
        bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
        assert_eq!(bench.ask("/bind", &binding_args(&member_pod(0, 1, 7), "a")).await["Error"], error);
    }
    // another pod has the name now
    let bench = bench(
        Api::new(|call| {
            let mut pod = member_pod(0, 1, 7);
            pod["metadata"]["uid"] = json!("someone-else");
            pod["spec"]["nodeName"] = json!("a");
            Some(if call.method == "GET" { (200, pod) } else { (409, status(409, "precondition")) })
        }),
        [allocated(7, 1, &["a"])],
    );
    bench.ask("/filter", &names(&["a"], member_pod(0, 1, 7))).await;
    let answer = bench.ask("/bind", &binding_args(&member_pod(0, 1, 7), "a")).await;
    assert_eq!(answer["Error"], "andreas: the pod does not exist any more");
}

#[tokio::test(start_paused = true)]
async fn bindings_go_out_a_few_at_a_time_and_a_hang_is_answered_before_the_scheduler_gives_up() {
    let bench = Arc::new(bench_with(Api::new(|_| None), [], Config { binds: 3, ..Config::default() }));
    let answered = Arc::new(AtomicUsize::new(0));
    for n in 0..10 {
        let (bench, answered) = (Arc::clone(&bench), Arc::clone(&answered));
        tokio::spawn(async move {
            let args = json!({"PodName": format!("p{n}"), "PodNamespace": "t", "PodUID": "u", "Node": "a"});
            assert_ne!(bench.ask("/bind", &args).await["Error"], "");
            answered.fetch_add(1, Ordering::SeqCst);
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.api.paths().len(), 3);
    tokio::time::sleep(Duration::from_millis(3900)).await;
    assert_eq!(answered.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn what_is_no_call_is_answered_with_400_and_what_is_too_large_with_413() {
    let bench = bench(Api::binds(), []);
    let deep = format!("{{\"Pod\":{}1{}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for body in ["", "null", "[]", "{", "\u{0}", "{\"Pod\":7}", "{\"Pod\":{\"metadata\":{\"labels\":[]}}}"] {
        for path in ["/filter", "/prioritize"] {
            let (status, text) = bench.post(path, body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body:?} {text}");
        }
    }
    // unread fields may be as deep as they like
    assert_eq!(bench.post("/filter", deep).await.0, StatusCode::OK);
    assert_eq!(bench.post("/filter", vec![b' '; 2 * 1024 * 1024]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(bench.post("/preempt", "{}").await.0, StatusCode::NOT_FOUND);
}
