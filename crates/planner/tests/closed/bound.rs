//! A lower bound on what any course of a closed loop can cost, for somebody who knows everything from the beginning.
//!
//! Lagrangian dual over time slices: a price per GPU of each class of nodes and per watt of the budget in every slice, at
//! which each job is scheduled alone. It may change its configuration at any instant, for nothing, and a node's overhead
//! is shared out by GPUs, so no course that respects restarts and half-empty nodes costs less. Any prices give a valid bound;
//! a subgradient search (steps of Polyak 1969) looks for good ones.

use std::collections::BTreeMap;

use andreas_core::EnergyPrice;
use andreas_planner::Job;

use super::{Load, PRICE_PER_KWH, arrivals, cluster};

/// Seconds of a slice at a pace of 1.
const SLICE: f64 = 900.0;
/// Slices after the last submission in which GPUs have prices.
const TAIL: usize = 400;

/// The search aims so many times as high as it is.
const AIM: f64 = 1.1;

/// Nodes that are alike.
struct Class {
    kind: String,
    size: u32,
    gpus: f64,
    idle: f64,
    overhead_per_gpu: f64,
}

/// A configuration of a job on a class.
#[derive(Clone, Copy)]
struct ClassConfig {
    class: usize,
    gpus: f64,
    /// Part of the job that a second does.
    rate: f64,
    /// Money per second at no prices.
    cost: f64,
    /// Watts that it takes from the budget.
    watts: f64,
}

struct Demand {
    submit: f64,
    deadline: f64,
    weight: f64,
    ways: Vec<ClassConfig>,
    /// No course has less energy.
    least: f64,
    fastest: f64,
}

/// Going over from one way to the next for a whole slice: progress, cost, from, to.
struct Segment {
    slope: f64,
    progress: f64,
    slice: usize,
    seconds: f64,
    from: Option<usize>,
    to: usize,
}

/// Prices, and what is used at them.
struct Prices {
    /// By class, then slice; the last row is that of watts.
    rows: Vec<Vec<f64>>,
}

struct Problem {
    classes: Vec<Class>,
    jobs: Vec<Demand>,
    slices: usize,
    length: f64,
    /// By row of prices.
    capacity: Vec<f64>,
    share: f64,
    late_fixed: f64,
}

/// The bound, after so many rounds. One without the budget holds with it as well.
pub fn bound(load: &Load, rounds: usize) -> f64 {
    let free = Load { budget: None, ..load.clone() };
    let found = if load.budget.is_some() { search(load, rounds) } else { 0.0 };
    search(&free, rounds).max(found)
}

fn search(load: &Load, rounds: usize) -> f64 {
    let problem = Problem::new(load);
    let mut prices = Prices { rows: vec![vec![0.0; problem.slices]; problem.classes.len() + 1] };
    let (mut best, mut scale, mut idle) = (0.0_f64, 1.0, 0);
    let mut kept = prices.rows.clone();
    for _ in 0..rounds {
        let (value, used) = problem.value(&prices);
        if value > best {
            idle = 0;
            best = value;
            kept.clone_from(&prices.rows);
        } else {
            idle += 1;
            if idle >= 10 {
                (idle, scale) = (0, scale * 0.5);
                prices.rows.clone_from(&kept);
                continue;
            }
        }
        // Scaled by capacity, so that small classes move as fast as large ones.
        let excess: Vec<Vec<f64>> = used
            .iter()
            .zip(&problem.capacity)
            .zip(&prices.rows)
            .map(|((used, capacity), prices)| {
                let of = |(used, price): (&f64, &f64)| {
                    let excess = used / problem.length - capacity;
                    if excess < 0.0 && *price <= 0.0 { 0.0 } else { excess }
                };
                used.iter().zip(prices).map(of).collect()
            })
            .collect();
        let norm: f64 = excess
            .iter()
            .zip(&problem.capacity)
            .map(|(row, capacity)| row.iter().map(|x| x * x).sum::<f64>() / capacity.max(1e-9))
            .sum();
        if norm <= 0.0 {
            break;
        }
        let step = scale * (AIM * best - value) / norm / problem.length;
        for ((prices, excess), capacity) in prices.rows.iter_mut().zip(&excess).zip(&problem.capacity) {
            for (price, excess) in prices.iter_mut().zip(excess) {
                *price = (*price + step * excess / capacity.max(1e-9)).max(0.0);
            }
        }
    }
    best
}

