//! From the configurations of a family that are known to the one that is asked.

use std::collections::BTreeMap;

use andreas_core::GpuType;

use crate::Source;
use crate::known::{Known, Quantity, exact};
use crate::shape::Shape;

/// Spread added (log) by each doubling of GPUs away from what is known: beyond one known point, beyond several, and
/// between them...
const BEYOND_ONE: f64 = 0.17;
const BEYOND: f64 = 0.12;
const BETWEEN: f64 = 0.08;
/// How much of a family's own scaling, where it differs from the shape's, is believed to go on beyond what is known.
const OWN_SCALING: f64 = 0.8;
/// ...and of nodes.
const PER_NODE_DOUBLING: f64 = 0.1;
/// Spread of another GPU type when only the law compares the two: on published profiles the median error is 38 %
/// for times; for power a model by nameplate watts misses by about a quarter.
const OTHER_TYPE_TIME: f64 = 0.38;
const OTHER_TYPE_POWER: f64 = 0.25;

/// A value with its spread and source (log).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub log: f64,
    pub sigma: f64,
    pub source: Source,
}

impl Value {
    fn of(known: &Known) -> Self {
        Self { log: known.log, sigma: known.sigma, source: known.source }
    }
}

/// The family's value on a configuration; `None` when nothing of the family is known.
pub(crate) fn value(
    shape: &Shape<'_>,
    known: &[Known],
    gpu_type: &GpuType,
    gpus: u32,
    nodes: u32,
) -> Option<Value> {
    if let Some(known) = exact(known, gpu_type, gpus, nodes) {
        return Some(Value::of(known));
    }
    let mut types: BTreeMap<&GpuType, Vec<&Known>> = BTreeMap::new();
    for k in known {
        types.entry(&k.gpu_type).or_default().push(k);
    }
    if let Some(same) = types.get(gpu_type) {
        return along(shape, same, gpu_type, gpus, nodes);
    }
    // Each other type says how far off the shape this family is there; the better known ones count more.
    let mut offset = 0.0;
    let mut total = 0.0;
    let mut best: Option<(Value, bool)> = None;
    for (other, rows) in types {
        let Some(there) = along(shape, &rows, other, gpus, nodes) else { continue };
        let learned = shape.learned(other);
        // By what is best known of the type, whatever is asked: weights that moved with the GPUs asked would bend the curve.
        let sigma = rows.iter().map(|k| k.sigma).fold(f64::INFINITY, f64::min).max(1e-3);
        let weight = 1.0 / (sigma * sigma) * if learned { 4.0 } else { 1.0 };
        offset += weight * (there.log - shape.at(other, gpus, nodes));
        total += weight;
        if best.is_none_or(|(b, was)| (learned, -there.sigma) > (was, -b.sigma)) {
            best = Some((there, learned));
        }
    }
    let (nearest, learned) = best?;
    let by_law = match shape.quantity {
        Quantity::Time => OTHER_TYPE_TIME,
        Quantity::Power => OTHER_TYPE_POWER,
    };
    let by_regression = shape.correction.filter(|_| learned && shape.learned(gpu_type)).map(|c| c.sigma);
    let more = by_regression.unwrap_or(by_law);
    Some(Value {
        log: shape.at(gpu_type, gpus, nodes) + offset / total,
        sigma: libm::hypot(nearest.sigma, more),
        source: if by_regression.is_some() { Source::Regression } else { nearest.source },
    })
}

/// One number of GPUs of the type, brought to the nodes that are asked.
struct Point {
    gpus: u32,
    value: Value,
}

/// Along one type: between two known numbers of GPUs the shape is stretched to meet both, beyond them it is
/// shifted to meet the nearest.
fn along(shape: &Shape<'_>, known: &[&Known], gpu_type: &GpuType, gpus: u32, nodes: u32) -> Option<Value> {
    let points = points(shape, known, gpu_type, nodes);
    let doublings = |g: u32| libm::log2(f64::from(gpus.max(1)) / f64::from(g.max(1))).abs();
    let here = shape.at(gpu_type, gpus, nodes);
    let below = points.iter().rev().find(|p| p.gpus <= gpus);
    let above = points.iter().find(|p| p.gpus >= gpus);
    let nearest = match (below, above) {
        (Some(a), Some(b)) if doublings(b.gpus) < doublings(a.gpus) => b,
        (Some(a), _) => a,
        (None, b) => b?,
    };
    let log = match (below, above) {
        (Some(a), Some(b)) if a.gpus < b.gpus => {
            let (at_a, at_b) = (shape.at(gpu_type, a.gpus, nodes), shape.at(gpu_type, b.gpus, nodes));
            let by_shape = (here - at_a) / (at_b - at_a);
            let by_gpus = doublings(a.gpus) / (doublings(a.gpus) + doublings(b.gpus));
            let part = if by_shape.is_finite() { by_shape.clamp(0.0, 1.0) } else { by_gpus };
            a.value.log + part * (b.value.log - a.value.log)
        }
        _ => {
            let factor = stretch(shape, &points, gpu_type, nodes);
            nearest.value.log + beyond(shape, factor, gpu_type, (nearest.gpus, gpus), nodes)
        }
    };
    let log = match shape.quantity {
        Quantity::Time => guarded(log, &points, gpus),
        Quantity::Power => log,
    };
    let per_doubling = match (below, above) {
        (Some(_), Some(_)) => BETWEEN,
        _ if points.len() > 1 => BEYOND,
        _ => BEYOND_ONE,
    };
    let sigma = libm::hypot(nearest.value.sigma, per_doubling * doublings(nearest.gpus));
    Some(Value { log, sigma, source: nearest.value.source })
}

