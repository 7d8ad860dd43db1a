//! An API server with an operator behind its proxy: 1,000 jobs on 200 nodes, answered in the types of the query API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use andreas_api::query::{Explanation, Failure, Queue, TOKEN_HEADER, WhatIf, WhatIfRequest, path};
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub const JOBS: i64 = 1_000;
pub const NODES: i64 = 200;
pub const TOKEN: &str = "a-token-that-no-page-sees";
const TYPES: [(&str, i64); 3] =
    [("NVIDIA-A100-SXM4-80GB", 350), ("NVIDIA-H100-80GB-HBM3", 600), ("Tesla-T4", 65)];

/// What it does, and what it was asked.
#[derive(Default)]
pub struct Cluster {
    /// Refuses the queue: the right is missing.
    pub forbids: AtomicBool,
    /// Neither the operator nor the API server answers as they should.
    pub is_away: AtomicBool,
    /// Queues that were asked for.
    pub queues: AtomicUsize,
}

/// Serves it on a free port of this machine, for as long as the test runs.
pub fn serve() -> (String, Arc<Cluster>) {
    let cluster = Arc::new(Cluster::default());
    let proxy = "/api/v1/namespaces/andreas-system/services/https:andreas-operator:8443/proxy";
    let of_operator = |path: String| format!("{proxy}{path}");
    let router = Router::new()
        .route(&of_operator(path::queue("{namespace}")), get(queue))
        .route(&of_operator(path::explain("{namespace}", "{job}")), get(explain))
        .route(&of_operator(path::what_if("{namespace}")), post(what_if))
        .route("/apis/andreas.dev/v1alpha1/namespaces/{namespace}/trainingjobs", get(async || jobs()))
        .route("/apis/andreas.dev/v1alpha1/trainingjobs", get(async || jobs()))
        .route("/apis/andreas.dev/v1alpha1/gpunodes", get(async || gpu_nodes()))
        .route("/apis/andreas.dev/v1alpha1/energypolicies/default", get(async || policy()))
        .route("/apis/andreas.dev/v1alpha1/nodepowers", get(async || list(Vec::new())))
        .route("/api/v1/nodes", get(async || list(Vec::new())))
        .layer(middleware::from_fn_with_state(Arc::clone(&cluster), checked))
        .with_state(Arc::clone(&cluster));
    let (send, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    (format!("http://{}", address.recv().unwrap()), cluster)
}

async fn checked(State(cluster): State<Arc<Cluster>>, request: Request, next: Next) -> Response {
    let by = request.headers().get(TOKEN_HEADER).or(request.headers().get(http::header::AUTHORIZATION));
    assert_eq!(by.unwrap(), &format!("Bearer {TOKEN}"));
    if cluster.is_away.load(Ordering::Relaxed) {
        return failure(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "the API server is shutting down",
        );
    }
    next.run(request).await
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    (code, Json(Failure::new(code.as_u16(), reason, message))).into_response()
}

/// So many minutes from now.
fn at(minutes: i64) -> Timestamp {
    let now = Timestamp::now() + SignedDuration::from_mins(minutes);
    Timestamp::from_second(now.as_second()).unwrap()
}

fn name(n: i64) -> String {
    let model = ["bert", "llama", "whisper", "resnet", "gpt", "vit", "clip", "mixtral"][(n % 8) as usize];
    format!("{model}-{}-{n:04}", ["base", "large", "sweep"][(n / 8 % 3) as usize])
}

/// A number that looks drawn at random.
fn drawn(n: i64, salt: i64, below: i64) -> i64 {
    ((n * 2_654_435 + salt * 40_503) ^ (n * 7_919 + salt)).rem_euclid(1_000_003) % below
}

fn interval(p10: i64, p50: i64, p90: i64) -> Value {
    json!({"p10": at(p10), "p50": at(p50), "p90": at(p90)})
}

fn expected(n: i64, earlier: i64) -> Value {
    let runs = n % 5 == 0;
    let start = if runs { -5 - drawn(n, 1, 240) } else { 10 + n + drawn(n, 2, 300) - earlier };
    let length = 20 + drawn(n, 3, 600);
    let end = (start + length).max(8);
    let spread = if runs { 0 } else { 5 + start / 4 };
    let percent = match n {
        n if n % 400 == 26 => 0,
        n if n % 97 == 7 => 12,
        n if n % 53 == 3 => 55,
        n if n % 31 == 4 => 83,
        n => 91 + n % 10,
    };
    let cost = json!({"energyCostMicros": 420_000 + n * 900, "latenessCostMicros": 1_000 * (100 - percent) * 9, "turnaroundCostMicros": 170_000});
    let mut e = json!({"start": interval(start - spread, start, start + spread), "gpuType": TYPES[(n % 3) as usize].0, "gpus": 1 << (n % 4),
        "finish": interval((end - length / 5 - spread).max(4), end, end + length / 3 + spread), "cost": cost});
    if n % 4 != 3 {
        e["onTimePercent"] = (percent + if earlier > 0 { 15 } else { 0 }).min(100).into();
    }
    e
}

fn queued(n: i64) -> Value {
    let runs = n % 5 == 0;
    let mut job = json!({"name": name(n), "phase": if runs { "Running" } else { "Pending" }, "weight": 10 + n % 40, "created": at(-400),
        "gpus": if runs { (1 << (n % 4)).to_string() } else { ["1", "1-2", "1-4", "1-8"][(n % 4) as usize].to_owned() }, "expected": expected(n, 0)});
    if runs {
        job["gpuType"] = TYPES[(n % 3) as usize].0.into();
    } else {
        job["position"] = (n + 1).into();
        job["reason"] = "WaitingForCapacity".into();
        job["message"] = "other jobs hold what it needs".into();
        job["ahead"] = json!({"names": [name(n + 1), name(n + 2)], "own": n, "others": 3});
    }
    if n % 4 != 3 {
        let finish: Timestamp = job["expected"]["finish"]["p50"].as_str().unwrap().parse().unwrap();
        let percent = job["expected"]["onTimePercent"].as_i64().unwrap();
        let room = if percent >= 90 { 90 + drawn(n, 4, 400) } else { (percent - 50) * 2 };
        job["deadline"] =
            json!(if n % 400 == 26 { at(-25) } else { finish + SignedDuration::from_mins(room) });
    }
    job
}

async fn queue(State(cluster): State<Arc<Cluster>>, Path(namespace): Path<String>) -> Response {
    cluster.queues.fetch_add(1, Ordering::Relaxed);
    if cluster.forbids.load(Ordering::Relaxed) {
        return failure(
            StatusCode::FORBIDDEN,
            "Forbidden",
            "ada may not list trainingjobs.andreas.dev in namespace team-a",
        );
    }
    let jobs: Vec<Value> = (0..JOBS).map(queued).collect();
    let queue =
        json!({"namespace": namespace, "at": at(0), "waiting": JOBS * 4 / 5, "open": JOBS, "jobs": jobs});
    Json(serde_json::from_value::<Queue>(queue).unwrap()).into_response()
}

fn number(job: &str) -> i64 {
    job.rsplit('-').next().unwrap().parse().unwrap()
}

async fn explain(Path((namespace, job)): Path<(String, String)>) -> Json<Explanation> {
    let n = number(&job);
    let cost = |energy: i64, late: i64| json!({"energyCostMicros": energy, "latenessCostMicros": late, "turnaroundCostMicros": 56_700});
    let candidate = |gpus: i64, seconds: i64, energy: i64, late: i64| {
        json!({"gpuType": TYPES[0].0, "gpus": gpus, "nodes": 1, "seconds": seconds, "watts": 300 * gpus, "onTimePercent": 97 - late / 9_000,
            "cost": cost(energy, late), "obstacle": if gpus > 2 { "Nodes" } else { "Power" }})
    };
    let candidates = [
        candidate(8, 2_043, 410_000, 0),
        candidate(4, 3_620, 420_000, 8_000),
        candidate(2, 7_300, 450_000, 190_000),
    ];
    let change = |kind: &str, text: &str, patch: Value, added: i64| json!({"kind": kind, "text": text, "patch": {"spec": patch}, "expected": expected(n, 90), "soonerSeconds": 5_400, "addedCostMicros": added});
    let changes = [
        change("Minimum", "from 2 GPUs on instead of 4", json!({"gpus": {"min": 2}}), -120_000),
        change("Weight", "weight 40 instead of 10", json!({"weight": 40}), 310_000),
    ];
    let explanation = json!({"namespace": namespace, "job": queued(n), "candidates": candidates, "changes": changes, "currency": "EUR",
        "decided": {"at": at(0), "method": "randomized-greedy", "decision": "Wait", "reason": "WaitingForCapacity",
            "message": "other jobs hold what it needs", "inTheWay": {"names": [name(5), name(10)], "own": 2, "others": 1}}});
    Json(serde_json::from_value(explanation).unwrap())
}

async fn what_if(Path(namespace): Path<String>, Json(asked): Json<WhatIfRequest>) -> Json<WhatIf> {
    let affected: Vec<Value> = (0..5)
        .map(|n| json!({"name": name(n * 5), "laterSeconds": 600 * (n - 1) + 60, "onTimeBeforePercent": 98, "onTimePercent": 98 - n * 4}))
        .collect();
    let mut answer = json!({"namespace": namespace, "at": at(0), "affected": affected, "own": 7, "addedCostMicros": -190_000, "currency": "EUR",
        "others": {"later": 3, "never": 0, "sooner": 1, "meanLaterSeconds": 720}});
    if let Some(changed) = asked.changed {
        let n = number(&changed.name);
        answer["before"] = expected(n, 0);
        answer["job"] = queued(n);
        answer["job"]["expected"] = expected(n, 90);
    }
    Json(serde_json::from_value(answer).unwrap())
}

fn list(items: Vec<Value>) -> Json<Value> {
    Json(json!({"metadata": {"resourceVersion": "1"}, "items": items}))
}

fn jobs() -> Json<Value> {
    let attempt = |n: i64| {
        let begin = -420 + drawn(n, 5, 60);
        json!({"attempt": 1, "outcome": "Stopped", "reason": "Preempted", "gpuType": "Tesla-T4", "gpus": 1, "placement": "gpu-001",
            "started": at(begin), "ended": at(begin + 20 + drawn(n, 6, 90))})
    };
    let job = |n: i64| {
        let history: Vec<Value> = if n % 3 == 0 { vec![attempt(n)] } else { Vec::new() };
        json!({"metadata": {"name": name(n), "namespace": "team-a"}, "status": {"phase": "Pending", "history": history},
            "spec": {"gpus": {"min": 1, "max": 1 << (n % 4)}, "template": {"spec": {"containers": []}}}})
    };
    list((0..JOBS).map(job).collect())
}

fn gpu_nodes() -> Json<Value> {
    let gpu = |node: i64, k: i64| {
        let n = node * 8 + k;
        let (state, holder) = match drawn(n, 7, 20) {
            0 => ("Unhealthy", None),
            1..=3 => ("Free", None),
            4 => ("Resting", None),
            5..=8 => ("Held", Some("other/notebook-0".to_owned())),
            _ => ("Held", Some(format!("team-a/{}-1-0", name(node * 5)))),
        };
        let watts = if state == "Held" { TYPES[(node % 3) as usize].1 } else { 40 };
        let mut gpu =
            json!({"uuid": format!("GPU-{n:08x}-aaaa"), "state": state, "watts": watts, "joules": 1});
        if let Some(holder) = holder {
            gpu["holder"] = holder.into();
            gpu["heldSince"] = json!(at(-90));
        }
        if state == "Unhealthy" {
            gpu["problems"] =
                json!([{"reason": "Xid", "fatal": true, "xid": 79, "message": "fell off the bus"}]);
        }
        gpu
    };
    let node = |n: i64| {
        let gpus: Vec<Value> = (0..8).map(|k| gpu(n, k)).collect();
        let ready = json!([{"type": "Ready", "status": "True", "reason": "Working", "message": "", "lastTransitionTime": at(-900)}]);
        json!({"metadata": {"name": format!("gpu-{n:03}")}, "spec": {"gpuType": TYPES[(n % 3) as usize].0},
            "status": {"agentVersion": "0.1.0", "conditions": ready, "gpus": gpus}})
    };
    list((0..NODES).map(node).collect())
}

fn policy() -> Json<Value> {
    let met = json!({"type": "BudgetMet", "status": "True", "reason": "AsExpected", "message": "what runs is within the budget",
        "lastTransitionTime": at(-900)});
    Json(
        json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "default"},
        "spec": {"powerBudget": {"watts": 620_000, "windows": [{"from": "07:00", "to": "19:00", "watts": 480_000}]}, "pue": "1.3",
            "prices": {"energyPerKWh": "0.22", "tariff": {"windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.11"},
                {"from": "17:00", "to": "20:00", "energyPerKWh": "0.31"}]}}},
        "status": {"power": {"time": at(-1), "budgetWatts": 620_000, "drawnWatts": 431_000, "idleWatts": 118_000, "kwhCostMicros": 143_000},
            "conditions": [met]}}),
    )
}