impl Problem {
    fn new(load: &Load) -> Self {
        assert!(load.windows.is_empty(), "one budget for all the time");
        let empty = cluster(load);
        let mut alike: BTreeMap<(String, u32), (f64, f64)> = BTreeMap::new();
        let mut floor = 0.0;
        for node in &empty.nodes {
            let info = empty.gpu_types.iter().find(|t| t.name == node.gpu_type).unwrap();
            let gpus = f64::from(node.gpus.0);
            let entry =
                alike.entry((node.gpu_type.to_string(), node.gpus.0)).or_insert((0.0, node.overhead().0));
            entry.0 += gpus;
            entry.1 = entry.1.min(node.overhead().0);
            floor += gpus * info.idle.0;
        }
        let classes: Vec<Class> = alike
            .into_iter()
            .map(|((kind, size), (gpus, overhead))| {
                let info = empty.gpu_types.iter().find(|t| t.name.as_str() == kind).unwrap();
                Class { size, gpus, idle: info.idle.0, overhead_per_gpu: overhead / f64::from(size), kind }
            })
            .collect();
        let jobs: Vec<Demand> =
            arrivals(load).iter().map(|(job, truth)| demand(job, truth, &classes)).collect();
        let length = SLICE / load.pace;
        let last = jobs.iter().map(|job| job.submit).fold(0.0, f64::max);
        let watts = load.budget.map_or(f64::INFINITY, |budget| budget - floor);
        Self {
            capacity: classes.iter().map(|class| class.gpus).chain([watts]).collect(),
            classes,
            jobs,
            slices: (last / length) as usize + TAIL,
            length,
            share: load.share,
            late_fixed: load.late_fixed,
        }
    }

    /// The dual's value at these prices, and GPU and watt seconds used by row and slice.
    fn value(&self, prices: &Prices) -> (f64, Vec<Vec<f64>>) {
        let mut used = vec![vec![0.0; self.slices]; prices.rows.len()];
        let mut value: f64 = self.jobs.iter().map(|job| self.alone(job, prices, &mut used)).sum();
        for (row, capacity) in prices.rows.iter().zip(&self.capacity) {
            if capacity.is_finite() {
                value -= row.iter().sum::<f64>() * capacity * self.length;
            }
        }
        (value, used)
    }

    /// Tardiness, miss and time in the system of an end at that time.
    fn late(&self, job: &Demand, end: f64) -> f64 {
        let late = end - job.deadline;
        let missed = if late > 0.0 { late + self.late_fixed } else { 0.0 };
        job.weight * (missed + self.share * (end - job.submit))
    }

    /// The least that a job can cost at these prices, a little less for the ends of slices; books its use.
    fn alone(&self, job: &Demand, prices: &Prices, used: &mut [Vec<f64>]) -> f64 {
        let first = (job.submit / self.length) as usize;
        let mut segments: Vec<Segment> = Vec::new();
        // With everything that the priced slices offer too dear, it runs after them.
        let horizon = self.slices as f64 * self.length;
        let mut best = (self.late(job, horizon.max(job.submit + job.fastest)) + job.least, None);
        for slice in first..self.slices {
            let begin = (slice as f64 * self.length).max(job.submit);
            let end = begin.max(job.submit + job.fastest);
            if self.late(job, end) + job.least >= best.0 {
                break;
            }
            let seconds = (slice + 1) as f64 * self.length - begin;
            for segment in self.hull(job, prices, slice, seconds) {
                let at = segments.partition_point(|s| s.slope <= segment.slope);
                segments.insert(at, segment);
            }
            if let Some(energy) = fill(&segments, |_, _| ()) {
                let cost = energy + self.late(job, end);
                if cost < best.0 {
                    best = (cost, Some(slice));
                }
            }
        }
        if let Some(last) = best.1 {
            segments.retain(|s| s.slice <= last);
            fill(&segments, |segment, part| {
                let seconds = segment.seconds * part;
                for (way, sign) in [(Some(segment.to), 1.0), (segment.from, -1.0)] {
                    let Some(way) = way.map(|way| &job.ways[way]) else { continue };
                    used[way.class][segment.slice] += sign * way.gpus * seconds;
                    used[self.classes.len()][segment.slice] += sign * way.watts * seconds;
                }
            });
        }
        best.0
    }

