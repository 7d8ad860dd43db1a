//! The program that reads a script, by its first line, and the text that it reads.

use crate::launch::base;

/// What an interpreter reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Commands of a shell.
    Shell,
    /// Python.
    Python,
    /// Something that cannot be given as an argument.
    Other,
}

/// The program that reads a script.
#[derive(Debug, PartialEq)]
pub struct Interpreter {
    /// It and its options.
    pub words: Vec<String>,
    /// What it reads.
    pub language: Language,
}

impl Interpreter {
    /// The interpreter in the first line of a script; bash if it names none.
    pub fn from_script(text: &str) -> Self {
        let first = text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default();
        let mut words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
        if words.first().is_some_and(|word| base(word) == "env") {
            words = words.into_iter().skip(1).skip_while(|word| word.starts_with('-')).collect();
        }
        let Some(name) = words.first().map(|word| base(word)) else {
            return Self { words: vec!["/bin/bash".to_owned()], language: Language::Shell };
        };
        let language = match name {
            "sh" | "bash" | "dash" | "ash" | "ksh" | "zsh" => Language::Shell,
            _ if name.starts_with("python") || name.starts_with("pypy") => Language::Python,
            _ => Language::Other,
        };
        // The text comes after -c: the words that would end the options or take it themselves go.
        let kept = |word: &String| {
            word.starts_with("--") && word.len() > 2
                || word.starts_with('-') && word.len() > 1 && word != "--" && !word.contains('c')
        };
        let options: Vec<String> = words.drain(1..).filter(kept).collect();
        words.extend(options);
        Self { words, language }
    }

    /// The command that reads a text, as a pod has it: there `$$` stands for `$`.
    pub fn command(self, text: &str) -> Vec<String> {
        let mut words = self.words;
        words.extend(["-c".to_owned(), text.replace("$$", "$$$$")]);
        words
    }
}

/// How many lines come before the first command: sbatch reads its options there.
pub fn header(text: &str) -> usize {
    let before = |line: &&str| line.trim_start().is_empty() || line.trim_start().starts_with('#');
    text.lines().take_while(before).count()
}

/// A script without its first line and the options of sbatch. What looks like one after the first command is text.
pub fn body(text: &str) -> String {
    let header = header(text);
    let kept = text.lines().enumerate().filter(|(number, line)| {
        let first = *number == 0 && line.starts_with("#!");
        let option = *number < header && line.starts_with("#SBATCH");
        !(first || option)
    });
    let lines = kept.map(|(_, line)| line).skip_while(|line| line.trim().is_empty());
    let body: String = lines.fold(String::new(), |body, line| body + line + "\n");
    body.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_interpreter() {
        for (line, words, language) in [
            ("#!/bin/bash", "/bin/bash", Language::Shell),
            ("#!/bin/bash -l", "/bin/bash -l", Language::Shell),
            ("#! /bin/sh -", "/bin/sh", Language::Shell),
            ("#!/bin/bash --login -ec", "/bin/bash --login", Language::Shell),
            ("#!/usr/bin/env bash", "bash", Language::Shell),
            ("#!/usr/bin/env python3", "python3", Language::Python),
            ("#!/usr/bin/env -S python3 -u", "python3 -u", Language::Python),
            ("#!/bin/tcsh", "/bin/tcsh", Language::Other),
            ("#SBATCH -N 1", "/bin/bash", Language::Shell),
            ("#!", "/bin/bash", Language::Shell),
            ("", "/bin/bash", Language::Shell),
        ] {
            let found = Interpreter::from_script(line);
            assert_eq!((found.words.join(" ").as_str(), found.language), (words, language), "{line}");
        }
    }

    #[test]
    fn only_lines_before_the_first_command_are_options() {
        let text = "#!/bin/sh\n#SBATCH -N 1\n\n# why\n  # more\n#SBATCH -n 1\ncat <<E\n#!/x\n#SBATCH\nE\n\n";
        assert_eq!((header(text), body(text).as_str()), (6, "# why\n  # more\ncat <<E\n#!/x\n#SBATCH\nE\n"));
        assert_eq!((header(""), body("").as_str()), (0, "\n"));
    }
}
