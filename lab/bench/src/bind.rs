//! From the first apply to all bound, beside the plain Job controller and default scheduler.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::bed::{self, Shape, System};
use super::report::{Report, median, quantile, spread};
use super::trace::Trace;
use super::usage::{Cpu, peak_mib};
use super::{Output, profile, say};
use andreas_e2e::cluster::Cluster;

/// Flags of `bench bind`.
#[derive(Clone, Debug, Args)]
pub(super) struct BindArgs {
    /// One-pod jobs.
    #[arg(long, default_value_t = 1000)]
    jobs: usize,
    /// Nodes of 8 GPUs for one-pod jobs.
    #[arg(long, default_value_t = 500)]
    nodes: usize,
    /// Gangs of 4 pods with 2 GPUs each.
    #[arg(long, default_value_t = 200)]
    gangs: usize,
    /// Nodes of 2 GPUs for gangs: the planner gives a gang as few nodes as it fits on, so these keep its 4 pods apart.
    #[arg(long, default_value_t = 1000)]
    gang_nodes: usize,
    /// Nodes of 8 GPUs in the large cluster.
    #[arg(long, default_value_t = 5000)]
    many_nodes: usize,
    /// Runs of each, plain and ours in turn, each on a control plane of its own.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Jobs that differ in their names only, instead of labels and arguments of their own.
    #[arg(long)]
    alike: bool,
    /// Only these.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Case::Single, Case::Gang, Case::Large])]
    cases: Vec<Case>,
    /// Give up when a run takes longer, seconds.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Save CPU profiles of the API server during each run into this folder, for `go tool pprof`. They cost some per cent.
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    Single,
    Gang,
    Large,
}

impl BindArgs {
    /// As `bench all` runs it.
    pub fn preset(quick: bool) -> Self {
        let full = Self {
            jobs: 1000,
            nodes: 500,
            gangs: 200,
            gang_nodes: 1000,
            many_nodes: 5000,
            rounds: 3,
            alike: false,
            cases: vec![Case::Single, Case::Gang, Case::Large],
            limit: 300,
            profile: None,
        };
        if quick {
            Self { jobs: 200, nodes: 100, gangs: 50, gang_nodes: 200, many_nodes: 500, rounds: 1, ..full }
        } else {
            full
        }
    }

    fn shape(&self, case: Case) -> Shape {
        let single = Shape {
            nodes: self.nodes,
            node_gpus: 8,
            jobs: self.jobs,
            pods: 1,
            gpus: 1,
            run_seconds: None,
            alike: self.alike,
        };
        match case {
            Case::Single => single,
            Case::Large => Shape { nodes: self.many_nodes, ..single },
            Case::Gang => {
                Shape { nodes: self.gang_nodes, node_gpus: 2, jobs: self.gangs, pods: 4, gpus: 2, ..single }
            }
        }
    }

    fn command(&self) -> String {
        let alike = if self.alike { " --alike" } else { "" };
        format!(
            "bind --jobs {} --nodes {} --gangs {} --gang-nodes {} --many-nodes {} --rounds {}{alike}",
            self.jobs, self.nodes, self.gangs, self.gang_nodes, self.many_nodes, self.rounds
        )
    }
}

/// One run.
struct Run {
    system: System,
    seconds: f64,
    p50: f64,
    p99: f64,
    cpu: Cpu,
    writes: u64,
    own: BTreeMap<String, u64>,
    by_all: BTreeMap<String, u64>,
    refused: u64,
    operator_mib: f64,
}

/// Runs `bench bind`.
pub(super) async fn run(args: &BindArgs, out: &mut Output) -> Result<()> {
    let mut report = Report::new(
        "bind",
        args.command(),
        &[
            "nodes x GPUs",
            "jobs x pods x GPUs",
            "system",
            "jobs/s to bound",
            "of plain",
            "bound p50 s",
            "p99 s",
            "API writes/job",
            "own writes/job",
            "own dry runs/job",
            "CPU ms/job: all",
            "API server",
            "operator",
            "extender",
            "operator peak MiB",
        ],
    );
    let mut figures = Vec::new();
    let mut own = BTreeMap::new();
    for &case in &args.cases {
        let shape = args.shape(case);
        let mut runs = Vec::new();
        for round in 0..args.rounds.max(1) {
            for system in [System::Plain, System::Andreas] {
                say(&format!(
                    "bind: {} x {} x {} on {} nodes, {}, run {}",
                    shape.jobs,
                    shape.pods,
                    shape.gpus,
                    shape.nodes,
                    system.name(),
                    round + 1
                ));
                runs.push(once(args, &shape, system).await?);
            }
        }
        for system in [System::Plain, System::Andreas] {
            report.rows.push(row(&shape, system, &runs));
        }
        if let Some(run) = runs.iter().rev().find(|run| run.system == System::Andreas) {
            own.insert(format!("{} pods each", shape.pods), per_job(&run.own, shape.jobs));
        }
        figures.extend(runs.iter().map(|run| json_of(&shape, run)));
    }
    report.figures = json!(figures);
    report.notes = vec![
        "From the first create request until the last Binding was answered, by the audit log; median (range) of the runs. A control \
         plane of its own for every run, plain and ours in turn; 16 clients submit; nothing ends before all are bound."
            .into(),
        "Nodes are objects whose Leases are not renewed (`--node-monitor-grace-period` raised); their kubelets write 2 to 3 statuses per \
         pod. Controller manager and default scheduler have no limit of requests (5,000/s); our scheduler has the chart's 500/s. \
         The audit log is on for both."
            .into(),
        "CPU: user and system time of every process but the load generator, until all is bound. Writes: all that were answered with \
         2xx until nobody wrote for 3 s after the last Binding; `own`: those of the operator, its leader Lease and dry runs apart."
            .into(),
    ];
    for (shape, writes) in own {
        report.notes.push(format!("Own writes per job, {shape}: {writes}."));
    }
    out.add(&report)
}

