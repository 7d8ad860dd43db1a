//! A self-contained HTML page, without scripts, fonts or links.

use std::fmt::Write;

use andreas_charts::escape;

use super::picture::{comparison, nodes, part_drawn};
use super::table::{HEAD, cells};
use super::{Report, title};

const STYLE: &str = ":root{color-scheme:light dark;--ink:#222;--page:#fff;--line:#ddd}\
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--page:#181a1b;--line:#3a3d3f}}\
body{font:14px system-ui,sans-serif;margin:2em auto;max-width:1180px;padding:0 1em;color:var(--ink);background:var(--page)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:12px}\
th,td{padding:3px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}\
th{white-space:normal}th:first-child{text-align:left;white-space:nowrap;position:sticky;left:0;background:var(--page)}svg{width:100%;height:auto;margin:6px 0 14px}\
summary{cursor:pointer;font-weight:600;margin:8px 0}";

/// The page, with a section per report.
pub fn html(reports: &[Report<'_>]) -> String {
    let names: Vec<String> = reports.iter().map(|r| escape(&r.scenario.name)).collect();
    let title = names.join(", ");
    let mut page = format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>\
         <meta name='viewport' content='width=device-width'><title>{title}</title><style>{STYLE}</style></head><body>"
    );
    for report in reports {
        section(report, &mut page);
    }
    page + "</body></html>\n"
}

fn section(report: &Report<'_>, page: &mut String) {
    let scenario = report.scenario;
    let gpus: u32 = scenario.nodes.iter().map(|n| n.gpus.0).sum();
    let _ = write!(
        page,
        "<h1>{}</h1><p>{} nodes, {gpus} GPUs, {} jobs. Money in the tariff's currency; TOTAL leaves idle GPUs and \
         hosts out, +IDLE has them; OF FIRST is +IDLE as a share of the first row's (in brackets: its standard error over \
         the jobs). FAILURES: runs ended by a failing node. LOST H: hours of training done again. OVER BUDGET: decisions \
         above the budget / seconds measured above it, at most. MISSED: what single decisions may have missed of what \
         planning saves.</p><div class='wide'><table>",
        escape(&scenario.name),
        scenario.nodes.len(),
        scenario.counted()
    );
    // A row for each figure: there are more figures than methods, and a page is longer than it is wide.
    let columns: Vec<_> = report.outcomes.iter().map(|outcome| cells(outcome, &report.outcomes[0])).collect();
    for (row, head) in HEAD.iter().enumerate() {
        let kind = if row == 0 { "th" } else { "td" };
        let _ = write!(page, "<tr><th>{head}</th>");
        for column in &columns {
            let _ = write!(page, "<{kind}>{}</{kind}>", escape(&column[row]));
        }
        *page += "</tr>";
    }
    *page += "</table></div><h2>Methods side by side</h2>";
    *page += &picture_or_error(comparison(report.outcomes));
    *page += "<h2>Nodes</h2><p>A bar is a run of a job. Orange: the job ended after its deadline.</p>";
    for (i, outcome) in report.outcomes.iter().enumerate() {
        let open = if i == 0 { " open" } else { "" };
        let _ = write!(page, "<details{open}><summary>{}</summary>", escape(&title(outcome)));
        if let Some(part) = part_drawn(scenario, outcome) {
            let _ = write!(page, "<p>{part}</p>");
        }
        *page += &picture_or_error(nodes(scenario, outcome));
        *page += "</details>";
    }
}

fn picture_or_error(picture: Result<String, andreas_charts::Error>) -> String {
    match picture {
        // Inside a page the name space is known.
        Ok(svg) => svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1),
        Err(error) => format!("<p>not drawn: {}</p>", escape(&error.to_string())),
    }
}
