//! Pictures of outcomes: methods side by side, and the nodes of one.

use std::collections::BTreeMap;

use andreas_charts::plotters::prelude::{
    AreaSeries, ChartBuilder, Color as _, EmptyElement, IntoLogRange as _, LineSeries, PathElement, RGBColor,
    Rectangle, SeriesLabelPosition, Text,
};
use andreas_charts::plotters::style::text_anchor::{HPos, Pos, VPos};
use andreas_charts::{Area, Error, GRID, INK, WARNING, colour, steps, svg, text_style, tick_label, width_of};
use andreas_core::{Seconds, StepFunction, Time, Watts};

use super::title;
use crate::outcome::{Outcome, PowerPoint};
use crate::scenario::Scenario;

const WIDTH: u32 = 1_100;
/// Height of a bar, and of a chart with a curve for each method.
const BAR: u32 = 26;
const CURVES: u32 = 240;
/// Size of labels, px.
const SMALL: u32 = 13;
/// Where curves and their legend begin, and the height of a row of the legend, px.
const LEFT: i32 = 68;
const KEY_ROW: i32 = 22;
/// Around a chart, px.
const MARGIN: i32 = 8;
/// Width of the bars' chart over that of its longest bar: the legend stands beside the bars.
const LEGEND: f64 = 1.35;
/// Points of a curve.
const MAX_POINTS: usize = 1_500;
/// Nodes and runs drawn of one outcome, so that a browser can still scroll.
const MAX_NODES: usize = 80;
const MAX_BARS: usize = 6_000;

/// A part of the total cost: its name, and its amount in the tariff's currency.
type Part = (&'static str, fn(&Outcome) -> f64);
const PARTS: [Part; 5] = [
    ("energy", |o| o.replayed.summary.energy_cost.0),
    ("idle GPUs and hosts", |o| o.replayed.summary.idle_cost.0),
    ("tardiness", |o| o.replayed.summary.tardiness_cost.0),
    ("missed deadlines", |o| o.replayed.summary.miss_cost.0),
    ("time in the system", |o| o.replayed.summary.turnaround_cost.0),
];

/// Methods side by side: cost by part, distribution of turnaround, and GPUs and power over the same hours.
///
/// # Errors
/// None expected: outcomes are finite.
pub(super) fn comparison(outcomes: &[Outcome]) -> Result<String, Error> {
    let bars = BAR * u32::try_from(outcomes.len()).unwrap_or(1) + 90;
    let budgets = budgets(outcomes);
    let methods = outcomes.iter().enumerate().map(|(n, outcome)| (title(outcome), colour(n)));
    let bounds = budgets.iter().map(|(name, _)| (name.clone(), WARNING));
    let keys = placed(methods.chain(bounds).collect());
    let key_rows = keys.last().map_or(0, |(_, (_, y))| u32::try_from(y + KEY_ROW).unwrap_or(0));
    let size = (WIDTH, bars + key_rows + 3 * CURVES);
    svg(size, "Methods side by side: cost, turnaround, GPUs and power", |area| {
        let (top, rest) = area.split_vertically(bars);
        costs(&top, outcomes)?;
        let (key, rest) = rest.split_vertically(key_rows);
        legend_of_curves(&key, &keys)?;
        let parts = rest.split_evenly((3, 1));
        turnaround(&parts[0], outcomes)?;
        let gpus = |o: &Outcome| gpus_in_use(o);
        over_time(&parts[1], "GPUs with a job", outcomes, gpus, &[])?;
        let kilowatts = |o: &Outcome| power(o, |p| (p.jobs.0 + p.hosts.0 + p.idle.0) / 1e3);
        over_time(&parts[2], "power, kW", outcomes, kilowatts, &budgets)
    })
}

fn costs(area: &Area<'_>, outcomes: &[Outcome]) -> Result<(), Error> {
    let total = |o: &Outcome| PARTS.iter().map(|(_, of)| of(o)).sum::<f64>();
    let most = outcomes.iter().map(total).fold(1e-9, f64::max);
    let names: Vec<String> = outcomes.iter().map(title).collect();
    let label = names.iter().map(|name| width_of(name, SMALL)).max().unwrap_or(0) + 16;
    let count = outcomes.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption("cost by part", text_style(16))
        .margin(MARGIN)
        .x_label_area_size(22)
        .y_label_area_size(label)
        .build_cartesian_2d(0.0..most * LEGEND, count..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID.mix(0.4))
        .axis_style(INK)
        .label_style(text_style(SMALL))
        .x_label_formatter(&tick_label)
        .draw()?;
    for (n, (name, of)) in PARTS.iter().enumerate() {
        let bar = |(row, outcome): (usize, &Outcome)| {
            let from: f64 = PARTS[..n].iter().map(|(_, of)| of(outcome)).sum();
            let row = row as f64;
            Rectangle::new([(from, row + 0.15), (from + of(outcome), row + 0.85)], colour(n).filled())
        };
        chart
            .draw_series(outcomes.iter().enumerate().map(bar))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour(n).filled()));
    }
    let left = text_style(SMALL).pos(Pos::new(HPos::Right, VPos::Center));
    let right = text_style(SMALL).pos(Pos::new(HPos::Left, VPos::Center));
    for (row, (outcome, name)) in outcomes.iter().zip(&names).enumerate() {
        let middle = row as f64 + 0.5;
        let named = EmptyElement::at((0.0, middle)) + Text::new(name.clone(), (-8, 0), left.clone());
        let sum = format!("{:.2}", total(outcome));
        let summed = EmptyElement::at((total(outcome), middle)) + Text::new(sum, (6, 0), right.clone());
        chart.draw_series([named])?;
        chart.draw_series([summed])?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(text_style(SMALL))
        .border_style(GRID.mix(0.0))
        .draw()
}

