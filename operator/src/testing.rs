//! For tests: a scripted API server, and the objects of a small cluster.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use andreas_api::Phase;
use andreas_cluster::index::ClusterIndex;
pub use andreas_cluster::testing::*;
use andreas_lifecycle::Claim;
use andreas_planner::Options;
use andreas_runtime::testing::always_leading;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::service_fn;

use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::planning::last::Latest;
use crate::planning::{self, FromLastPlan};
use crate::shared::Shared;
use crate::snapshot::Caches;
use crate::writes::Writer;

/// What the loops of a process that leads share.
pub fn shared(index: Arc<Mutex<ClusterIndex>>, client: &Client, now: Timestamp) -> Arc<Shared> {
    let metrics = Metrics::register(&mut Registry::default());
    Arc::new(Shared {
        index,
        ledger: Mutex::new(Ledger::new(now)),
        writer: Writer::new(client.clone(), 4, always_leading(), metrics.clone()),
        settings: Mutex::default(),
        metrics,
        wanted_power: Mutex::default(),
    })
}

/// A claim of each job, as its step would give it.
pub fn stepped(index: &ClusterIndex, now: Timestamp) -> Ledger {
    let mut ledger = Ledger::new(now);
    for (key, job) in index.jobs().iter() {
        let allocation = job.status.as_ref().and_then(|status| status.allocation.as_ref());
        let since = |at: Option<&Time>| at.map_or(now, |at| at.0);
        let claim = match job.status.as_ref().map(|status| status.phase) {
            Some(Phase::Starting) => Claim::Starting { since: since(allocation.map(|held| &held.since)) },
            Some(Phase::Running) => {
                Claim::Running { since: since(allocation.and_then(|held| held.running_time.as_ref())) }
            }
            None | Some(Phase::Pending) if !job.spec.suspend => Claim::Waiting { not_before: None },
            _ => Claim::Nothing,
        };
        ledger.entry(key, job.metadata.uid.as_deref().unwrap_or_default()).set_claim(claim);
    }
    ledger
}

/// A plan of this cluster.
pub fn planned(index: &ClusterIndex, options: &Options, now: Timestamp) -> Latest {
    let (index, ledger) = (index.for_plan(), stepped(index, now));
    let (_, built, made) =
        planning::make(&index, &ledger, Caches::default(), (FromLastPlan::default(), now), options);
    let (plan, _) = made.expect("a plan");
    let (snapshot, options) = (built.snapshot, options.clone());
    Latest { at: now, index, ledger, snapshot, options, plan, draws: built.draws }
}

/// A call received by the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub body: Value,
}

/// An answer to the first call of that method with that path suffix, used once.
pub type Answer = (Method, &'static str, u16, Value);

/// The server; answers 404 to any other call.
pub struct ApiServer {
    pub calls: Arc<Mutex<Vec<Call>>>,
    pub answers: Arc<Mutex<VecDeque<Answer>>>,
}

impl ApiServer {
    pub fn new(answers: Vec<Answer>) -> Self {
        Self { calls: Arc::default(), answers: Arc::new(Mutex::new(answers.into())) }
    }

    pub fn client(&self) -> Client {
        let (calls, answers) = (Arc::clone(&self.calls), Arc::clone(&self.answers));
        let service = service_fn(move |request: Request<Body>| {
            let (calls, answers) = (Arc::clone(&calls), Arc::clone(&answers));
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let path = parts.uri.path().to_owned();
                let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                calls.lock().push(Call { method: parts.method.clone(), path: path.clone(), body });
                let mut answers = answers.lock();
                let at = answers
                    .iter()
                    .position(|(method, end, ..)| *method == parts.method && path.ends_with(end));
                let answer = at.and_then(|at| answers.remove(at));
                let (code, body) =
                    answer.map_or((404, failure(404, "not found")), |(.., code, body)| (code, body));
                let response =
                    Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    pub fn sent(&self, method: &Method) -> Vec<Call> {
        self.calls.lock().iter().filter(|call| call.method == *method).cloned().collect()
    }
}

/// A Status as the API server returns it.
pub fn failure(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": ""})
}

/// A token with these claims; nothing signs it.
pub fn token(claims: &Value) -> String {
    let bytes = k8s_openapi::ByteString(claims.to_string().into_bytes());
    let text = serde_json::to_value(bytes).expect("JSON").as_str().expect("text").to_owned();
    format!("h.{}.s", text.trim_end_matches('=').replace('+', "-").replace('/', "_"))
}
