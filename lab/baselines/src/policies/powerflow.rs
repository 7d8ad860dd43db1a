//! PowerFlow-like (Gu et al., arXiv 2304.06381): the largest time gain per added energy, under a power
//! budget.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use andreas_model::order_key;
use andreas_planner::policy::{Config, Instance, cheapest};

use super::ranking::{Preference, Ranking, View, levels};

/// Every job gets its fewest GPUs at the most efficient setting, in order of submission. Then the best step
/// is taken repeatedly: more GPUs, a higher power limit, or as many GPUs of a faster type. The best has the
/// largest relative gain of completion time per relative increase of energy. This ends when the budget or the
/// GPUs are used up. Relative values make job lengths unnecessary.
///
/// Only the paper's abstract and a third-party port of its Algorithm 1 were available, hence "like". Its
/// models of throughput and energy are the snapshot's tables, and frequencies are power limits. Its energy
/// budget is the power budget; without one, only GPUs limit the steps. Its cluster has one GPU type; here a
/// faster type counts as a higher frequency. Buddy placement is best fit.
pub(super) struct PowerFlow;

impl Ranking for PowerFlow {
    /// Starts each job on its fewest GPUs, then grants the step with the most speedup per energy while GPUs and
    /// power last.
    fn preferences(&self, view: &View<'_, '_>) -> Vec<Preference> {
        let instance = view.instance;
        let mut free: Vec<i64> = (0..instance.types.len()).map(|kind| view.free_gpus_of_type(kind)).collect();
        let mut watts = instance.allowed_mw.map(|allowed| allowed - view.base.ledger.power());
        let mut queue: Vec<usize> = view.unassigned_jobs().collect();
        queue.sort_by(|a, b| {
            let submit = |j: usize| instance.jobs[j].job.submit;
            submit(*a).total_cmp(&submit(*b)).then(a.cmp(b))
        });
        let mut now: Vec<Option<usize>> = vec![None; instance.jobs.len()];
        for &job in &queue {
            now[job] = smallest_efficient(view, job, &free, watts);
            if let Some(config) = now[job].map(|c| view.config(job, c)) {
                free[config.kind] -= config.total_gpus();
                watts = watts.map(|w| w - net_draw_mw(instance, config));
            }
        }
        let mut steps: BinaryHeap<Step> = now
            .iter()
            .enumerate()
            .filter_map(|(job, config)| Some((job, (*config)?)))
            .flat_map(|(job, config)| next_steps(instance, job, config))
            .collect();
        while let Some(Step { job: Reverse(job), to: Reverse(to), from, .. }) = steps.pop() {
            let (old, new) = (view.config(job, from), view.config(job, to));
            // An outdated step: the job took its other step.
            let back = if new.kind == old.kind { old.total_gpus() } else { 0 };
            if now[job] != Some(from) || new.total_gpus() - back > free[new.kind] {
                continue;
            }
            let more = net_draw_mw(instance, new) - net_draw_mw(instance, old);
            if watts.is_some_and(|left| more > left) {
                break;
            }
            free[new.kind] -= new.total_gpus();
            free[old.kind] += old.total_gpus();
            watts = watts.map(|w| w - more);
            now[job] = Some(to);
            steps.extend(next_steps(instance, job, to));
        }
        queue
            .into_iter()
            .filter_map(|job| {
                let config = now[job]?;
                // If no node set fits, fewer GPUs of the same type.
                let total = view.config(job, config).total_gpus();
                let mut configs = vec![config];
                let less = levels(instance, job, view.config(job, config).kind);
                configs.extend(less.into_iter().rev().filter(|c| view.config(job, *c).total_gpus() < total));
                Some(Preference { job, configs })
            })
            .collect()
    }

    fn leftovers(&self, instance: &Instance<'_>, job: usize) -> Vec<usize> {
        cheapest(instance, job)
    }
}

/// Milliwatts that a job adds to those of idle GPUs; `Capacity` counts the overhead of its nodes.
fn net_draw_mw(instance: &Instance<'_>, config: &Config) -> i128 {
    config.draw_mw() - instance.types[config.kind].idle_mw * i128::from(config.total_gpus())
}

fn energy(config: &Config) -> f64 {
    config.power * config.time
}

/// The fewest GPUs of a job, at the most efficient setting.
fn smallest_efficient(view: &View<'_, '_>, job: usize, free: &[i64], watts: Option<i128>) -> Option<usize> {
    let instance = view.instance;
    let mut best: Option<usize> = None;
    for (kind, room) in free.iter().enumerate() {
        let Some(least) = levels(instance, job, kind).first().copied() else { continue };
        let least = view.config(job, least);
        for (c, config) in instance.jobs[job].configs.iter().enumerate() {
            let fits =
                config.total_gpus() <= *room && watts.is_none_or(|w| net_draw_mw(instance, config) <= w);
            if !(config.offered && config.same_hardware(least) && fits) {
                continue;
            }
            if best.is_none_or(|b| energy(config) < energy(view.config(job, b))) {
                best = Some(c);
            }
        }
    }
    best
}

/// The next number of GPUs at the same limit, the next limit on the same GPUs, and as many GPUs of each
/// faster type.
fn next_steps(instance: &Instance<'_>, job: usize, from: usize) -> Vec<Step> {
    let configs = &instance.jobs[job].configs;
    let old = &configs[from];
    let faster = |c: &usize| configs[*c].offered && configs[*c].time < old.time;
    let offered = |c: &usize| faster(c) && configs[*c].kind == old.kind;
    let more = (0..configs.len())
        .filter(offered)
        .filter(|c| configs[*c].limit == old.limit && configs[*c].total_gpus() > old.total_gpus())
        .min_by_key(|c| (configs[*c].total_gpus(), configs[*c].nodes));
    let top = |limit: Option<f64>| limit.unwrap_or(f64::INFINITY);
    let higher = (0..configs.len())
        .filter(offered)
        .filter(|c| configs[*c].same_hardware(old))
        .filter(|c| top(configs[*c].limit) > top(old.limit))
        .min_by(|a, b| top(configs[*a].limit).total_cmp(&top(configs[*b].limit)).then(a.cmp(b)));
    let alike = |c: &usize| {
        let new = &configs[*c];
        (new.nodes, new.gpus) == (old.nodes, old.gpus) && new.limit.is_none() && old.limit.is_none()
    };
    let other = (0..configs.len()).filter(faster).filter(|c| configs[*c].kind != old.kind).filter(alike);
    let step = |to: usize| {
        let gain = (old.time - configs[to].time) / old.time;
        let price = (energy(&configs[to]) - energy(old)) / energy(old).max(f64::MIN_POSITIVE);
        // Steps that also save energy come first.
        let gain_per_cost = if price > 0.0 { gain / price } else { f64::MAX };
        Step { gain_per_cost: order_key(gain_per_cost), job: Reverse(job), to: Reverse(to), from }
    };
    more.into_iter().chain(higher).chain(other).map(step).collect()
}

/// The largest is taken first; of equal ones the first job, and its first configuration.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    /// As a key.
    gain_per_cost: i64,
    job: Reverse<usize>,
    to: Reverse<usize>,
    from: usize,
}
