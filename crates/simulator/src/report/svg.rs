//! Charts as inline SVG.

use std::fmt::Write;

use andreas_core::{NodeName, Time};

use crate::outcome::{Outcome, PowerPoint};
use crate::scenario::Scenario;

const WIDTH: f64 = 1100.0;
/// Left margin for names.
const LEFT: f64 = 120.0;
/// Maximum number of bars, so that a browser can still scroll.
const MOST_BARS: usize = 6000;
const MOST_NODES: usize = 80;
const MOST_POINTS: usize = 1500;

/// Escapes text for HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The upper edge of a layer of power.
type Layer = fn(&PowerPoint) -> f64;

struct Scale {
    from: f64,
    length: f64,
}

impl Scale {
    fn of(outcome: &Outcome) -> Self {
        let power = &outcome.replayed.power;
        let from = power.first().map_or(0.0, |p| p.at.0);
        Self { from, length: outcome.replayed.summary.makespan.0.max(1.0) }
    }

    fn x(&self, at: Time) -> f64 {
        LEFT + (at.0 - self.from) / self.length * (WIDTH - LEFT)
    }

    /// The time axis in hours.
    fn axis(&self, y: f64, svg: &mut String) {
        for i in 0..=5 {
            let part = f64::from(i) / 5.0;
            let (x, hours) = (LEFT + part * (WIDTH - LEFT), part * self.length / 3600.0);
            let anchor = if i == 5 { "end" } else { "middle" };
            let _ = write!(svg, "<text x='{x:.1}' y='{y}' text-anchor='{anchor}'>{hours:.1} h</text>");
        }
    }
}

/// One row per node, one bar per run of a job, as high as its share of the node's GPUs; red means that it
/// ended late.
pub(super) fn gantt(scenario: &Scenario, outcome: &Outcome) -> String {
    let scale = Scale::of(outcome);
    let (row, jobs) = (18.0, &outcome.replayed.jobs);
    let nodes: Vec<(&NodeName, u32)> =
        scenario.nodes.iter().take(MOST_NODES).map(|n| (&n.name, n.gpus.0)).collect();
    let height = row * nodes.len() as f64 + 20.0;
    let mut svg = format!("<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='Gantt per node'>");
    for (i, (name, gpus)) in nodes.iter().enumerate() {
        let y = i as f64 * row;
        let _ = write!(svg, "<text x='0' y='{:.1}'>{} ({gpus})</text>", y + 12.0, escape(name.as_str()));
        let _ = write!(
            svg,
            "<rect x='{LEFT}' y='{y}' width='{}' height='{}' class='free'/>",
            WIDTH - LEFT,
            row - 2.0
        );
    }
    // First free lane of each node by time: bars of concurrent jobs do not overlap.
    let mut order: Vec<_> = outcome.replayed.segments.iter().collect();
    order.sort_by(|a, b| a.from.total_cmp(&b.from).then(a.job.cmp(&b.job)));
    let mut lanes: Vec<Vec<f64>> =
        nodes.iter().map(|(_, gpus)| vec![f64::NEG_INFINITY; *gpus as usize]).collect();
    for segment in order.into_iter().take(MOST_BARS) {
        for name in segment.nodes.iter() {
            let Some(i) = nodes.iter().position(|(n, _)| *n == name) else { continue };
            let free = lanes[i].iter_mut().filter(|until| **until <= segment.from.0 + 1e-6);
            let mine: Vec<&mut f64> = free.take(segment.gpus as usize).collect();
            mine.into_iter().for_each(|until| *until = segment.to.0);
            let lane = lanes[i].iter().position(|until| *until == segment.to.0).unwrap_or(0);
            let unit = (row - 2.0) / f64::from(nodes[i].1.max(1));
            let job = &jobs[segment.job];
            let late = job.deadline.zip(job.finish).is_some_and(|(d, f)| f > d);
            let hue = (segment.job * 47) % 200 + 100;
            let fill = if late { "#c33".to_owned() } else { format!("hsl({hue} 45% 60%)") };
            let (x, to) = (scale.x(segment.from), scale.x(segment.to));
            let _ = write!(
                svg,
                "<rect x='{x:.1}' y='{:.1}' width='{:.1}' height='{:.1}' fill='{fill}'><title>{}: {} GPUs</title></rect>",
                i as f64 * row + lane as f64 * unit,
                (to - x).max(0.5),
                unit * f64::from(segment.gpus),
                escape(job.id.as_str()),
                segment.gpus
            );
        }
    }
    scale.axis(height - 4.0, &mut svg);
    svg + "</svg>"
}

