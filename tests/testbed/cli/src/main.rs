//! The `testbed` command: a real control plane on loopback, held at the prompt.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use andreas_kubelets::{DefaultRuntime, Gpus, Images, Kubelets as RealNodes, Network};
use andreas_testbed::{Builder, Kubelets, ProcessState, Testbed, workspace_binary};
use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Product of the nodes' GPUs.
const A100: &str = "NVIDIA-A100-SXM4-80GB";
/// Memory of each, MiB.
const A100_MIB: u64 = 81_920;

/// A real Kubernetes control plane on loopback, for tests and demonstrations, until Ctrl-C or SIGTERM.
///
/// etcd, kube-apiserver, kube-controller-manager and kube-scheduler run as ordinary processes on 127.0.0.1 with their
/// own certificates, free ports, an audit log and all data in one temporary folder. Nothing is left behind when it
/// ends, whichever way it ends.
#[derive(Debug, Parser)]
#[command(name = "testbed", version)]
struct Cli {
    /// A word in the name of its folder.
    #[arg(long, default_value = "default")]
    name: String,
    /// A folder for all data that stays at the end; started on it again, the objects are still there.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Pretend GPU nodes: how many (of four A100 each), or the configuration file of pretend-kubelets.
    #[arg(long, value_name = "COUNT|FILE")]
    nodes: Option<String>,
    /// Real nodes with simulated GPUs (of four A100 each): how many. The test bed then runs in namespaces of its own, and needs root;
    /// `tests/kubelets/prepare` builds what the nodes run.
    #[arg(long, value_name = "COUNT", conflicts_with = "nodes",
        value_parser = clap::value_parser!(u8).range(1..=i64::from(Network::MAX_NODES)))]
    kubelets: Option<u8>,
    /// Seconds a node may be silent before it is NotReady.
    #[arg(long, value_name = "SECONDS", default_value_t = 50)]
    node_grace: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")))
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Runtime::new().context("cannot start");
    match runtime.and_then(|runtime| runtime.block_on(hold(&cli))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// This same command, in namespaces of its own; returns only when it cannot be run.
fn isolated() -> anyhow::Result<ExitCode> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubelets");
    let available = std::process::Command::new(folder.join("available")).status()?;
    ensure!(available.success(), "--kubelets: not on this machine");
    let mut command = std::process::Command::new(folder.join("isolated"));
    let error = command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot run tests/kubelets/isolated")
}

async fn hold(cli: &Cli) -> anyhow::Result<ExitCode> {
    if cli.kubelets.is_some() && !andreas_kubelets::isolated() {
        return isolated();
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut ended = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    };
    let began = Instant::now();
    // Dropped half-way, a start cleans up after itself.
    let (testbed, nodes) = tokio::select! {
        started = start(cli) => started?,
        () = ended() => return Ok(ExitCode::from(130)),
    };
    print(&welcome(&testbed, began.elapsed()))?;
    if nodes.is_some() {
        print(
            "in another terminal, first: sudo nsenter --net --target \"$(pgrep --exact --newest testbed)\" bash\n",
        )?;
    }
    tokio::select! {
        () = watch(&testbed) => {}
        () = ended() => {}
    }
    if let Some(nodes) = nodes {
        nodes.power_off();
    }
    testbed.stop().await;
    Ok(ExitCode::SUCCESS)
}

fn builder(cli: &Cli) -> Builder {
    let grace = Duration::from_secs(cli.node_grace);
    let mut builder = Testbed::builder().name(&cli.name).node_monitor_grace_period(grace);
    if let Some(folder) = &cli.data_dir {
        builder = builder.data_dir(folder);
    }
    if cli.kubelets.is_some() {
        builder = builder.address(Network::ADDRESS);
    }
    builder
}

async fn start(cli: &Cli) -> anyhow::Result<(Testbed, Option<RealNodes>)> {
    if cli.kubelets.is_some() {
        Network::make()?;
    }
    let program = cli.nodes.as_ref().map(|_| workspace_binary("pretend-kubelets")).transpose()?;
    let testbed = builder(cli).start().await?;
    if let (Some(nodes), Some(program)) = (&cli.nodes, program) {
        let file = nodes_config(nodes, testbed.data_dir())?;
        testbed.start_kubelets(&Kubelets { program, args: vec!["--config".into(), file.into()] }).await?;
    }
    let nodes = match cli.kubelets {
        Some(count) => {
            let gpus = Gpus::Simulated { product: A100.to_owned(), count: 4, memory_mib: A100_MIB };
            let gpus = vec![gpus; usize::from(count)];
            Some(RealNodes::start(&testbed, gpus, Images::Loaded, DefaultRuntime::default()).await?)
        }
        None => None,
    };
    Ok((testbed, nodes))
}

fn nodes_config(nodes: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let Ok(count) = nodes.parse::<u32>() else {
        return std::fs::canonicalize(nodes)
            .with_context(|| format!("--nodes {nodes}: neither a number nor a file"));
    };
    let config = json!({"nodes": [{
        "namePrefix": "gpu-",
        "count": count,
        "gpu": A100,
        "gpus": 4,
        "gpuMemoryMiB": A100_MIB,
    }]});
    let file = folder.join("nodes.json");
    std::fs::write(&file, config.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Reports components that end without having been asked to; never returns.
async fn watch(testbed: &Testbed) {
    let mut reported = BTreeMap::new();
    loop {
        for status in testbed.status() {
            let by_itself = matches!(status.state, ProcessState::Exited(_));
            let report = by_itself.then_some(status.starts);
            if reported.insert(status.component, report).flatten() != report && by_itself {
                tracing::warn!(
                    "{} ended by itself ({}); its log: {}",
                    status.component,
                    status.state,
                    status.log.display()
                );
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Prints; a reader that closed its end (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn welcome(testbed: &Testbed, took: Duration) -> String {
    format!(
        "control plane ready after {:.1} s at {}, its data and logs in {}\n  export KUBECONFIG={}\n  {} get nodes\nend it with Ctrl-C\n",
        took.as_secs_f64(),
        testbed.api_server_url(),
        testbed.data_dir().display(),
        testbed.kubeconfig().display(),
        testbed.programs().path("kubectl").display(),
    )
}
