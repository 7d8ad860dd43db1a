//! The quickstart page: its commands are run on the demo's cluster, and what they print is put below them.
//!
//! Commands are the lines `$ ...` of blocks marked `console`. A comment line `<!-- 30 s -->` above a block ends each of its commands
//! after that time, for commands that watch. Everything else of the page stays as it is.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use andreas_e2e::cluster::Cluster;
use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// A command of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For a shell.
    pub command: String,
    /// It is ended after this time.
    pub ends_after: Option<Duration>,
}

/// Runs the page's commands, in their order, and writes the page with what they print.
///
/// # Errors
/// When a command fails, and when the page cannot be read or written.
pub async fn regenerate(page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let cluster = Cluster::start(super::options(&super::Nodes::pretend(), None)).await?;
    let written = run_all(&cluster, &text).await;
    cluster.stop().await;
    std::fs::write(page, written?).with_context(|| page.display().to_string())
}

async fn run_all(cluster: &Cluster, text: &str) -> Result<String> {
    let mut outputs = Vec::new();
    for step in steps(text)? {
        println!("$ {}", step.command);
        let printed = run(cluster, &step).await.with_context(|| step.command.clone())?;
        print!("{printed}");
        outputs.push(printed);
    }
    Ok(with_outputs(text, &outputs))
}

async fn run(cluster: &Cluster, step: &Step) -> Result<String> {
    let programs = cluster.testbed.programs().folder().display().to_string();
    let mut command = match step.ends_after {
        None => Command::new("bash"),
        Some(time) => {
            let mut command = Command::new("timeout");
            command.args(["--foreground", &time.as_secs().to_string(), "bash"]);
            command
        }
    };
    let output = command
        .args(["-c", &step.command])
        .env("KUBECONFIG", cluster.testbed.kubeconfig())
        .env("PATH", format!("{programs}:{}", std::env::var("PATH")?))
        .stdin(Stdio::null())
        .output()
        .await?;
    // The exit code of `timeout` for a program that it ends.
    let timed_out = step.ends_after.is_some() && output.status.code() == Some(124);
    if !output.status.success() && !timed_out {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The section of a page that a line is in.
enum Section {
    Text,
    Console,
    OtherBlock,
}

/// The page's lines, each with whether it is a command, its output, or neither.
enum Line<'a> {
    Kept(&'a str),
    Command(&'a str),
    Output,
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut section = Section::Text;
    text.lines().map(move |line| {
        let fence = line.starts_with("```");
        section = match (&section, fence) {
            (Section::Text, true) if line == "```console" => Section::Console,
            (Section::Text, true) => Section::OtherBlock,
            (_, true) => Section::Text,
            (Section::Text, false) => Section::Text,
            (Section::Console, false) => Section::Console,
            (Section::OtherBlock, false) => Section::OtherBlock,
        };
        match (&section, line.strip_prefix("$ ")) {
            (Section::Console, Some(command)) if !fence => Line::Command(command),
            (Section::Console, None) if !fence => Line::Output,
            _ => Line::Kept(line),
        }
    })
}

/// The page's commands.
///
/// # Errors
/// When a comment above a block names no time, or the page has no command.
pub fn steps(text: &str) -> Result<Vec<Step>> {
    let mut found = Vec::new();
    let mut ends_after = None;
    for line in lines(text) {
        match line {
            Line::Kept(line) => {
                if let Some(time) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" s -->")) {
                    let seconds = time.parse().with_context(|| format!("{line}: wanted whole seconds"))?;
                    ends_after = Some(Duration::from_secs(seconds));
                } else if line == "```" {
                    ends_after = None;
                }
            }
            Line::Command(command) => found.push(Step { command: command.to_owned(), ends_after }),
            Line::Output => {}
        }
    }
    if found.is_empty() { bail!("no line `$ ...` in a block marked `console`") } else { Ok(found) }
}

/// The page with these outputs below its commands.
pub fn with_outputs(text: &str, outputs: &[String]) -> String {
    let mut outputs = outputs.iter();
    let mut page = String::new();
    for line in lines(text) {
        match line {
            Line::Kept(line) => {
                page.push_str(line);
                page.push('\n');
            }
            Line::Command(command) => {
                page.push_str(&format!("$ {command}\n"));
                for line in outputs.next().map_or("", String::as_str).lines() {
                    page.push_str(line.trim_end());
                    page.push('\n');
                }
            }
            Line::Output => {}
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n```sh\n$ not run\n```\n\n<!-- 20 s -->\n```console\n$ watch\nold\n\nold\n```\ntext\n```console\n$ one\n$ two\nold\n```\n";

    #[test]
    fn commands_are_those_of_console_blocks() {
        let steps = steps(PAGE).unwrap();
        let said: Vec<(&str, Option<u64>)> =
            steps.iter().map(|s| (s.command.as_str(), s.ends_after.map(|d| d.as_secs()))).collect();
        assert_eq!(said, [("watch", Some(20)), ("one", None), ("two", None)]);
    }

    #[test]
    fn what_commands_print_replaces_what_stood_below_them() {
        let outputs = ["seen  \n".to_owned(), String::new(), "a\n\nb\n".to_owned()];
        assert_eq!(
            with_outputs(PAGE, &outputs),
            "# Title\n\n```sh\n$ not run\n```\n\n<!-- 20 s -->\n```console\n$ watch\nseen\n```\ntext\n```console\n$ one\n$ two\na\n\nb\n```\n"
        );
    }

    #[test]
    fn every_command_of_the_page_has_its_output() {
        let page = include_str!("../../../docs/quickstart.md");
        assert!(steps(page).unwrap().len() > 10);
        let mut silent = Vec::new();
        for line in lines(page) {
            match line {
                Line::Command(command) => silent.push(command),
                Line::Output => silent.clear(),
                Line::Kept(_) => assert!(silent.is_empty(), "no output: {silent:?}"),
            }
            assert!(silent.len() < 2, "no output: {silent:?}");
        }
    }

    #[test]
    fn a_page_without_commands_and_a_time_that_is_none_are_errors() {
        assert!(steps("# Title\n").is_err());
        assert!(steps("<!-- many s -->\n```console\n$ one\n```\n").unwrap_err().to_string().contains("many"));
    }
}