async fn once(args: &BindArgs, shape: &Shape, system: System) -> Result<Run> {
    let args_of_api_server: &[&str] = if args.profile.is_some() { &["--profiling=true"] } else { &[] };
    let cluster = bed::start(system, shape, json!({}), args_of_api_server).await?;
    let measured = measure(args, shape, system, &cluster).await;
    let measured = measured.map_err(|error| error.context(cluster.logs()));
    cluster.stop().await;
    measured
}

async fn measure(args: &BindArgs, shape: &Shape, system: System, cluster: &Cluster) -> Result<Run> {
    let mut trace = Trace::start(&cluster.testbed)?;
    let before = Cpu::of(cluster);
    let limit = Duration::from_secs(args.limit);
    let done = AtomicBool::new(false);
    let until_bound = async {
        let bound = bed::until_bound(&mut trace, shape, limit).await;
        done.store(true, Ordering::Relaxed);
        (bound, Cpu::of(cluster).since(&before))
    };
    let profile = async {
        let Some(folder) = &args.profile else { return Ok(()) };
        let name = format!("{}-{}x{}-{}", system.key(), shape.jobs, shape.pods, shape.nodes);
        profile::take(&cluster.testbed, folder, &name, &done).await
    };
    let (submitted, (bound, cpu), profiled) =
        tokio::join!(bed::submit(cluster, system, shape, "b"), until_bound, profile);
    submitted?;
    bound?;
    profiled?;
    bed::until_quiet(&mut trace, Duration::from_secs(3), Duration::from_secs(60)).await?;
    let (_, last) = trace.first_and_last_bind();
    let latencies = trace.latencies();
    let run = Run {
        system,
        seconds: last - trace.began(),
        p50: quantile(latencies.iter().copied(), 0.5),
        p99: quantile(latencies.iter().copied(), 0.99),
        cpu,
        writes: trace.written(),
        own: trace.written_by("operator"),
        by_all: trace.writes.iter().map(|((who, what), n)| (format!("{who}: {what}"), *n)).collect(),
        refused: trace.refused,
        operator_mib: cluster.operators.first().map_or(0.0, |operator| peak_mib(&operator.process)),
    };
    say(&format!("  {:.1} jobs/s", shape.jobs as f64 / run.seconds));
    Ok(run)
}

fn row(shape: &Shape, system: System, all: &[Run]) -> Vec<String> {
    let jobs = shape.jobs as f64;
    let of = |system| all.iter().filter(move |run| run.system == system);
    let rate = |system| median(of(system).map(|run| jobs / run.seconds));
    let figures =
        |of_run: &dyn Fn(&Run) -> f64, digits| spread(&of(system).map(of_run).collect::<Vec<_>>(), digits);
    let only_ours = |text: String| if system == System::Andreas { text } else { "-".into() };
    vec![
        format!("{} x {}", shape.nodes, shape.node_gpus),
        format!("{} x {} x {}", shape.jobs, shape.pods, shape.gpus),
        system.name().into(),
        figures(&|run| jobs / run.seconds, 1),
        only_ours(format!("{:.2}", rate(System::Andreas) / rate(System::Plain))),
        figures(&|run| run.p50, 2),
        figures(&|run| run.p99, 2),
        figures(&|run| run.writes as f64 / jobs, 1),
        only_ours(figures(&|run| lasting(&run.own) as f64 / jobs, 2)),
        only_ours(figures(&|run| dry(&run.own) as f64 / jobs, 2)),
        figures(&|run| 1000.0 * run.cpu.of_all() / jobs, 1),
        figures(&|run| 1000.0 * run.cpu.of_program("kube-apiserver") / jobs, 1),
        only_ours(figures(&|run| 1000.0 * run.cpu.of_program("operator") / jobs, 2)),
        only_ours(figures(&|run| 1000.0 * run.cpu.of_program("extender") / jobs, 2)),
        only_ours(figures(&|run| run.operator_mib, 0)),
    ]
}

/// What an API server only tries out.
pub(super) fn dry(writes: &BTreeMap<String, u64>) -> u64 {
    writes.iter().filter(|(what, _)| what.ends_with("(dry run)")).map(|(_, count)| count).sum()
}

/// What is kept, leader Leases apart.
pub(super) fn lasting(writes: &BTreeMap<String, u64>) -> u64 {
    let leases: u64 =
        writes.iter().filter(|(what, _)| what.ends_with(" leases")).map(|(_, count)| count).sum();
    writes.values().sum::<u64>() - leases - dry(writes)
}

fn per_job(writes: &BTreeMap<String, u64>, jobs: usize) -> String {
    let each = writes.iter().map(|(what, count)| format!("{what} {:.2}", *count as f64 / jobs as f64));
    each.collect::<Vec<_>>().join(", ")
}

fn json_of(shape: &Shape, run: &Run) -> Value {
    json!({
        "system": run.system.name(), "nodes": shape.nodes, "node_gpus": shape.node_gpus, "jobs": shape.jobs,
        "pods": shape.pods, "gpus": shape.gpus, "seconds": run.seconds, "bound_p50_s": run.p50, "bound_p99_s": run.p99,
        "cpu_s": run.cpu.0, "writes": run.writes, "writes_by": run.by_all, "refused_429": run.refused,
        "operator_peak_mib": run.operator_mib,
    })
}
