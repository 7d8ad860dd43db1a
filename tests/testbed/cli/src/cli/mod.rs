//! The command line: `up` holds a test bed, everything else speaks with one over its control socket.

mod logs;
mod up;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use andreas_testbed::Component;
use andreas_testbed::control::{self, Request, Status};
use anyhow::Context as _;
use clap::{Parser, Subcommand};

/// A real Kubernetes control plane on loopback, for tests and demonstrations.
///
/// etcd, kube-apiserver, kube-controller-manager and kube-scheduler run as ordinary processes on 127.0.0.1 with their
/// own certificates, free ports, an audit log and all data in one temporary folder. Nothing is left behind when it
/// ends, whichever way it ends.
#[derive(Debug, Parser)]
#[command(name = "testbed", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The test bed's name; several may run side by side.
    #[arg(long, default_value = "default", env = "TESTBED_NAME")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct OnComponent {
    /// etcd, apiserver, controller-manager, scheduler or kubelets.
    component: Component,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a test bed and hold it until Ctrl-C, SIGTERM or `testbed down`.
    Up(up::Up),
    /// End a test bed and remove everything it made.
    Down(Which),
    /// Show what runs and where.
    Status {
        #[command(flatten)]
        which: Which,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// End a component with SIGKILL.
    Kill(OnComponent),
    /// Stop a component with SIGSTOP: it keeps its connections and answers nothing.
    Pause(OnComponent),
    /// Let a paused component go on.
    Resume(OnComponent),
    /// Stop a component if it runs, start it, and wait until it serves.
    Restart(OnComponent),
    /// Print a component's log.
    Logs {
        #[command(flatten)]
        of: OnComponent,
        /// Keep printing what is added.
        #[arg(short, long)]
        follow: bool,
    },
    /// Print the path of the administrator's kubeconfig: export KUBECONFIG=$(testbed kubeconfig)
    Kubeconfig(Which),
    /// Run the kubectl that belongs to the test bed: testbed kubectl get nodes
    Kubectl(Tool),
    /// Run the helm that belongs to the test bed.
    Helm(Tool),
}

#[derive(Debug, clap::Args)]
struct Tool {
    #[command(flatten)]
    which: Which,
    /// The tool's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Does what the command line says.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Up(up) => return up::run(up).await,
        Command::Down(which) => {
            control::ask(&which.name, Request::Down).await?;
        }
        Command::Status { which, json } => {
            let status = control::ask_status(&which.name).await?;
            if json {
                print(&format!("{}\n", serde_json::to_string_pretty(&status)?))?;
            } else {
                print(&describe(&status))?;
            }
        }
        Command::Kill(on) => on.ask(Request::Kill).await?,
        Command::Pause(on) => on.ask(Request::Pause).await?,
        Command::Resume(on) => on.ask(Request::Resume).await?,
        Command::Restart(on) => on.ask(Request::Restart).await?,
        Command::Logs { of, follow } => logs::print(&of.which.name, of.component, follow).await?,
        Command::Kubeconfig(which) => {
            let status = control::ask_status(&which.name).await?;
            print(&format!("{}\n", status.kubeconfig.display()))?;
        }
        Command::Kubectl(tool) => return tool.exec("kubectl").await,
        Command::Helm(tool) => return tool.exec("helm").await,
    }
    Ok(ExitCode::SUCCESS)
}

impl OnComponent {
    async fn ask(self, request: impl FnOnce(Component) -> Request) -> anyhow::Result<()> {
        control::ask(&self.which.name, request(self.component)).await?;
        Ok(())
    }
}

impl Tool {
    async fn exec(self, program: &str) -> anyhow::Result<ExitCode> {
        let status = control::ask_status(&self.which.name).await?;
        let path = status.programs.join(program);
        // Returns only when it failed.
        let error =
            std::process::Command::new(&path).args(self.args).env("KUBECONFIG", &status.kubeconfig).exec();
        Err(error).with_context(|| format!("cannot run {}", path.display()))
    }
}

/// Prints; a reader that closed its end (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn describe(status: &Status) -> String {
    let mut text = format!(
        "{} (pid {}): {}\nkubeconfig  {}\ndata        {}\n\n{:<25}{:<10}{:<8}STATE\n",
        status.name,
        status.pid,
        status.api_server,
        status.kubeconfig.display(),
        status.data_dir.display(),
        "COMPONENT",
        "PID",
        "STARTS",
    );
    for component in &status.components {
        let pid = component.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        text += &format!(
            "{:<25}{pid:<10}{:<8}{}\n",
            component.component.name(),
            component.starts,
            component.state
        );
    }
    text
}
