//! `andreas-operator`: see the library's documentation.

use std::io::Write as _;

use andreas_operator::args::{Cli, Command};
use andreas_operator::server;
use clap::Parser;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crds) => {
            // `andreas-operator crds | head` is no failure.
            match std::io::stdout().write_all(andreas_api::crd::yaml().as_bytes()) {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
                _ => Ok(()),
            }
        }
        Some(Command::Run(args)) => server::run(*args),
        None => server::run(cli.run),
    }
}
