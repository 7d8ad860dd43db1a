//! Manifests and tables, read up to a bound: a device or another's file may never end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Largest file of manifests, bytes.
pub const MANIFESTS: u64 = 16 << 20;
/// Largest table of measurements, bytes.
pub const TABLES: u64 = 256 << 20;
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A file's name for messages.
pub fn name_of(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() }
}

/// Reads a text of at most so many bytes; `-` is standard input. The mark by which editors of Windows begin a text in UTF-8 is no part
/// of it.
///
/// # Errors
/// When it cannot be read, is larger or is no text.
pub fn read(file: &Path, most: u64) -> Result<String> {
    let mut text = String::from_utf8(read_bytes(file, most)?).context("is no text in UTF-8")?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.remove(0);
    }
    Ok(text)
}

/// Reads at most so many bytes; `-` is standard input.
///
/// # Errors
/// When it cannot be read or is larger.
pub fn read_bytes(file: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if file.as_os_str() == "-" {
        std::io::stdin().take(most + 1).read_to_end(&mut bytes)?;
    } else {
        File::open(file)?.take(most + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > most {
        bail!("is larger than {} MiB", most >> 20);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        assert_eq!(read(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string(), "is larger than 1 MiB");
        assert!(read(Path::new("/dev/null"), 1).unwrap().is_empty());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_script_or_a_manifest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["#!/bin/bash\n#SBATCH --gpus=1\ntrue\n", "kind: TrainingJob\nspec: {}\n"] {
            std::fs::write(file.path(), format!("\u{feff}{text}")).unwrap();
            let text = read(file.path(), MANIFESTS).unwrap();
            let made = andreas_workloads::convert::convert(&text, None, &[]).unwrap();
            assert_eq!((made.len(), text.starts_with('\u{feff}')), (1, false));
        }
    }
}
