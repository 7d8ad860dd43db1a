//! The rest of a future without further plans: jobs that run go on, and jobs that wait take GPUs in turn,
//! nearest deadline first, each on the configuration that is expected to finish first.
//!
//! GPUs of a type are one pool that refills as runs end.

use std::collections::{BTreeMap, VecDeque};

use andreas_model::{GpuType, JobId, Seconds, Time, order_key};
use andreas_planner::{Estimate, Snapshot};

use crate::hosts::Hosts;
use crate::live::Live;

/// GPUs by the instant at which they become free, earliest first.
#[derive(Default)]
struct Pool {
    free: VecDeque<(Time, u32)>,
}

impl Pool {
    fn add(&mut self, from: Time, gpus: u32) {
        if gpus > 0 && from.is_finite() {
            let at = self.free.partition_point(|(time, _)| *time <= from);
            self.free.insert(at, (from, gpus));
        }
    }

    /// The first instant with this many free GPUs.
    fn start(&self, gpus: u32) -> Option<Time> {
        let mut sum = 0_u32;
        self.free.iter().find_map(|(from, free)| {
            sum = sum.saturating_add(*free);
            (sum >= gpus).then_some(*from)
        })
    }

    fn take(&mut self, mut gpus: u32) {
        while let Some(first) = self.free.front_mut().filter(|_| gpus > 0) {
            let taken = first.1.min(gpus);
            gpus -= taken;
            first.1 -= taken;
            if first.1 == 0 {
                self.free.pop_front();
            }
        }
    }
}

/// Simulates the rest without further plans: jobs that hold GPUs end there, and the first `most` of those that wait are
/// dispatched in the order of their deadlines; the others have no start.
pub(crate) fn dispatch_rest(
    (snapshot, hosts): (&Snapshot, &Hosts<'_>),
    all: &mut [Live<'_>],
    (now, most): (Time, usize),
) {
    let mut idle: BTreeMap<&GpuType, u32> = BTreeMap::new();
    let mut largest: BTreeMap<&GpuType, u32> = BTreeMap::new();
    for node in &snapshot.nodes {
        *idle.entry(&node.gpu_type).or_default() += node.free_gpus.0;
        let most = largest.entry(&node.gpu_type).or_default();
        *most = (*most).max(node.free_gpus.0);
    }
    let mut pools: BTreeMap<GpuType, Pool> =
        idle.keys().map(|name| ((*name).clone(), Pool::default())).collect();
    for live in all.iter_mut().filter(|live| live.ended.is_none()) {
        let Some((place, until)) = live.holds(now) else { continue };
        let (name, gpus) = (place.gpu_type.clone(), place.total_gpus().0);
        if let Some(idle) = idle.get_mut(&name) {
            *idle = idle.saturating_sub(gpus);
        }
        if let Some(pool) = pools.get_mut(&name) {
            pool.add(until, gpus);
        }
        live.run_out(now, until, &snapshot.tariff);
    }
    for (name, gpus) in idle {
        if let Some(pool) = pools.get_mut(name) {
            pool.add(now, gpus);
        }
    }
    let mut waiting: Vec<&mut Live<'_>> = all.iter_mut().filter(|live| live.ended.is_none()).collect();
    waiting.sort_by_cached_key(|live| turn(live));
    // Those behind the first ones have no start.
    for live in waiting.into_iter().take(most) {
        let from = live.leaving.as_ref().map_or(now, |(_, until)| until.max(now));
        let Some((start, row)) = best(live, &pools, &largest, from) else { continue };
        let ready = start + start_delay(live, snapshot.restart);
        let end = live.run_on(&row, ready, &snapshot.tariff, hosts);
        if let Some(pool) = pools.get_mut(&row.gpu_type) {
            pool.take(row.gpus.0);
            pool.add(end, row.gpus.0);
        }
    }
}

/// The configuration on which a job is expected to finish first, and its start there.
fn best(
    live: &Live<'_>,
    pools: &BTreeMap<GpuType, Pool>,
    largest: &BTreeMap<&GpuType, u32>,
    from: Time,
) -> Option<(Time, Estimate)> {
    let most_nodes = live.job.spread.iter().map(|spread| spread.nodes).max().unwrap_or(1);
    let fits = |name: &GpuType, gpus: u32| {
        largest.get(name).is_some_and(|most| gpus <= most.saturating_mul(most_nodes))
    };
    let rows = live.job.estimates.iter().filter(|row| fits(&row.gpu_type, row.gpus.0));
    let options = rows.filter_map(|row| {
        let start = pools.get(&row.gpu_type)?.start(row.gpus.0)?.max(from);
        Some((start + row.epoch * live.epochs_left, start, row))
    });
    let best = options.min_by(|(a, _, x), (b, _, y)| a.total_cmp(b).then(x.gpus.cmp(&y.gpus)));
    best.map(|(_, start, row)| (start, row.clone()))
}

/// Order of the waiting jobs: nearest deadline first, then by submission, then by name.
type Turn = (i64, i64, JobId);

fn turn(live: &Live<'_>) -> Turn {
    let due = live.job.deadline.unwrap_or(Time(f64::INFINITY));
    (order_key(due.0), order_key(live.job.submit.0), live.job.id.clone())
}

/// Restart time of a job that ran before.
fn start_delay(live: &Live<'_>, restart: Seconds) -> Seconds {
    if live.start.is_some() || live.leaving.is_some() {
        live.job.restart.unwrap_or(restart)
    } else {
        Seconds::ZERO
    }
}
