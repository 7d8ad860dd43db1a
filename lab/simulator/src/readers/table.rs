//! CSV files, plain or gzipped.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;

use super::ReadError;

/// Opens a file; `.gz` files are decompressed.
pub fn open(file: &Path) -> Result<Box<dyn Read>, ReadError> {
    let plain = File::open(file).map_err(|source| ReadError::Io { file: file.to_owned(), source })?;
    let plain = BufReader::new(plain);
    Ok(if file.extension().is_some_and(|e| e == "gz") {
        Box::new(MultiGzDecoder::new(plain))
    } else {
        Box::new(plain)
    })
}

/// `name` in a folder, or `name.gz` if only that exists.
pub fn in_folder(folder: &Path, name: &str) -> PathBuf {
    let (plain, packed) = (folder.join(name), folder.join(format!("{name}.gz")));
    if !plain.exists() && packed.exists() { packed } else { plain }
}

/// All rows of a CSV file with a header.
pub fn rows<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>, ReadError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(open(file)?);
    let headers = reader.headers().cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for (i, row) in reader.deserialize().enumerate() {
        rows.push(row.map_err(|e| problem(file, i + 1, &headers, &e))?);
    }
    Ok(rows)
}

/// File, row and column of an error of the CSV reader.
fn problem(file: &Path, row: usize, headers: &csv::StringRecord, error: &csv::Error) -> ReadError {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            let column = err.field().and_then(|f| headers.get(usize::try_from(f).ok()?));
            let line = error.position().map_or_else(String::new, |p| format!(" (line {})", p.line()));
            let at = column.map_or_else(String::new, |c| format!(", {c}"));
            ReadError::bad(file, format!("row {row}{line}{at}"), err.kind().to_string())
        }
        _ => ReadError::bad(file, format!("row {row}"), error.to_string()),
    }
}
