//! A scripted API server and the objects of the scenarios.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use andreas_extender::cluster::Cluster;
use andreas_extender::jobs::{Allocation, Job, Jobs};
use andreas_extender::metrics::Metrics;
use andreas_extender::routes;
use andreas_extender::verbs::{Config, Extender};
use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::{ServiceExt, service_fn};

/// One call that reached the API server.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub body: Value,
}

type Answer = Box<dyn Fn(&Call) -> Option<(u16, Value)> + Send + Sync>;

/// An API server that answers by a function; `None` hangs for ever.
#[derive(Clone)]
pub struct Api {
    pub calls: Arc<Mutex<Vec<Call>>>,
    answer: Arc<Answer>,
}

impl Api {
    pub fn new(answer: impl Fn(&Call) -> Option<(u16, Value)> + Send + Sync + 'static) -> Self {
        Self { calls: Arc::default(), answer: Arc::new(Box::new(answer)) }
    }

    /// Binds everything, knows nothing else.
    pub fn binds() -> Self {
        Self::new(|call| {
            Some(if call.path.ends_with("/binding") {
                (201, status(201, ""))
            } else {
                (404, status(404, "NotFound"))
            })
        })
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let call = Call {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                };
                api.calls.lock().push(call.clone());
                let Some((code, answer)) = (api.answer)(&call) else { std::future::pending().await };
                let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
                Ok::<_, Infallible>(response.body(Body::from(answer.to_string())).unwrap())
            }
        });
        Client::new(service, "default")
    }

    pub fn paths(&self) -> Vec<String> {
        self.calls.lock().iter().map(|call| format!("{} {}", call.method, call.path)).collect()
    }
}

pub fn status(code: u16, reason: &str) -> Value {
    let outcome = if code < 300 { "Success" } else { "Failure" };
    json!({"kind": "Status", "apiVersion": "v1", "status": outcome, "reason": reason, "message": reason, "code": code})
}

/// The extender over a scripted API server, with these jobs in memory.
pub struct Bench {
    pub router: Router,
    pub jobs: Arc<Mutex<Jobs>>,
    pub api: Api,
    pub registry: Arc<Registry>,
}

pub fn bench(api: Api, known: impl IntoIterator<Item = Job>) -> Bench {
    bench_with(api, known, Config::default())
}

pub fn bench_with(api: Api, known: impl IntoIterator<Item = Job>, config: Config) -> Bench {
    let jobs = Arc::new(Mutex::new(Jobs::default()));
    known.into_iter().for_each(|job| jobs.lock().apply_newer(job));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let extender = Extender::new(Arc::clone(&jobs), Cluster::new(api.client()), config, metrics);
    let router = routes::router(Arc::new(extender), 1024 * 1024);
    Bench { router, jobs, api, registry: Arc::new(registry) }
}

impl Bench {
    /// Posts a body and returns status, `Content-Length` and body.
    pub async fn post(&self, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::post(path).body(body.into()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }

    /// Posts JSON, expects 200 and JSON.
    pub async fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.post(path, body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

pub fn allocated(generation: i64, attempt: i64, nodes: &[&str]) -> Job {
    Job {
        uid: "u-1".into(),
        namespace: "team".into(),
        name: "run".into(),
        version: (100 + generation).to_string(),
        allocation: Some(Allocation {
            attempt,
            generation,
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>().into(),
        }),
    }
}

/// The same as the API server tells it.
pub fn trainingjob(generation: i64, attempt: i64, nodes: &[&str]) -> Value {
    json!({
        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "run", "namespace": "team", "uid": "u-1", "resourceVersion": (100 + generation).to_string()},
        "spec": {"template": {"anything": ["goes", 1]}},
        "status": {"phase": "Starting", "allocation": {
            "attempt": attempt, "generation": generation, "gpuType": "A100", "gpus": 2 * nodes.len(), "gpusPerWorker": 2,
            "nodes": nodes, "placement": nodes.join(","), "since": "2026-01-01T00:00:00Z", "watts": 600,
        }},
    })
}

/// A worker pod as the scheduler sends it.
pub fn member_pod(index: usize, attempt: i64, generation: i64) -> Value {
    json!({
        "metadata": {
            "name": format!("run-{attempt}-{index}"), "namespace": "team", "uid": format!("p-{index}"),
            "labels": {
                "andreas.dev/job": "run", "andreas.dev/job-uid": "u-1", "andreas.dev/attempt": attempt.to_string(),
                "andreas.dev/index": index.to_string(), "andreas.dev/allocation": generation.to_string(),
            },
            "ownerReferences": [{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "run", "uid": "u-1",
                "controller": true}],
        },
        "spec": {"schedulerName": "andreas", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    })
}

pub fn foreign_pod() -> Value {
    json!({"metadata": {"name": "notebook", "namespace": "team", "uid": "f-1"}, "spec": {"containers": []}})
}

pub fn binding_args(pod: &Value, node: &str) -> Value {
    let meta = &pod["metadata"];
    json!({"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node})
}

/// Long enough that a test that needs it has failed.
pub const LONG: Duration = Duration::from_secs(60);
