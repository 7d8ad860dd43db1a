//! For tests of the programs, behind the feature `testing`: checks of exposed metrics against their lists, and a leadership
//! without an election.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::Leadership;
use crate::metrics::{Kind, Metric};

/// A leadership that lasts until the process ends.
#[must_use]
pub fn always_leading() -> Leadership {
    // 136 years.
    Leadership::new(Instant::now() + Duration::from_secs(1 << 32), Duration::ZERO, 0)
}

/// Converts OpenMetrics to the older text format (0.0.4), which `promtool check metrics` reads.
#[must_use]
pub fn classic(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = "";
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Its name depends on the type, which follows.
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.rsplit_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let kind =
                if matches!(kind, "counter" | "gauge" | "histogram" | "summary") { kind } else { "untyped" };
            text += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// Differences between an exposition in the older text format and the `listed` metrics: names, types, help,
/// unlisted labels and missing metrics.
#[must_use]
pub fn deviations(exposition: &str, listed: &[Metric]) -> Vec<String> {
    let mut wrong = Vec::new();
    let by_name: BTreeMap<&str, &Metric> = listed.iter().map(|metric| (metric.name, metric)).collect();
    let mut seen = BTreeSet::new();
    for line in exposition.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            match by_name.get(name) {
                None => wrong.push(format!("{name} is not in the list")),
                Some(metric) if help != format!("{}.", metric.help) => wrong.push(format!("{name}: {help}")),
                Some(_) => {}
            }
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.rsplit_once(' ')) {
            if by_name.get(name).is_some_and(|metric| metric.kind.as_str() != kind) {
                wrong.push(format!("{name} is a {kind}"));
            }
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let parts = ["_bucket", "_sum", "_count"];
            let stem = parts.iter().find_map(|part| name.strip_suffix(part));
            let histogram = stem.filter(|stem| by_name.get(stem).is_some_and(|m| m.kind == Kind::Histogram));
            let Some(metric) = by_name.get(histogram.unwrap_or(name)) else {
                wrong.push(format!("{line} is of no metric in the list"));
                continue;
            };
            seen.insert(metric.name);
            let has: BTreeSet<&str> = labels(line).filter(|label| *label != "le").collect();
            if has != metric.labels.iter().copied().collect() {
                wrong.push(format!("{line}: its labels are to be {:?}", metric.labels));
            }
        }
    }
    wrong.extend(
        by_name.keys().filter(|name| !seen.contains(*name)).map(|name| format!("{name} is not there")),
    );
    wrong
}

/// Label names of a sample.
fn labels(line: &str) -> impl Iterator<Item = &str> {
    let inside =
        line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(inside, _)| inside);
    inside.split("\",").filter_map(|pair| pair.split_once('=')).map(|(name, _)| name)
}

/// Violations of the naming rules in a list of metrics; empty if there are none.
#[must_use]
pub fn ill_named(listed: &[Metric]) -> Vec<String> {
    let mut wrong = Vec::new();
    let lower = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    for Metric { name, kind, labels, help } in listed {
        if !lower(name) || labels.iter().any(|label| !lower(label)) {
            wrong.push(format!("{name}: names are lower case with underscores"));
        }
        if name.ends_with("_total") != (*kind == Kind::Counter) {
            wrong.push(format!("{name}: counters, and they alone, end with _total"));
        }
        if help.is_empty() || help.ends_with('.') {
            wrong.push(format!("{name}: its help is a sentence without a full stop"));
        }
        if labels
            .iter()
            .any(|label| matches!(*label, "job" | "pod" | "name" | "instance" | "namespace" | "node"))
        {
            wrong.push(format!("{name}: {labels:?}"));
        }
    }
    let mut names: Vec<_> = listed.iter().map(|metric| metric.name).collect();
    names.sort_unstable();
    wrong.extend(names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| format!("{} twice", pair[0])));
    wrong
}
