//! `andreas-operator`: see the library's documentation.

use andreas_operator::args::{Cli, Command};
use andreas_operator::server;
use clap::Parser;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crds) => {
            print!("{}", andreas_api::crd::yaml());
            Ok(())
        }
        Some(Command::Run(args)) => server::run(*args),
        None => server::run(cli.run),
    }
}
