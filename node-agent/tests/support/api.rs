//! An API server of a few objects: list, watch, get of a pod, merge patch of a status.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Called with each status that is written, before the answer.
type Hook = Box<dyn Fn(&Value) + Send>;

#[derive(Default)]
struct Store {
    version: u64,
    objects: BTreeMap<(String, String), Value>,
    /// Version, kind and line of every change.
    log: Vec<(u64, String, String)>,
    writes: Vec<Value>,
    hook: Option<Hook>,
    leads: bool,
}

/// The server. Clones share it.
#[derive(Clone)]
pub struct Api {
    store: Arc<Mutex<Store>>,
    address: SocketAddr,
}

type Params = Query<BTreeMap<String, String>>;

impl Api {
    pub async fn start() -> Self {
        let store: Arc<Mutex<Store>> = Arc::default();
        let router = Router::new()
            .route("/apis/andreas.dev/v1alpha1/{plural}", get(collection))
            .route("/apis/andreas.dev/v1alpha1/{plural}/{name}/status", patch(status))
            .route("/apis/coordination.k8s.io/v1/namespaces/{namespace}/{plural}", get(namespaced))
            .with_state(Arc::clone(&store));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { store, address }
    }

    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes or replaces an object.
    pub fn put(&self, plural: &str, object: Value) {
        self.store.lock().put(plural, object);
    }

    /// Changes the spec of our GpuNode.
    pub fn order(&self, spec: Value) {
        let mut store = self.store.lock();
        let mut node = store.objects[&("gpunodes".to_owned(), "node-0".to_owned())].clone();
        node["metadata"]["generation"] = json!(node["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        node["spec"] = spec;
        store.put("gpunodes", node);
    }

    /// An operator leads from now on, and renews its Lease.
    pub fn lead(&self) {
        self.store.lock().leads = true;
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            for beat in 0.. {
                {
                    let mut store = store.lock();
                    if !store.leads {
                        return;
                    }
                    let renew = format!("2026-01-01T00:00:00.{:06}Z", beat % 1_000_000);
                    store.put(
                        "leases",
                        json!({
                            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                            "metadata": {"name": "andreas-operator", "namespace": "andreas-system"},
                            "spec": {"holderIdentity": "operator-0", "renewTime": renew},
                        }),
                    );
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
    }

    /// The operator no longer renews its Lease.
    pub fn stop_leading(&self) {
        self.store.lock().leads = false;
    }

    /// Looks at each status that is written, before the writer hears that it was.
    pub fn on_write(&self, hook: impl Fn(&Value) + Send + 'static) {
        self.store.lock().hook = Some(Box::new(hook));
    }

    /// How often a status was written.
    pub fn writes(&self) -> usize {
        self.store.lock().writes.len()
    }

    /// The status of our GpuNode.
    pub fn status(&self) -> Value {
        self.store.lock().objects[&("gpunodes".to_owned(), "node-0".to_owned())]["status"].clone()
    }

    /// State and holder of a GPU in that status.
    pub fn gpu(&self, uuid: &str) -> (String, Option<String>) {
        let status = self.status();
        let gpus = status["gpus"].as_array().cloned().unwrap_or_default();
        let gpu = gpus.into_iter().find(|gpu| gpu["uuid"] == uuid).unwrap_or_default();
        let text = |field: &str| gpu[field].as_str().map(str::to_owned);
        (text("state").unwrap_or_default(), text("holder"))
    }
}

impl Store {
    fn put(&mut self, plural: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let key = (plural.to_owned(), name);
        let event = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        let line = format!("{}\n", json!({"type": event, "object": object}));
        self.log.push((self.version, plural.to_owned(), line));
        self.objects.insert(key, object);
    }
}

async fn namespaced(
    state: State<Arc<Mutex<Store>>>,
    Path((_, plural)): Path<(String, String)>,
    query: Params,
) -> Response {
    collection(state, Path(plural), query).await
}

async fn collection(
    State(store): State<Arc<Mutex<Store>>>,
    Path(plural): Path<String>,
    Query(query): Params,
) -> Response {
    if query.get("watch").is_none_or(|watch| watch != "true" && watch != "1") {
        let store = store.lock();
        let items: Vec<&Value> =
            store.objects.iter().filter(|((kind, _), _)| *kind == plural).map(|(_, object)| object).collect();
        let list = json!({"metadata": {"resourceVersion": store.version.to_string()}, "items": items});
        return axum::Json(list).into_response();
    }
    let from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let lines = futures::stream::unfold((store, plural, from), |(store, plural, from)| async move {
        loop {
            let next = {
                let store = store.lock();
                let start = store.log.partition_point(|(version, _, _)| *version <= from);
                store.log[start..].iter().find(|(_, kind, _)| *kind == plural).cloned()
            };
            if let Some((version, _, line)) = next {
                return Some((Ok::<_, std::convert::Infallible>(line), (store, plural, version)));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    Body::from_stream(lines).into_response()
}

async fn status(
    State(store): State<Arc<Mutex<Store>>>,
    Path((plural, name)): Path<(String, String)>,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let mut store = store.lock();
    let mut object = store.objects[&(plural.clone(), name.clone())].clone();
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    for (field, value) in body["status"].as_object().into_iter().flatten() {
        match (value, object["status"].as_object_mut()) {
            (Value::Null, Some(status)) => drop(status.remove(field)),
            (value, Some(status)) => drop(status.insert(field.clone(), value.clone())),
            _ => {}
        }
    }
    if let Some(hook) = &store.hook {
        hook(&object["status"]);
    }
    store.writes.push(object["status"].clone());
    store.put(&plural, object);
    axum::Json(store.objects[&(plural, name)].clone()).into_response()
}
