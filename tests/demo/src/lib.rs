//! The main job, end to end: the chart installed by helm, and 40 TrainingJobs of a production trace on a real control plane
//! with GPU nodes: real ones where the machine allows them.
//!
//! [`nodes`] says which nodes, `screen` shows the live table and `progress` lines, `power` reads the nodes' meters, [`baselines`] replays the same arrivals under other methods.
//! [`pages`] runs the commands of pages on the same cluster.
//!
//! What is printed is what is seen from outside; what must never happen is watched for all along; the summary's
//! figures come from the objects and the audit log. Anything that did not happen as reported makes the run fail.

pub mod answers;
pub mod baselines;
pub mod fidelity;
pub mod nodes;
pub mod pages;
pub mod pictures;
mod power;
mod progress;
mod screen;
mod summary;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::training_job::Allocation;
use andreas_planner::MethodName;
use andreas_testbed::Component;
use anyhow::{Context as _, Result, bail};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::summary::Summary;
use andreas_e2e::apply::apply;
use andreas_e2e::cluster::{self, Cluster, Options};
use andreas_e2e::replanned::{Recorded, Recorder};
use andreas_e2e::scenario::Bindings;
use andreas_e2e::scrape::{self, Scrape};
use andreas_e2e::seen::{ClusterHistory, JobView, describe};
use andreas_e2e::workload::{self, Manifests, TimeScale, WorkloadJob};
use andreas_e2e::{install, outputs};

use fidelity::measured::Phases;
use nodes::{GpuType, Nodes};
use power::Meter;
use progress::ProgressPrinter;
use screen::{Head, Screen};

/// Namespace of the demo's jobs.
pub const NAMESPACE: &str = "demo";

/// What can be asked of the demo.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "demo",
    about = "Runs 40 TrainingJobs of a production trace on a real control plane, on real nodes with simulated GPUs"
)]
pub struct DemoArgs {
    /// Twelve pretend nodes, whose containers are processes, in place of four real ones. `make demo` takes them by itself where the
    /// machine does not allow real ones.
    #[arg(long)]
    pub pretend: bool,
    /// Leave everything running at the end, until Ctrl-C, and print how to use kubectl with it.
    #[arg(long)]
    pub keep: bool,
    /// How many jobs of the trace.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=40))]
    pub jobs: u16,
    /// Planning method of the operator; its default when absent.
    #[arg(long)]
    pub method: Option<MethodName>,
    /// Kill a program (SIGKILL) while jobs run, which its node (for the API server, the demo) starts again; may be given several
    /// times.
    #[arg(long, value_name = "PROGRAM", value_parser = ["operator", "extender", "scheduler", "agent", "api-server"])]
    pub kill: Vec<String>,
    /// Print a line for every change instead of the live table, as is done without a terminal.
    #[arg(long)]
    pub plain: bool,
    /// Write the summary as JSON to this file.
    #[arg(long, env = "DEMO_SUMMARY", value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Save the input of each plan to this folder, make all plans again at the end by `kubectl andreas plan --snapshot`, and say how
    /// many are the same.
    #[arg(long, value_name = "FOLDER")]
    pub snapshots: Option<PathBuf>,
    /// Give up after this many seconds of training time.
    #[arg(long, default_value_t = 420)]
    pub limit: u64,
}

/// The demo's EnergyPolicy.
pub fn policy(nodes: &Nodes) -> Value {
    let types = nodes::TYPES.map(|gpu| {
        json!({
            "name": gpu.name, "idleWatts": gpu.idle_watts, "maxWatts": gpu.max_watts,
            "hostIdleWatts": gpu.host_watts[0], "hostBusyWatts": gpu.host_watts[1],
        })
    });
    let mut policy = cluster::short_runs();
    // What a restart takes here, and what it must be worth besides in the ratio of the policy's defaults (120 s and 300 s).
    let (restart, wear) = if nodes.real_count() > 0 { ("6s", "15s") } else { ("2s", "5s") };
    policy["preemption"]["restartTime"] = json!(restart);
    policy["preemption"]["restartWear"] = json!(wear);
    policy["powerBudget"] = json!({"watts": nodes.budget()});
    policy["gpuTypes"] = json!(types);
    // Idle times of a run of two minutes are short.
    policy["rest"] = json!({"mode": "On", "after": "5s"});
    policy
}

