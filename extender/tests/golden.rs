//! The exact words on the wire, one file per call. The requests are what kube-scheduler sends, spelled by Go.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

mod support;

use insta::assert_snapshot;
use serde_json::json;
use support::*;

async fn conversation(path: &str, request: &str) -> String {
    let bench = bench(Api::binds(), [allocated(7, 1, &["gpu-1", "gpu-2"])]);
    let (status, answer) = bench.post(path, request.to_owned()).await;
    format!("POST {path}\n{request}\n\n{status}\n{answer}\n")
}

#[tokio::test]
async fn filter() {
    let pod = member_pod(1, 1, 7);
    let accepted = json!({"Pod": pod, "Nodes": null, "NodeNames": ["gpu-2"]}).to_string();
    assert_snapshot!("filter_accepted", conversation("/filter", &accepted).await);
    let refused = json!({"Pod": pod, "Nodes": null, "NodeNames": ["gpu-1"]}).to_string();
    assert_snapshot!("filter_refused", conversation("/filter", &refused).await);
    let foreign = json!({"Pod": foreign_pod(), "Nodes": null, "NodeNames": ["gpu-1", "gpu-2"]}).to_string();
    assert_snapshot!("filter_foreign", conversation("/filter", &foreign).await);
    let lower = json!({"pod": pod, "nodenames": ["gpu-2"]}).to_string();
    assert_snapshot!("filter_lower_case", conversation("/filter", &lower).await);
}

#[tokio::test]
async fn prioritize() {
    let request =
        json!({"Pod": member_pod(0, 1, 7), "Nodes": null, "NodeNames": ["gpu-1", "gpu-2"]}).to_string();
    assert_snapshot!("prioritize", conversation("/prioritize", &request).await);
}

#[tokio::test]
async fn bind() {
    let request = r#"{"PodName":"run-1-0","PodNamespace":"team","PodUID":"p-0","Node":"gpu-1"}"#;
    let bound = bench(Api::binds(), [allocated(7, 1, &["gpu-1", "gpu-2"])]);
    bound.ask("/filter", &json!({"Pod": member_pod(0, 1, 7), "NodeNames": ["gpu-1"]})).await;
    let (status, answer) = bound.post("/bind", request).await;
    let sent = bound.api.calls.lock().last().unwrap().clone();
    assert_snapshot!(
        "bind",
        format!(
            "POST /bind\n{request}\n\n{} {}\n{}\n\n{status}\n{answer}\n",
            sent.method, sent.path, sent.body
        )
    );
    assert_snapshot!("bind_gone", conversation("/bind", request).await);
}