/// Stacked power of jobs, busy nodes and idle GPUs, with the budget as a line.
pub(super) fn power(outcome: &Outcome) -> String {
    let scale = Scale::of(outcome);
    let height = 160.0;
    let step = outcome.replayed.power.len().div_ceil(MOST_POINTS).max(1);
    // The highest point of each pixel is kept, so that a budget violation stays visible.
    let total = |p: &PowerPoint| p.jobs.0 + p.overhead.0 + p.idle.0;
    let points: Vec<&PowerPoint> = outcome
        .replayed
        .power
        .chunks(step)
        .filter_map(|part| part.iter().max_by(|a, b| total(a).total_cmp(&total(b))))
        .collect();
    let top = points.iter().map(|p| total(p).max(p.budget.map_or(0.0, |b| b.0))).fold(1.0, f64::max) * 1.05;
    let y = |watts: f64| height - 20.0 - watts / top * (height - 30.0);
    let mut svg = format!("<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='Power over time'>");
    let layers: [(&str, Layer); 3] = [
        ("idle", |p| p.jobs.0 + p.overhead.0 + p.idle.0),
        ("nodes", |p| p.jobs.0 + p.overhead.0),
        ("jobs", |p| p.jobs.0),
    ];
    for (class, value) in layers {
        let _ = write!(svg, "<path class='{class}' d='M{LEFT} {:.1}", y(0.0));
        line(&mut svg, &points, &scale, |p| Some(y(value(p))));
        let _ = write!(svg, " L{WIDTH} {:.1}Z'/>", y(0.0));
    }
    if points.iter().any(|p| p.budget.is_some()) {
        let first = points.first().and_then(|p| p.budget).map_or(0.0, |b| b.0);
        let _ = write!(svg, "<path class='budget' d='M{LEFT} {:.1}", y(first));
        line(&mut svg, &points, &scale, |p| p.budget.map(|b| y(b.0)));
        svg += "'/>";
    }
    let _ =
        write!(svg, "<text x='0' y='14'>{:.1} kW</text><text x='0' y='{:.1}'>0</text>", top / 1.05e3, y(0.0));
    scale.axis(height - 4.0, &mut svg);
    svg + "</svg>"
}

/// A step line.
fn line(svg: &mut String, points: &[&PowerPoint], scale: &Scale, y: impl Fn(&PowerPoint) -> Option<f64>) {
    let mut last = None;
    for point in points {
        let Some(y) = y(point) else { continue };
        let x = scale.x(point.at);
        if let Some(before) = last {
            let _ = write!(svg, " L{x:.1} {before:.1}");
        }
        let _ = write!(svg, " L{x:.1} {y:.1}");
        last = Some(y);
    }
    if let Some(y) = last {
        let _ = write!(svg, " L{WIDTH} {y:.1}");
    }
}

/// A dot per job with a deadline: its submission time, and the distance of its end from the deadline. The
/// distance is relative to its allowed time; below the line is early, above is late.
pub(super) fn lateness(outcome: &Outcome) -> String {
    let scale = Scale::of(outcome);
    let height = 140.0;
    let mut svg = format!("<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='Lateness'>");
    let middle = 70.0;
    let _ = write!(svg, "<line x1='{LEFT}' x2='{WIDTH}' y1='{middle}' y2='{middle}' class='deadline'/>");
    let _ =
        write!(svg, "<text x='0' y='{:.1}'>deadline</text><text x='0' y='14'>late x2</text>", middle + 4.0);
    for job in outcome.replayed.jobs.iter().take(MOST_BARS) {
        let Some((deadline, finish)) = job.deadline.zip(job.finish) else { continue };
        let allowed = (deadline - job.submit).0.max(1.0);
        let late = ((finish - deadline).0 / allowed).clamp(-1.0, 1.0);
        let class = if late > 0.0 { "late" } else { "early" };
        let _ = write!(
            svg,
            "<circle cx='{:.1}' cy='{:.1}' r='2' class='{class}'><title>{}</title></circle>",
            scale.x(job.submit),
            middle - late * 60.0,
            escape(job.id.as_str())
        );
    }
    svg + "</svg>"
}

/// Energy by kind, one bar per outcome.
pub(super) fn energy(outcomes: &[Outcome]) -> String {
    let row = 24.0;
    let height = row * outcomes.len() as f64;
    let kwh = |o: &Outcome| {
        let s = &o.replayed.summary;
        [s.job_energy.kwh(), s.overhead_energy.kwh(), s.idle_energy.kwh()]
    };
    let most = outcomes.iter().map(|o| kwh(o).iter().sum::<f64>()).fold(1e-9, f64::max);
    let mut svg = format!("<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='Energy by kind'>");
    for (i, outcome) in outcomes.iter().enumerate() {
        let y = i as f64 * row;
        let (left, parts) = (260.0, kwh(outcome));
        let _ = write!(svg, "<text x='0' y='{:.1}'>{}</text>", y + 15.0, escape(&super::title(outcome)));
        let mut x = left;
        for (class, part) in ["jobs", "nodes", "idle"].into_iter().zip(parts) {
            let width = part / most * (WIDTH - left - 90.0);
            let _ = write!(
                svg,
                "<rect class='{class}' x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{}'/>",
                row - 6.0
            );
            x += width;
        }
        let _ = write!(
            svg,
            "<text x='{:.1}' y='{:.1}'>{:.1} kWh</text>",
            x + 4.0,
            y + 15.0,
            parts.iter().sum::<f64>()
        );
    }
    svg + "</svg>"
}
