//! `kubectl-andreas`, the command line of ANDREAS.

use std::process::ExitCode;

fn main() -> ExitCode {
    match andreas_cli::run(andreas_cli::arguments()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it: nothing is left to print.
        Err(error) if andreas_cli::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            andreas_cli::output::print_error(&format!(
                "error: {}",
                andreas_cli::output::plain_lines(&format!("{error:#}"))
            ));
            ExitCode::from(andreas_cli::exit::code(&error))
        }
    }
}
