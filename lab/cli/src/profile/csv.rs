//! The table of measurements: CSV with a header, columns in any order, empty cells for what is not known.

use std::path::Path;

use andreas_evaluation::table::Sample;
use andreas_predictor::screen::{MAX_EPOCH, MAX_GPUS, MAX_WATTS, MIN_EPOCH};
use anyhow::{Context, Result, anyhow, bail};

/// What the columns are.
pub(super) const COLUMNS: [&str; 10] = [
    "profile",
    "model_family",
    "params_m",
    "batch",
    "gpu_type",
    "gpus",
    "nodes",
    "power_limit_w",
    "epoch_s",
    "power_w",
];
/// Without these a row says nothing.
const NEEDED: [&str; 3] = ["profile", "gpu_type", "gpus"];
/// GPUs of one node where a row does not say how many nodes there were.
pub(super) const USUAL_NODE: u32 = 8;

/// What a table is read for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Purpose {
    /// What it says of times and watts.
    Measurements,
    /// Its configurations: what it says of times and watts is not looked at.
    Questions,
}

/// A file as it is: its header and its rows, to be written again with more columns.
#[derive(Debug)]
pub(super) struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The same rows as they are understood.
    pub samples: Vec<Sample>,
}

/// Reads a table.
///
/// # Errors
/// A file that cannot be read, a column that is missing or twice there, a cell that makes no sense: with file, line and
/// column.
pub(super) fn read(file: &Path, wanted: Purpose) -> Result<Table> {
    let name = || file.display().to_string();
    let bytes = std::fs::read(file).with_context(name)?;
    parse(&bytes, wanted).with_context(name)
}

pub(super) fn parse(bytes: &[u8], wanted: Purpose) -> Result<Table> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut header: Option<Vec<String>> = None;
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    let mut lines = Lines { bytes, at: 0, line: 1 };
    for record in reader.byte_records() {
        let record = record.map_err(|e| anyhow!("{e}"))?;
        let line = lines.line_at(record.position().map_or(0, csv::Position::byte));
        let mut cells: Vec<String> = Vec::with_capacity(record.len());
        for (at, cell) in record.iter().enumerate() {
            let column = || match header.as_ref().and_then(|names| names.get(at)) {
                Some(name) => name.clone(),
                None => (at + 1).to_string(),
            };
            let cell = std::str::from_utf8(cell)
                .map_err(|_| anyhow!("line {line}, column {}: not UTF-8", column()))?;
            cells.push(cell.to_owned());
        }
        let Some(header) = &header else {
            header = Some(checked_header(&cells, line)?);
            continue;
        };
        if cells.iter().all(|cell| cell.trim().is_empty()) {
            continue;
        }
        if cells.len() != header.len() {
            bail!("line {line}: {} cells under {} columns", cells.len(), header.len());
        }
        samples.push(Row { header, cells: &cells, line }.sample(wanted)?);
        rows.push(cells);
    }
    let header = header.ok_or_else(|| anyhow!("line 1: no header; wanted {}", COLUMNS.join(",")))?;
    Ok(Table { header, rows, samples })
}

/// Counts lines: the reader's own count takes empty lines, and the second half of a CRLF, for the record that follows.
struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u64,
}

impl Lines<'_> {
    /// Number of the line of the record that starts at `byte`, or after the line ends there. Calls must not go
    /// backwards.
    fn line_at(&mut self, byte: u64) -> u64 {
        let begins = usize::try_from(byte).unwrap_or(usize::MAX).min(self.bytes.len());
        let ends = |c: &u8| matches!(c, b'\r' | b'\n');
        while self.at < begins || self.bytes.get(self.at).is_some_and(ends) {
            let lone = |at: usize| self.bytes.get(at + 1) != Some(&b'\n');
            if self.bytes[self.at] == b'\n' || (self.bytes[self.at] == b'\r' && lone(self.at)) {
                self.line += 1;
            }
            self.at += 1;
        }
        self.line
    }
}

fn checked_header(cells: &[String], line: u64) -> Result<Vec<String>> {
    let cells: Vec<String> = cells.iter().map(|c| c.trim().to_owned()).collect();
    for name in NEEDED {
        if !cells.iter().any(|c| c == name) {
            bail!("line {line}, column {name}: not in the header; wanted {}", COLUMNS.join(","));
        }
    }
    for name in COLUMNS {
        if cells.iter().filter(|c| *c == name).count() > 1 {
            bail!("line {line}, column {name}: twice in the header");
        }
    }
    Ok(cells)
}

struct Row<'a> {
    header: &'a [String],
    cells: &'a [String],
    line: u64,
}

