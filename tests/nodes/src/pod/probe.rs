//! Startup, readiness and liveness probes: whether a running container counts as ready, and whether it must be restarted.
//!
//! A startup probe must have passed once before the others count. An `https` probe only looks whether the port answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::sandbox::Sandbox;

/// What the probes of a container say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ready(bool),
    /// The liveness or startup probe has failed for good.
    Dead,
}

/// A container to be probed.
pub(crate) struct Probing {
    pub sandbox: Arc<Sandbox>,
    /// Its name in the sandbox.
    pub id: u64,
    pub pod_ip: String,
    pub container: Container,
}

impl Probing {
    /// Whether there is anything to wait for.
    pub fn is_needed(container: &Container) -> bool {
        container.readiness_probe.is_some()
            || container.startup_probe.is_some()
            || container.liveness_probe.is_some()
    }

    /// Probes until nobody listens; tells every change, unready being assumed at first.
    pub async fn run(self, tell: mpsc::UnboundedSender<Verdict>) {
        if let Some(startup) = &self.container.startup_probe {
            let started = self.follow(startup, false, |_| false).await;
            if !started {
                let _ = tell.send(Verdict::Dead);
                return;
            }
        }
        tokio::join!(self.readiness(&tell), self.liveness(&tell));
    }

    async fn readiness(&self, tell: &mpsc::UnboundedSender<Verdict>) {
        let Some(readiness) = &self.container.readiness_probe else {
            let _ = tell.send(Verdict::Ready(true));
            return;
        };
        let changed = |passes| tell.send(Verdict::Ready(passes)).is_ok();
        self.follow(readiness, false, changed).await;
    }

    async fn liveness(&self, tell: &mpsc::UnboundedSender<Verdict>) {
        if let Some(liveness) = &self.container.liveness_probe {
            self.follow(liveness, true, |passes| passes).await;
            let _ = tell.send(Verdict::Dead);
        }
    }

    /// Calls `changed` whenever the verdict leaves what it was, `verdict` at first, until that says stop; the last
    /// one. A startup probe says no by failing as often as it may: then the verdict is told although it is the first one still.
    async fn follow(&self, probe: &Probe, mut verdict: bool, changed: impl Fn(bool) -> bool) -> bool {
        let is_startup = self.container.startup_probe.as_ref() == Some(probe);
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
        };
        let thresholds =
            (probe.success_threshold.unwrap_or(1).max(1), probe.failure_threshold.unwrap_or(3).max(1));
        let (period, limit) = (seconds(probe.period_seconds, 10), seconds(probe.timeout_seconds, 1));
        tokio::time::sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let (mut row, mut last) = (0, None);
        loop {
            let passes = tokio::time::timeout(limit, self.once(probe, limit)).await.unwrap_or(false);
            row = if last == Some(passes) { row + 1 } else { 1 };
            last = Some(passes);
            let enough = if passes { thresholds.0 } else { thresholds.1 };
            if (passes != verdict || is_startup) && row >= enough {
                verdict = passes;
                if !changed(verdict) {
                    return verdict;
                }
            }
            tokio::time::sleep(period.max(Duration::from_millis(100))).await;
        }
    }

    async fn once(&self, probe: &Probe, limit: Duration) -> bool {
        if let Some(exec) = &probe.exec {
            let ended = self.sandbox.exec(self.id, exec.command.clone().unwrap_or_default(), limit).await;
            return ended.is_ok_and(|ended| ended.exit_code() == 0);
        }
        if let Some(tcp) = &probe.tcp_socket {
            return self.connect(tcp.host.as_deref(), &tcp.port).await.is_some();
        }
        let Some(http) = &probe.http_get else { return false };
        let Some(mut stream) = self.connect(http.host.as_deref(), &http.port).await else { return false };
        if http.scheme.as_deref() == Some("HTTPS") {
            return true;
        }
        let path = http.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
        let headers: String = http
            .http_headers
            .iter()
            .flatten()
            .map(|one| format!("{}: {}\r\n", one.name, one.value))
            .collect();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n", self.pod_ip);
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
