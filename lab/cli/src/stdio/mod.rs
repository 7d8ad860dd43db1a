//! The line protocol: a JSON state per line in, a JSON decision per line out.
//!
//! **Holds** the shapes of the lines ([`wire`]), what is kept between them ([`Session`]: tables of jobs, last
//! prices), and the loop over them ([`serve`]).
//!
//! **Flows**: every line in gets exactly one line out, flushed. A line that makes no sense gets `{"_error": "field:
//! problem"}`, changes nothing that is kept, and the next one is served as usual.
//!
//! **Must never be here**: a clock, a policy, a panic on any line.

mod build;
mod decision;
mod input_error;
mod session;
pub mod wire;

use std::io::{self, BufRead, Write};

pub use session::Session;

/// JSON Schemas of the two lines by file name, as in `docs/protocol`.
pub fn schemas() -> [(&'static str, schemars::Schema); 2] {
    [("state.schema.json", schemars::schema_for!(wire::State)), ("decision.schema.json", decision::schema())]
}

/// Longest line in bytes, its end not counted.
pub const MAX_LINE: usize = 256 << 20;

/// Answers line by line until the input ends.
///
/// # Errors
/// Only those of the streams.
pub fn serve(session: &mut Session, mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        let answer = match read_line(&mut input, &mut line, MAX_LINE)? {
            Line::End => return Ok(()),
            Line::Whole => session.answer(&line),
            Line::TooLong => decision::error(&format!("line: longer than {} MiB", MAX_LINE >> 20)),
        };
        output.write_all(answer.as_bytes())?;
        output.write_all(b"\n")?;
        output.flush()?;
        // A huge line must not hold its memory for ever.
        if line.capacity() > 1 << 20 {
            line = Vec::new();
        }
    }
}

#[derive(Debug, PartialEq)]
enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads up to the next end of line, which is taken off; of a line that is too long, everything is skipped.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>, most: usize) -> io::Result<Line> {
    line.clear();
    let (mut any, mut too_long) = (false, false);
    loop {
        let part = match input.fill_buf() {
            Ok(part) => part,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if part.is_empty() {
            break;
        }
        any = true;
        let end = part.iter().position(|b| *b == b'\n');
        let text = &part[..end.unwrap_or(part.len())];
        too_long |= line.len() + text.len() > most;
        if too_long {
            line.clear();
        } else {
            line.extend_from_slice(text);
        }
        let used = text.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    Ok(match (any, too_long) {
        (false, _) => Line::End,
        (true, true) => Line::TooLong,
        (true, false) => Line::Whole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_read() {
        let mut input = io::BufReader::with_capacity(4, &b"short\nfar too long\nlast"[..]);
        let mut line = Vec::new();
        assert_eq!(read_line(&mut input, &mut line, 5).unwrap(), Line::Whole);
        assert_eq!(line, b"short");
        assert_eq!(read_line(&mut input, &mut line, 5).unwrap(), Line::TooLong);
        assert_eq!(read_line(&mut input, &mut line, 5).unwrap(), Line::Whole);
        assert_eq!(line, b"last");
        assert_eq!(read_line(&mut input, &mut line, 5).unwrap(), Line::End);
    }
}
