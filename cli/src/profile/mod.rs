//! `profile`: profiles of a cluster as files.
//!
//! **In**: TrainingProfiles by name from the cluster, or as YAML or JSON. **Out**: profiles for another cluster.

mod transfer;

pub use transfer::parse;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::cluster::ConnectArgs;
use crate::{input, name};

/// Move profiles between clusters.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
enum ProfileCommand {
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
}

/// Which cluster and namespace.
#[derive(Clone, Debug, Args)]
struct Where {
    /// Namespace of the profile; that of the context without
    #[arg(long, short, value_name = "NAME", value_parser = name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the subcommand.
pub fn run(args: &ProfileArgs) -> Result<()> {
    match &args.command {
        ProfileCommand::Export(args) => transfer::export(args),
        ProfileCommand::Import(args) => transfer::import(args),
    }
}

/// Writes to a file, or to standard output.
fn write(out: Option<&PathBuf>, bytes: &[u8]) -> Result<()> {
    match out {
        Some(file) => std::fs::write(file, bytes).with_context(|| file.display().to_string()),
        None => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(bytes)?;
            Ok(stdout.flush()?)
        }
    }
}

fn read_text(file: &Path) -> Result<String> {
    input::read(file, input::TABLES).with_context(|| input::name_of(file))
}
