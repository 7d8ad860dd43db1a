//! A lower bound on what any course of a closed loop can cost, for somebody who knows everything from the beginning: that of
//! [`andreas_bounds`]. A node's overhead is shared out by GPUs, so no course with half-empty nodes costs less.

use std::collections::BTreeMap;

use andreas_bounds::{KnownJob, KnownJobs, RunOption};
use andreas_model::{EnergyPrice, GpuCount, Seconds, Time, Watts};
use andreas_planner::Job;

use super::closed::{Load, PRICE_PER_KWH, arrivals, cluster};

/// Seconds of a slice at a pace of 1.
const SLICE: f64 = 900.0;
/// Slices after the last submission in which GPUs have prices.
const TAIL: usize = 400;

/// Nodes that are alike.
struct Class {
    kind: String,
    size: u32,
    gpus: u32,
    idle: f64,
    overhead_per_gpu: f64,
}

/// The bound, after so many rounds.
pub fn bound(load: &Load, rounds: usize) -> f64 {
    assert!(load.windows.is_empty(), "one budget for all the time");
    let empty = cluster(load);
    let mut alike: BTreeMap<(String, u32), (u32, f64)> = BTreeMap::new();
    let mut floor = 0.0;
    for node in &empty.nodes {
        let info =
            empty.gpu_types.iter().find(|t| t.name == node.gpu_type).expect("each node has a described type");
        let entry = alike.entry((node.gpu_type.to_string(), node.gpus.0)).or_insert((0, node.overhead().0));
        entry.0 += node.gpus.0;
        entry.1 = entry.1.min(node.overhead().0);
        floor += f64::from(node.gpus.0) * info.idle.0;
    }
    let classes: Vec<Class> = alike
        .into_iter()
        .map(|((kind, size), (gpus, overhead))| {
            let info = empty
                .gpu_types
                .iter()
                .find(|t| t.name.as_str() == kind)
                .expect("each class has a described type");
            Class { size, gpus, idle: info.idle.0, overhead_per_gpu: overhead / f64::from(size), kind }
        })
        .collect();
    let jobs: Vec<KnownJob> = arrivals(load).iter().map(|(job, truth)| known(job, truth, &classes)).collect();
    let length = SLICE / load.pace;
    let last = jobs.iter().map(|job| job.submit.0).fold(0.0, f64::max);
    let slices = (last / length) as usize + TAIL;
    let known = KnownJobs {
        edges: (0..=slices).map(|slice| Time(slice as f64 * length)).collect(),
        prices: vec![EnergyPrice::per_kwh(PRICE_PER_KWH, 1.0); slices],
        gpus: classes.iter().map(|class| GpuCount(class.gpus)).collect(),
        watts: Watts(load.budget.map_or(f64::INFINITY, |budget| budget - floor)),
        lateness: empty.lateness,
        jobs,
    };
    known.bound(rounds).0
}

fn known(job: &Job, truth: &[f64], classes: &[Class]) -> KnownJob {
    let mut options = Vec::new();
    for (row, epoch) in job.estimates.iter().zip(truth) {
        let fits = |class: &Class| class.kind == row.gpu_type.as_str() && class.size >= row.gpus.0;
        for (class, of) in classes.iter().enumerate().filter(|(_, class)| fits(class)) {
            let gpus = f64::from(row.gpus.0);
            let limits = job.limits.iter().filter(|l| l.gpu_type == row.gpu_type);
            let factors = limits.map(|l| (l.time_factor, l.power_factor));
            for (slower, thriftier) in std::iter::once((1.0, 1.0)).chain(factors) {
                let power = row.power.0 * thriftier + of.overhead_per_gpu * gpus;
                options.push(RunOption {
                    class,
                    gpus: row.gpus,
                    time: Seconds(job.epochs_left * epoch * slower),
                    power: Watts(power),
                    budgeted: Watts(power - of.idle * gpus),
                });
            }
        }
    }
    KnownJob { submit: job.submit, deadline: job.deadline, weight: job.weight, options }
}
