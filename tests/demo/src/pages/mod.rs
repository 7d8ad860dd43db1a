//! The pages whose commands a program runs on the demo's cluster: each in a namespace and a folder of its own.
//!
//! In: pages with commands ([`page`]). Out: the same pages with what the commands print, or what of them has another
//! shape than what stands there ([`shape`]). The image `registry.example/train:1` is the trainer that trains nothing, also
//! by the name `torchrun` (`tests/kubelets/images`).

pub mod page;
mod run;
pub mod shape;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use andreas_e2e::cluster::Cluster;

use super::Nodes;
use page::Piece;

/// The pages with commands that are run, in the order in which they are.
pub const PAGES: [&str; 10] = [
    "docs/quickstart.md",
    "docs/start.md",
    "docs/ask.md",
    "docs/cli.md",
    "docs/troubleshooting.md",
    "docs/howto/first-job.md",
    "docs/howto/checkpoints.md",
    "docs/howto/weights.md",
    "docs/howto/adopt.md",
    // It changes prices and budget: the last one.
    "docs/howto/budgets.md",
];

/// Of these, those whose jobs want more processors than a small machine's real nodes have. They ask no kubelet for logs, and
/// nobody the operator.
const ON_PRETEND_NODES: [&str; 1] = ["docs/quickstart.md"];

/// What becomes of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// They are written into the pages.
    Written,
    /// Their shapes are compared with those of the pages.
    Compared,
}

/// The folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the commands of pages, those of real nodes on one cluster and those of pretend ones on another.
///
/// # Errors
/// When a command does not end as the page says, an output has another shape, or a page cannot be read or written.
pub async fn run(pages: &[&str], outputs: Outputs) -> Result<()> {
    let mut read = Vec::new();
    for name in pages {
        let text = std::fs::read_to_string(root().join(name)).with_context(|| (*name).to_owned())?;
        read.push((*name, page::pieces(&text).with_context(|| (*name).to_owned())?));
    }
    let mut wrong = Vec::new();
    for nodes in [Nodes::pretend(), Nodes::of_pages()] {
        let real = nodes.real_count() > 0;
        let here: Vec<_> = read.iter().filter(|(name, _)| ON_PRETEND_NODES.contains(name) != real).collect();
        if here.is_empty() {
            continue;
        }
        ensure!(
            !real || andreas_kubelets::isolated(),
            "real nodes need namespaces: run `make docs WHAT=transcripts`"
        );
        let mut options = super::options(&nodes, None);
        if let Some(values) = &mut options.install {
            values["adoption"] = json!({"kinds": ["Job"]});
        }
        let cluster = Cluster::start(options).await?;
        for (name, pieces) in here {
            match on(&cluster, name, pieces, outputs).await {
                Ok(differences) => wrong.extend(differences),
                Err(error) => wrong.push(format!("{name}: {error:#}")),
            }
        }
        cluster.stop().await;
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        bail!("{}\nrefresh with: make docs WHAT=transcripts", wrong.join("\n"))
    }
}

/// Runs a page's commands; what of their outputs has another shape.
async fn on(cluster: &Cluster, name: &str, pieces: &[Piece], outputs: Outputs) -> Result<Vec<String>> {
    let place = run::Place::new(cluster, name).await?;
    let done = commands(&place, name, pieces, outputs).await;
    // Also where a command failed: the next page begins with free nodes.
    place.clean().await?;
    done
}

async fn commands(place: &run::Place, name: &str, pieces: &[Piece], outputs: Outputs) -> Result<Vec<String>> {
    let mut printed: Vec<Vec<String>> = Vec::new();
    let mut wrong = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Line(_) => {}
            Piece::File { name, text } => place.write(name, text)?,
            Piece::Unseen { command, until } => place.unseen(command, *until).await?,
            Piece::Step(step) => {
                let lines = place.run(step).await?;
                let compared = |lines: &[String]| {
                    let mut shape = shape::shape(lines);
                    if step.varies {
                        shape.truncate(1);
                    }
                    shape
                };
                if let Some((stands, is)) = shape::difference(&compared(&step.output), &compared(&lines)) {
                    wrong.push(format!("{name}: $ {}\n  page:  {stands}\n  now:   {is}", step.command));
                }
                printed.push(lines);
            }
        }
    }
    ensure!(!printed.is_empty(), "{name} has no command");
    if outputs == Outputs::Compared {
        return Ok(wrong);
    }
    let path = root().join(name);
    std::fs::write(&path, page::with_outputs(pieces, &printed))
        .with_context(|| path.display().to_string())?;
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    fn commands() -> Vec<page::Step> {
        let mut commands = Vec::new();
        for name in PAGES {
            let text = std::fs::read_to_string(root().join(name)).unwrap();
            commands.extend(page::pieces(&text).unwrap().into_iter().filter_map(|piece| match piece {
                Piece::Step(step) => Some(step),
                _ => None,
            }));
        }
        commands
    }

    #[test]
    fn every_command_of_the_command_line_has_a_transcript() {
        let shown: BTreeSet<String> = commands()
            .iter()
            .flat_map(|step| {
                let words: Vec<&str> = step.command.split_whitespace().collect();
                let after = words.windows(3).filter(|w| w[..2] == ["kubectl", "andreas"]).map(|w| w[2]);
                after.map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        let all: BTreeSet<String> = andreas_cli::Cli::command()
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        // It prints an address and serves until it is stopped: a browser tests it (cli/tests/ui).
        let serves = "ui".to_owned();
        let missing: Vec<&String> = all.difference(&shown).filter(|name| **name != serves).collect();
        assert!(missing.is_empty(), "no page shows what these print: {missing:?}");
    }

    #[test]
    fn no_other_page_claims_that_its_commands_are_run() {
        let mut folders = vec![root().join("docs"), root().join("charts/andreas"), root().join("deploy")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "md") {
                    let run = PAGES.iter().any(|page| path.ends_with(page.trim_start_matches("docs/")));
                    let claims = std::fs::read_to_string(&path).unwrap().contains("\n```console\n");
                    assert!(run || !claims, "{}: write `sh`, or add it to PAGES", path.display());
                }
            }
        }
    }

    #[test]
    fn every_question_has_its_output() {
        // They write a file.
        let silent = ["kubectl andreas snapshot", "kubectl andreas profile export"];
        for step in commands().iter().filter(|step| step.command.starts_with("kubectl ")) {
            let may = silent.iter().any(|command| step.command.starts_with(command));
            assert!(may || !step.output.is_empty(), "no output: {}", step.command);
        }
    }
}
