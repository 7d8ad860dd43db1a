//! Jobs, compiled to indices.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_model::{GpuType, JobId, NodeName, Seconds};

use super::ahead::{LowerWindow, met_by};
use super::cluster::{CPU, MEMORY, Names, PODS, QuotaIndex};
use super::data::{Assignment, Config, Demand, Holding, JobData, TypeData, whole_milliwatts};
use crate::cost::PriceOverTime;
use crate::snapshot::{
    Estimate, IntendedChange, Job, JobState, LimitsCount, Placement, RefusedWorkers, Resources, Snapshot,
};

/// Maximum factor by which age raises the planning weight.
const OLDEST: f64 = 10.0;
/// Maximum share of the weight that a second of waiting costs, unless a second in the system costs more.
const MAX_WAITING: f64 = 0.2;
/// Remaining time of a run without any estimate: four hours, as in the whole product.
const UNKNOWN_RUN_S: f64 = 4.0 * 3600.0;

/// Lookups for compiling a job.
pub(super) struct JobContext<'a, 'b> {
    pub snapshot: &'a Snapshot,
    pub types: &'b [TypeData],
    pub kind_of: &'b BTreeMap<GpuType, usize>,
    pub by_name: &'b BTreeMap<NodeName, u32>,
    pub quota_of: &'b QuotaIndex,
    pub prices: &'b PriceOverTime,
    pub names: &'b Names,
    pub intended: &'b BTreeMap<&'a JobId, &'a IntendedChange>,
    pub lower_windows: &'b [LowerWindow],
}

/// Limits an immovable job to what it holds: the same GPUs, at any power limit. Once it has left, it waits
/// like any job and may get every listed configuration.
fn keep_to_what_is_held(holding: &Holding, configs: &mut [Config]) {
    let held: Vec<Config> = match holding {
        Holding::Nothing => return,
        Holding::Running { assignment, .. }
        | Holding::Leaving { assignment }
        | Holding::Committed { target: assignment, leaving: None } => {
            vec![configs[assignment.config].clone()]
        }
        Holding::Committed { target, leaving: Some(leaving) } => {
            vec![configs[target.config].clone(), configs[leaving.config].clone()]
        }
    };
    for config in configs {
        config.offered &= held.iter().any(|held| config.same_hardware(held));
    }
}

/// A limit is set when the pods run. Until then a job draws as without a limit, wherever it starts.
fn starts_without_limit(job: &Job, holding: &Holding, configs: &mut [Config]) {
    let held = match holding {
        Holding::Running { assignment, .. }
        | Holding::Committed { leaving: Some(assignment), .. }
        | Holding::Leaving { assignment } => Some(assignment),
        Holding::Committed { target, leaving: None } => Some(target).filter(|_| !job.promised),
        Holding::Nothing => None,
    };
    let held = held.map(|assignment| configs[assignment.config].clone());
    for at in 0..configs.len() {
        let config = &configs[at];
        if config.limit.is_none() || held.as_ref().is_some_and(|held| config.same_hardware(held)) {
            continue;
        }
        let without = configs.iter().find(|c| c.limit.is_none() && c.same_hardware(config));
        if let Some(draw) = without.map(|without| without.draw) {
            configs[at].count_as(draw);
        }
    }
}

/// Draw counted against the budget under a limit that leaves `power` of the mean draw. It is at most the
/// limit.
fn draw_under_limit(row: &Estimate, limit: Option<f64>, power: f64) -> f64 {
    match (row.draw, limit) {
        (None, _) => power,
        (Some(draw), None) => draw.0,
        (Some(draw), Some(limit)) => draw.0.min(limit * f64::from(row.gpus.0)),
    }
}

/// Share of the weight that a second of waiting costs: twice that of a second in the system, because GPUs may be
/// taken until then. Where that is less, a job pays for its lack of time: [`MAX_WAITING`] in full if its fastest run
/// needs half of the time left to the deadline, in proportion if less.
///
/// Where time in the system costs nothing: with [`MAX_WAITING`] for all, jobs start at once on whatever is free, and
/// a loaded cluster costs a quarter more; without a price of waiting, jobs wait until they are late, and an
/// overloaded one costs as much more (`lab/docs/planner.md`).
fn waiting_share(share: f64, fastest: f64, left: f64) -> f64 {
    let needed = if fastest < left { fastest / left } else { 1.0 };
    share.max((2.0 * share.max(MAX_WAITING * needed)).min(MAX_WAITING))
}

