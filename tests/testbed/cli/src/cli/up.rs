//! `testbed up`: starts a test bed and holds it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_kubelets::{DefaultRuntime, Gpus, Images, Kubelets as RealNodes, Network};
use andreas_testbed::control::{self, Control, ControlError};
use andreas_testbed::{Builder, Kubelets, ProcessState, SchedulerConfig, Testbed, workspace_binary};
use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

/// Product of the nodes' GPUs.
const A100: &str = "NVIDIA-A100-SXM4-80GB";
/// Memory of each, MiB.
const A100_MIB: u64 = 81_920;

#[derive(Debug, clap::Args)]
pub struct Up {
    #[command(flatten)]
    which: super::Which,
    /// A folder for all data that stays at the end; started on it again, the objects are still there.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// A KubeSchedulerConfiguration for kube-scheduler.
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
    /// Pretend GPU nodes: how many (of four A100 each), or the configuration file of pretend-kubelets.
    #[arg(long, value_name = "COUNT|FILE")]
    nodes: Option<String>,
    /// Real nodes with simulated GPUs (of four A100 each): how many. The test bed then runs in namespaces of its own, and needs root;
    /// `tests/kubelets/prepare` builds what the nodes run.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["nodes", "detach"],
        value_parser = clap::value_parser!(u8).range(1..=i64::from(Network::MAX_NODES)))]
    kubelets: Option<u8>,
    /// Seconds a node may be silent before it is NotReady.
    #[arg(long, value_name = "SECONDS", default_value_t = 50)]
    node_grace: u64,
    /// Return when the test bed is ready and leave it running; end it with `testbed down`.
    #[arg(long)]
    detach: bool,
    /// This process is what --detach started.
    #[arg(long, hide = true, conflicts_with = "detach")]
    detached: bool,
}

/// Starts and holds, or starts in the background.
pub async fn run(up: Up) -> anyhow::Result<ExitCode> {
    if up.kubelets.is_some() && !andreas_kubelets::isolated() {
        return isolated();
    }
    if up.detach { in_background(&up.which.name).await } else { hold(up).await }
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

async fn hold(up: Up) -> anyhow::Result<ExitCode> {
    if up.detached {
        rustix::process::setsid().context("cannot leave the terminal's session")?;
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
    let control = Control::bind(&up.which.name)?;
    let began = Instant::now();
    // Dropped half-way, a start cleans up after itself.
    let (testbed, nodes) = tokio::select! {
        started = start(&up) => started?,
        () = ended() => return Ok(ExitCode::from(130)),
    };
    let testbed = Arc::new(testbed);
    if up.detached {
        // Whoever waits for the end of our output must not wait for the test bed's.
        let log = File::create(testbed.data_dir().join("logs/testbed.log"))?;
        rustix::stdio::dup2_stdout(&log)?;
        rustix::stdio::dup2_stderr(&log)?;
    } else {
        super::print(&welcome(&control::status(&testbed), began.elapsed()))?;
        if nodes.is_some() {
            super::print(
                "in another terminal, first: sudo nsenter --net --target \"$(pgrep --exact --newest testbed)\" bash\n",
            )?;
        }
    }
    let down = tokio::select! {
        down = control.serve(&testbed) => Some(down),
        () = watch(&testbed) => None,
        () = ended() => None,
    };
    if let Some(nodes) = nodes {
        nodes.power_off();
    }
    testbed.stop().await;
    if let Some(down) = down {
        down.done().await;
    }
    Ok(ExitCode::SUCCESS)
}

fn builder(up: &Up) -> Builder {
    let mut builder =
        Testbed::builder().name(&up.which.name).node_monitor_grace_period(Duration::from_secs(up.node_grace));
    if let Some(folder) = &up.data_dir {
        builder = builder.data_dir(folder);
    }
    if let Some(file) = &up.scheduler_config {
        builder = builder.scheduler(SchedulerConfig::File(file.clone()));
    }
    if up.kubelets.is_some() {
        builder = builder.address(Network::ADDRESS);
    }
    builder
}

async fn start(up: &Up) -> anyhow::Result<(Testbed, Option<RealNodes>)> {
    if up.kubelets.is_some() {
        Network::make()?;
    }
    let program = up.nodes.as_ref().map(|_| workspace_binary("pretend-kubelets")).transpose()?;
    let testbed = builder(up).start().await?;
    if let (Some(nodes), Some(program)) = (&up.nodes, program) {
        let file = nodes_config(nodes, testbed.data_dir())?;
        testbed.start_kubelets(&Kubelets { program, args: vec!["--config".into(), file.into()] }).await?;
    }
    let nodes = match up.kubelets {
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

async fn in_background(name: &str) -> anyhow::Result<ExitCode> {
    if control::running().iter().any(|running| running == name) {
        return Err(ControlError::Taken(name.to_owned()).into());
    }
    let began = Instant::now();
    let args =
        std::env::args_os().skip(1).map(|arg| if arg == "--detach" { "--detached".into() } else { arg });
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the background process")?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            ended = child.wait() => {
                // It has said why on standard error, which is ours.
                let code = ended?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
                return Ok(ExitCode::from(code.max(1)));
            }
            _ = interrupt.recv() => {
                child.kill().await?;
                return Ok(ExitCode::from(130));
            }
            status = control::ask_status(name) => if let Ok(status) = status {
                super::print(&welcome(&status, began.elapsed()))?;
                return Ok(ExitCode::SUCCESS);
            } else {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn welcome(status: &control::Status, took: Duration) -> String {
    let name = &status.name;
    let which = if name == "default" { String::new() } else { format!(" --name {name}") };
    format!(
        "control plane ready after {:.1} s at {}\n  export KUBECONFIG={}\n  {} get nodes\nend it with Ctrl-C or: \
         testbed down{which}\n",
        took.as_secs_f64(),
        status.api_server,
        status.kubeconfig.display(),
        status.programs.join("kubectl").display(),
    )
}
