//! Thousands of waiting jobs: what the operator costs at rest, how long one plan takes, how soon it answers, and how long it takes to
//! start.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;

use super::ask::{self, Asked};
use super::bed::{self, Shape, System};
use super::report::Report;
use super::trace::Trace;
use super::usage::{Cpu, memory_mib};
use super::{Output, say};
use andreas_e2e::cluster::{Cluster, Operator};
use andreas_e2e::scrape;

/// GPUs of a node: one job fills it.
const NODE_GPUS: usize = 8;

/// Flags of `bench waiting`.
#[derive(Clone, Debug, Args)]
pub(super) struct WaitingArgs {
    /// Jobs that wait, beside one on every node that runs.
    #[arg(long, default_value_t = 10_000)]
    jobs: usize,
    /// Nodes.
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Seconds at rest that are looked at.
    #[arg(long, default_value_t = 120)]
    rest: u64,
    /// How often each question is asked.
    #[arg(long, default_value_t = 40)]
    asks: usize,
    /// How long the operator may take to settle, seconds.
    #[arg(long, default_value_t = 400)]
    limit: u64,
}

impl WaitingArgs {
    /// As `bench all` runs it.
    pub fn preset(quick: bool) -> Self {
        if quick {
            Self { jobs: 500, nodes: 50, rest: 40, asks: 2, limit: 120 }
        } else {
            Self { jobs: 10_000, nodes: 1000, rest: 120, asks: 40, limit: 400 }
        }
    }
}

/// Runs `bench waiting`.
pub(super) async fn run(args: &WaitingArgs, out: &mut Output) -> Result<()> {
    say(&format!("waiting: {} jobs wait, {} run", args.jobs, args.nodes));
    let full = Shape {
        nodes: args.nodes,
        node_gpus: NODE_GPUS,
        jobs: args.nodes,
        pods: 1,
        gpus: NODE_GPUS,
        run_seconds: None,
        alike: false,
    };
    let cluster = bed::start(System::Andreas, &full, json!({}), &[]).await?;
    let measured = measure(args, &full, &cluster).await;
    let measured = measured.map_err(|error| error.context(cluster.logs()));
    cluster.stop().await;
    let measured = measured?;

    let command = format!(
        "waiting --jobs {} --nodes {} --rest {} --asks {}",
        args.jobs, args.nodes, args.rest, args.asks
    );
    let mut report = Report::new(
        "waiting",
        command.clone(),
        &[
            "nodes",
            "waiting + running jobs",
            "operator MiB at rest (peak)",
            "CPU at rest, % of a core",
            "writes/min at rest: jobs",
            "others",
            "one plan s",
            "plans at rest",
            "start-up to first plan s",
            "MiB after start (peak)",
        ],
    );
    report.rows.push(vec![
        args.nodes.to_string(),
        format!("{} + {}", args.jobs, args.nodes),
        format!("{:.0} ({:.0})", measured.memory.0, measured.memory.1),
        format!("{:.2}", measured.cpu_percent),
        format!("{:.1}", measured.job_writes),
        format!("{:.1}", measured.other_writes),
        format!("{:.2}", measured.plan_seconds),
        measured.plans.to_string(),
        format!("{:.1}", measured.start_seconds),
        format!("{:.0} ({:.0})", measured.memory_after.0, measured.memory_after.1),
    ]);
    report.notes = vec![
        "Every node is filled by one running job; the others wait for room. At rest nothing happens in the cluster; the operator plans \
         every 30 s at least, and sooner where the last plan expected an end."
            .into(),
        "One plan: the mean of `andreas_plan_duration_seconds` over the plans at rest, or of the plan after start where there was none; \
         start-up: from the process's start, after an orderly end of the one before, until `andreas_plan_duration_seconds_count` is 1."
            .into(),
        format!("Writes at rest: {}.", words(&measured.writes)),
    ];
    if !measured.quiet {
        report.notes.push("It had not become quiet when the look began.".into());
    }
    report.figures = json!({
        "memory_mib": measured.memory, "memory_after_start_mib": measured.memory_after, "cpu_percent": measured.cpu_percent,
        "writes_at_rest": measured.writes, "plan_s": measured.plan_seconds, "plans": measured.plans, "start_s": measured.start_seconds,
        "settled_after_s": measured.settled,
    });
    out.add(&report)?;
    out.add(&ask::report(&command, args.jobs + args.nodes, &measured.asked))
}

struct Measured {
    memory: (f64, f64),
    memory_after: (f64, f64),
    cpu_percent: f64,
    job_writes: f64,
    other_writes: f64,
    writes: BTreeMap<String, u64>,
    plan_seconds: f64,
    plans: u64,
    start_seconds: f64,
    quiet: bool,
    settled: f64,
    asked: Vec<Asked>,
}

