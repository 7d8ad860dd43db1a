//! `kubectl-andreas completion` and `man`: what shells and manual readers need, from the definition of the commands.

use std::path::{Path, PathBuf};

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

/// Man: print the manual page, or write the pages of all commands into a folder.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each command into this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
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

/// Runs `man`.
///
/// # Errors
/// When a page cannot be written.
pub fn man(args: &ManArgs, command: Command) -> Result<()> {
    let pages = pages(command)?;
    let Some(folder) = &args.out else {
        return output::print(pages.first().map_or("", |(_, text)| text));
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for (name, text) in &pages {
        write(&folder.join(format!("{name}.1")), text)?;
    }
    output::print_error(&format!("{} pages in {}", pages.len(), folder.display()));
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// Name and text of the page of each command, the program's own first.
fn pages(command: Command) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    page(command.name(PROGRAM), PROGRAM, &mut pages)?;
    Ok(pages)
}

fn page(command: Command, name: &str, pages: &mut Vec<(String, String)>) -> Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(name.to_owned())
        .render(&mut text)
        .context("a manual page")?;
    pages.push((name.to_owned(), String::from_utf8(text).context("a manual page")?));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        page(below.clone(), &format!("{name}-{}", below.get_name()), pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let pages = pages(crate::Cli::command()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "kubectl-andreas",
            "kubectl-andreas-queue",
            "kubectl-andreas-submit",
            "kubectl-andreas-profile-export",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        let submit = &pages.iter().find(|(name, _)| name == "kubectl-andreas-submit").unwrap().1;
        assert!(submit.contains("torchrun") && submit.contains(".TH"), "{submit}");
    }

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
