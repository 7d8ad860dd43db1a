//! `kubectl-andreas completion`: what shells need, from the definition of the commands.

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// Name of the program; `kubectl andreas` runs it too.
const PROGRAM: &str = "kubectl-andreas";

/// Completion: print a script that completes commands and flags in a shell.
///
/// bash: source <(kubectl-andreas completion bash). zsh: write it to _kubectl-andreas in a folder of $fpath. fish: write it to
/// ~/.config/fish/completions/kubectl-andreas.fish. The script completes `kubectl-andreas`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Runs `completion`.
///
/// # Errors
/// When the reader has closed standard output.
pub fn completion(args: &CompletionArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, PROGRAM, &mut script);
    output::print(&String::from_utf8(script).context("the script")?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn shells_complete_commands_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::Cli::command(), PROGRAM, &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("whatif") && script.contains("dry-run"), "{shell}");
        }
    }
}
