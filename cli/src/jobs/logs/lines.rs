//! A log as lines. A line is bounded: a program may print without ever ending one.

use futures::stream::{self, Stream};
use futures::{AsyncBufRead, AsyncBufReadExt as _};

use crate::cluster::ClusterError;
use crate::output::moves;

/// Longest piece of a line that is kept, bytes; a longer line comes in pieces.
const MAX_LINE: usize = 64 << 10;

/// What comes of a worker.
#[derive(Debug)]
pub enum Line {
    /// A line, without its end.
    Text {
        /// Rank of the worker.
        rank: usize,
        /// The line.
        text: Vec<u8>,
    },
    /// There is no log.
    Missing {
        /// Rank of the worker.
        rank: usize,
        /// Why.
        why: String,
    },
    /// The log ended early.
    Cut {
        /// Rank of the worker.
        rank: usize,
        /// Why.
        why: String,
    },
    /// The API server refuses it.
    Refused(ClusterError),
}

/// The lines of a reader.
pub fn lines<R: AsyncBufRead + Unpin + Send>(rank: usize, reader: R) -> impl Stream<Item = Line> {
    stream::unfold(Some(reader), move |reader| async move {
        let mut reader = reader?;
        match next(&mut reader).await {
            Ok(Some(text)) => Some((Line::Text { rank, text }, Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Line::Cut { rank, why: format!("the log ends early: {error}") }, None)),
        }
    })
}

async fn next<R: AsyncBufRead + Unpin>(reader: &mut R) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let piece = reader.fill_buf().await?;
        if piece.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let end = piece.iter().position(|byte| *byte == b'\n');
        let room = MAX_LINE - line.len();
        let take = end.unwrap_or(piece.len()).min(room);
        line.extend_from_slice(&piece[..take]);
        let whole = end == Some(take);
        reader.consume_unpin(take + usize::from(whole));
        if whole || line.len() == MAX_LINE {
            return Ok(Some(line));
        }
    }
}

/// A line for a terminal: tabs, carriage returns and colours stay, what moves the cursor goes.
pub fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(c) = rest.chars().next() {
        if let Some(length) = colour(rest) {
            shown.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if matches!(c, '\t' | '\r') || !moves(c) {
            shown.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    shown
}

/// Length of the colour sequence (`ESC [ 1 ; 31 m`) at the beginning of a text.
fn colour(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    numbers[end..].starts_with('m').then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::cluster::block_on;

    fn of(text: &[u8]) -> Vec<String> {
        let read = block_on(async { Ok(lines(3, text).collect::<Vec<_>>().await) }).unwrap();
        read.into_iter()
            .map(|line| match line {
                Line::Text { rank: 3, text } => String::from_utf8_lossy(&text).into_owned(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_log_comes_in_lines_and_the_last_needs_no_end() {
        assert_eq!(of(b"one\n\ntwo"), ["one", "", "two"]);
        assert_eq!(of(b""), [""; 0]);
    }

    #[test]
    fn a_line_without_end_comes_in_pieces() {
        let long = vec![b'x'; 2 * MAX_LINE + 5];
        assert_eq!(of(&long).iter().map(String::len).collect::<Vec<_>>(), [MAX_LINE, MAX_LINE, 5]);
    }

    #[test]
    fn colours_reach_the_terminal_and_cursor_moves_do_not() {
        assert_eq!(printable(b"\x1b[1;31mred\x1b[0m\t50%\r"), "\u{1b}[1;31mred\u{1b}[0m\t50%\r");
        assert_eq!(printable(b"\x1b[2Jgone\x07\xff"), "[2Jgone\u{fffd}");
        assert_eq!(printable(b"\x1b["), "[");
    }
}