/// One point per number of GPUs, ascending, from the known row nearest in nodes.
fn points(shape: &Shape<'_>, known: &[&Known], gpu_type: &GpuType, nodes: u32) -> Vec<Point> {
    let distance =
        |k: &Known| k.nodes.map_or(0.0, |n| libm::log2(f64::from(nodes.max(1)) / f64::from(n.max(1))).abs());
    let mut rows: Vec<&&Known> = known.iter().collect();
    rows.sort_by(|a, b| a.gpus.cmp(&b.gpus).then(distance(a).total_cmp(&distance(b))));
    rows.dedup_by_key(|k| k.gpus);
    let point = |k: &&Known| {
        let from = k.nodes.unwrap_or(nodes);
        let moved = shape.at(gpu_type, k.gpus, nodes) - shape.at(gpu_type, k.gpus, from);
        let sigma = libm::hypot(k.sigma, PER_NODE_DOUBLING * distance(k));
        Point { gpus: k.gpus, value: Value { log: k.log + moved, sigma, source: k.source } }
    };
    rows.into_iter().map(point).collect()
}

/// How much more or less than the shape this family changes with GPUs: 1 with fewer than two known points, else the
/// least-squares slope of what is known over the shape, pulled towards 1. Never negative, so that what is extrapolated
/// falls where the shape falls.
fn stretch(shape: &Shape<'_>, points: &[Point], gpu_type: &GpuType, nodes: u32) -> f64 {
    let n = points.len().max(1) as f64;
    let at: Vec<(f64, f64)> =
        points.iter().map(|p| (shape.at(gpu_type, p.gpus, nodes), p.value.log)).collect();
    let (mx, my) = (at.iter().map(|p| p.0).sum::<f64>() / n, at.iter().map(|p| p.1).sum::<f64>() / n);
    let square = at.iter().map(|(x, _)| (x - mx) * (x - mx)).sum::<f64>();
    let product = at.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>();
    // A shape that hardly changes over what is known has nothing to be stretched by.
    let slope = if square > 1e-4 { product / square } else { 1.0 };
    (1.0 + OWN_SCALING * (slope - 1.0)).clamp(0.0, 2.0)
}

/// Change from one number of GPUs to another by the stretched shape. Where it is stretched a time is walked in small steps,
/// none of which may gain more than the GPUs it adds.
fn beyond(shape: &Shape<'_>, factor: f64, gpu_type: &GpuType, (from, to): (u32, u32), nodes: u32) -> f64 {
    let at = |g: u32| shape.at(gpu_type, g, nodes);
    if factor <= 1.0 || shape.quantity == Quantity::Power {
        return factor * (at(to) - at(from));
    }
    let (mut change, mut g, mut here) = (0.0, from.max(1), at(from));
    while g != to.max(1) {
        let step = (g / 8).max(1);
        let next = if to > g { g.saturating_add(step).min(to) } else { (g - step).max(to.max(1)) };
        let ideal = libm::log(f64::from(next) / f64::from(g)).abs();
        let there = at(next);
        change += (factor * (there - here)).clamp(-ideal, ideal);
        (g, here) = (next, there);
    }
    change
}

/// Between "as fast as the GPUs added" and "no faster at all", seen from each known point, the nearest last.
fn guarded(mut log: f64, points: &[Point], gpus: u32) -> f64 {
    let ratio = |p: &Point| libm::log(f64::from(gpus.max(1)) / f64::from(p.gpus.max(1)));
    let mut by_distance: Vec<&Point> = points.iter().collect();
    by_distance.sort_by(|a, b| ratio(b).abs().total_cmp(&ratio(a).abs()).then(a.gpus.cmp(&b.gpus)));
    for p in by_distance {
        let (one, other) = (p.value.log, p.value.log - ratio(p));
        log = log.clamp(one.min(other), one.max(other));
    }
    log
}
