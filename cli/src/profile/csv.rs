//! The table of measurements: CSV with a header, columns in any order, empty cells for what is not known.

use std::path::Path;

use andreas_predictor::table::Sample;
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
/// Longest epoch: a year.
const MAX_EPOCH_S: f64 = 31_536_000.0;
/// Shortest epoch that a clock can tell.
const MIN_EPOCH_S: f64 = 1e-6;
/// Most watts of one GPU.
const MAX_GPU_W: f64 = 10_000.0;
const MAX_GPUS: f64 = 65_536.0;
/// GPUs of one node where a row does not say how many nodes there were.
const USUAL_NODE: u32 = 8;

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
pub(super) fn read(file: &Path) -> Result<Table> {
    let name = file.display();
    let bytes = std::fs::read(file).with_context(|| format!("{name}"))?;
    parse(&bytes).with_context(|| format!("{name}"))
}

fn parse(bytes: &[u8]) -> Result<Table> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(bytes);
    let mut header: Option<Vec<String>> = None;
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    for record in reader.byte_records() {
        let record = record.map_err(|e| anyhow!("{e}"))?;
        let line = record.position().map_or(0, csv::Position::line);
        let mut cells: Vec<String> = Vec::with_capacity(record.len());
        for cell in &record {
            let cell = std::str::from_utf8(cell).map_err(|_| anyhow!("line {line}: not UTF-8"))?;
            cells.push(cell.to_owned());
        }
        let Some(header) = &header else {
            header = Some(checked_header(cells, line)?);
            continue;
        };
        if cells.iter().all(String::is_empty) {
            continue;
        }
        if cells.len() != header.len() {
            bail!("line {line}: {} cells under {} columns", cells.len(), header.len());
        }
        samples.push(Row { header, cells: &cells, line }.sample()?);
        rows.push(cells);
    }
    let header = header.ok_or_else(|| anyhow!("line 1: no header; wanted {}", COLUMNS.join(",")))?;
    Ok(Table { header, rows, samples })
}

fn checked_header(cells: Vec<String>, line: u64) -> Result<Vec<String>> {
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
        self.cells.get(at).map(String::as_str).filter(|c| !c.is_empty())
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
        let Some(value) = self.number(column, 1.0, MAX_GPUS)? else { return Ok(None) };
        if value.fract() != 0.0 {
            return Err(self.bad(column, "is no whole number"));
        }
        Ok(Some(value as u32))
    }

    fn sample(&self) -> Result<Sample> {
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
            power_limit_w: self.number("power_limit_w", 1.0, MAX_GPU_W)?,
            epoch_s: self.number("epoch_s", MIN_EPOCH_S, MAX_EPOCH_S)?,
            power_w: self.number("power_w", 0.1, MAX_GPU_W * f64::from(gpus))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "profile,model_family,params_m,batch,gpu_type,gpus,nodes,power_limit_w,epoch_s,power_w\n";

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
                .contains("line 2: not UTF-8")
        );
    }
}