/// Power that counts against the budget, as seen from outside: predicted draw of every gang that has pods which have
/// not ended, all nodes beside their GPUs, idle draw of every GPU that none of them holds.
pub fn budgeted_watts(seen: &ClusterHistory, nodes: &Nodes) -> f64 {
    let allocations: BTreeMap<String, &Allocation> = seen
        .jobs
        .values()
        .filter_map(|v| Some((v.job.uid()?, v.job.status.as_ref()?.allocation.as_ref()?)))
        .collect();
    let mut watts = 0.0;
    for pod in seen.pods.values().filter(|p| p.is_live()) {
        // The allocation is kept in the status until its last member has ended.
        if let Some(allocation) = allocations.get(&pod.label(names::LABEL_JOB_UID)) {
            watts += f64::from(allocation.watts) / allocation.nodes.len().max(1) as f64;
        }
    }
    let held = seen.gpus_in_use();
    for (node, gpus) in &seen.node_gpus {
        let Some(GpuType { idle_watts, host_watts: [empty, busy], .. }) =
            nodes.of_name(node).map(|node| node.gpu)
        else {
            continue;
        };
        let used = held.get(node).copied().unwrap_or(0);
        watts += ((gpus - used).max(0) * idle_watts) as f64;
        watts += if used > 0 { busy } else { empty } as f64;
    }
    watts
}

/// The demo's cluster: these nodes, and the chart installed with this planning method (`None`: its default).
fn options(nodes: &Nodes, method: Option<MethodName>) -> Options {
    let values = json!({"operator": {"method": method.map_or("", MethodName::as_str)}});
    Options { name: "demo".into(), policy: policy(nodes), install: Some(values), ..nodes.options() }
}

/// Real nodes where this program runs in namespaces of its own, unless pretend ones are asked for.
fn nodes(args: &DemoArgs) -> Nodes {
    if args.pretend || !andreas_kubelets::isolated() { Nodes::pretend() } else { Nodes::real() }
}

/// A run that has ended.
struct Trained {
    /// The cluster, which goes on.
    cluster: Cluster,
    summary: Summary,
    /// Phases of the jobs.
    phases: Phases,
    /// Snapshots, where they were to be saved.
    recorded: Option<Recorded>,
}

