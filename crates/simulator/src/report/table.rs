//! Comparison tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Report, title};
use crate::outcome::Outcome;

/// Column heads and cells, in the terminal and on the page.
pub(super) const HEAD: [&str; 18] = [
    "METHOD",
    "TOTAL",
    "+IDLE",
    "ENERGY",
    "TARDINESS",
    "MISSES",
    "TURNAROUND",
    "KWH JOBS",
    "KWH NODES",
    "KWH IDLE",
    "LATE",
    "MEAN H",
    "P95 H",
    "RESTARTS",
    "OVER BUDGET",
    "UNFINISHED",
    "GAP %",
    "MS MEAN/P99",
];

pub(super) fn cells(outcome: &Outcome) -> [String; 18] {
    let s = &outcome.replayed.summary;
    let hours = |seconds: f64| format!("{:.2}", seconds / 3600.0);
    [
        title(outcome),
        money(s.total.0),
        money(s.total_with_idle.0),
        money(s.energy_cost.0),
        money(s.tardiness_cost.0),
        money(s.miss_cost.0),
        money(s.turnaround_cost.0),
        format!("{:.1}", s.job_energy.kwh()),
        format!("{:.1}", s.overhead_energy.kwh()),
        format!("{:.1}", s.idle_energy.kwh()),
        format!("{}/{}", s.late_jobs, s.with_deadline),
        hours(s.mean_turnaround.0),
        hours(s.p95_turnaround.0),
        s.restarts.to_string(),
        format!("{} / {:.0} s", s.planned_violations, s.violation_time.0),
        s.unfinished.to_string(),
        s.mean_gap.map_or_else(|| "-".to_owned(), |g| format!("{:.2}", 100.0 * g)),
        format!("{:.1}/{:.1}", outcome.decision_times.mean_ms, outcome.decision_times.p99_ms),
    ]
}

fn money(amount: f64) -> String {
    if amount.abs() >= 1000.0 { format!("{amount:.0}") } else { format!("{amount:.2}") }
}

/// The same table as Markdown.
pub fn markdown(report: &Report<'_>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&HEAD.map(str::to_owned));
    text += &line(&HEAD.map(|_| "---".to_owned()));
    for outcome in report.outcomes {
        text += &line(&cells(outcome));
    }
    format!("**{}**\n\n{text}", report.scenario.name)
}

/// Totals (without idle GPUs) of several scenarios under the same methods, as Markdown: one row per scenario.
pub fn matrix(reports: &[Report<'_>]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let titles: Vec<String> = first.outcomes.iter().map(title).collect();
    let mut text = format!("| scenario | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
    for report in reports {
        let totals: Vec<String> = report.outcomes.iter().map(|o| money(o.replayed.summary.total.0)).collect();
        text += &format!("| {} | {} |\n", report.scenario.name, totals.join(" | "));
    }
    text
}

/// One row per outcome, in money. TOTAL excludes idle GPUs, +IDLE includes them. OVER BUDGET: planned
/// violations and measured seconds.
pub fn table(report: &Report<'_>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEAD);
    for outcome in report.outcomes {
        table.add_row(cells(outcome));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n{table}", report.scenario.name)
}
