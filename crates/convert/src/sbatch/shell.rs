//! Lines of a shell's text.

/// A line without its comment. Quotes are those of this line alone.
pub fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    let mut letters = line.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (None | Some('"'), '\\') => drop(letters.next()),
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#') if before.is_whitespace() || before == ';' => return &line[..at],
            _ => {}
        }
        before = letter;
    }
    line
}

/// Lines without comments; those that end in a backslash with the next.
pub fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    for line in text.lines().map(without_comment) {
        if open.is_empty() && line.trim().is_empty() {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                open.push_str(part);
                open.push(' ');
            }
            None => lines.push(std::mem::take(&mut open) + line),
        }
    }
    if !open.is_empty() {
        lines.push(open);
    }
    lines
}

/// Whether a line has something that only a shell can do. Quotes take the meaning of all but variables and commands.
pub fn needs_shell(line: &str) -> bool {
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (_, '$' | '`') => return true,
            (None | Some('"'), '\\') => drop(letters.next()),
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '|' | '>' | '<' | '&' | ';' | '*' | '(' | ')' | '~' | '{') => return true,
            _ => {}
        }
    }
    false
}

/// Whether a text runs a command by this name, by itself or by a path.
pub fn runs(text: &str, command: &str) -> bool {
    let of_name = |c: char| c.is_ascii_alphanumeric() || "_-.=+".contains(c);
    text.match_indices(command).any(|(at, found)| {
        let (before, after) = (&text[..at], &text[at + found.len()..]);
        !before.ends_with(of_name) && !after.starts_with(of_name) && !after.starts_with('/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_after_a_space_and_outside_quotes() {
        for (line, rest) in [
            ("python x.py # why", "python x.py "),
            ("# all", ""),
            ("echo 'a # b' \"# c\" \\# d${#x} a#b", "echo 'a # b' \"# c\" \\# d${#x} a#b"),
            ("true;# é", "true;"),
        ] {
            assert_eq!(without_comment(line), rest);
        }
        assert_eq!(logical_lines("# a \\\nb \\\n  c # d\n\n"), ["b    c "]);
    }

    #[test]
    fn a_command_is_found_by_its_whole_name() {
        for text in ["srun python", "a=$(srun hostname)", "/usr/bin/srun x", "time srun\tx", "x && srun"] {
            assert!(runs(text, "srun"), "{text}");
        }
        for text in ["./srun_it", "srun.log", "my-srun", "logs/srun/x", "srun=1", ""] {
            assert!(!runs(text, "srun"), "{text}");
        }
    }
}
