//! `queue -o svg`: the timeline as a picture, for pages and reports. It follows the reader's light or dark mode.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::timeline::{BEHIND, Mark, MarkType, Risk, Row, Timeline, tick};
use crate::output::{plain, short_gpu_type};

const WIDTH: i64 = 960;
/// Where the time axis begins and ends.
const LEFT: i64 = 300;
const RIGHT: i64 = WIDTH - 20;
const HEAD: i64 = 62;
const ROW: i64 = 28;
const FOOT: i64 = 44;
/// Most ticks of the time ahead.
const TICKS: i64 = 7;

const STYLE: &str = "<style>\
svg{background:#fff;color:#1d2733;font:13px system-ui,sans-serif}\
text{fill:currentColor}.dim{fill:#5c6b7a}.line{stroke:#e4e8ec}.now{stroke:#1d2733}.past{fill:#b9c2cb}\
.late,.high{fill:#c43c2e;stroke:#c43c2e}.medium{fill:#a86400;stroke:#a86400}.low{fill:#1b7f63;stroke:#1b7f63}\
.none{fill:#4a6f9c;stroke:#4a6f9c}.t{stroke:none}.run{fill-opacity:.55}.tail{fill-opacity:.2}path{fill:none}.due{fill:#1d2733;stroke:#1d2733}\
@media(prefers-color-scheme:dark){svg{background:#12181f;color:#dfe6ec}.dim{fill:#93a1af}.line{stroke:#26303a}\
.now{stroke:#dfe6ec}.past{fill:#4a5763}.late,.high{fill:#f0705f;stroke:#f0705f}.medium{fill:#e2a33c;stroke:#e2a33c}\
.low{fill:#45bf98;stroke:#45bf98}.none{fill:#7fa6d6;stroke:#7fa6d6}.due{fill:#dfe6ec;stroke:#dfe6ec}}</style>\n";

/// The picture. Times of day are those of `zone`.
pub fn svg(timeline: &Timeline, zone: &TimeZone) -> String {
    let height = HEAD + ROW * timeline.rows.len() as i64 + FOOT;
    let title = format!("Jobs of {}", text(&timeline.namespace));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{title}: when each starts and ends, and its deadline\">\n{STYLE}"
    );
    let now = Timestamp::from_second(timeline.now).unwrap_or_default().to_zoned(zone.clone());
    out += &format!("<text x=\"20\" y=\"24\" font-size=\"16\" font-weight=\"600\">{title}</text>");
    out += &words(RIGHT, 24, "end", &now.strftime("%Y-%m-%d %H:%M %Z"));
    let axis = Axis { now: timeline.now, horizon: timeline.horizon };
    for (x, name, anchor) in [(20, "Job", "start"), (200, "GPUs", "end"), (280, "On time", "end")] {
        out += &words(x, 52, anchor, &name);
    }
    axis.ticks(zone, height, &mut out);
    for (number, row) in timeline.rows.iter().enumerate() {
        let _ = write!(out, "<g transform=\"translate(0 {})\">", HEAD + ROW * number as i64);
        cells(row, &mut out);
        for mark in &row.marks {
            axis.mark(mark, row.risk, &mut out);
        }
        out += "</g>\n";
    }
    let x = axis.x(timeline.now);
    let _ = writeln!(
        out,
        "<path d=\"M{x} 40V{}\" class=\"now\"/><text x=\"{x}\" y=\"36\" text-anchor=\"middle\">now</text>",
        height - FOOT
    );
    legend(height - 16, &mut out);
    out + "</svg>\n"
}

/// As text of XML.
fn text(of: &str) -> String {
    plain(of).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn class(risk: Risk) -> &'static str {
    match risk {
        Risk::Late => "late",
        Risk::High => "high",
        Risk::Medium => "medium",
        Risk::Low => "low",
        Risk::None => "none",
    }
}

fn cells(row: &Row, out: &mut String) {
    let expected = row.job.expected.as_ref();
    let gpu_type = row.job.gpu_type.as_deref().or(expected.map(|e| e.gpu_type.as_str()));
    let gpus = match gpu_type {
        Some(name) => format!("{} × {}", row.job.gpus, short_gpu_type(name)),
        None => row.job.gpus.clone(),
    };
    let on_time = match (row.risk, expected.and_then(|e| e.on_time_percent)) {
        (Risk::Late, _) => "late".to_owned(),
        (Risk::None, _) => "–".to_owned(),
        (_, Some(percent)) => format!("{percent} %"),
        (_, None) => "no end".to_owned(),
    };
    let ends = if row.end_text.is_empty() { "never as planned" } else { &row.end_text };
    let (name, class) = (text(&row.job.name), class(row.risk));
    *out += &format!("<title>{name}: {}, ends {ends}</title>", row.job.phase.as_str());
    let short: String = row.job.name.chars().take(16).collect();
    *out += &format!("<text x=\"20\" y=\"18\">{}</text>", text(&short));
    *out += &words(200, 18, "end", &text(&gpus));
    *out += &format!("<text x=\"280\" y=\"18\" text-anchor=\"end\" class=\"t {class}\">{on_time}</text>");
}

