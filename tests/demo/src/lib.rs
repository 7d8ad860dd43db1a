//! The main job, end to end: the chart installed by helm, and 40 jobs of a production trace on a real control plane with GPU
//! nodes: real ones where the machine allows them.
//!
//! The same arrivals run twice: first as plain Kubernetes runs them ([`plain`]), then as TrainingJobs. [`runs`] has what both
//! do, [`nodes`] says which nodes, `screen` shows the live table and `progress` lines, `power` reads the nodes' meters,
//! [`summary`] counts. [`pages`] runs the commands of pages on a cluster with the same GPUs.
//!
//! What is printed is what is seen from outside; what must never happen is watched for all along; the summary's
//! figures come from the objects, the meters and the audit log. Anything that did not happen as reported makes the run fail.

pub mod nodes;
pub mod pages;
pub mod pictures;
mod plain;
mod power;
mod progress;
pub mod runs;
mod screen;
pub mod summary;

use std::io::Write as _;
use std::path::PathBuf;

use andreas_planner::MethodName;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use andreas_e2e::cluster::{self, Cluster, Options};
use andreas_e2e::outputs;
use andreas_e2e::scrape::Scrape;
use andreas_e2e::workload::{self, TimeScale, WorkloadJob};

use nodes::Nodes;
use runs::{Run, Trained};
use summary::Summary;

/// Namespace of the demo's TrainingJobs.
pub const NAMESPACE: &str = "demo";

/// What can be asked of the demo.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "demo",
    about = "Runs 40 jobs of a production trace on a real control plane, on real nodes with simulated GPUs: as plain Kubernetes does, then as TrainingJobs"
)]
pub struct DemoArgs {
    /// TrainingJobs alone, without the run of plain Kubernetes before them.
    #[arg(long)]
    pub quick: bool,
    /// Twelve pretend nodes, whose containers are processes, in place of eight real ones. `make demo` takes pretend nodes by itself
    /// where the machine does not allow real ones.
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
    /// Kill a program (SIGKILL) while TrainingJobs run, which its node (for the API server, the demo) starts again; may be given
    /// several times.
    #[arg(long, value_name = "PROGRAM", value_parser = ["operator", "extender", "scheduler", "agent", "api-server"])]
    pub kill: Vec<String>,
    /// Print a line for every change instead of the live table, as is done without a terminal.
    #[arg(long)]
    pub plain: bool,
    /// Write the summary as JSON to this file.
    #[arg(long, env = "DEMO_SUMMARY", value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Where the input of each plan is saved, if it is.
    #[arg(skip)]
    pub snapshots: Option<PathBuf>,
    /// Give up a run after this many seconds of training time.
    #[arg(long, default_value_t = 420)]
    pub limit: u64,
}

/// What a missed deadline costs by default, in seconds late.
const MISS_S: f64 = 900.0;

/// The demo's EnergyPolicy.
pub fn policy(nodes: &Nodes) -> Value {
    let types = nodes::TYPES.map(|gpu| {
        json!({
            "name": gpu.name, "idleWatts": gpu.idle_watts, "maxWatts": gpu.max_watts,
            "hostIdleWatts": gpu.host_watts[0], "hostBusyWatts": gpu.host_watts[1],
        })
    });
    let mut policy = cluster::short_runs();
    // A volume may take its time on a machine that starts 25 pods at once.
    policy["placementTimeout"] = json!("60s");
    // What a restart takes here, and what it must be worth besides in the ratio of the policy's defaults (120 s and 300 s).
    let (restart, wear) = if nodes.real_count() > 0 { ("6s", "15s") } else { ("2s", "5s") };
    policy["preemption"]["restartTime"] = json!(restart);
    policy["preemption"]["restartWear"] = json!(wear);
    // A price that is told as a time is that of the trace, as the jobs are.
    let miss = (MISS_S / TimeScale::DEMO.0).ceil();
    policy["prices"]["missedDeadlineAs"] = json!(format!("{miss}s"));
    policy["powerBudget"] = json!({"watts": nodes.budget()});
    policy["gpuTypes"] = json!(types);
    // Idle times of a run of two minutes are short.
    policy["rest"] = json!({"mode": "On", "after": "5s"});
    policy
}

/// The policy while plain Kubernetes runs: no budget, and nobody changes a GPU.
fn policy_of_plain() -> Value {
    json!({"rest": {"mode": "Off"}})
}

/// The demo's cluster: these nodes, and the chart installed with this planning method (`None`: its default).
pub fn options(nodes: &Nodes, method: Option<MethodName>) -> Options {
    let values = json!({"operator": {"method": method.map_or("", MethodName::as_str)}});
    Options { name: "demo".into(), policy: policy(nodes), install: Some(values), ..nodes.options() }
}

/// Real nodes where this program runs in namespaces of its own, unless pretend ones are asked for.
fn nodes(args: &DemoArgs) -> Nodes {
    if args.pretend || !andreas_kubelets::isolated() { Nodes::pretend() } else { Nodes::real() }
}

/// Runs the demo.
///
/// # Errors
/// When anything does not happen as reported.
pub async fn run(args: &DemoArgs) -> Result<Summary> {
    if let Some(path) = &args.summary {
        outputs::check_writable(path)?;
    }
    let jobs: Vec<WorkloadJob> =
        workload::jobs(TimeScale::DEMO)?.into_iter().take(usize::from(args.jobs)).collect();
    let nodes = nodes(args);
    let real = nodes.real_count() > 0;
    say(&format!(
        "{} jobs of Microsoft's ITP trace, {} seconds of the trace in one; {} {} nodes, 64 simulated GPUs of three types; \
         budget {:.1} kW",
        jobs.len(),
        TimeScale::DEMO.0,
        nodes.all().len(),
        if real { "real (kubelet, containerd)" } else { "pretend" },
        nodes.budget() as f64 / 1000.0
    ));
    let mut runs = vec![Run::Plain, Run::Product];
    if args.quick {
        runs.remove(0);
    }
    say(
        "starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and the nodes, then helm upgrade --install ...",
    );
    let Trained { cluster, summary, .. } = runs::all(&runs, args, &jobs, &nodes).await?;
    println!();
    for line in summary.comparison().iter().chain([&String::new()]).chain(&summary.lines()) {
        println!("  {line}");
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

async fn keep(cluster: &Cluster) -> Result<()> {
    println!();
    println!("  Left running until Ctrl-C. In another terminal:");
    if cluster.real_nodes.is_some() {
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
