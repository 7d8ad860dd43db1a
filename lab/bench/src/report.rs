//! Tables of figures, and the machine that they were taken on.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

/// How long the machine is looked at before anything starts.
const LOOK: Duration = Duration::from_secs(2);

/// What the figures were taken on, and what else it did just before.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    cores: usize,
    memory_gib: f64,
    kernel: String,
    busy_cores: f64,
    profile: &'static str,
}

impl Machine {
    /// Looks for some seconds.
    pub async fn look() -> Self {
        let before = busy_and_all();
        tokio::time::sleep(LOOK).await;
        let after = busy_and_all();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (busy, all) = (after.0 - before.0, (after.1 - before.1).max(1.0));
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let total = total.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
        Self {
            cores,
            memory_gib: total.unwrap_or(0.0) / 1024.0 / 1024.0,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            busy_cores: busy / all * cores as f64,
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cores, {:.0} GiB, Linux {}, {} build; {:.1} cores busy with other things before the start",
            self.cores, self.memory_gib, self.kernel, self.profile, self.busy_cores
        )
    }
}

/// Time of all cores spent on anything, and at all, in ticks.
fn busy_and_all() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).take(8).filter_map(|text| text.parse().ok()).collect();
    let all: f64 = ticks.iter().sum();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// One table.
#[derive(Clone, Debug)]
pub(super) struct Report {
    /// Its mark in a Markdown file.
    pub name: &'static str,
    /// The command that makes it again.
    pub command: String,
    /// What one must know to read it.
    pub notes: Vec<String>,
    /// Headings, with units.
    pub columns: Vec<&'static str>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// Everything measured.
    pub figures: Value,
    began: Timestamp,
}

impl Report {
    /// An empty table.
    pub fn new(name: &'static str, command: String, columns: &[&'static str]) -> Self {
        Self {
            name,
            command: format!("target/release/bench {command}"),
            notes: Vec::new(),
            columns: columns.to_vec(),
            rows: Vec::new(),
            figures: Value::Null,
            began: Timestamp::now(),
        }
    }

    /// As it is put into the documentation.
    pub fn markdown(&self, machine: &Machine) -> String {
        let mut text =
            format!("`{}`  \n{} UTC; {machine}\n\n", self.command, self.began.strftime("%Y-%m-%d %H:%M"));
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text += &line(&self.columns.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>());
        text += &format!("|{}\n", "---|".repeat(self.columns.len()));
        for row in &self.rows {
            text += &line(row);
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        for note in &self.notes {
            text += &format!("* {note}\n");
        }
        text
    }

    /// The same for programs.
    pub fn json(&self, machine: &Machine) -> Value {
        json!({
            "name": self.name, "command": self.command, "at": self.began.to_string(),
            "machine": machine.to_string(), "figures": self.figures,
            "columns": self.columns, "rows": self.rows,
        })
    }
}

/// Puts a table between its marks in a file, or at the end with new marks.
///
/// # Errors
/// When the file cannot be read or written, or has only one of the marks.
pub(super) fn put_into(path: &Path, name: &str, table: &str) -> Result<()> {
    let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
    let text = with_table(&text, name, table).with_context(|| format!("{}", path.display()))?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn with_table(text: &str, name: &str, table: &str) -> Result<String> {
    let (from, to) = (format!("<!-- bench {name} -->\n"), format!("<!-- end {name} -->\n"));
    let Some(start) = text.find(&from) else {
        return Ok(format!("{text}\n{from}\n{table}\n{to}"));
    };
    let inside = start + from.len();
    let end = text[inside..].find(&to).with_context(|| format!("no {}", to.trim()))? + inside;
    Ok(format!("{}\n{table}\n{}", &text[..inside], &text[end..]))
}

/// The median of some figures; 0 of none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// The smallest of some figures that so large a part of them do not exceed; 0 of none.
pub(super) fn quantile(values: impl IntoIterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * part).ceil() as usize;
    values.get(rank.saturating_sub(1).min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Median, and the range where there were several.
pub(super) fn spread(values: &[f64], digits: usize) -> String {
    let middle = median(values.iter().copied());
    if values.len() < 2 {
        return format!("{middle:.digits$}");
    }
    let (least, most) = (quantile(values.iter().copied(), 0.0), quantile(values.iter().copied(), 1.0));
    format!("{middle:.digits$} ({least:.digits$}-{most:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_one_before_it() {
        let first = with_table("# Title\n", "bind", "old").unwrap();
        let other = with_table(&first, "waiting", "w").unwrap();
        let again = with_table(&other, "bind", "new").unwrap();
        assert_eq!(
            again,
            "# Title\n\n<!-- bench bind -->\n\nnew\n<!-- end bind -->\n\n<!-- bench waiting -->\n\nw\n<!-- end waiting -->\n"
        );
        assert!(with_table("<!-- bench bind -->\n", "bind", "x").is_err());
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [5.0, 1.0, 4.0, 2.0];
        assert_eq!((median(values), quantile(values, 0.99), quantile(values, 0.0)), (2.0, 5.0, 1.0));
        assert_eq!(median([]), 0.0);
        assert_eq!(spread(&[1.0, 3.0, 2.0], 1), "2.0 (1.0-3.0)");
    }
}
