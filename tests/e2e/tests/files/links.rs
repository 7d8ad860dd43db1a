//! Pages: every relative link leads to a file, every anchor to a heading, every page is on the site, and no upgrade keeps the defaults of an
//! older chart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

fn root() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?)
}

/// Pages below a folder, without what is built or belongs to others.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir()
            && !name.starts_with('.')
            && !["target", "node_modules", "build"].contains(&name.as_str())
        {
            pages(&path, found)?;
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    Ok(())
}

/// The text without fenced blocks and code in a line.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            kept += line;
            kept.push('\n');
        }
    }
    let parts = kept.split('`').enumerate();
    parts.map(|(number, part)| if number % 2 == 0 { part } else { "code" }).collect()
}

/// Targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let after = prose.match_indices("](").map(|(at, found)| &prose[at + found.len()..]);
    after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// Anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let mut numbered = anchor.clone();
        for number in 1.. {
            if found.insert(numbered.clone()) {
                break;
            }
            numbered = format!("{anchor}-{number}");
        }
    }
    found
}

#[test]
fn every_link_of_every_page_leads_somewhere() -> Result<()> {
    let root = root()?;
    let mut all = Vec::new();
    pages(&root, &mut all)?;
    ensure!(all.len() > 60, "only {} pages", all.len());
    let mut dead = Vec::new();
    for page in all {
        let text = std::fs::read_to_string(&page)?;
        let name = page.strip_prefix(&root)?.display().to_string();
        // Its first page is the README on the site.
        let of_site = name == "docs/SUMMARY.md";
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") || of_site && link == "introduction.md" {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name(path) };
            if !target.exists() {
                dead.push(format!("{name}: {link}: no such file"));
            } else if !anchor.is_empty() && target.extension().is_some_and(|end| end == "md") {
                let there = std::fs::read_to_string(&target).with_context(|| target.display().to_string())?;
                if !anchors(&there).contains(anchor) {
                    dead.push(format!("{name}: {link}: no such heading"));
                }
            }
        }
    }
    ensure!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
    Ok(())
}

/// What a block has on one line, also where the line is continued.
fn commands(text: &str) -> Vec<String> {
    let parts = text.split("```").enumerate().filter(|(number, _)| number % 2 == 1);
    parts
        .flat_map(|(_, block)| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// `--reuse-values` keeps the older chart's defaults: values that are new in this one are missing.
#[test]
fn no_page_upgrades_with_the_defaults_of_an_older_chart() -> Result<()> {
    let root = root()?;
    let mut all = Vec::new();
    pages(&root, &mut all)?;
    for page in all {
        let text = std::fs::read_to_string(&page)?;
        for command in commands(&text) {
            ensure!(!command.contains(" --reuse-values"), "{}: {command}", page.display());
        }
    }
    Ok(())
}

/// `hack/docs` fails for links that lead nowhere on the site and for pages that SUMMARY.md does not reach.
#[test]
fn the_site_reaches_every_page() -> Result<()> {
    let out = tempfile::tempdir()?;
    let made = std::process::Command::new(root()?.join("hack/docs")).arg(out.path()).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let summary = std::fs::read_to_string(out.path().join("src/SUMMARY.md"))?;
    for link in links(&summary) {
        ensure!(out.path().join("src").join(&link).is_file(), "{link} is in the summary and was not written");
    }
    Ok(())
}

#[test]
fn links_in_code_are_no_links_and_headings_are_numbered() {
    assert_eq!(links("[a](b.md) `[c](d)`\n```\n[e](f)\n```\n[g\nh](i#j)"), ["b.md", "i#j"]);
    let anchors = anchors("# What is `x`?\n## A\n## A\n```\n# no\n```\n");
    assert!(["what-is-x", "a", "a-1"].iter().all(|anchor| anchors.contains(*anchor)), "{anchors:?}");
    assert_eq!(anchors.len(), 3);
}