    /// The lower hull of what a job can do in a slice: ever more progress, ever dearer.
    fn hull(&self, job: &Demand, prices: &Prices, slice: usize, seconds: f64) -> Vec<Segment> {
        let watt = prices.rows[self.classes.len()][slice];
        let cost = |way: &ClassConfig| way.cost + way.gpus * prices.rows[way.class][slice] + way.watts * watt;
        let costs: Vec<f64> = job.ways.iter().map(cost).collect();
        let (mut at, mut rate, mut paid) = (None, 0.0, 0.0);
        let mut hull = Vec::new();
        loop {
            let faster = job.ways.iter().enumerate().filter(|(_, way)| way.rate > rate * (1.0 + 1e-12));
            let slope = |(i, way): (usize, &ClassConfig)| ((costs[i] - paid) / (way.rate - rate), i);
            let Some((slope, to)) = faster.map(slope).min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            let progress = (job.ways[to].rate - rate) * seconds;
            hull.push(Segment { slope, progress, slice, seconds, from: at, to });
            (at, rate, paid) = (Some(to), job.ways[to].rate, costs[to]);
        }
        hull
    }
}

/// The cheapest segments until the job is done: their cost; none if all of them do not suffice.
fn fill(segments: &[Segment], mut take: impl FnMut(&Segment, f64)) -> Option<f64> {
    let (mut left, mut cost) = (1.0, 0.0);
    for segment in segments {
        let part = (left / segment.progress).min(1.0);
        take(segment, part);
        cost += segment.slope * segment.progress * part;
        left -= segment.progress * part;
        if part < 1.0 || left <= 1e-12 {
            return Some(cost);
        }
    }
    None
}

fn demand(job: &Job, truth: &[f64], classes: &[Class]) -> Demand {
    let e = EnergyPrice::per_kwh(PRICE_PER_KWH, 1.0).0;
    let mut ways = Vec::new();
    for (row, epoch) in job.estimates.iter().zip(truth) {
        let fits = |class: &Class| class.kind == row.gpu_type.as_str() && class.size >= row.gpus.0;
        for (class, of) in classes.iter().enumerate().filter(|(_, class)| fits(class)) {
            let gpus = f64::from(row.gpus.0);
            let limits = job.limits.iter().filter(|l| l.gpu_type == row.gpu_type);
            let factors = limits.map(|l| (l.time_factor, l.power_factor));
            for (slower, thriftier) in std::iter::once((1.0, 1.0)).chain(factors) {
                let power = row.power.0 * thriftier + of.overhead_per_gpu * gpus;
                ways.push(ClassConfig {
                    class,
                    gpus,
                    rate: 1.0 / (job.epochs_left * epoch * slower),
                    cost: power * e,
                    watts: power - of.idle * gpus,
                });
            }
        }
    }
    Demand {
        submit: job.submit.0,
        deadline: job.deadline.map_or(f64::INFINITY, |d| d.0),
        weight: job.weight.0,
        least: ways.iter().map(|way| way.cost / way.rate).fold(f64::INFINITY, f64::min),
        fastest: ways.iter().map(|way| 1.0 / way.rate).fold(f64::INFINITY, f64::min),
        ways,
    }
}