/// What a colour stands for, and the place of its line, px.
type Key = ((String, RGBColor), (i32, i32));

/// The legend of all curves, in rows above them: within a chart it would cover some.
fn placed(names: Vec<(String, RGBColor)>) -> Vec<Key> {
    let mut next = (LEFT, KEY_ROW / 2);
    let place = |(name, colour): (String, RGBColor)| {
        let width = i32::try_from(width_of(&name, SMALL)).unwrap_or(0) + 44;
        if next.0 > LEFT && next.0 + width > WIDTH.cast_signed() {
            next = (LEFT, next.1 + KEY_ROW);
        }
        let at = next;
        next.0 += width;
        ((name, colour), at)
    };
    names.into_iter().map(place).collect()
}

fn legend_of_curves(area: &Area<'_>, keys: &[Key]) -> Result<(), Error> {
    let style = text_style(SMALL).pos(Pos::new(HPos::Left, VPos::Center));
    for ((name, colour), (x, y)) in keys {
        area.draw(&PathElement::new([(*x, *y), (x + 20, *y)], colour.stroke_width(3)))?;
        area.draw(&Text::new(name.clone(), (x + 26, *y), style.clone()))?;
    }
    Ok(())
}

/// A chart with axes of these kinds of coordinates.
macro_rules! labelled {
    ($chart:expr, $x:literal, $y:expr) => {
        $chart
            .configure_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID.mix(0.4))
            .axis_style(INK)
            .label_style(text_style(SMALL))
            .x_label_formatter(&tick_label)
            .y_label_formatter(&tick_label)
            .x_desc($x)
            .y_desc($y)
            .draw()?
    };
}

