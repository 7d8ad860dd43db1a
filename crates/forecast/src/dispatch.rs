//! The rest of a future without further plans: jobs that run go on, and jobs that wait take GPUs in turn,
//! nearest deadline first, each on the configuration that is expected to finish first.
//!
//! GPUs of a type are one pool that refills as runs end.

use std::collections::{BTreeMap, VecDeque};

use andreas_core::{GpuType, JobId, Seconds, Time, order_key};
use andreas_planner::{Estimate, Snapshot};

use crate::hosts::Hosts;
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

/// Simulates the rest without further plans: jobs that hold GPUs end there, and the first `most` of those that wait are
/// dispatched in the order of their deadlines; the others have no start. Jobs of `later`, in the order of their
/// submission, wait for GPUs from then on.
pub(crate) fn dispatch_rest<'a>(
    (snapshot, hosts): (&Snapshot, &Hosts<'_>),
    all: &mut [Live<'a>],
    later: VecDeque<Live<'a>>,
    (now, most): (Time, usize),
) {
    let mut later = Later::new(later);
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
            pool.add(until + live.delays.reaction, gpus);
        }
        live.run_out(now, until, &snapshot.tariff);
    }
    for (name, gpus) in idle {
        if let Some(pool) = pools.get_mut(name) {
            pool.add(now, gpus);
        }
    }
    let mut waiting: BTreeMap<Turn, Waiting<'_, 'a>> = all
        .iter_mut()
        .filter(|live| live.ended.is_none())
        .map(|live| (turn(live), Waiting::Now(live)))
        .collect();
    // Those behind the first ones have no start.
    let mut left = waiting.len().min(most);
    while left > 0 {
        let Some((its_turn, live)) = waiting.pop_first() else { return };
        let free_at = live.live().leaving.as_ref().map_or(now, |(_, until)| until.max(now));
        let from = free_at.max(live.live().job.submit);
        let Some((start, row)) = best(live.live(), &pools, &largest, from) else {
            left -= usize::from(live.is_now());
            continue;
        };
        // Whoever comes for the same GPUs before that may have an earlier turn.
        if let Some(next) = later.next(&row.gpu_type, start) {
            waiting.insert(its_turn, live);
            waiting.insert(turn(&next), Waiting::Later(Box::new(next)));
            continue;
        }
        left -= usize::from(live.is_now());
        let mut live = live;
        let live = live.live_mut();
        let end = live.run_on(&row, start + start_delay(live, snapshot.restart), &snapshot.tariff, hosts);
        if let Some(pool) = pools.get_mut(&row.gpu_type) {
            pool.take(row.gpus.0);
            pool.add(end + live.delays.reaction, row.gpus.0);
        }
    }
}

/// Jobs that will be submitted, by the GPU types that they can use.
struct Later<'a> {
    jobs: Vec<Option<Live<'a>>>,
    /// Their places in `jobs`, in the order of their submission.
    by_type: BTreeMap<GpuType, VecDeque<usize>>,
}

impl<'a> Later<'a> {
    fn new(jobs: VecDeque<Live<'a>>) -> Self {
        let mut by_type: BTreeMap<GpuType, VecDeque<usize>> = BTreeMap::new();
        for (n, live) in jobs.iter().enumerate() {
            for row in live.job.estimates.iter() {
                let of_type = by_type.entry(row.gpu_type.clone()).or_default();
                if of_type.back() != Some(&n) {
                    of_type.push_back(n);
                }
            }
        }
        Self { jobs: jobs.into_iter().map(Some).collect(), by_type }
    }

    /// The first one left that can use a type and is submitted by then.
    fn next(&mut self, gpu_type: &GpuType, by: Time) -> Option<Live<'a>> {
        let places = self.by_type.get_mut(gpu_type)?;
        while let Some(&first) = places.front() {
            match &self.jobs[first] {
                Some(live) if live.job.submit > by => return None,
                _ => {
                    places.pop_front();
                    if let Some(live) = self.jobs[first].take() {
                        return Some(live);
                    }
                }
            }
        }
        None
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

/// A job that waits: of the snapshot, or submitted later.
enum Waiting<'b, 'a> {
    Now(&'b mut Live<'a>),
    Later(Box<Live<'a>>),
}

impl<'a> Waiting<'_, 'a> {
    fn is_now(&self) -> bool {
        matches!(self, Self::Now(_))
    }

    fn live(&self) -> &Live<'a> {
        match self {
            Self::Now(live) => live,
            Self::Later(live) => live,
        }
    }

    fn live_mut(&mut self) -> &mut Live<'a> {
        match self {
            Self::Now(live) => live,
            Self::Later(live) => live,
        }
    }
}

/// Restart time of a job that ran before, start-up time of the pods of a new one.
fn start_delay(live: &Live<'_>, restart: Seconds) -> Seconds {
    if live.start.is_some() || live.leaving.is_some() {
        live.job.restart.unwrap_or(restart)
    } else {
        live.delays.start_up
    }
}