impl<'a> JobContext<'a, '_> {
    pub fn compile(&self, job: &'a Job, admits: usize) -> JobData<'a> {
        let mut configs = self.configs(job);
        let holding = self.holding(job, &mut configs);
        if !job.movable {
            keep_to_what_is_held(&holding, &mut configs);
        }
        if job.limits_count != LimitsCount::AtOnce {
            starts_without_limit(job, &holding, &mut configs);
        }
        let lateness = &self.snapshot.lateness;
        let (age, fully_aged) = self.age(job);
        let weight = job.weight.0 * age;
        let share = lateness.share(job.deadline.is_some());
        let restart = job.restart_time(self.snapshot).0;
        let lost = restart + job.lost.0;
        let listed = || configs.iter().filter(|c| c.listed);
        let least_power = listed().map(|c| c.power).reduce(f64::min).unwrap_or(0.0);
        let times = || listed().map(|c| c.time);
        let (fastest, slowest) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
        // A late job pays for every second lost, any other for its time in the system. The cost is the same
        // for every target, so one migration never costs more than two.
        let late = job.deadline.is_some_and(|d| d < self.snapshot.now);
        let change =
            self.prices.energy_cost(least_power, lost) + weight * lost * if late { 1.0 } else { share };
        let deadline = job.deadline.map_or(f64::INFINITY, |d| d.0);
        JobData {
            job,
            configs,
            weight,
            share,
            waiting: waiting_share(share, fastest, deadline - self.snapshot.now.0),
            deadline,
            lower_windows: met_by(self.lower_windows, job.longest_stop(self.snapshot.now)),
            fully_aged,
            holding,
            admits,
            node_demand: self.node_demand(job),
            quota_demand: self.quota_demand(job),
            restart,
            change,
            intended: self.intended.get(&job.id).copied(),
            fastest,
            slowest,
        }
    }

    /// Factor of the planning weight, and whether it has reached its maximum.
    fn age(&self, job: &Job) -> (f64, bool) {
        let Some(aging) = self.snapshot.lateness.aging else { return (1.0, false) };
        let since = job.deadline.unwrap_or(job.submit);
        let age = 1.0 + (self.snapshot.now - since).max(Seconds::ZERO).0 / aging.0;
        (age.min(OLDEST), age >= OLDEST)
    }

    fn configs(&self, job: &Job) -> Vec<Config> {
        // One more for the held configuration.
        let mut configs = Vec::with_capacity(job.estimates.len() + 1);
        let mut last: Option<(&GpuType, Option<usize>)> = None;
        for row in job.estimates.iter() {
            // Rows of a type are adjacent.
            let kind = match last {
                Some((name, kind)) if *name == row.gpu_type => kind,
                _ => self.kind_of.get(&row.gpu_type).copied(),
            };
            last = Some((&row.gpu_type, kind));
            let Some(kind) = kind else { continue };
            let total = row.gpus.0;
            let epoch = row.epoch.0;
            let spans = std::iter::once((1, 1.0)).chain(job.spread.iter().map(|s| (s.nodes, s.time_factor)));
            for (nodes, spread) in spans {
                let gpus = i64::from(total / nodes);
                let refused = |refused: &RefusedWorkers| {
                    refused.gpu_type.as_ref().is_none_or(|of| *of == row.gpu_type)
                        && (i64::from(refused.least.0)..=i64::from(refused.most.0)).contains(&gpus)
                };
                let possible = total % nodes == 0
                    && !job.refused_workers.iter().any(refused)
                    && gpus <= self.types[kind].max_node_gpus
                    && self.types[kind].max_gang >= nodes as usize;
                if !possible {
                    continue;
                }
                let limits = job.limits.iter().filter(|l| l.gpu_type == row.gpu_type);
                let limits = limits.map(|l| (Some(l.limit.0), l.time_factor, l.power_factor));
                for (limit, time_factor, power_factor) in std::iter::once((None, 1.0, 1.0)).chain(limits) {
                    let power = row.power.0 * power_factor;
                    let draw = draw_under_limit(row, limit, power);
                    configs.push(Config {
                        kind,
                        nodes,
                        gpus,
                        limit,
                        time: job.epochs_left * epoch * spread * time_factor,
                        power,
                        draw,
                        milliwatts: whole_milliwatts(draw),
                        rel_std: row.rel_std,
                        listed: true,
                        offered: true,
                    });
                }
            }
        }
        let key = |c: &Config| (c.kind, c.total_gpus(), c.nodes, c.limit.map(f64::to_bits));
        configs.sort_by_key(key);
        configs.dedup_by_key(|c| key(c));
        configs
    }

    fn holding(&self, job: &Job, configs: &mut Vec<Config>) -> Holding {
        match &job.state {
            JobState::Waiting => Holding::Nothing,
            JobState::Starting { target, .. } => {
                Holding::Committed { target: self.assignment(job, target, configs), leaving: None }
            }
            JobState::Stopping { holds, target: Some(target), .. } => Holding::Committed {
                target: self.assignment(job, target, configs),
                leaving: Some(self.assignment(job, holds, configs)),
            },
            JobState::Stopping { holds, target: None, .. } => {
                Holding::Leaving { assignment: self.assignment(job, holds, configs) }
            }
            JobState::Running { placement, since } => {
                let assignment = self.assignment(job, placement, configs);
                let known = assignment.nodes.as_slice().len() == placement.nodes.len();
                let settled = *since + job.min_run <= self.snapshot.now;
                let free_to_move = known && settled && job.may_restart();
                Holding::Running { assignment, free_to_move }
            }
        }
    }

    /// A placement by indices; a configuration that is not offered is added for it.
    fn assignment(&self, job: &Job, place: &Placement, configs: &mut Vec<Config>) -> Assignment {
        let nodes: Vec<u32> = place.nodes.iter().filter_map(|n| self.by_name.get(n).copied()).collect();
        let kind = self.kind_of.get(&place.gpu_type).copied().unwrap_or(self.types.len() - 1);
        let span = u32::try_from(place.nodes.len()).unwrap_or(u32::MAX);
        let gpus = i64::from(place.gpus_per_node.0);
        let limit = place.limit.map(|l| l.0);
        let same = |c: &Config| c.kind == kind && c.nodes == span && c.gpus == gpus && c.limit == limit;
        let config = configs.iter().position(same).unwrap_or_else(|| {
            configs.push(self.unlisted(job, place, kind, span, configs));
            configs.len() - 1
        });
        Assignment { config, nodes: nodes.into() }
    }

    /// Time and power of a configuration missing in the job's table: those of the nearest row of the type,
    /// else the slowest of all. The watts are at least the idle draw of the type.
    fn unlisted(&self, job: &Job, place: &Placement, kind: usize, span: u32, configs: &[Config]) -> Config {
        let total = place.total_gpus();
        let nearest = job
            .estimates
            .iter()
            .filter(|row| row.gpu_type == place.gpu_type)
            .min_by_key(|row| (row.gpus.0.abs_diff(total.0), row.gpus));
        let slowest = configs.iter().map(|c| c.time).fold(0.0, f64::max);
        let most = self.types[kind].max * f64::from(total.0);
        let scale = |row: &Estimate| f64::from(total.0) / f64::from(row.gpus.0);
        let (time, power) = match nearest {
            Some(row) => {
                (job.epochs_left * row.epoch.0, row.power.0 / f64::from(row.gpus.0) * f64::from(total.0))
            }
            None if slowest > 0.0 => (slowest, most),
            None => (UNKNOWN_RUN_S, most),
        };
        let draw = nearest.and_then(|row| Some(row.draw?.0 * scale(row))).unwrap_or(power);
        Config {
            kind,
            nodes: span,
            gpus: i64::from(place.gpus_per_node.0),
            limit: place.limit.map(|l| l.0),
            time,
            power,
            draw,
            milliwatts: whole_milliwatts(draw),
            rel_std: nearest.map_or(1.0, |row| row.rel_std),
            listed: false,
            offered: false,
        }
    }

    fn node_demand(&self, job: &Job) -> Vec<Demand> {
        let worker = &job.worker;
        let amount = |what: usize, pick: fn(&Resources) -> Option<u64>| {
            let of = |r: &Resources| pick(r).unwrap_or(0);
            Demand { what, fixed: of(&worker.fixed), per_gpu: of(&worker.per_gpu), ..Demand::default() }
        };
        let mut demand = vec![amount(CPU, |r| r.cpu_milli), amount(MEMORY, |r| r.memory_bytes)];
        if self.names.pods_limited {
            demand.push(Demand { what: PODS, fixed: 1, ..Demand::default() });
        }
        for (key, &what) in &self.names.others {
            let of = |amounts: &BTreeMap<Arc<str>, u64>| amounts.get(key).copied().unwrap_or(0);
            let (fixed, per_gpu) = (of(&worker.fixed.others), of(&worker.per_gpu.others));
            demand.push(Demand { what, fixed, per_gpu, share: of(&worker.shares), per_gang: 0 });
        }
        demand.retain(|demand| (demand.fixed, demand.per_gpu, demand.share) != (0, 0, 0));
        demand
    }

    fn quota_demand(&self, job: &Job) -> Vec<Demand> {
        if self.quota_of.is_empty() {
            return Vec::new();
        }
        let worker = &job.worker;
        let keys: std::collections::BTreeSet<_> =
            [&worker.quota_fixed, &worker.quota_per_gpu, &worker.quota_shares, &worker.quota_per_gang]
                .into_iter()
                .flat_map(|m| m.keys())
                .collect();
        let of = |m: &BTreeMap<Arc<str>, u64>, key| m.get(key).copied().unwrap_or(0);
        keys.into_iter()
            .filter_map(|key| {
                let what = *self.quota_of.get(&(job.namespace.as_str().to_owned(), key.clone()))?;
                Some(Demand {
                    what,
                    fixed: of(&worker.quota_fixed, key),
                    per_gpu: of(&worker.quota_per_gpu, key),
                    share: of(&worker.quota_shares, key),
                    per_gang: of(&worker.quota_per_gang, key),
                })
            })
            .collect()
    }
}
