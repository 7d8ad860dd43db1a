//! A self-contained HTML page, without scripts, fonts or links.

use std::fmt::Write;

use super::svg::{energy, escape, gantt, lateness, power};
use super::table::{HEAD, cells};
use super::{Report, title};

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:2em auto;max-width:1180px;color:#222;background:#fff}\
table{border-collapse:collapse;font-size:12px}th,td{padding:3px 8px;text-align:right;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}svg{width:100%;font-size:11px;margin:6px 0 14px}svg text{fill:#444}\
.free{fill:#f1f1f1}.jobs{fill:#4a7fb5}.nodes{fill:#9dbad6}.idle{fill:#ddd}.budget{fill:none;stroke:#c33;stroke-width:1.5}\
.deadline{stroke:#999}.late{fill:#c33}.early{fill:#4a7fb5}summary{cursor:pointer;font-weight:600;margin:8px 0}\
.key span{display:inline-block;width:1em;height:.8em;margin:0 .3em 0 1em}";

/// The page, with a section per report.
pub fn html(reports: &[Report<'_>]) -> String {
    let names: Vec<String> = reports.iter().map(|r| escape(&r.scenario.name)).collect();
    let title = names.join(", ");
    let mut page = format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style></head><body>"
    );
    for report in reports {
        part(report, &mut page);
    }
    page + "</body></html>\n"
}

fn part(report: &Report<'_>, page: &mut String) {
    let scenario = report.scenario;
    let gpus: u32 = scenario.nodes.iter().map(|n| n.gpus.0).sum();
    let _ = write!(
        page,
        "<h1>{}</h1><p>{} nodes, {gpus} GPUs, {} jobs. Money in the tariff's currency; TOTAL leaves idle GPUs out, +IDLE has \
         them. OVER BUDGET: decisions above the budget / seconds measured above it.</p><table><tr>",
        escape(&scenario.name),
        scenario.nodes.len(),
        scenario.jobs.len()
    );
    for head in HEAD {
        let _ = write!(page, "<th>{head}</th>");
    }
    *page += "</tr>";
    for outcome in report.outcomes {
        *page += "<tr>";
        for cell in cells(outcome) {
            let _ = write!(page, "<td>{}</td>", escape(&cell));
        }
        *page += "</tr>";
    }
    *page += "</table><h2>Energy by kind</h2><p class='key'><span style='background:#4a7fb5'></span>jobs' GPUs\
              <span style='background:#9dbad6'></span>busy nodes<span style='background:#ddd'></span>idle GPUs</p>";
    *page += &energy(report.outcomes);
    for (i, outcome) in report.outcomes.iter().enumerate() {
        let open = if i == 0 { " open" } else { "" };
        let _ = write!(page, "<details{open}><summary>{}</summary>", escape(&title(outcome)));
        *page += "<h3>Nodes (red: ends after its deadline)</h3>";
        *page += &gantt(scenario, outcome);
        *page += "<h3>Power over time (red line: budget)</h3>";
        *page += &power(outcome);
        *page += "<h3>Lateness by submission (1 = as long again as it was allowed)</h3>";
        *page += &lateness(outcome);
        *page += "</details>";
    }
}
