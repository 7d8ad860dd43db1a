//! A page as text and commands. Pure.
//!
//! Commands are the lines `$ ...` of blocks marked `console`; one that ends in `\` goes on in the next line. What
//! stands below a command is its output. Comments in lines of their own, which readers do not see, say the rest:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- 25 s -->` | each command of the next block is ended after that time: it watches |
//! | `<!-- varies -->` | of the outputs of the next block only the first lines are compared |
//! | `<!-- exit 5 -->` | commands of the next block end with this code |
//! | `<!-- file NAME -->` | the next block is the file NAME of the folder in which commands run |
//! | `<!-- run: COMMAND -->` | this command runs here, unseen |
//! | `<!-- until: COMMAND -->` | this command is run until it ends well |

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// A command of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For a shell.
    pub command: String,
    /// It is ended after this time.
    pub ends_after: Option<Duration>,
    /// Only the first line of its output is compared.
    pub varies: bool,
    /// Its exit code.
    pub exit: i32,
    /// What the page says it prints.
    pub output: Vec<String>,
}

/// A part of a page, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A line that stays.
    Line(String),
    /// A command with its output.
    Step(Step),
    /// A file of the commands' folder.
    File {
        /// Its name.
        name: String,
        /// What is in it.
        text: String,
    },
    /// A command that readers do not see.
    Unseen {
        /// For a shell.
        command: String,
        /// Until it ends well, or once.
        until: bool,
    },
}

/// What comments say of the next block.
#[derive(Default)]
struct Settings {
    ends_after: Option<Duration>,
    varies: bool,
    exit: i32,
    file: Option<String>,
}

fn comment(line: &str) -> Option<&str> {
    line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"))
}

/// The pieces of a page.
///
/// # Errors
/// When a comment above a block names no time or code, or a block does not end.
pub fn pieces(text: &str) -> Result<Vec<Piece>> {
    let mut found = Vec::new();
    let mut next = Settings::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        found.push(Piece::Line(line.to_owned()));
        if let Some(said) = comment(line) {
            if let Some(time) = said.strip_suffix(" s") {
                let seconds = time.parse().with_context(|| format!("{line}: wanted whole seconds"))?;
                next.ends_after = Some(Duration::from_secs(seconds));
            } else if let Some(code) = said.strip_prefix("exit ") {
                next.exit = code.parse().with_context(|| format!("{line}: wanted a code"))?;
            } else if said == "varies" {
                next.varies = true;
            } else if let Some(name) = said.strip_prefix("file ") {
                next.file = Some(name.to_owned());
            } else if let Some(command) = said.strip_prefix("run: ") {
                found.push(Piece::Unseen { command: command.to_owned(), until: false });
            } else if let Some(command) = said.strip_prefix("until: ") {
                found.push(Piece::Unseen { command: command.to_owned(), until: true });
            }
        }
        let Some(language) = line.strip_prefix("```") else { continue };
        let settings = std::mem::take(&mut next);
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if language == "console" {
            found.extend(steps(&block, &settings)?.into_iter().map(Piece::Step));
        } else {
            found.extend(block.iter().map(|line| Piece::Line((*line).to_owned())));
        }
        found.push(Piece::Line("```".to_owned()));
        if let Some(name) = settings.file {
            found.push(Piece::File { name, text: block.join("\n") + "\n" });
        }
    }
    Ok(found)
}

fn steps(block: &[&str], settings: &Settings) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut goes_on = false;
    for line in block {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (_, Some(step)) if goes_on => {
                step.command += "\n";
                step.command += line;
            }
            (Some(command), _) => steps.push(Step {
                command: command.to_owned(),
                ends_after: settings.ends_after,
                varies: settings.varies || settings.ends_after.is_some(),
                exit: settings.exit,
                output: Vec::new(),
            }),
            (None, Some(step)) => {
                step.output.push((*line).to_owned());
                continue;
            }
            (None, None) => bail!("a block marked `console` begins with {line:?}, not with a command"),
        }
        goes_on = line.ends_with('\\');
    }
    Ok(steps)
}

/// The page with these outputs below its commands, in their order.
pub fn with_outputs(pieces: &[Piece], outputs: &[Vec<String>]) -> String {
    let mut outputs = outputs.iter();
    let mut page = String::new();
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    for piece in pieces {
        match piece {
            Piece::Line(text) => line(text),
            Piece::Step(step) => {
                line(&format!("$ {}", step.command));
                outputs.next().into_iter().flatten().for_each(|text| line(text));
            }
            Piece::File { .. } | Piece::Unseen { .. } => {}
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n```sh\n$ not run\n```\n\n<!-- 20 s -->\n```console\n$ watch\nold\n\nold\n```\ntext\n\
        <!-- run: make ready -->\n<!-- exit 5 -->\n```console\n$ one\n$ two \\\n  more\nold\n```\n\
        <!-- file a.yaml -->\n```yaml\na: 1\n```\n";

    fn commands(page: &str) -> Vec<Step> {
        let steps = pieces(page).unwrap().into_iter().filter_map(|piece| match piece {
            Piece::Step(step) => Some(step),
            _ => None,
        });
        steps.collect()
    }

    #[test]
    fn commands_are_those_of_console_blocks() {
        let steps = commands(PAGE);
        let said: Vec<(&str, Option<u64>, i32)> =
            steps.iter().map(|s| (s.command.as_str(), s.ends_after.map(|d| d.as_secs()), s.exit)).collect();
        assert_eq!(said, [("watch", Some(20), 0), ("one", None, 5), ("two \\\n  more", None, 5)]);
        assert_eq!(steps[2].output, ["old"]);
        let others: Vec<Piece> = pieces(PAGE)
            .unwrap()
            .into_iter()
            .filter(|piece| !matches!(piece, Piece::Line(_) | Piece::Step(_)))
            .collect();
        let file = Piece::File { name: "a.yaml".into(), text: "a: 1\n".into() };
        assert_eq!(others, [Piece::Unseen { command: "make ready".into(), until: false }, file]);
    }

    #[test]
    fn what_commands_print_replaces_what_stood_below_them() {
        let lines = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let outputs = [lines(&["seen"]), lines(&[]), lines(&["a", "", "b"])];
        let pieces = pieces(PAGE).unwrap();
        let written = with_outputs(&pieces, &outputs);
        assert!(written.contains("```console\n$ watch\nseen\n```\n"), "{written}");
        assert!(written.contains("$ one\n$ two \\\n  more\na\n\nb\n```\n"), "{written}");
        let old: Vec<Vec<String>> = commands(PAGE).into_iter().map(|step| step.output).collect();
        assert_eq!(with_outputs(&pieces, &old), PAGE);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert!(pieces("<!-- many s -->\n").unwrap_err().to_string().contains("many"));
        assert!(pieces("<!-- exit now -->\n").is_err());
        assert!(pieces("```console\nno command\n```\n").is_err());
    }
}
