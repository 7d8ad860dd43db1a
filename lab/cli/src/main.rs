//! `andreas-lab`, the command line of the laboratory.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match andreas_lab::run(andreas_lab::Lab::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it: nothing is left to print.
        Err(error) if andreas_lab::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<andreas_lab::Usage>() { 2 } else { 1 })
        }
    }
}
