//! The rest of a future without further plans: jobs that run go on, and jobs that wait take GPUs in turn,
//! nearest deadline first, each on the configuration that is expected to finish first.
//!
//! GPUs of a type are one pool that refills as runs end.

use std::collections::BTreeMap;

use andreas_core::{GpuType, JobId, Seconds, Time};
use andreas_planner::Snapshot;

use crate::live::Live;

/// GPUs by the instant at which they become free, earliest first.
#[derive(Default)]
struct Pool {
    free: std::collections::VecDeque<(Time, u32)>,
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

/// Ends every job that can start; of those that wait, the first `most`.
pub(crate) fn rest(snapshot: &Snapshot, all: &mut [Live<'_>], now: Time, most: usize) {
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
    let key = |live: &Live<'_>| {
        let due = live.job.deadline.unwrap_or(Time(f64::INFINITY));
        (due, live.job.submit, live.job.id.clone())
    };
    let order = |a: &(Time, Time, JobId), b: &(Time, Time, JobId)| {
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| a.2.cmp(&b.2))
    };
    waiting.sort_by(|a, b| order(&key(a), &key(b)));
    for live in waiting.into_iter().take(most) {
        let gone = live.leaving.as_ref().map_or(now, |(_, until)| until.max(now));
        let most_nodes = live.job.spread.iter().map(|spread| spread.nodes).max().unwrap_or(1);
        let fits = |name: &GpuType, gpus: u32| {
            largest.get(name).is_some_and(|most| gpus <= most.saturating_mul(most_nodes))
        };
        // Rows of a type are adjacent, and a pool has one start for a number of GPUs.
        let options =
            live.job.estimates.iter().filter(|row| fits(&row.gpu_type, row.gpus.0)).filter_map(|row| {
                let start = pools.get(&row.gpu_type)?.start(row.gpus.0)?.max(gone);
                Some((start + row.epoch * live.epochs_left, start, row))
            });
        let best = options.min_by(|(a, _, x), (b, _, y)| a.total_cmp(b).then(x.gpus.cmp(&y.gpus)));
        let Some((_, start, row)) = best else { continue };
        let end = live.run_on(row, start + restart(live, snapshot.restart), &snapshot.tariff);
        if let Some(pool) = pools.get_mut(&row.gpu_type) {
            pool.take(row.gpus.0);
            pool.add(end, row.gpus.0);
        }
    }
}

/// A job that has run before starts later by the restart, another one by the start-up of its pods.
fn restart(live: &Live<'_>, restart: Seconds) -> Seconds {
    if live.start.is_some() || live.leaving.is_some() {
        live.job.restart.unwrap_or(restart)
    } else {
        live.start_up
    }
}
