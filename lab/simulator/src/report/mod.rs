//! Reports of outcomes: a table, Markdown and JSON.
//!
//! **Data flow**: a scenario's name and its [`crate::Outcome`]s become text. **Not allowed**: figures that
//! are not in the outcomes.

mod gangs;
mod table;

pub use gangs::gang_waits;
pub use table::{markdown, matrix, table};

use serde::Serialize;

use crate::outcome::Outcome;
use crate::scenario::Scenario;

/// The outcomes of one scenario.
#[derive(Debug)]
pub struct Report<'a> {
    /// The replayed scenario.
    pub scenario: &'a Scenario,
    /// Its outcomes, one per method and variant.
    pub outcomes: &'a [Outcome],
}

/// A method and its variant.
pub(crate) fn title(outcome: &Outcome) -> String {
    if outcome.label.is_empty() {
        outcome.method.to_string()
    } else {
        format!("{} {}", outcome.method, outcome.label)
    }
}

/// Everything as JSON: a list of `{"scenario", "jobs", "nodes", "gpus", "outcomes": [{"method", "label",
/// "seed", "runs", "waits", "summary", "jobs", "decision_times"}]}`, in seconds, joules and money.
///
/// # Errors
/// None expected: numbers are finite and keys are text.
pub fn json(reports: &[Report<'_>]) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Document<'a> {
        scenario: &'a str,
        jobs: usize,
        nodes: usize,
        gpus: u32,
        outcomes: &'a [Outcome],
    }
    let document = |report: &Report<'_>| -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(Document {
            scenario: &report.scenario.name,
            jobs: report.scenario.counted(),
            nodes: report.scenario.nodes.len(),
            gpus: report.scenario.nodes.iter().map(|n| n.gpus.0).sum(),
            outcomes: report.outcomes,
        })
    };
    let documents = reports.iter().map(document).collect::<serde_json::Result<Vec<_>>>()?;
    serde_json::to_string_pretty(&documents)
}