fn turnaround(area: &Area<'_>, outcomes: &[Outcome]) -> Result<(), Error> {
    let hours = |o: &Outcome| {
        let counted = o.replayed.jobs.iter().filter(|job| job.counted);
        let ended = counted.filter_map(|job| Some((job.finish? - job.submit).0 / 3_600.0));
        let mut hours: Vec<f64> = ended.map(|hours| hours.max(1e-3)).collect();
        hours.sort_by(f64::total_cmp);
        hours
    };
    let all: Vec<Vec<f64>> = outcomes.iter().map(hours).collect();
    let least = all.iter().filter_map(|hours| hours.first()).copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().filter_map(|hours| hours.last()).copied().fold(least, f64::max);
    if !(least.is_finite() && most > least) {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption("turnaround", text_style(16))
        .margin(MARGIN)
        .x_label_area_size(40)
        .y_label_area_size(LEFT - MARGIN)
        .build_cartesian_2d((least..most).log_scale(), 0.0..100.0)?;
    labelled!(chart, "hours from submission to end", "% of jobs");
    for (n, hours) in all.iter().enumerate() {
        let count = hours.len() as f64;
        let points = hours.iter().enumerate().map(|(i, hours)| (*hours, 100.0 * (i + 1) as f64 / count));
        let points: Vec<(f64, f64)> = points.collect();
        let thin = points.len().div_ceil(MAX_POINTS).max(1);
        let last = points.last().copied();
        let line = points.into_iter().step_by(thin).chain(last);
        chart.draw_series(LineSeries::new(line, colour(n).stroke_width(2)))?;
    }
    Ok(())
}

/// The name of a bound and its points, over the hours since the first submission.
type Bound = (String, Vec<(f64, f64)>);

/// The power budgets of the outcomes, kW, each once.
fn budgets(outcomes: &[Outcome]) -> Vec<Bound> {
    let mut different: Vec<(&StepFunction<Watts>, f64)> = Vec::new();
    for outcome in outcomes {
        if let Some(budget) = &outcome.budget
            && !different.iter().any(|(known, _)| *known == budget)
        {
            different.push((budget, start(outcome)));
        }
    }
    let end = Seconds(last_hour(outcomes) * 3_600.0);
    let one = different.len() == 1;
    let bound = |(budget, from): (&StepFunction<Watts>, f64)| {
        let pieces = budget.pieces(Time(from), Time(from) + end);
        let points: Vec<(f64, f64)> =
            pieces.map(|(begin, _, watts)| ((begin.0 - from) / 3_600.0, watts.0 / 1e3)).collect();
        let most = points.iter().map(|(_, kw)| *kw).fold(0.0, f64::max);
        let name = if one { String::new() } else { format!(", up to {most:.1} kW") };
        (format!("power budget{name}"), points)
    };
    different.into_iter().map(bound).collect()
}

/// Hours from the first submission to the last end of all outcomes.
fn last_hour(outcomes: &[Outcome]) -> f64 {
    outcomes.iter().map(|o| o.replayed.summary.makespan.0 / 3_600.0).fold(1e-3, f64::max)
}

/// A step line for each outcome over the hours since the first submission, and bounds.
fn over_time(
    area: &Area<'_>,
    name: &str,
    outcomes: &[Outcome],
    of: impl Fn(&Outcome) -> Vec<(f64, f64)>,
    bounds: &[Bound],
) -> Result<(), Error> {
    let end = last_hour(outcomes);
    let lines: Vec<Vec<(f64, f64)>> = outcomes.iter().map(&of).collect();
    let bounding = bounds.iter().map(|(_, points)| points);
    let highest = lines.iter().chain(bounding).flatten().map(|(_, y)| *y).fold(1e-9, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(name, text_style(16))
        .margin(MARGIN)
        .x_label_area_size(40)
        .y_label_area_size(LEFT - MARGIN)
        .build_cartesian_2d(0.0..end, 0.0..highest * 1.05)?;
    labelled!(chart, "hours since the first submission", name);
    for (n, (outcome, points)) in outcomes.iter().zip(&lines).enumerate() {
        let until = outcome.replayed.summary.makespan.0 / 3_600.0;
        let corners = steps(points, until, MAX_POINTS);
        chart.draw_series(AreaSeries::new(corners.clone(), 0.0, colour(n).mix(0.06)))?;
        chart.draw_series(LineSeries::new(corners, colour(n).stroke_width(1)))?;
    }
    for (_, points) in bounds {
        chart.draw_series(LineSeries::new(steps(points, end, MAX_POINTS), WARNING.stroke_width(2)))?;
    }
    Ok(())
}

fn start(outcome: &Outcome) -> f64 {
    outcome.replayed.power.first().map_or(0.0, |point| point.at.0)
}

fn power(outcome: &Outcome, of: impl Fn(&PowerPoint) -> f64) -> Vec<(f64, f64)> {
    let from = start(outcome);
    outcome.replayed.power.iter().map(|point| ((point.at.0 - from) / 3_600.0, of(point))).collect()
}

/// GPUs with a job over the hours since the first submission.
fn gpus_in_use(outcome: &Outcome) -> Vec<(f64, f64)> {
    let from = start(outcome);
    let mut changes: BTreeMap<u64, f64> = BTreeMap::new();
    for segment in &outcome.replayed.segments {
        let gpus = f64::from(segment.gpus) * segment.nodes.len() as f64;
        // Whole milliseconds: ends and begins of one decision fall together.
        let at = |time: andreas_core::Time| ((time.0 - from).max(0.0) * 1e3).round() as u64;
        *changes.entry(at(segment.from)).or_default() += gpus;
        *changes.entry(at(segment.to)).or_default() -= gpus;
    }
    let mut held = 0.0;
    let point = |(at, change): (u64, f64)| {
        held += change;
        (at as f64 / 3.6e6, held)
    };
    changes.into_iter().map(point).collect()
}

/// What [`nodes`] draws of an outcome, where it is not all.
pub(super) fn part_drawn(scenario: &Scenario, outcome: &Outcome) -> Option<String> {
    let part = |most: usize, all: usize, what: &str| (all > most).then(|| format!("{most} of {all} {what}"));
    let parts = [
        part(MAX_NODES, scenario.nodes.len(), "nodes"),
        part(MAX_BARS, outcome.replayed.segments.len(), "runs"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("Drawn are the first {}.", parts.join(" and ")))
}

/// One row per node, one bar per run of a job, as high as its share of the node's GPUs; runs of jobs that end after
/// their deadline are in the colour of a warning.
///
/// # Errors
/// None expected: outcomes are finite.
pub(super) fn nodes(scenario: &Scenario, outcome: &Outcome) -> Result<String, Error> {
    let nodes: Vec<(String, u32)> =
        scenario.nodes.iter().take(MAX_NODES).map(|n| (n.name.to_string(), n.gpus.0.max(1))).collect();
    let index: BTreeMap<&str, usize> =
        nodes.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
    let names: Vec<String> = nodes.iter().map(|(name, gpus)| format!("{name} ({gpus})")).collect();
    let label = names.iter().map(|name| width_of(name, 11)).max().unwrap_or(0) + 16;
    let height = 18 * u32::try_from(nodes.len()).unwrap_or(1) + 60;
    let end = (outcome.replayed.summary.makespan.0 / 3_600.0).max(1e-3);
    svg((WIDTH, height), "GPUs of each node over time", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(4)
            .x_label_area_size(36)
            .y_label_area_size(label)
            .build_cartesian_2d(0.0..end, nodes.len() as f64..0.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .axis_style(INK)
            .label_style(text_style(11))
            .x_label_formatter(&tick_label)
            .x_desc("hours since the first submission")
            .draw()?;
        let style = text_style(11).pos(Pos::new(HPos::Right, VPos::Center));
        for (row, name) in names.iter().enumerate() {
            let row = row as f64;
            chart.draw_series([Rectangle::new(
                [(0.0, row + 0.05), (end, row + 0.95)],
                GRID.mix(0.12).filled(),
            )])?;
            let at = EmptyElement::at((0.0, row + 0.5));
            chart.draw_series([at + Text::new(name.clone(), (-8, 0), style.clone())])?;
        }
        chart.draw_series(bars(&nodes, &index, outcome))?;
        Ok(())
    })
}

type Bar = Rectangle<(f64, f64)>;

fn bars(nodes: &[(String, u32)], index: &BTreeMap<&str, usize>, outcome: &Outcome) -> Vec<Bar> {
    let from = start(outcome);
    let hours = |time: andreas_core::Time| (time.0 - from) / 3_600.0;
    let mut order: Vec<_> = outcome.replayed.segments.iter().collect();
    order.sort_by(|a, b| a.from.total_cmp(&b.from).then(a.job.cmp(&b.job)));
    // When each GPU of a node becomes free: runs at the same time do not overlap.
    let mut free: Vec<Vec<f64>> =
        nodes.iter().map(|(_, gpus)| vec![f64::NEG_INFINITY; *gpus as usize]).collect();
    let mut bars = Vec::new();
    for segment in order.into_iter().take(MAX_BARS) {
        let job = &outcome.replayed.jobs[segment.job];
        let late = job.deadline.zip(job.finish).is_some_and(|(deadline, finish)| finish > deadline);
        let fill = if late { WARNING } else { colour(segment.job % 5) };
        for name in segment.nodes.iter() {
            let Some(&row) = index.get(name.as_str()) else { continue };
            let open = free[row].iter_mut().enumerate().filter(|(_, until)| **until <= segment.from.0 + 1e-6);
            let taken: Vec<usize> = open
                .take(segment.gpus as usize)
                .map(|(gpu, until)| {
                    *until = segment.to.0;
                    gpu
                })
                .collect();
            let Some(first) = taken.first() else { continue };
            let each = 0.9 / f64::from(nodes[row].1);
            let top = row as f64 + 0.05 + each * *first as f64;
            let bottom = top + each * f64::from(segment.gpus);
            let corners = [(hours(segment.from), top), (hours(segment.to), bottom)];
            bars.push(Rectangle::new(corners, fill.mix(0.85).filled()));
        }
    }
    bars
}
