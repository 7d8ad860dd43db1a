//! The readiness probe: whether a running container counts as ready. An `https` probe only looks whether the port answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::sandbox::Sandbox;

/// A container to be probed.
pub(crate) struct Probing {
    pub sandbox: Arc<Sandbox>,
    pub pod_ip: String,
    pub container: Container,
    pub probe: Probe,
}

impl Probing {
    /// Probes until nobody listens; tells every change, unready being assumed at first.
    pub async fn run(self, tell: mpsc::UnboundedSender<bool>) {
        let probe = &self.probe;
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
        };
        let (period, limit) = (seconds(probe.period_seconds, 10), seconds(probe.timeout_seconds, 1));
        tokio::time::sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let (mut ready, mut failures) = (false, 0);
        loop {
            let passes = tokio::time::timeout(limit, self.once()).await.unwrap_or(false);
            failures = if passes { 0 } else { failures + 1 };
            let fails = failures >= probe.failure_threshold.unwrap_or(3);
            if passes != ready && (passes || fails) {
                ready = passes;
                if tell.send(ready).is_err() {
                    return;
                }
            }
            tokio::time::sleep(period.max(Duration::from_millis(100))).await;
        }
    }

    async fn once(&self) -> bool {
        if let Some(tcp) = &self.probe.tcp_socket {
            return self.connect(tcp.host.as_deref(), &tcp.port).await.is_some();
        }
        let Some(http) = &self.probe.http_get else { return false };
        let Some(mut stream) = self.connect(http.host.as_deref(), &http.port).await else { return false };
        if http.scheme.as_deref() == Some("HTTPS") {
            return true;
        }
        let path = http.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.pod_ip);
        if stream.write_all(request.as_bytes()).await.is_err() {
            return false;
        }
        let mut head = [0u8; 12]; // HTTP/1.1 200
        let answered = stream.read_exact(&mut head).await.is_ok();
        answered && matches!(head.get(9), Some(b'2' | b'3'))
    }

    async fn connect(&self, host: Option<&str>, port: &IntOrString) -> Option<tokio::net::TcpStream> {
        let number = match port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let ports = self.container.ports.iter().flatten();
                let mut named = ports.filter(|one| one.name.as_ref() == Some(name));
                named.next()?.container_port
            }
        };
        let ip = host.filter(|host| !host.is_empty()).unwrap_or(&self.pod_ip).parse().ok()?;
        self.sandbox.connect(SocketAddr::new(ip, u16::try_from(number).ok()?)).await.ok()
    }
}
