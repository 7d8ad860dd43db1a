//! More gangs than GPUs: how long until the last has ended, and how much of the cluster was used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use andreas_api::slim::SlimTrainingJob;
use anyhow::{Result, bail};
use clap::Args;
use kube::api::{Api, ListParams};
use serde_json::json;

use super::bed::{self, Shape, System};
use super::bind::lasting;
use super::report::{Report, quantile};
use super::trace::{NAMESPACE, Trace};
use super::usage::{Cpu, peak_mib};
use super::{Output, profile, say};
use andreas_e2e::cluster::Cluster;

/// Flags of `bench overload`.
#[derive(Clone, Debug, Args)]
pub(super) struct OverloadArgs {
    /// Gangs of 4 pods with 2 GPUs each.
    #[arg(long, default_value_t = 1000)]
    gangs: usize,
    /// Nodes of 2 GPUs: half of the gangs fit at a time with twice as many nodes as gangs.
    #[arg(long, default_value_t = 2000)]
    nodes: usize,
    /// Seconds that each runs.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Give up after this time, seconds.
    #[arg(long, default_value_t = 400)]
    limit: u64,
    /// Save CPU profiles of the API server into this folder, for `go tool pprof`. They cost some per cent.
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
}

impl OverloadArgs {
    /// As `bench all` runs it.
    pub fn preset(quick: bool) -> Self {
        if quick {
            Self { gangs: 100, nodes: 200, seconds: 10.0, limit: 120, profile: None }
        } else {
            Self { gangs: 1000, nodes: 2000, seconds: 30.0, limit: 400, profile: None }
        }
    }

    fn shape(&self) -> Shape {
        let run_seconds = Some(self.seconds);
        Shape {
            nodes: self.nodes,
            node_gpus: 2,
            jobs: self.gangs,
            pods: 4,
            gpus: 2,
            run_seconds,
            alike: false,
        }
    }
}

/// Runs `bench overload`.
pub(super) async fn run(args: &OverloadArgs, out: &mut Output) -> Result<()> {
    let shape = args.shape();
    say(&format!("overload: {} gangs of {} s on {} nodes", shape.jobs, args.seconds, shape.nodes));
    // What nothing is known of is taken to run as long as it does.
    let policy = json!({"unknownJobs": {"runTime": format!("{}s", args.seconds.ceil().max(1.0))}});
    let flags: &[&str] = if args.profile.is_some() { &["--profiling=true"] } else { &[] };
    let cluster = bed::start(System::Andreas, &shape, policy, flags).await?;
    let measured = measure(args, &shape, &cluster).await;
    let measured = measured.map_err(|error| error.context(cluster.logs()));
    cluster.stop().await;
    let measured = measured?;

    let mut report = Report::new(
        "overload",
        format!("overload --gangs {} --nodes {} --seconds {}", args.gangs, args.nodes, args.seconds),
        &[
            "nodes x GPUs",
            "gangs x pods x GPUs x s",
            "makespan s",
            "bound s",
            "GPU use until the last bind",
            "bound p50 s",
            "p99 s",
            "own writes/job",
            "CPU ms/job: all",
            "operator",
            "operator peak MiB",
        ],
    );
    let jobs = shape.jobs as f64;
    report.rows.push(vec![
        format!("{} x {}", shape.nodes, shape.node_gpus),
        format!("{} x {} x {} x {}", shape.jobs, shape.pods, shape.gpus, args.seconds),
        format!("{:.1}", measured.makespan),
        format!("{:.0}", measured.least),
        format!("{:.2}", measured.gpu_use),
        format!("{:.1}", quantile(measured.latencies.iter().copied(), 0.5)),
        format!("{:.1}", quantile(measured.latencies.iter().copied(), 0.99)),
        format!("{:.2}", measured.own as f64 / jobs),
        format!("{:.1}", 1000.0 * measured.cpu.of_all() / jobs),
        format!("{:.2}", 1000.0 * measured.cpu.of_program("operator") / jobs),
        format!("{:.0}", measured.operator_mib),
    ]);
    report.notes = vec![
        "Makespan: from the first create request to the last status of a pod. Bound: run time times the rounds that the GPUs need at \
         least, without any delay. GPU use: GPUs of pods from their Binding to their kubelet's last report, of all GPUs, from the \
         first create request to the last Binding."
            .into(),
        "Nodes have 2 GPUs, so that each gang has 4 pods; Leases are not renewed; all gangs are submitted at once by 16 clients.".into(),
    ];
    let shares = measured.cpu.0.iter().filter(|(name, _)| *name != "load");
    let shares = shares.map(|(name, seconds)| format!("{name} {:.1}", 1000.0 * seconds / jobs));
    report.notes.push(format!("CPU ms per gang: {}.", shares.collect::<Vec<_>>().join(", ")));
    let writes = measured.writes.iter().filter(|(_, count)| **count as f64 >= jobs / 100.0);
    let writes = writes.map(|(what, count)| format!("{what} {:.2}", *count as f64 / jobs));
    report.notes.push(format!("Writes per gang: {}.", writes.collect::<Vec<_>>().join(", ")));
    report.figures = json!({
        "makespan_s": measured.makespan, "bound_s": measured.least, "gpu_use": measured.gpu_use, "own_writes": measured.own,
        "writes_by": measured.writes, "cpu_s": measured.cpu.0, "operator_peak_mib": measured.operator_mib,
    });
    out.add(&report)
}