fn words(writes: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> = writes.iter().map(|(what, count)| format!("{what} {count}")).collect();
    if each.is_empty() { "none".into() } else { each.join(", ") }
}

async fn measure(args: &WaitingArgs, full: &Shape, cluster: &Cluster) -> Result<Measured> {
    let operator = cluster.operators.first().context("no operator")?;
    let limit = Duration::from_secs(args.limit);
    let mut trace = Trace::start(&cluster.testbed)?;
    bed::submit(cluster, System::Andreas, full, "r").await?;
    bed::until_bound(&mut trace, full, limit).await?;
    say("  the cluster is full");
    let waiting = Shape { jobs: args.jobs, gpus: 1, ..*full };
    let began = Instant::now();
    bed::submit(cluster, System::Andreas, &waiting, "w").await?;
    say(&format!("  {} more submitted after {:.0} s", args.jobs, began.elapsed().as_secs_f64()));
    // The leader Lease is renewed all the time: quiet is when no job is written.
    let quiet = until_jobs_rest(&mut trace, limit).await?;
    let settled = began.elapsed().as_secs_f64();
    say(&format!("  settled after {settled:.0} s"));

    let (cpu, plans) = (Cpu::of(cluster), plans(operator).await?);
    let mut trace = Trace::start(&cluster.testbed)?;
    let at = Instant::now();
    // What is measured is what happens in this time.
    tokio::time::sleep(Duration::from_secs(args.rest)).await;
    trace.read()?;
    let minutes = at.elapsed().as_secs_f64() / 60.0;
    let used = Cpu::of(cluster).since(&cpu).of_program("operator");
    let after = self::plans(operator).await?;
    let memory = memory_of(operator);
    let writes = trace.written_by("operator");
    let job_writes: u64 =
        writes.iter().filter(|(what, _)| what.contains("trainingjobs")).map(|(_, n)| n).sum();
    let all: u64 = writes.values().sum();

    let asked = if args.asks == 0 {
        Vec::new()
    } else {
        say("  asking");
        let posted = bed::job(System::Andreas, &waiting, "posted", 0);
        ask::measure(cluster, "w00000", &posted, args.asks).await?
    };

    say("  starting the operator again");
    operator.process.stop().await;
    let started = Instant::now();
    operator.process.start_again()?;
    let mut first = plans_or_none(operator).await;
    while first.is_none_or(|(count, _)| count == 0) {
        if started.elapsed() > limit {
            bail!("no plan within {} s of the start", args.limit);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        first = plans_or_none(operator).await;
    }
    let start_seconds = started.elapsed().as_secs_f64();
    let (made, spent) = (after.0 - plans.0, after.1 - plans.1);
    let mean = |(count, seconds): (u64, f64)| if count == 0 { 0.0 } else { seconds / count as f64 };
    let plan_seconds = if made > 0 { mean((made, spent)) } else { mean(first.unwrap_or_default()) };
    // What was read to start is given back within some seconds.
    tokio::time::sleep(Duration::from_secs(10)).await;
    Ok(Measured {
        memory,
        memory_after: memory_of(operator),
        cpu_percent: 100.0 * used / at.elapsed().as_secs_f64().min(args.rest as f64),
        job_writes: job_writes as f64 / minutes,
        other_writes: (all - job_writes) as f64 / minutes,
        writes,
        plan_seconds,
        plans: made,
        start_seconds,
        quiet,
        settled,
        asked,
    })
}

fn memory_of(operator: &Operator) -> (f64, f64) {
    operator.process.pid().and_then(memory_mib).unwrap_or_default()
}

async fn until_jobs_rest(trace: &mut Trace, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    let of_jobs = |trace: &Trace| -> u64 {
        trace.writes.iter().filter(|((_, what), _)| what.contains("trainingjobs")).map(|(_, n)| n).sum()
    };
    let (mut last, mut since) = (0, Instant::now());
    while Instant::now() < end {
        trace.read()?;
        if of_jobs(trace) != last {
            (last, since) = (of_jobs(trace), Instant::now());
        }
        if since.elapsed() > Duration::from_secs(20) {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(false)
}

async fn plans_or_none(operator: &Operator) -> Option<(u64, f64)> {
    plans(operator).await.ok()
}

/// Plans made since the operator's start, and the time they took, seconds; by its metrics.
async fn plans(operator: &Operator) -> Result<(u64, f64)> {
    let text = scrape::text(operator.admin).await?;
    let value = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.with_context(|| format!("no {name} in the operator's metrics"))?
            .trim()
            .parse()
            .context("a number")
    };
    Ok((value("andreas_plan_duration_seconds_count")? as u64, value("andreas_plan_duration_seconds_sum")?))
}
