//! The whole process: flags, kubeconfig, HTTP on loopback, the watch, a bind, the admin port, SIGTERM.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use andreas_testbed::wait::until;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::{binding_args, member_pod, status, trainingjob};
use tokio::net::{TcpListener, TcpStream};

/// User agent, method and path of what the API server was asked.
type RequestLog = Arc<Mutex<Vec<(String, String)>>>;

/// An API server with one TrainingJob, whose watch stays open and silent.
async fn api_server() -> (SocketAddr, RequestLog) {
    async fn answer(State(asked): State<RequestLog>, request: Request) -> Response {
        let agent = request.headers().get("user-agent").and_then(|agent| agent.to_str().ok()).unwrap_or("");
        let uri = request.uri();
        asked.lock().push((agent.to_owned(), format!("{} {}", request.method(), uri.path())));
        if uri.query().is_some_and(|query| query.contains("watch=true")) {
            return std::future::pending().await;
        }
        match (request.method(), uri.path()) {
            (&Method::GET, "/apis/andreas.dev/v1alpha1/trainingjobs") => Json(
                json!({"metadata": {"resourceVersion": "200"}, "items": [trainingjob(7, 1, &["gpu-1"])]}),
            )
            .into_response(),
            (&Method::POST, path) if path.ends_with("/binding") => {
                (http::StatusCode::CREATED, Json(status(201, ""))).into_response()
            }
            _ => (http::StatusCode::NOT_FOUND, Json(status(404, "NotFound"))).into_response(),
        }
    }
    let asked = RequestLog::default();
    let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&asked));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, asked)
}

/// The process; killed when the test ends early.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the extender and reads its addresses from its first log lines.
fn start(dir: &Path, api: SocketAddr) -> (Process, SocketAddr, SocketAddr) {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{api}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(dir.join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_andreas-extender"))
        .env_clear()
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .arg("--kubeconfig")
        .arg(dir.join("kubeconfig"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let process = Process(child);
    let mut said = String::new();
    let line = loop {
        let line = lines.next().unwrap_or_else(|| panic!("it ended: {said}")).unwrap();
        if line.contains("serving") {
            break line;
        }
        said += &line;
    };
    std::thread::spawn(move || lines.for_each(drop));
    let line: Value = serde_json::from_str(&line).unwrap();
    let address = |key: &str| line[key].as_str().unwrap().parse().unwrap();
    (process, address("listen"), address("admin"))
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn post(sender: &mut Sender, path: &str, body: &Value) -> Value {
    sender.ready().await.unwrap();
    let request =
        http::Request::post(path).header("host", "127.0.0.1").body(Full::from(body.to_string())).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert!(response.headers().contains_key("content-length"), "{response:?}");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

async fn admin(address: SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn the_process_serves_kube_scheduler_on_loopback_and_listens_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let (api, asked) = api_server().await;
    let (mut process, address, admin_address) = start(dir.path(), api);

    // ready once the first list is in
    let ready = async || Ok(admin(admin_address, "/readyz").await.starts_with("HTTP/1.1 200"));
    until("it is ready", Duration::from_secs(10), ready).await.unwrap();

    // a call is answered, and the next one on the same connection
    let mut sender = connect(address).await;
    let pod = member_pod(0, 1, 7);
    let answer = post(&mut sender, "/filter", &json!({"Pod": pod, "NodeNames": ["gpu-1"]})).await;
    assert_eq!(answer["NodeNames"], json!(["gpu-1"]));
    let answer = post(&mut sender, "/bind", &binding_args(&pod, "gpu-1")).await;
    assert_eq!(answer, json!({"Error": ""}));
    let bound = asked.lock().last().cloned().unwrap();
    let agent = concat!("andreas-extender/", env!("CARGO_PKG_VERSION"));
    assert_eq!(bound, (agent.to_owned(), "POST /api/v1/namespaces/team/pods/run-1-0/binding".to_owned()));

    // other addresses of the machine do not answer, and no flag opens them
    assert!(address.ip().is_loopback());
    let outside = Command::new(env!("CARGO_BIN_EXE_andreas-extender"))
        .env_clear()
        .env("ANDREAS_LISTEN", "0.0.0.0:0")
        .output()
        .unwrap();
    let refusal = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert!(!outside.status.success() && refusal.contains("only a loopback address"), "{refusal}");

    let metrics = admin(admin_address, "/metrics").await;
    for line in [
        r#"andreas_extender_requests_total{verb="filter",result="accepted"} 1"#,
        r#"andreas_extender_requests_total{verb="bind",result="accepted"} 1"#,
        "andreas_extender_cache_ready 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }

    // SIGTERM ends it in order
    let pid = process.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let ended = tokio::task::spawn_blocking(move || process.0.wait().unwrap());
    let status = tokio::time::timeout(Duration::from_secs(5), ended).await.expect("it ends").unwrap();
    assert!(status.success(), "{status}");
}