struct Measured {
    makespan: f64,
    least: f64,
    gpu_use: f64,
    latencies: Vec<f64>,
    own: u64,
    writes: BTreeMap<String, u64>,
    cpu: Cpu,
    operator_mib: f64,
}

async fn measure(args: &OverloadArgs, shape: &Shape, cluster: &Cluster) -> Result<Measured> {
    let mut trace = Trace::start(&cluster.testbed)?;
    let before = Cpu::of(cluster);
    let limit = Duration::from_secs(args.limit);
    let done = AtomicBool::new(false);
    let profiled = async {
        let Some(folder) = &args.profile else { return Ok(()) };
        profile::take(&cluster.testbed, folder, "overload", &done).await
    };
    let run = async {
        let until_bound = bed::until_bound(&mut trace, shape, limit);
        let outcome = tokio::try_join!(bed::submit(cluster, System::Andreas, shape, "b"), until_bound);
        let outcome = match outcome {
            Ok(_) => {
                // None can have ended before: looking would only disturb what is measured.
                tokio::time::sleep(Duration::from_secs_f64(args.seconds)).await;
                until_succeeded(cluster, shape, limit).await
            }
            Err(error) => Err(error),
        };
        done.store(true, Ordering::Relaxed);
        outcome
    };
    let (run, profiled) = tokio::join!(run, profiled);
    run?;
    profiled?;
    let cpu = Cpu::of(cluster).since(&before);
    trace.read()?;

    let (began, (_, last_bind)) = (trace.began(), trace.first_and_last_bind());
    let ended = trace.pods.values().map(|pod| pod.reported).fold(0.0, f64::max);
    let held: f64 = trace.pods.values().map(|pod| (pod.reported.min(last_bind) - pod.bound).max(0.0)).sum();
    let gpus = (shape.nodes * shape.node_gpus) as f64;
    let at_once = (shape.nodes * shape.node_gpus / (shape.pods * shape.gpus)).max(1);
    Ok(Measured {
        makespan: ended - began,
        least: args.seconds * shape.jobs.div_ceil(at_once) as f64,
        gpu_use: held * shape.gpus as f64 / (gpus * (last_bind - began)),
        latencies: trace.latencies(),
        own: lasting(&trace.written_by("operator")),
        writes: trace.writes.iter().map(|((who, what), n)| (format!("{who}: {what}"), *n)).collect(),
        cpu,
        operator_mib: cluster.operators.first().map_or(0.0, |operator| peak_mib(&operator.process)),
    })
}

async fn until_succeeded(cluster: &Cluster, shape: &Shape, limit: Duration) -> Result<()> {
    let jobs: Api<SlimTrainingJob> = Api::namespaced(cluster.testbed.client(), NAMESPACE);
    let end = Instant::now() + limit;
    loop {
        let listed = jobs.list(&ListParams::default().match_any()).await?;
        let ended =
            listed.items.iter().filter(|job| job.status.as_ref().is_some_and(|s| s.phase.is_terminal()));
        let ended = ended.count();
        // The job that went first to warm up is among them.
        if ended > shape.jobs {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{ended} of {} gangs ended", shape.jobs + 1);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
