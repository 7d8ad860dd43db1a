//! A Prometheus for a running cluster: its configuration, and its programs.
//!
//! In: a cluster, with the addresses at which its programs answer `/metrics`. Out: a file that a Prometheus reads, and on
//! request the programs of `tests/tools/build prometheus`. What must never be here: metrics of our own making.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use andreas_testbed::PortLease;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::chart;
use crate::cluster::Cluster;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A program, and where its processes answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the program, Prometheus' label `job`.
    pub name: &'static str,
    /// Where each process answers, and the node it speaks for where it is in a pod.
    pub targets: Vec<(SocketAddr, Option<String>)>,
}

/// Beginnings of the names of the chart's pods, and the programs in them that answer.
const PODS: [(&str, &str); 3] = [
    ("andreas-operator-", "andreas-operator"),
    ("andreas-scheduler-", "andreas-extender"),
    ("andreas-node-agent-", "andreas-node-agent"),
];

/// What can be scraped of a cluster, from this machine; pods through ports of the machine, as long as they live.
pub struct Scrape {
    /// The programs.
    pub jobs: Vec<Job>,
    _ports: Vec<PortLease>,
}

impl Scrape {
    /// The programs that run now.
    ///
    /// # Errors
    /// When the nodes do not answer or no port is free.
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let operators = cluster.operators.iter().map(|operator| (operator.admin, None)).collect();
        let extenders = cluster.extender_admin.iter().map(|address| (*address, None)).collect();
        let mut jobs = vec![
            Job { name: "andreas-operator", targets: operators },
            Job { name: "andreas-extender", targets: extenders },
            Job { name: "andreas-node-agent", targets: Vec::new() },
        ];
        let mut ports = Vec::new();
        for pod in cluster.machines.pods().await?.into_iter().filter(|pod| !pod.ended) {
            let program =
                PODS.iter().find(|(prefix, _)| pod.name.starts_with(prefix)).map(|(_, program)| *program);
            let Some(job) = jobs.iter_mut().find(|job| Some(job.name) == program) else { continue };
            let to =
                format!("{}:9090", pod.ip).parse().with_context(|| format!("address of {}", pod.name))?;
            let (listen, port) = cluster.machines.reach(to).await?;
            job.targets.push((listen, Some(pod.node)));
            ports.extend(port);
        }
        jobs.retain(|job| !job.targets.is_empty());
        ensure!(!jobs.is_empty(), "nothing to scrape");
        Ok(Self { jobs, _ports: ports })
    }

    /// Writes the configuration of a Prometheus into the cluster's data folder. JSON is YAML.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, cluster: &Cluster, seconds: u32) -> Result<PathBuf> {
        let path = cluster.testbed.data_dir().join("prometheus.yaml");
        let text = serde_json::to_string_pretty(&configuration(&self.jobs, seconds))?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Writes a configuration for a kept cluster and says how to use it, a line each.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn hints(&self, cluster: &Cluster) -> Result<Vec<String>> {
        let path = self.write(cluster, 5)?;
        let data = cluster.testbed.data_dir().join("prometheus");
        let dashboards = chart::folder().join("files/dashboards");
        Ok(vec![
            "Metrics: start a Prometheus (yours, or the one that `tests/tools/build prometheus` makes), and import the dashboards:"
                .into(),
            format!(
                "  prometheus --config.file={} --storage.tsdb.path={} --web.listen-address=127.0.0.1:9099",
                path.display(),
                data.display()
            ),
            format!("  dashboards for Grafana: {}", dashboards.canonicalize().unwrap_or(dashboards).display()),
        ])
    }
}

/// What `/metrics` at an address says, in the older text format. An address that a forward is about to listen on is waited for.
///
/// # Errors
/// When nobody answers within ten seconds.
pub async fn text(address: SocketAddr) -> Result<String> {
    let (code, text) = answer(address, None).await?;
    ensure!(code == 200, "metrics at {address}: {code}: {text}");
    Ok(text)
}

/// Status code and text of the answer to whoever shows this token.
///
/// # Errors
/// When nobody answers within ten seconds.
pub async fn answer(address: SocketAddr, token: Option<&str>) -> Result<(u16, String)> {
    let token = token.map(|token| format!("Bearer {token}"));
    let ask = move || -> Result<(u16, String)> {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(LIMIT)).http_status_as_error(false).build();
        let agent = ureq::Agent::new_with_config(config);
        let until = Instant::now() + LIMIT;
        loop {
            let mut request = agent.get(format!("http://{address}/metrics"));
            if let Some(token) = &token {
                request = request.header("Authorization", token);
            }
            match request.call() {
                Ok(mut answer) => return Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?)),
                Err(ureq::Error::Io(error))
                    if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(error) => return Err(error).with_context(|| format!("metrics at {address}")),
            }
        }
    };
    tokio::task::spawn_blocking(ask).await?
}

/// The configuration of a Prometheus that scrapes them every `seconds` and evaluates the alerts of the chart.
pub fn configuration(jobs: &[Job], seconds: u32) -> Value {
    let scrapes: Vec<Value> = jobs
        .iter()
        .map(|job| {
            let targets: Vec<Value> = job
                .targets
                .iter()
                .map(|(address, node)| {
                    let labels = node.as_ref().map_or(json!({}), |node| json!({"node": node}));
                    json!({"targets": [address.to_string()], "labels": labels})
                })
                .collect();
            json!({"job_name": job.name, "static_configs": targets})
        })
        .collect();
    json!({
        "global": {"scrape_interval": format!("{seconds}s"), "evaluation_interval": format!("{seconds}s")},
        "rule_files": [alerts()],
        "scrape_configs": scrapes,
    })
}

/// The alerts' file.
pub fn alerts() -> PathBuf {
    let path = chart::folder().join("files/prometheus/alerts.yaml");
    path.canonicalize().unwrap_or(path)
}

/// Panels of a dashboard that show data, also those in rows that are collapsed.
pub fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    fn inside(one: &Value) -> std::slice::Iter<'_, Value> {
        one["panels"].as_array().map_or(&[][..], Vec::as_slice).iter()
    }
    inside(board)
        .flat_map(move |one| std::iter::once(one).chain(inside(one)))
        .filter(|one| one["type"] != "row")
}

/// The folder with `prometheus` and `promtool`: built on first use (three minutes on two cores), found in the cache from then on.
///
/// # Errors
/// When they cannot be built.
pub async fn programs() -> Result<PathBuf> {
    let folder = andreas_testbed::built("prometheus").await?;
    for program in ["prometheus", "promtool"] {
        ensure!(folder.join(program).is_file(), "no {program} in {}", folder.display());
    }
    Ok(folder)
}
