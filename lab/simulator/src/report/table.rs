//! Comparison tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Report, title};
use crate::outcome::{Outcome, Spread, Summary};

/// Column heads and cells, in the terminal and on the page.
pub(super) const HEAD: [&str; 25] = [
    "METHOD",
    "TOTAL",
    "+IDLE",
    "OF FIRST %",
    "ENERGY",
    "TARDINESS",
    "MISSES",
    "TURNAROUND",
    "KWH ALL",
    "KWH JOBS",
    "KWH HOSTS",
    "KWH EMPTY",
    "KWH IDLE",
    "SLEEPS",
    "LATE",
    "MEAN H",
    "P95 H",
    "RESTARTS",
    "FAILURES",
    "LOST H",
    "OVER BUDGET",
    "UNFINISHED",
    "GAP %",
    "MISSED %",
    "MS MEAN/P99",
];

/// The cells of an outcome; `first` is the one that it is compared with.
pub(super) fn cells(outcome: &Outcome, first: &Outcome) -> [String; 25] {
    let s = &outcome.replayed.summary;
    let of = |figure: fn(&Summary) -> f64, decimals| figures(outcome.spread(figure), decimals);
    let money = |figure: fn(&Summary) -> f64| money(outcome.spread(figure));
    let most = |figure: fn(&Summary) -> f64| outcome.runs.iter().map(figure).fold(0.0, f64::max);
    let percent = |figure: fn(&Summary) -> Option<f64>| {
        let stated: Vec<f64> = outcome.runs.iter().filter_map(figure).collect();
        let mean = Spread::from_values(stated.iter().copied()).mean;
        if stated.is_empty() { "-".to_owned() } else { format!("{:.2}", 100.0 * mean) }
    };
    [
        title(outcome),
        money(|s| s.total.0),
        money(|s| s.total_with_idle.0),
        relative(outcome, first),
        money(|s| s.energy_cost.0),
        money(|s| s.tardiness_cost.0),
        money(|s| s.miss_cost.0),
        money(|s| s.turnaround_cost.0),
        of(|s| s.energy().kwh(), 0),
        of(|s| s.job_energy.kwh(), 0),
        of(|s| (s.host_energy + s.wake_energy).kwh(), 0),
        of(|s| s.empty_host_energy.kwh(), 0),
        of(|s| s.idle_energy.kwh(), 0),
        of(|s| s.sleeps as f64, 0),
        format!("{}/{}", of(|s| s.late_jobs as f64, 0), s.with_deadline),
        of(|s| s.mean_turnaround.0 / 3600.0, 2),
        of(|s| s.p95_turnaround.0 / 3600.0, 2),
        of(|s| s.restarts as f64, 0),
        of(|s| s.failures as f64, 0),
        of(|s| s.lost_work.0 / 3600.0, 1),
        format!("{:.0} / {:.0} s", most(|s| s.planned_violations as f64), most(|s| s.violation_time.0)),
        of(|s| s.unfinished as f64, 0),
        percent(|s| s.mean_gap),
        percent(|s| s.mean_missed_saving),
        format!("{:.1}/{:.1}", outcome.decision_times.mean_ms, outcome.decision_times.p99_ms),
    ]
}

/// A mean, with its standard deviation where it has one.
fn figures(spread: Spread, decimals: usize) -> String {
    let Spread { mean, sd } = spread;
    if sd > 0.0 { format!("{mean:.decimals$} ± {sd:.decimals$}") } else { format!("{mean:.decimals$}") }
}

fn money(amount: Spread) -> String {
    figures(amount, if amount.mean.abs() >= 1000.0 { 0 } else { 2 })
}

/// The whole cost as a share of another's, its standard deviation, and in brackets how much single jobs decide it.
fn relative(outcome: &Outcome, first: &Outcome) -> String {
    if std::ptr::eq(outcome, first) {
        return "100".to_owned();
    }
    let (ratio, jackknife) = outcome.relative_cost(first);
    let percent = Spread { mean: 100.0 * ratio.mean, sd: 100.0 * ratio.sd };
    format!("{} ({:.1})", figures(percent, 1), 100.0 * jackknife)
}

/// The same table as Markdown.
pub fn markdown(report: &Report<'_>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&HEAD.map(str::to_owned));
    text += &line(&HEAD.map(|_| "---".to_owned()));
    for outcome in report.outcomes {
        text += &line(&cells(outcome, &report.outcomes[0]));
    }
    format!("**{}**\n\n{text}", report.scenario.name)
}

/// Totals (without idle GPUs) of several scenarios under the same methods, as Markdown: one row per scenario.
pub fn matrix(reports: &[Report<'_>]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let titles: Vec<String> = first.outcomes.iter().map(title).collect();
    let mut text = format!("| scenario | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
    for report in reports {
        let totals: Vec<String> = report.outcomes.iter().map(|o| money(o.spread(|s| s.total.0))).collect();
        text += &format!("| {} | {} |\n", report.scenario.name, totals.join(" | "));
    }
    text
}

/// One row per outcome, in money. TOTAL excludes idle draw, +IDLE includes it. OF FIRST: +IDLE as a share of the first
/// row's, and in brackets its standard error by a jackknife over the jobs. FAILURES: runs of jobs that a failing node ended.
/// LOST H: hours of training that stops and failures undid. OVER BUDGET: planned violations and measured seconds. GAP and
/// MISSED: mean distance to the bounds of single decisions, as a part of the cost and of what planning saves. With several runs
/// cells are means with standard deviations, GAP and MISSED means alone, and OVER BUDGET the most of any run.
pub fn table(report: &Report<'_>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEAD);
    for outcome in report.outcomes {
        table.add_row(cells(outcome, &report.outcomes[0]));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n{table}", report.scenario.name)
}
