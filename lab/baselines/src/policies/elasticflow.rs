//! ElasticFlow (Gu et al., ASPLOS 2023; pkusys/ElasticFlow at 04a0109a): the smallest share that meets the
//! deadline.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use andreas_model::order_key;
use andreas_planner::policy::{Assignment, Instance, PartialPlan, cheapest};

use super::ranking::{Preference, Ranking, View, levels};
use crate::memory::Memory;

/// Jobs with deadlines are admitted if all earlier admitted jobs can still be in time. In order of deadlines
/// each gets its *minimum satisfactory share*. That is the smallest number of GPUs with which its work fits,
/// counted back from the deadline over free capacity. GPUs left now go first to jobs without any. The rest
/// goes to the steps with the fewest GPU-seconds per added GPU. The policy chooses the number of GPUs, not
/// the user.
///
/// Differences: the published code prefers the *largest* increase of GPU-seconds, against its paper; here it
/// is the smallest. Jobs that are not admitted are rejected there; here they wait for leftovers, like best
/// effort jobs there. Each GPU type is a pool. A job stays in its pool, else takes the one where its share
/// costs the fewest GPU-seconds. Buddy placement is best fit here, and jobs with an unchanged number of GPUs
/// keep their place.
pub(super) struct ElasticFlow;

/// Maximum slots of the timeline; a slot lasts at least a minute, as published.
const SLOTS: f64 = 256.0;
const SLOT_S: f64 = 60.0;

/// Free GPUs in each coming time slot, by type.
struct Timeline {
    length: f64,
    free: Vec<Vec<i64>>,
}

/// A job's share: its level in each slot, by configuration; `None` is no GPUs.
type Share = Vec<Option<usize>>;

impl Timeline {
    fn new(instance: &Instance<'_>, base: &PartialPlan, horizon: f64) -> Self {
        let length = (horizon / SLOTS).max(SLOT_S);
        let slots = (libm::ceil(horizon / length) as usize).clamp(1, SLOTS as usize);
        let mut free: Vec<Vec<i64>> = instance
            .types
            .iter()
            .map(|kind| {
                let now = kind.nodes.iter().map(|n| base.ledger.free_gpus(*n).max(0)).sum();
                vec![now; slots]
            })
            .collect();
        // An immovable job leaves when it ends.
        for (job, assignment) in base.assignments.iter().enumerate() {
            let Some(assignment) = assignment else { continue };
            let config = &instance.jobs[job].configs[assignment.config];
            let from = libm::ceil(config.time / length).min(slots as f64) as usize;
            free[config.kind][from..].iter_mut().for_each(|f| *f += config.total_gpus());
        }
        Self { length, free }
    }

    fn slots(&self) -> usize {
        self.free.first().map_or(0, Vec::len)
    }

    /// The minimum satisfactory share of a job in a pool; `None` if it cannot be in time.
    fn share(&self, instance: &Instance<'_>, job: usize, levels: &[usize]) -> Option<Share> {
        let data = &instance.jobs[job];
        let kind = data.configs[*levels.first()?].kind;
        let left = data.deadline - instance.now;
        (1..=levels.len()).find_map(|top| {
            let share = self.fill_backwards(instance, job, kind, left, |_| &levels[..top])?;
            // The larger level only as far back from the deadline as needed, the level below before that.
            if top == 1 { Some(share) } else { self.mixed(instance, job, kind, left, &levels[..top]) }
        })
    }

    /// The top level in the fewest latest slots that suffice.
    fn mixed(
        &self,
        instance: &Instance<'_>,
        job: usize,
        kind: usize,
        left: f64,
        levels: &[usize],
    ) -> Option<Share> {
        let below = &levels[..levels.len() - 1];
        let (mut low, mut high) = (0, self.slots());
        let try_last = |late: usize| {
            let first = self.slots() - late;
            self.fill_backwards(instance, job, kind, left, |slot| if slot >= first { levels } else { below })
        };
        // More slots with the top level never do less work.
        while low < high {
            let middle = (low + high) / 2;
            if try_last(middle).is_some() { high = middle } else { low = middle + 1 }
        }
        try_last(low)
    }

