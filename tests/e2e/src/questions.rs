//! Questions to the operator with the command line, through the API server's proxy.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use andreas_testbed::wait::until;
use andreas_testbed::workspace_binary;
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::chart::SYSTEM;
use crate::cluster::Cluster;
use crate::scenario::DEFAULT_TIMEOUT;

/// An address of this machine that is not the loopback: Kubernetes takes no loopback address as an endpoint.
fn address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // Sends nothing: the kernel only chooses the address.
    socket.connect("198.51.100.1:9")?;
    Ok(socket.local_addr()?.ip())
}

/// The operator's Service, with the operator on this machine as its endpoint. Abort the task to end it.
///
/// # Errors
/// When there is no operator, or the API server refuses an object.
pub async fn service(c: &Cluster) -> Result<tokio::task::JoinHandle<()>> {
    let operator = c.operators.first().context("an operator")?.progress;
    let listener = TcpListener::bind((address()?, 0)).await?;
    let at: SocketAddr = listener.local_addr()?;
    let forward = tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut to) = TcpStream::connect(operator).await {
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                }
            });
        }
    });
    c.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "andreas-operator", "namespace": SYSTEM},
        "spec": {"ports": [{"name": "progress", "port": 8443, "targetPort": at.port()}]},
    }))
    .await?;
    // The API server's proxy goes by Endpoints, and only to addresses of pods.
    let (pod, ip) = (json!({"name": "andreas-operator-0", "namespace": SYSTEM}), at.ip().to_string());
    c.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": pod,
        "spec": {"schedulerName": "none", "containers": [{"name": "operator", "image": "none"}]},
    }))
    .await?;
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
    let pods: Api<Pod> = Api::namespaced(c.testbed.client(), SYSTEM);
    pods.patch_status("andreas-operator-0", &PatchParams::default(), &Patch::Merge(&status)).await?;
    c.apply(&json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "andreas-operator", "namespace": SYSTEM},
        "subsets": [{
            "addresses": [{"ip": ip, "targetRef": {"kind": "Pod", "name": "andreas-operator-0", "namespace": SYSTEM}}],
            "ports": [{"name": "progress", "port": at.port(), "protocol": "TCP"}],
        }],
    }))
    .await?;
    Ok(forward)
}

/// What the operator says where it has no time for an answer now.
const BUSY: [&str; 2] = ["try again", "is being computed"];

/// Exit code, standard output and standard error of `kubectl andreas`, asked again while the operator is busy.
///
/// # Errors
/// When it cannot be started, or the operator is busy for as long as a scenario waits.
pub async fn ask(kubeconfig: &Path, args: &[&str]) -> Result<(i32, String, String)> {
    let program = workspace_binary("kubectl-andreas")?;
    let mut said = None;
    until(&format!("an answer to {args:?}"), DEFAULT_TIMEOUT, async || {
        let output = Command::new(&program).args(args).arg("--kubeconfig").arg(kubeconfig).output().await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (code, err) = (output.status.code().unwrap_or(-1), text(&output.stderr));
        let busy = code == 1 && BUSY.iter().any(|words| err.contains(words));
        said = Some((code, text(&output.stdout), err));
        Ok(!busy)
    })
    .await?;
    said.context("no answer")
}
