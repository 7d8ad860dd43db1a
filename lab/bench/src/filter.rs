//! Calls of the extender's `filter` as kube-scheduler makes them: HTTP/1.1, one connection, one call at a time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use andreas_e2e::cluster::Cluster;

/// Calls before the first that counts.
pub(super) const WARM: usize = 100;

/// The body of a call with so many node names; the member's node is in the middle.
///
/// # Errors
/// When the pod is no object.
pub(super) fn body(pod: &Value, node: &str, names: usize, member: bool) -> Result<Bytes> {
    let mut pod = pod.clone();
    if !member {
        let metadata = pod["metadata"].as_object_mut().context("a pod has metadata")?;
        metadata.remove("ownerReferences");
        metadata.remove("labels");
    }
    pod["metadata"]["uid"] = json!("6d1b0a52-7d50-4f9d-9a0e-0f3c5b7a9e11");
    let mut list: Vec<String> = (0..names).map(|index| format!("gpu-node-{index:05}")).collect();
    if let Some(middle) = list.get_mut(names / 2) {
        node.clone_into(middle);
    }
    let args = json!({"Pod": pod, "Nodes": null, "NodeNames": list});
    Ok(Bytes::from(serde_json::to_vec(&args)?))
}

struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    async fn open(cluster: &Cluster) -> Result<Self> {
        let tcp = TcpStream::connect(&address(cluster)?).await?;
        tcp.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    async fn call(&mut self, body: &Bytes) -> Result<Bytes> {
        let request = Request::post("/filter")
            .header(header::HOST, "127.0.0.1")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))?;
        self.0.ready().await?;
        let response = self.0.send_request(request).await?;
        ensure!(response.status().is_success(), "the extender answered {}", response.status());
        Ok(response.into_body().collect().await?.to_bytes())
    }
}

/// Where the extender listens: the scheduler's configuration says it.
fn address(cluster: &Cluster) -> Result<String> {
    let text = std::fs::read_to_string(cluster.testbed.data_dir().join("andreas-scheduler.yaml"))?;
    let config: Value = serde_json::from_str(&text)?;
    let url = config["extenders"][0]["urlPrefix"].as_str().context("no extender in the configuration")?;
    Ok(url.trim_start_matches("http://").trim_end_matches('/').to_owned())
}

/// Times of so many calls, after some that do not count.
///
/// # Errors
/// When a call fails, or is answered with no node.
pub(super) async fn measure(cluster: &Cluster, body: &Bytes, calls: usize) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(cluster).await?;
    let answer: Value = serde_json::from_slice(&connection.call(body).await?)?;
    let left = answer["NodeNames"].as_array().map_or(0, Vec::len);
    ensure!(left > 0, "no node is left: {answer}");
    for _ in 1..WARM {
        connection.call(body).await?;
    }
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        connection.call(body).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}