    /// Fills slots from the deadline backwards with the largest free level until the work is done. `None` if they do
    /// not suffice.
    fn fill_backwards<'l>(
        &self,
        instance: &Instance<'_>,
        job: usize,
        kind: usize,
        left: f64,
        levels: impl Fn(usize) -> &'l [usize],
    ) -> Option<Share> {
        let configs = &instance.jobs[job].configs;
        let mut share: Share = vec![None; self.slots()];
        let mut undone = 1.0;
        for slot in (0..self.slots()).rev() {
            let begin = slot as f64 * self.length;
            let time = (left - begin).min(self.length);
            if time <= 0.0 {
                continue;
            }
            let fits = |c: &&usize| configs[**c].total_gpus() <= self.free[kind][slot];
            let Some(&config) = levels(slot).iter().rev().find(fits) else { continue };
            share[slot] = Some(config);
            undone -= time / configs[config].time;
            if undone <= 1e-9 {
                return Some(share);
            }
        }
        None
    }

    fn take(&mut self, instance: &Instance<'_>, job: usize, share: &Share) {
        for (slot, config) in share.iter().enumerate() {
            let Some(config) = config.map(|c| &instance.jobs[job].configs[c]) else { continue };
            self.free[config.kind][slot] -= config.total_gpus();
        }
    }
}

/// GPU-seconds of a share.
fn cost(instance: &Instance<'_>, job: usize, share: &Share) -> i64 {
    share.iter().flatten().map(|c| instance.jobs[job].configs[*c].total_gpus()).sum()
}

/// The share of a job in its present pool, else in the cheapest one.
fn best_share(
    timeline: &Timeline,
    instance: &Instance<'_>,
    job: usize,
    current: Option<&Assignment>,
) -> Option<Share> {
    let data = &instance.jobs[job];
    let here = current.map(|assignment| data.configs[assignment.config].kind);
    let of = |kind: usize| timeline.share(instance, job, &levels(instance, job, kind));
    if let Some(share) = here.and_then(of) {
        return Some(share);
    }
    (0..instance.types.len())
        .filter(|kind| Some(*kind) != here)
        .filter_map(of)
        .min_by_key(|share| cost(instance, job, share))
}

fn horizon(instance: &Instance<'_>) -> f64 {
    let latest = instance.jobs.iter().map(|j| j.deadline).filter(|d| d.is_finite());
    (latest.fold(instance.now, f64::max) - instance.now).max(SLOT_S)
}

/// Sorts jobs by deadline.
fn by_deadline(instance: &Instance<'_>, mut jobs: Vec<usize>) -> Vec<usize> {
    jobs.sort_by(|a, b| instance.jobs[*a].deadline.total_cmp(&instance.jobs[*b].deadline).then(a.cmp(b)));
    jobs
}

/// Decides for every new job whether to accept its deadline, in order of submission.
fn admit(instance: &Instance<'_>, memory: &mut Memory) {
    let base = PartialPlan::new(instance, |_, free| !free);
    let promised = |memory: &Memory, job: usize| memory.job(instance, job).and_then(|m| m.admitted);
    let (mut admitted, mut new) = (Vec::new(), Vec::new());
    for (job, data) in instance.jobs.iter().enumerate() {
        if base.assignments[job].is_none() && data.deadline.is_finite() {
            match promised(memory, job) {
                Some(true) => admitted.push(job),
                Some(false) => {}
                None => new.push(job),
            }
        }
    }
    new.sort_by(|a, b| {
        let submit = |j: usize| instance.jobs[j].job.submit;
        submit(*a).total_cmp(&submit(*b)).then(a.cmp(b))
    });
    // Jobs that are in time if served in order of deadlines.
    let in_time = |jobs: &[usize]| -> BTreeSet<usize> {
        let mut timeline = Timeline::new(instance, &base, horizon(instance));
        let jobs = by_deadline(instance, jobs.to_vec()).into_iter();
        jobs.filter(|j| {
            let share = best_share(&timeline, instance, *j, instance.jobs[*j].current());
            share.is_some_and(|share| {
                timeline.take(instance, *j, &share);
                true
            })
        })
        .collect()
    };
    // An accepted deadline that can no longer be met does not exclude new jobs.
    let mut kept = if new.is_empty() { BTreeSet::new() } else { in_time(&admitted) };
    for job in new {
        admitted.push(job);
        let with = in_time(&admitted);
        let fits = with.contains(&job) && with.is_superset(&kept);
        if fits {
            kept = with;
        } else {
            admitted.pop();
        }
        memory.jobs.entry(instance.jobs[job].job.id.clone()).or_default().admitted = Some(fits);
    }
}