impl Row<'_> {
    fn cell(&self, column: &str) -> Option<&str> {
        let at = self.header.iter().position(|c| c == column)?;
        self.cells.get(at).map(|c| c.trim()).filter(|c| !c.is_empty())
    }

    fn bad(&self, column: &str, why: &str) -> anyhow::Error {
        let cell = self.cell(column).unwrap_or_default();
        anyhow!("line {}, column {column}: \"{cell}\" {why}", self.line)
    }

    /// A positive number, if the cell has one.
    fn number(&self, column: &str, low: f64, high: f64) -> Result<Option<f64>> {
        let Some(cell) = self.cell(column) else { return Ok(None) };
        let value: f64 = cell.parse().map_err(|_| self.bad(column, "is no number"))?;
        if !value.is_finite() {
            return Err(self.bad(column, "is no finite number"));
        }
        if value <= 0.0 {
            return Err(self.bad(column, "is not above zero"));
        }
        if value < low || value > high {
            return Err(self.bad(column, &format!("is not between {low} and {high}")));
        }
        Ok(Some(value))
    }

    fn count(&self, column: &str) -> Result<Option<u32>> {
        let Some(value) = self.number(column, 1.0, f64::from(MAX_GPUS))? else { return Ok(None) };
        if value.fract() != 0.0 {
            return Err(self.bad(column, "is no whole number"));
        }
        Ok(Some(value as u32))
    }

    fn sample(&self, wanted: Purpose) -> Result<Sample> {
        let measured = |column: &str, low: f64, high: f64| match wanted {
            Purpose::Measurements => self.number(column, low, high),
            Purpose::Questions => Ok(None),
        };
        let text = |column: &str| self.cell(column).map(ToOwned::to_owned);
        let needed = |column: &str| text(column).ok_or_else(|| self.bad(column, "is needed in every row"));
        let gpus = self.count("gpus")?.ok_or_else(|| self.bad("gpus", "is needed in every row"))?;
        let nodes = self.count("nodes")?;
        if nodes.is_some_and(|n| n > gpus) {
            return Err(self.bad("nodes", "is more than there are GPUs"));
        }
        Ok(Sample {
            profile: needed("profile")?,
            model_family: text("model_family"),
            params_m: self.number("params_m", 0.0, 1e12)?,
            batch: self.number("batch", 0.0, 1e12)?,
            gpu_type: needed("gpu_type")?,
            gpus,
            nodes: nodes.unwrap_or(gpus.div_ceil(USUAL_NODE)),
            power_limit_w: self.number("power_limit_w", 1.0, MAX_WATTS)?,
            epoch_s: measured("epoch_s", MIN_EPOCH, MAX_EPOCH)?,
            power_w: measured("power_w", 0.1, MAX_WATTS * f64::from(gpus))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "profile,model_family,params_m,batch,gpu_type,gpus,nodes,power_limit_w,epoch_s,power_w\n";

    fn parse(bytes: &[u8]) -> Result<Table> {
        super::parse(bytes, Purpose::Measurements)
    }

    #[test]
    fn columns_may_be_anywhere_cells_quoted_lines_end_as_they_like() {
        let text = "\u{feff}gpus,gpu_type,note,profile,epoch_s\r\n2,\"T4, the \"\"small\"\" one\",x,a,12.5\r\n\r\n 4 ,T4,,b,\r\n";
        let table = parse(text.as_bytes()).unwrap();
        assert_eq!(table.samples.len(), 2);
        let Sample { gpu_type, gpus, nodes, epoch_s, .. } = &table.samples[0];
        assert_eq!((gpu_type.as_str(), *gpus, *nodes, *epoch_s), ("T4, the \"small\" one", 2, 1, Some(12.5)));
        assert_eq!((table.samples[1].gpus, table.samples[1].epoch_s), (4, None));
    }

    #[test]
    fn what_makes_no_sense_is_said_with_its_line_and_column() {
        let cases = [
            ("a,,,,T4,1,1,,-3,\n", "line 2, column epoch_s: \"-3\" is not above zero"),
            ("a,,,,T4,1,1,,NaN,\n", "line 2, column epoch_s: \"NaN\" is no finite number"),
            ("a,,,,T4,1,1,,1e12,\n", "line 2, column epoch_s: \"1e12\" is not between"),
            ("a,,,,T4,1,1,,5,\na,,,,T4,1.5,1,,5,\n", "line 3, column gpus: \"1.5\" is no whole number"),
            ("a,,,,T4,1,1,,5,x\n", "line 2, column power_w: \"x\" is no number"),
            ("a,,,,T4,1,2,,5,\n", "line 2, column nodes: \"2\" is more than there are GPUs"),
            (",,,,T4,1,1,,5,\n", "line 2, column profile: \"\" is needed"),
            ("a,,,,T4,1,1\n", "line 2: 7 cells under 10 columns"),
        ];
        for (rows, wanted) in cases {
            let error = parse(format!("{HEADER}{rows}").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
        let error = parse(b"profile,gpus\na,1\n").unwrap_err().to_string();
        assert!(error.starts_with("line 1, column gpu_type: not in the header"), "{error}");
        assert!(parse(b"").unwrap_err().to_string().starts_with("line 1: no header"));
        assert!(
            parse(b"profile,gpu_type,gpus\n\xff,T4,1\n")
                .unwrap_err()
                .to_string()
                .contains("line 2, column profile: not UTF-8")
        );
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        let bad = "a,,,,T4,1,1,,-5,";
        let quoted = "a,\"of two\nlines\",,,T4,1,1,,5,";
        let cases = [
            (format!("{HEADER}{bad}"), 2),
            (format!("\n\n{HEADER}\n\n{bad}\n"), 6),
            (format!("{HEADER}{quoted}\n{bad}\n"), 4),
            (format!("{HEADER}{}\n{bad}\n", bad.replace("-5", "5")).replace('\n', "\r\n"), 3),
            (format!("\u{feff}{HEADER}\n{bad}\n").replace('\n', "\r\n"), 3),
            (format!("{HEADER}{bad}\n").replace('\n', "\r"), 2),
        ];
        for (text, line) in cases {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}, column epoch_s")), "{text:?}: {error}");
        }
    }

    #[test]
    fn of_questions_the_times_and_watts_are_not_looked_at() {
        let text = format!("{HEADER}a,,,,T4,1,1,, ?,-7\n");
        let table = super::parse(text.as_bytes(), Purpose::Questions).unwrap();
        assert_eq!((table.samples[0].epoch_s, table.samples[0].power_w), (None, None));
        assert_eq!(table.rows[0][8..], [" ?", "-7"]);
    }
}
