//! `pretend-kubelets`: see the library's first page.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Plays the kubelets of GPU nodes; containers are processes")]
struct Cli {
    #[command(subcommand)]
    command: Option<Inner>,
}

#[derive(Subcommand)]
enum Inner {
    /// The process inside the namespaces (started by pretend-kubelets itself).
    #[command(hide = true)]
    Sandbox,
    /// A container before its program (started by the sandbox).
    #[command(hide = true)]
    ContainerInit { spec: PathBuf },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Some(Inner::Sandbox) => andreas_test_nodes::sandbox::sandbox_main(),
        Some(Inner::ContainerInit { spec }) => andreas_test_nodes::sandbox::container_init(&spec),
        None => ExitCode::SUCCESS,
    }
}
