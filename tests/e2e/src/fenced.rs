//! Fenced blocks of the pages below `docs`: what they tell people to type.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// The insides of all blocks of a language in a text, in their order.
pub fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("\n```{language}\n");
    text.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0)).collect()
}

/// The first block of a language below a heading of a page.
///
/// # Errors
/// When there is no such page, heading or block.
pub fn below(page: &str, heading: &str, language: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (_, rest) =
        text.split_once(&format!("\n## {heading}\n")).with_context(|| format!("{page}: no {heading}"))?;
    let first = blocks(rest, language).first().map(|block| (*block).to_owned());
    first.with_context(|| format!("{page}: no block of {language} below {heading}"))
}

/// Lines of all blocks of a language in the runbooks, each with its page.
///
/// # Errors
/// When a page cannot be read, or none has such a block.
pub fn lines_of_runbooks(language: &str) -> Result<Vec<(String, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let page = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| page.clone())?;
        let lines = blocks(&text, language).into_iter().flat_map(str::lines);
        found.extend(lines.map(|line| (page.clone(), line.to_owned())));
    }
    found.sort();
    ensure!(!found.is_empty(), "no block of {language} in {}", folder.display());
    Ok(found)
}
