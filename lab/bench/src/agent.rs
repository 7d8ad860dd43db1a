//! The node agent as the chart installs it: what it costs with idle GPUs, and while a run trains.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::json;

use super::report::Report;
use super::usage::{cpu_seconds, memory_mib, proportional_mib, tree};
use super::{Output, say};
use andreas_e2e::cluster::{A100, Cluster, Group, Options, short_runs};
use andreas_e2e::job::job;
use andreas_e2e::nodes;

/// Namespace of the agents.
const NAMESPACE: &str = "andreas-node";

/// Flags of `bench agent`.
#[derive(Clone, Debug, Args)]
pub(super) struct AgentArgs {
    /// GPUs of the node.
    #[arg(long, default_value_t = 8)]
    gpus: usize,
    /// Seconds that are measured, idle and training.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

impl AgentArgs {
    /// As `bench all` runs it.
    pub fn preset(quick: bool) -> Self {
        Self { gpus: 8, seconds: if quick { 20 } else { 60 } }
    }
}

/// What a container used.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu: f64,
    rss: f64,
    pss: f64,
}

impl Used {
    fn and(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, rss: self.rss + other.rss, pss: self.pss + other.pss }
    }
}

/// Runs `bench agent`.
pub(super) async fn run(args: &AgentArgs, out: &mut Output) -> Result<()> {
    say(&format!(
        "agent: one node of {} GPUs, {} s idle and {} s training",
        args.gpus, args.seconds, args.seconds
    ));
    let options = Options {
        name: "bench-agent".into(),
        groups: vec![Group { prefix: "a100-", count: 1, gpu: A100, gpus: args.gpus, memory_mib: 81_920 }],
        policy: {
            let mut policy = short_runs();
            policy["rest"] = json!({"mode": "On", "after": "5s"});
            policy
        },
        install: Some(json!({})),
        gpus_kept_busy: true,
        ..Options::default()
    };
    let mut cluster = Cluster::start(options).await?;
    let measured = measure(args, &mut cluster).await;
    let measured = measured.map_err(|error| error.context(cluster.logs()));
    cluster.stop().await;
    let measured = measured?;

    let mut report = Report::new(
        "agent",
        format!("agent --gpus {} --seconds {}", args.gpus, args.seconds),
        &["GPUs", "state", "container", "CPU, % of a core", "resident MiB", "proportional MiB"],
    );
    for (state, containers) in &measured {
        for (container, used) in containers {
            report.rows.push(row(args, state, container, *used));
        }
        let agent = containers.get("agent").copied().unwrap_or_default();
        // Which of the setters works is chance; one that only waits has touched less.
        let setters = containers.iter().filter(|(name, _)| name.starts_with("setter")).map(|(_, used)| *used);
        let works = setters.max_by(|a, b| a.rss.total_cmp(&b.rss)).unwrap_or_default();
        report.rows.push(row(args, state, "agent + the active setter", agent.and(works)));
        let all = containers.values().fold(Used::default(), |sum, used| sum.and(*used));
        report.rows.push(row(args, state, "all", all));
    }
    report.notes = vec![
        "Installed by helm with the chart's values: a sample per second, a simulated `libnvidia-ml`. Resident memory counts pages that \
         processes share in each of them, proportional memory (`Pss`) in equal parts: its sum is what the node has to give."
            .into(),
    ];
    let figures = |used: &Used| json!({"cpu_percent": used.cpu, "resident_mib": used.rss, "proportional_mib": used.pss});
    report.figures = measured
        .iter()
        .flat_map(|(state, all)| all.iter().map(move |(name, used)| (state, name, used)))
        .map(|(state, name, used)| json!({"state": state, "container": name, "used": figures(used)}))
        .collect();
    out.add(&report)
}

fn row(args: &AgentArgs, state: &str, container: &str, used: Used) -> Vec<String> {
    vec![
        args.gpus.to_string(),
        state.into(),
        container.into(),
        format!("{:.2}", used.cpu),
        format!("{:.1}", used.rss),
        format!("{:.1}", used.pss),
    ]
}

type Measured = Vec<(&'static str, BTreeMap<String, Used>)>;

async fn measure(args: &AgentArgs, cluster: &mut Cluster) -> Result<Measured> {
    // Until the idle GPUs rest, the first seconds of every watch are over, and all has been said once.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let idle = used(cluster, args.seconds).await?;
    say("  a run on half of the GPUs");
    let half = i32::try_from(args.gpus / 2).context("GPUs")?.max(1);
    let training = job("bench").gpus(half, 1).epochs(10_000, 1.0);
    cluster.apply(&training.build()).await?;
    let key = training.key();
    cluster
        .observer
        .until("training", Duration::from_secs(60), |seen| {
            seen.job(&key).and_then(|job| job.status.as_ref()).is_some_and(|s| s.phase == Phase::Running)
        })
        .await?;
    // The first seconds of a run are not what is measured.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let trains = used(cluster, args.seconds).await?;
    Ok(vec![("idle, resting", idle), ("half of them train", trains)])
}

/// CPU and memory of each container of the node's agent.
async fn used(cluster: &Cluster, seconds: u64) -> Result<BTreeMap<String, Used>> {
    let before = processes(cluster).await?;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = processes(cluster).await?;
    let elapsed = began.elapsed().as_secs_f64();
    let mut usage = BTreeMap::new();
    for (name, (pid, cpu)) in after {
        let earlier = before.get(&name).filter(|(old, _)| *old == pid).map(|(_, cpu)| cpu);
        let earlier = earlier.with_context(|| format!("{name} was started again"))?;
        let rss = tree(pid).into_iter().filter_map(memory_mib).map(|(now, _)| now).sum();
        let pss = tree(pid).into_iter().filter_map(proportional_mib).sum();
        usage.insert(name, Used { cpu: 100.0 * (cpu - earlier) / elapsed, rss, pss });
    }
    Ok(usage)
}

async fn processes(cluster: &Cluster) -> Result<BTreeMap<String, (u32, f64)>> {
    let pods = nodes::client(&cluster.testbed).pods().await?;
    let agents: Vec<_> = pods.iter().filter(|pod| pod.namespace == NAMESPACE && !pod.ended).collect();
    ensure!(agents.len() == 1, "{} pods of agents", agents.len());
    let mut found = BTreeMap::new();
    for (container, pid) in agents.iter().flat_map(|pod| &pod.pids) {
        let pid = u32::try_from(*pid)?;
        let cpu = tree(pid).into_iter().filter_map(cpu_seconds).sum();
        found.insert(container.clone(), (pid, cpu));
    }
    ensure!(!found.is_empty(), "the agent has no processes");
    Ok(found)
}
