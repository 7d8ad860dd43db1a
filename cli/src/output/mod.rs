//! How commands print: `-o table|wide|json|yaml|name`.
//!
//! **Flows**: rows in, text out. One list of [`Column`]s says what a table shows; JSON and YAML are the same rows, with
//! their units in the names of the fields. Nothing here reads the cluster or the clock.
//!
//! Text from the cluster may come from a container: control characters never reach the terminal.

mod amounts;
mod table;

use std::io::Write as _;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

pub use amounts::{ago, ago_or_in, bar, duration, energy, money, percent, power, short_gpu_type};
pub use table::{Column, moves, plain, plain_lines, table};

/// How a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// `kind/name`, one a line.
    Name,
}

/// The flags of output.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// How to print
    #[arg(long = "output", short = 'o', value_name = "FORMAT", value_enum, default_value_t)]
    pub format: Format,
    /// Leave the headings of tables out
    #[arg(long)]
    pub no_headers: bool,
}

/// A list as JSON and YAML have it.
#[derive(Serialize)]
struct Items<'a, T> {
    items: &'a [T],
}

/// A list in the requested format; `name` gives the line of `-o name`.
///
/// # Errors
/// When a row cannot be written as JSON or YAML.
pub fn list<T: Serialize>(
    args: OutputArgs,
    columns: &[Column<T>],
    rows: &[T],
    name: impl Fn(&T) -> String,
) -> Result<String> {
    match args.format {
        Format::Table | Format::Wide => {
            Ok(table(columns, rows, args.format == Format::Wide, !args.no_headers))
        }
        Format::Name => Ok(rows.iter().map(|row| plain(&name(row)) + "\n").collect()),
        Format::Json | Format::Yaml => document(args.format, &Items { items: rows }),
    }
}

/// One value in the requested format; `text` gives the table form, `name` the line of `-o name`.
///
/// # Errors
/// When it cannot be written as JSON or YAML.
pub fn object<T: Serialize>(
    args: OutputArgs,
    value: &T,
    text: impl FnOnce(&T) -> String,
    name: impl FnOnce(&T) -> String,
) -> Result<String> {
    match args.format {
        Format::Table | Format::Wide => Ok(text(value)),
        Format::Name => Ok(plain(&name(value)) + "\n"),
        Format::Json | Format::Yaml => document(args.format, value),
    }
}

/// As JSON, or as YAML.
///
/// # Errors
/// When the value cannot be written so.
pub fn document<T: Serialize>(format: Format, value: &T) -> Result<String> {
    match format {
        Format::Yaml => yaml(value),
        _ => Ok(serde_json::to_string_pretty(value).context("as JSON")? + "\n"),
    }
}

/// As YAML that every reader reads.
fn yaml<T: Serialize>(value: &T) -> Result<String> {
    // A block whose first line begins with a tab is taken by go-yaml for one that is indented by it.
    let blocks = !tab_begins_a_line(&serde_json::to_value(value).context("as JSON")?);
    let options = serde_saphyr::ser_options! { prefer_block_scalars: blocks };
    let mut text = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut text, value, options).context("as YAML")?;
    Ok(text)
}

fn tab_begins_a_line(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => text.trim_start_matches(['\n', ' ']).starts_with('\t') && text.contains('\n'),
        Value::Array(all) => all.iter().any(tab_begins_a_line),
        Value::Object(all) => all.values().any(tab_begins_a_line),
        _ => false,
    }
}

/// Writes a line to standard error. One that is closed or full ends nothing.
pub fn print_error(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes to standard output.
///
/// # Errors
/// When the reader has closed it.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        name: &'static str,
        watts: i64,
    }

    const COLUMNS: [Column<Row>; 2] = [
        Column::text("NAME", |row: &Row| row.name.into()),
        Column::number("W", |row: &Row| row.watts.to_string()).wide(),
    ];
    const ROWS: [Row; 2] = [Row { name: "a", watts: 7 }, Row { name: "b", watts: 1200 }];

    fn of(format: Format) -> String {
        let args = OutputArgs { format, no_headers: false };
        list(args, &COLUMNS, &ROWS, |row| format!("gpunode/{}", row.name)).unwrap()
    }

    #[test]
    fn a_text_that_begins_with_a_tab_is_quoted() {
        let script = serde_json::json!({"args": ["\n\tset -e\n\ttorchrun t.py\n"], "other": "a\nb\n"});
        let text = document(Format::Yaml, &script).unwrap();
        assert!(!text.contains('|') && text.contains("\\tset -e"), "{text}");
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), script);
        let rows = of(Format::Yaml);
        assert!(rows.find("name") < rows.find("watts"), "in the order of JSON: {rows}");
        let plain = document(Format::Yaml, &serde_json::json!({"other": "a\n\tb\n"})).unwrap();
        assert!(plain.contains('|'), "{plain}");
    }

    #[test]
    fn every_format_shows_the_same_rows() {
        assert_eq!(of(Format::Table), "NAME\na\nb\n");
        assert_eq!(of(Format::Wide), "NAME      W\na         7\nb      1200\n");
        assert_eq!(of(Format::Name), "gpunode/a\ngpunode/b\n");
        let json: serde_json::Value = serde_json::from_str(&of(Format::Json)).unwrap();
        assert_eq!(json["items"][1]["watts"], 1200);
        let yaml: serde_json::Value = serde_saphyr::from_str(&of(Format::Yaml)).unwrap();
        assert_eq!(yaml, json);
    }
}
