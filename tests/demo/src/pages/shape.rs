//! What an output looks like, whatever its figures: two runs of a command have the same shape. Pure.
//!
//! | in the output | in the shape |
//! |---|---|
//! | a word that begins with a digit, a sign or `~` and a digit: figures, times, lengths of time, addresses | `#` |
//! | digits within a word (`bert-1-0`) | `#` each run of them |
//! | what a table leaves empty or writes `-` for | nothing |
//! | several spaces; bars and other drawings | one space |
//! | equal lines that follow each other | one |

/// The shape of an output.
pub fn shape<S: AsRef<str>>(output: &[S]) -> Vec<String> {
    let mut shape: Vec<String> = Vec::new();
    for line in output {
        let words: Vec<String> = line.as_ref().split_whitespace().filter_map(word).collect();
        let mut line = String::new();
        for word in words {
            // `3 kW, 4 kW` and `3 kW` differ, `1h 2m` and `2m` do not.
            if word == "#" && line.ends_with('#') {
                continue;
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += &word;
        }
        if !line.is_empty() && shape.last() != Some(&line) {
            shape.push(line);
        }
    }
    shape
}

/// A word's shape; nothing for drawings.
fn word(word: &str) -> Option<String> {
    let bare = word.trim_matches(|c: char| "()[]{},;:\"'".contains(c));
    let figure = bare.trim_start_matches(['+', '-', '~', '<', '>', '=']);
    if figure.starts_with(|c: char| c.is_ascii_digit()) {
        let (before, after) = word.split_once(bare).unwrap_or_default();
        return Some(format!("{before}#{after}"));
    }
    if !word.chars().any(char::is_alphanumeric) {
        return None;
    }
    let mut shape = String::new();
    for c in word.chars() {
        match c {
            _ if !c.is_ascii_digit() => shape.push(c),
            _ if shape.ends_with('#') => {}
            _ => shape.push('#'),
        }
    }
    Some(shape)
}

/// The first line of which two shapes differ: what stands, and what is printed.
pub fn difference(stands: &[String], printed: &[String]) -> Option<(String, String)> {
    let longer = stands.len().max(printed.len());
    let line = |of: &[String], n: usize| of.get(n).cloned().unwrap_or_else(|| "(nothing)".to_owned());
    (0..longer).find(|n| stands.get(*n) != printed.get(*n)).map(|n| (line(stands, n), line(printed, n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_do_not_count_and_words_do() {
        let of = |text: &str| shape(&text.lines().collect::<Vec<_>>());
        assert_eq!(
            of("POS  START     END\n 1   in 3m20s  in 1h05m (58m to 1h20m)"),
            ["POS START END", "# in # in # (# to #)"]
        );
        assert_eq!(of("bert-1-0  40 %  2026-11-24T08:00:00Z"), of("bert-1-0  9 %  2027-01-01T09:30:00Z"));
        assert_eq!(of("[####   ] 12 kW"), of("[#      ] 9 kW"));
        assert_eq!(of("a  3\na  4\nb"), ["a #", "b"]);
        assert_ne!(of("NAME  PHASE"), of("NAME  STATE"));
        assert_ne!(of("a: 1"), of("a: one"));
    }

    #[test]
    fn the_first_line_that_differs_is_named() {
        let lines = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(difference(&lines(&["a"]), &lines(&["a"])), None);
        assert_eq!(difference(&lines(&["a"]), &lines(&["a", "b"])), Some(("(nothing)".into(), "b".into())));
    }
}