/// From instants to pixels.
struct Axis {
    now: i64,
    horizon: i64,
}

impl Axis {
    fn begin(&self) -> i64 {
        self.now - self.horizon / BEHIND
    }

    fn x(&self, at: i64) -> i64 {
        let (begin, length) = (self.begin(), self.horizon + self.horizon / BEHIND);
        LEFT + ((at - begin).clamp(0, length) * (RIGHT - LEFT)) / length
    }

    fn ticks(&self, zone: &TimeZone, height: i64, out: &mut String) {
        let step = tick(self.horizon, TICKS);
        let format = if step < 86_400 { "%H:%M" } else { "%a %d" };
        // In step with the zone's clock.
        let offset = Timestamp::from_second(self.now).map_or(0, |at| i64::from(zone.to_offset(at).seconds()));
        let mut at = (self.begin() + offset).div_euclid(step) * step + step - offset;
        while at <= self.now + self.horizon {
            let x = self.x(at);
            let time = Timestamp::from_second(at).unwrap_or_default().to_zoned(zone.clone());
            let _ = write!(out, "<path d=\"M{x} 58V{}\" class=\"line\"/>", height - FOOT);
            *out += &words(x, 52, "middle", &time.strftime(format));
            at += step;
        }
        out.push('\n');
    }

    fn mark(&self, mark: &Mark, risk: Risk, out: &mut String) {
        let end = self.now + self.horizon;
        // What lies beyond the axis has no place on it.
        if mark.from > end || mark.to.is_some_and(|to| to < self.begin()) {
            return;
        }
        let (from, to, class) = (self.x(mark.from), self.x(mark.to.unwrap_or(end)), class(risk));
        *out += &match mark.kind {
            MarkType::Past => rect(from, 11, to - from, 6, "past"),
            MarkType::Tail => rect(from, 8, to - from, 12, &format!("t tail {class}")),
            MarkType::Run => rect(from, 8, to - from, 12, &format!("t run {class}")),
            MarkType::Done => rect(from, 8, to - from, 12, &format!("t {class}")),
            MarkType::Start => {
                format!("<path d=\"M{from} 14H{to}\" stroke-dasharray=\"2 2\" class=\"{class}\"/>")
            }
            MarkType::End => format!("<path d=\"M{from} 11v6m0-3H{to}m0-3v6\" class=\"{class}\"/>"),
            MarkType::Median => rect(from - 1, 5, 3, 18, &format!("t {class}")),
            MarkType::Due => format!("<path d=\"M{from} 3v22m-4-22h8l-4 6z\" class=\"due\"/>"),
        };
    }
}

fn rect(x: i64, y: i64, width: i64, height: i64, class: &str) -> String {
    let width = width.max(1);
    format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\"/>")
}

/// Dim words. `anchor`: where they begin or end.
fn words(x: i64, y: i64, anchor: &str, words: &dyn std::fmt::Display) -> String {
    format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"dim\">{words}</text>")
}

fn legend(y: i64, out: &mut String) {
    let parts = [
        ("past", 18, "attempt that ended"),
        ("t low", 18, "run until now"),
        ("t run low", 18, "to the median end"),
        ("t tail low", 18, "to the 90 % quantile"),
        ("due", 8, "deadline"),
        ("t low", 10, "≥ 90 %"),
        ("t medium", 10, "≥ 50 %"),
        ("t high", 10, "less"),
    ];
    let mut x = 20;
    for (class, width, text) in parts {
        *out += &match class {
            "due" => format!("<path d=\"M{x} {}h8l-4 6z\" class=\"due\"/>", y - 8),
            class => rect(x, y - 9, width, 10, class),
        };
        *out += &words(x + width + 6, y, "start", &text);
        x += width + 22 + text.chars().count() as i64 * 7;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::timeline;
    use super::*;

    #[test]
    fn a_timeline_is_drawn_with_a_row_for_each_job() {
        let svg = svg(&timeline(), &TimeZone::UTC);
        insta::assert_snapshot!(svg);
        assert_eq!(svg, include_str!("../../../docs/images/queue.svg"), "the picture of docs/ask.md");
    }

    #[test]
    fn what_the_cluster_says_is_text() {
        let mut timeline = timeline();
        timeline.rows[0].job.gpus = "<script>&\"\u{1b}".to_owned();
        let svg = svg(&timeline, &TimeZone::UTC);
        assert!(svg.contains("&lt;script&gt;&amp;&quot; ") && !svg.contains("<script"), "{svg}");
    }
}
