//! `pretend-kubelets`: see the library's first page.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use andreas_test_nodes::{NodesClient, Options, sandbox};
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    version,
    about = "Plays the kubelets of GPU nodes; containers are processes",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Inner>,
    #[command(flatten)]
    run: Option<Run>,
}

#[derive(Args)]
struct Run {
    /// Nodes, images and forwards (YAML or JSON).
    #[arg(long)]
    config: PathBuf,
    /// How to reach the API server; an administrator's.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Folder for claims, logs and pods' files.
    #[arg(long)]
    data_dir: PathBuf,
    /// Unix socket for commands; it is there once all nodes are registered.
    #[arg(long, alias = "control-socket")]
    control: PathBuf,
}

#[derive(Subcommand)]
enum Inner {
    /// Sends one command (JSON) to running pretend kubelets, for example '{"op":"silence","node":"a100-0"}'.
    Ctl {
        /// Their control socket.
        #[arg(long)]
        control: PathBuf,
        /// The command.
        command: String,
    },
    /// The process inside the namespaces (started by pretend-kubelets itself).
    #[command(hide = true)]
    Sandbox,
    /// A container before its program (started by the sandbox).
    #[command(hide = true)]
    ContainerInit { spec: PathBuf },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match (cli.command, cli.run) {
        (Some(Inner::Sandbox), _) => return sandbox::sandbox_main(),
        (Some(Inner::ContainerInit { spec }), _) => return sandbox::container_init(&spec),
        (Some(Inner::Ctl { control, command }), _) => ctl(control, &command),
        (None, Some(Run { config, kubeconfig, data_dir, control })) => {
            let filter =
                tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
            tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .init();
            andreas_test_nodes::run(Options { config, kubeconfig, data_dir, control })
        }
        (None, None) => {
            Err(anyhow::anyhow!("--config, --kubeconfig, --data-dir and --control are needed (--help)"))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pretend-kubelets: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn ctl(control: PathBuf, command: &str) -> anyhow::Result<()> {
    let command = serde_json::from_str(command)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(NodesClient::new(control).send(&command))?;
    println!("{}", serde_json::to_string_pretty(&answer)?);
    Ok(())
}