/// Starts the demo's cluster and runs the jobs on it.
async fn trained(args: &DemoArgs, jobs: &[WorkloadJob], nodes: &Nodes) -> Result<Trained> {
    let began = Instant::now();
    let mut cluster = Cluster::start(options(nodes, args.method)).await?;
    say(&format!("ready after {:.1} s", began.elapsed().as_secs_f64()));
    let result = tokio::select! {
        result = train(&mut cluster, jobs, nodes, args) => result,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    match result {
        Ok((summary, recorded)) => {
            let of_job = |(key, view): (&String, &JobView)| {
                let name = key.rsplit('/').next().unwrap_or(key).to_owned();
                (name, view.phases.iter().map(|(at, phase)| (at.as_secs_f64(), *phase)).collect())
            };
            let phases = cluster.observer.seen().jobs.iter().map(of_job).collect();
            Ok(Trained { cluster, summary, phases, recorded })
        }
        Err(error) => {
            let seen = describe(&cluster.observer.seen());
            let logs = cluster.logs();
            cluster.stop().await;
            Err(error.context(format!("seen last:\n{seen}\n{logs}")))
        }
    }
}

/// Runs the demo.
///
/// # Errors
/// When anything does not happen as reported.
pub async fn run(args: &DemoArgs) -> Result<Summary> {
    outputs::check(args.summary.as_deref(), args.snapshots.as_deref())?;
    let jobs: Vec<WorkloadJob> =
        workload::jobs(TimeScale::DEMO)?.into_iter().take(usize::from(args.jobs)).collect();
    let nodes = nodes(args);
    let kind = if nodes.real_count() > 0 { "real (kubelet, containerd)" } else { "pretend" };
    say(&format!(
        "{} jobs of Microsoft's ITP trace, {} seconds of the trace in one; {} {kind} nodes, 64 simulated GPUs of three types; \
         budget {:.1} kW",
        jobs.len(),
        TimeScale::DEMO.0,
        nodes.all().len(),
        nodes.budget() as f64 / 1000.0
    ));
    say(
        "starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and the nodes, then helm upgrade --install ...",
    );
    let Trained { cluster, mut summary, recorded, .. } = trained(args, &jobs, &nodes).await?;
    let replayed = tokio::task::spawn_blocking(move || baselines::all(&jobs, &nodes)).await?;
    match replayed.context("replaying the baselines") {
        Ok(baselines) => summary.baselines = baselines,
        Err(error) => {
            cluster.stop().await;
            return Err(error);
        }
    }
    println!();
    for line in summary.lines() {
        println!("  {line}");
    }
    println!();
    for line in summary.comparison() {
        println!("  {line}");
    }
    if let Some(recorded) = recorded {
        let (plans, differ) = recorded.plan_again().await?;
        println!("\n  {} plans, {} made again, {} the same", plans.made, plans.again, plans.same);
        differ.iter().for_each(|line| println!("  {line}"));
    }
    if let Some(path) = &args.summary {
        std::fs::write(path, serde_json::to_vec_pretty(&summary)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.keep {
        keep(&cluster).await?;
    }
    cluster.stop().await;
    Ok(summary)
}

/// Submits as the trace does, tells what happens, waits for the end, and checks it.
async fn train(
    cluster: &mut Cluster,
    jobs: &[WorkloadJob],
    nodes: &Nodes,
    args: &DemoArgs,
) -> Result<(Summary, Option<Recorded>)> {
    let budget = nodes.budget() as f64;
    cluster.make_namespace(NAMESPACE).await?;
    let client = cluster.testbed.client();
    let began = Instant::now();
    let mut teller = ProgressPrinter::new(began);
    let mut screen = if args.plain { None } else { Screen::open() };
    let meter = Meter::start(Arc::clone(&cluster.machines));
    let mut submitted = 0;
    let mut kills =
        args.kill.iter().enumerate().map(|(i, k)| (15.0 + 15.0 * i as f64, k.clone())).collect::<Vec<_>>();
    let mut over_budget = 0;
    let (mut host_joules, mut hosts_since) = (0.0, (Instant::now(), 0.0));
    let limit = Duration::from_secs(args.limit);
    let recorder = match &args.snapshots {
        Some(folder) => Some(Recorder::start(cluster, folder).await?),
        None => None,
    };
    loop {
        while submitted < jobs.len() && began.elapsed().as_secs_f64() >= jobs[submitted].submit_offset_s {
            let Manifests { profile, claim, job } = nodes.manifests(&jobs[submitted]);
            for mut object in [profile, claim, job] {
                object["metadata"]["namespace"] = json!(NAMESPACE);
                // The API server may be the program that is being killed: kubectl's users would try again too.
                apply_until_taken(&client, &object).await?;
            }
            submitted += 1;
        }
        while kills.first().is_some_and(|(at, _)| began.elapsed().as_secs_f64() >= *at) {
            let (_, program) = kills.remove(0);
            kill_and_restart(cluster, &program, began).await?;
        }
        let ended = {
            let seen = cluster.observer.seen();
            let watts = budgeted_watts(&seen, nodes);
            host_joules += hosts_since.1 * hosts_since.0.elapsed().as_secs_f64();
            hosts_since = (Instant::now(), nodes.busy_host_watts(&seen.gpus_in_use()));
            match &mut screen {
                Some(screen) if teller.is_due(Duration::from_millis(500)) => {
                    let head = Head { at: began.elapsed().as_secs_f64(), budgeted: watts, budget };
                    screen.draw(&seen, &meter.read(), head);
                }
                Some(_) => {}
                None => teller.tell(&seen, watts, budget),
            }
            if watts > budget {
                over_budget += 1;
                say(&format!("{:6.1}s  {watts:.0} W, above the budget", began.elapsed().as_secs_f64()));
            }
            ended(&seen)
        };
        if submitted == jobs.len() && ended == jobs.len() && kills.is_empty() {
            break;
        }
        if began.elapsed() > limit {
            bail!("{ended} of {} jobs ended within {} s", jobs.len(), limit.as_secs());
        }
        let _ = tokio::time::timeout(Duration::from_millis(200), cluster.observer.changed()).await;
    }
    let wall = began.elapsed().as_secs_f64();
    let recorded = match recorder {
        Some(recorder) => Some(recorder.end(cluster).await?),
        None => None,
    };
    let bindings = Bindings::read(cluster)?;
    let joules_saved_by_rest = saved_by_rest(cluster).await?;
    let seen = cluster.observer.seen();
    let objects: Vec<_> = seen.jobs.values().map(|v| v.job.clone()).collect();
    let summary = Summary {
        real_nodes: cluster.machines.real(),
        wall_s: wall,
        gpu_hours_at_rest: meter.read().rest_hours,
        joules_saved_by_rest,
        budget_violations: over_budget,
        pods_bound_by_extender: bindings.by_extender.len(),
        pods_bound: bindings.by_extender.union(&bindings.by_others).count(),
        ..Summary::of(&objects).with_busy_hosts(host_joules / 3.6e6)
    };
    check(&summary, &seen, &bindings, jobs.len())?;
    Ok((summary, recorded))
}

fn ended(seen: &ClusterHistory) -> usize {
    seen.jobs.values().filter(|v| v.job.status.as_ref().is_some_and(|s| s.phase.is_terminal())).count()
}

/// What must be true of a finished demo.
fn check(summary: &Summary, seen: &ClusterHistory, bindings: &Bindings, jobs: usize) -> Result<()> {
    let mut wrong: Vec<String> = seen.violations.iter().cloned().collect();
    if summary.jobs != jobs || summary.finished != jobs {
        wrong.push(format!("{} of {jobs} jobs finished", summary.finished));
    }
    if !bindings.by_others.is_empty() {
        wrong.push(format!("not bound by the extender: {:?}", bindings.by_others));
    }
    if !bindings.without_allocation.is_empty() {
        wrong.push(format!("bound without an allocation: {:?}", bindings.without_allocation));
    }
    wrong.extend(summary.billed_too_much());
    if summary.budget_violations > 0 {
        wrong.push(format!("above the power budget at {} instants", summary.budget_violations));
    }
    let attempts: usize = seen
        .jobs
        .values()
        .filter_map(|v| v.job.status.as_ref())
        .map(|s| {
            s.history
                .iter()
                .filter(|a| a.started.is_some())
                .map(|a| a.placement.split(',').count())
                .sum::<usize>()
        })
        .sum();
    if summary.pods_bound < attempts {
        wrong.push(format!("{} pods bound for {attempts} members that ran", summary.pods_bound));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("; ")) }
}

async fn apply_until_taken(client: &kube::Client, object: &Value) -> Result<()> {
    let mut last = None;
    for _ in 0..60 {
        match apply(client, object).await {
            Ok(_) => return Ok(()),
            Err(error) => {
                let refused = error.downcast_ref::<kube::Error>().is_some_and(
                    |e| matches!(e, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429),
                );
                if refused {
                    return Err(error);
                }
                last = Some(error);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
    Err(last.context("never tried")?)
}

/// Sum of what the agents' metrics say that rest saved, J.
async fn saved_by_rest(cluster: &Cluster) -> Result<f64> {
    let found = Scrape::of(cluster).await?;
    let agents = found.jobs.iter().filter(|job| job.name == "andreas-node-agent");
    let mut joules = 0.0;
    for (place, _) in agents.flat_map(|job| &job.targets) {
        let text = scrape::text(*place).await?;
        let values = text.lines().filter(|line| line.starts_with("andreas_gpu_rest_saved_joules_total{"));
        joules += values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    Ok(joules)
}

async fn kill_and_restart(cluster: &Cluster, program: &str, began: Instant) -> Result<()> {
    say(&format!("{:6.1}s  SIGKILL {program}", began.elapsed().as_secs_f64()));
    let (bed, nodes) = (&cluster.testbed, &*cluster.machines);
    let killed = match program {
        "operator" => install::kill(nodes, "andreas-operator-", "operator").await?,
        "extender" => install::kill(nodes, "andreas-scheduler-", "extender").await?,
        "scheduler" => install::kill(nodes, "andreas-scheduler-", "kube-scheduler").await?,
        "agent" => {
            install::kill(nodes, "andreas-node-agent-", "agent").await?
                + install::kill(nodes, "andreas-node-agent-", "setter").await?
        }
        "api-server" => {
            bed.kill(Component::ApiServer)?;
            // It is away for a moment: others notice.
            tokio::time::sleep(Duration::from_secs(1)).await;
            bed.restart(Component::ApiServer).await?;
            1
        }
        other => bail!("--kill {other}: wanted operator, extender, scheduler, agent or api-server"),
    };
    anyhow::ensure!(killed > 0, "no {program} runs");
    Ok(())
}

async fn keep(cluster: &Cluster) -> Result<()> {
    println!();
    println!("  Left running until Ctrl-C. In another terminal:");
    if cluster.machines.real() > 0 {
        println!(
            "    sudo nsenter --net --target \"$(pgrep --exact --newest demo)\" bash   # the nodes' network"
        );
    }
    println!("    export KUBECONFIG={}", cluster.testbed.kubeconfig().display());
    println!("    export PATH={}:$PATH", cluster.testbed.programs().folder().display());
    println!("    kubectl get trainingjobs --namespace {NAMESPACE}");
    println!("    kubectl describe trainingjob NAME --namespace {NAMESPACE}");
    println!("  Logs: {}", cluster.testbed.data_dir().join("logs").display());
    let scrape = Scrape::of(cluster).await?;
    for line in scrape.hints(cluster)? {
        println!("  {line}");
    }
    std::io::stdout().flush()?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
}