impl Ranking for ElasticFlow {
    fn prepare(&self, instance: &Instance<'_>, memory: &mut Memory) {
        admit(instance, memory);
    }

    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference> {
        let instance = view.instance;
        let mut free: Vec<i64> = (0..instance.types.len()).map(|kind| view.free_gpus_of_type(kind)).collect();
        // The present pool of each job, as levels, and its level.
        let mut now: Vec<Option<usize>> = vec![None; instance.jobs.len()];
        let admitted = |job: &usize| {
            let promised = view.memory.job(instance, *job).and_then(|m| m.admitted);
            promised == Some(true) && instance.jobs[*job].deadline > instance.now
        };
        let mut timeline = Timeline::new(instance, view.base, horizon(instance));
        let urgent = by_deadline(instance, view.unassigned_jobs().filter(admitted).collect());
        for &job in &urgent {
            let here = view.current[job].as_ref();
            let Some(share) = best_share(&timeline, instance, job, here) else { continue };
            timeline.take(instance, job, &share);
            now[job] = share[0];
            if let Some(config) = share[0].map(|c| view.config(job, c)) {
                free[config.kind] -= config.total_gpus();
            }
        }
        let others = view.unassigned_jobs().filter(|job| !urgent.contains(job)).collect();
        let mut queue = urgent;
        queue.extend(by_deadline(instance, others));
        first_gpus(view, &queue, &mut free, &mut now);
        raise(instance, &mut free, &mut now);
        queue
            .into_iter()
            .filter_map(|job| {
                let config = view.config(job, now[job]?);
                let mut configs = levels(instance, job, config.kind);
                // If no node set fits, fewer GPUs of the same type.
                configs.retain(|c| view.config(job, *c).total_gpus() <= config.total_gpus());
                configs.reverse();
                Some(Preference { job, configs })
            })
            .collect()
    }

    fn leftovers(&self, instance: &Instance<'_>, job: usize) -> Vec<usize> {
        cheapest(instance, job)
    }
}

/// Jobs without GPUs get their minimum, in their pool or where it takes the fewest GPU-seconds.
fn first_gpus(view: &View<'_, '_>, queue: &[usize], free: &mut [i64], now: &mut [Option<usize>]) {
    for &job in queue {
        if now[job].is_some() {
            continue;
        }
        let here = view.current[job].as_ref().map(|assignment| view.config(job, assignment.config).kind);
        let least = (0..free.len())
            .filter_map(|kind| levels(view.instance, job, kind).first().copied())
            .filter(|c| view.config(job, *c).total_gpus() <= free[view.config(job, *c).kind]);
        let key = |c: &usize| {
            let config = view.config(job, *c);
            (Some(config.kind) != here, config.time * config.total_gpus() as f64)
        };
        let best = least.min_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        if let Some(config) = best {
            now[job] = Some(config);
            free[view.config(job, config).kind] -= view.config(job, config).total_gpus();
        }
    }
}

/// Raises jobs by one level, smallest growth of GPU-seconds per added GPU first.
fn raise(instance: &Instance<'_>, free: &mut [i64], now: &mut [Option<usize>]) {
    let next = |job: usize, config: usize| -> Option<Step> {
        let old = &instance.jobs[job].configs[config];
        let levels = levels(instance, job, old.kind);
        let to = *levels.iter().find(|c| instance.jobs[job].configs[**c].total_gpus() > old.total_gpus())?;
        let new = &instance.jobs[job].configs[to];
        let more = new.total_gpus() - old.total_gpus();
        let growth = new.time * new.total_gpus() as f64 - old.time * old.total_gpus() as f64;
        (new.time < old.time).then_some(Step { growth: order_key(growth / more as f64), job, to, more })
    };
    let mut steps: BinaryHeap<Reverse<Step>> =
        now.iter().enumerate().filter_map(|(job, config)| next(job, (*config)?)).map(Reverse).collect();
    while let Some(Reverse(step)) = steps.pop() {
        let kind = instance.jobs[step.job].configs[step.to].kind;
        if step.more > free[kind] {
            continue;
        }
        free[kind] -= step.more;
        now[step.job] = Some(step.to);
        steps.extend(next(step.job, step.to).map(Reverse));
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    /// GPU-seconds per added GPU, as a key.
    growth: i64,
    job: usize,
    to: usize,
    more: i64,
}
