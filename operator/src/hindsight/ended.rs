//! The jobs that ended lately as the bound knows them, with what they cost.

use std::collections::BTreeMap;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{EnergyPolicySpec, Phase, TrainingJobStatus};
use andreas_core::{EnergyPrice, GpuCount, GpuType, Money, Seconds, Time, Watts};
use andreas_planner::Estimate;
use andreas_planner::clairvoyant::{KnownJob, KnownJobs, RunOption};
use jiff::Timestamp;

use crate::energy::weight::bounded_weight;
use crate::energy::{Inventory, Types, bill, boards, rules};
use crate::index::{ClusterIndex, gpu_memory, whole_gpus};
use crate::instants::{self, since};
use crate::predict::{Table, Tables};

/// Jobs that ended within so many seconds count.
const WINDOW: i64 = 86_400;
/// Most jobs that count: the dearest ones.
pub(super) const MAX_JOBS: usize = 1_000;
/// Most configurations of these jobs together; the cheapest jobs are left out beyond.
const MAX_OPTIONS: usize = 50_000;
/// Seconds of a slice within the window.
const SLICE: i64 = 300;

/// The jobs of the last day as the bound knows them, and what they cost. Left out are jobs whose status no longer shows all
/// their attempts, and those that ran on GPUs of which nothing is predicted now. `None`: no job ended.
pub(super) fn known_jobs(
    index: &ClusterIndex,
    tables: &mut Tables,
    now: Timestamp,
) -> Option<(KnownJobs, Money)> {
    let inventory = Inventory::from_index(index);
    let policy = inventory.policy();
    let all = index.jobs().iter();
    let mut ended: Vec<Ended<'_>> =
        all.filter_map(|(key, job)| Ended::from_job(index, policy, &key.namespace, job, now)).collect();
    if ended.is_empty() {
        return None;
    }
    ended.sort_by(|a, b| b.cost().total_cmp(&a.cost()));
    ended.truncate(MAX_JOBS);
    let classes = Classes::from_index(index, &inventory);
    tables.refresh(index, policy, &classes.types);
    let (mut jobs, mut runs, mut cost, mut options) = (Vec::new(), Vec::new(), 0.0, 0);
    for job in &ended {
        let Some(table) = tables.table_of(index, job.job, &classes.types) else { continue };
        let Some((known, own_runs)) = job.known(&table, &classes, policy) else { continue };
        options += known.options.len();
        if options > MAX_OPTIONS {
            break;
        }
        jobs.push(known);
        runs.extend(own_runs);
        cost += job.cost();
    }
    let now = now.as_second();
    let first = jobs.iter().map(|job| job.submit.0.floor() as i64).min().unwrap_or(now);
    let seconds = edges(first, now);
    let lowest = |slice: &[i64]| {
        let prices = bill::prices(policy, slice[0], slice[1]).into_iter().map(|(_, price)| price);
        prices.min_by(EnergyPrice::total_cmp).unwrap_or_default()
    };
    let edges: Vec<Time> = seconds.iter().map(|second| Time(*second as f64)).collect();
    let known = KnownJobs {
        prices: seconds.windows(2).map(lowest).collect(),
        gpus: classes.capacity(&edges, &runs),
        edges,
        watts: Watts(f64::INFINITY),
        lateness: rules::lateness(policy),
        jobs,
    };
    Some((known, Money(cost)))
}

/// Edges of slices over the window. Before and after it slices are ever longer, so that a job of months adds few.
fn edges(first: i64, now: i64) -> Vec<i64> {
    let begin = now - WINDOW;
    let mut edges = Vec::new();
    let (mut at, mut length) = (begin, SLICE);
    while at > first {
        at -= length;
        length += length / 4;
        edges.push(at);
    }
    edges.reverse();
    edges.extend((0..=WINDOW / SLICE).map(|slice| begin + slice * SLICE));
    // A job could have run later than it did, too.
    let (mut at, mut length) = (now, SLICE);
    while at < now + WINDOW {
        at += length;
        length += length / 4;
        edges.push(at);
    }
    edges
}

/// A job that succeeded lately.
struct Ended<'a> {
    job: &'a SlimTrainingJob,
    status: &'a TrainingJobStatus,
    created: Timestamp,
    weight: i32,
    /// Money for the energy of its GPUs, and of its share of hosts.
    energy: [f64; 2],
    /// Money for lateness and time in the system.
    lateness: f64,
}

/// GPUs that a job had for a while.
struct HeldGpus {
    class: usize,
    gpus: f64,
    from: Time,
    to: Time,
}

/// A row of a job's table, on as many nodes as are fastest.
struct Choice {
    class: usize,
    gpus: GpuCount,
    /// Seconds of the whole job.
    time: f64,
    /// Slowdown of its number of nodes.
    spread: f64,
    /// Of its GPUs, and of its share of hosts.
    draws: [Watts; 2],
}

impl<'a> Ended<'a> {
    fn from_job(
        index: &ClusterIndex,
        policy: &EnergyPolicySpec,
        namespace: &str,
        job: &'a SlimTrainingJob,
        now: Timestamp,
    ) -> Option<Self> {
        let status = job.status.as_ref().filter(|status| status.phase == Phase::Succeeded)?;
        let end = status.completion_time.as_ref()?.0;
        let all_shown = usize::try_from(status.attempts) == Ok(status.history.len());
        if since(end, now).0 > WINDOW as f64 || !all_shown {
            return None;
        }
        let created = job.metadata.creation_timestamp.as_ref()?.0;
        let total = status.consumption.as_ref()?;
        let weight = bounded_weight(index, namespace, job.spec.weight);
        Some(Self {
            job,
            status,
            created,
            weight,
            energy: [total.energy_micros, total.host_micros].map(|micros| micros as f64 / 1e6),
            lateness: bill::lateness_micros(job, weight, policy, now) as f64 / 1e6,
        })
    }

    fn cost(&self) -> f64 {
        self.energy[0] + self.energy[1] + self.lateness
    }

    /// As the bound knows it, and what it held. Its table is scaled: at the predicted times its attempts would have done all
    /// of the work, and at the predicted draw they would have cost what was billed. So what happened is one of the courses
    /// that the bound is below, whatever the predictions are.
    fn known(
        &self,
        table: &Table,
        classes: &Classes,
        policy: &EnergyPolicySpec,
    ) -> Option<(KnownJob, Vec<HeldGpus>)> {
        let choices: Vec<Option<Choice>> =
            table.rows.iter().map(|row| classes.choice(row, table, self.job.spec.epochs)).collect();
        let (mut done, mut last, mut money, mut held) = (0.0, (0, 0.0), [0.0; 2], Vec::new());
        for record in &self.status.history {
            let Some(from) = record.started.as_ref().map(|started| started.0) else { continue };
            let (to, gpus) = (record.ended.0, u32::try_from(record.gpus).ok()?);
            let choice = choices.get(table.row_index(&record.gpu_type, gpus)?)?.as_ref()?;
            let nodes = record.placement.split(", ").count();
            let slower = (table.spread_factor(nodes) / choice.spread).max(1.0);
            let part = since(from, to).0 / (choice.time * slower);
            done += part;
            last = (record.attempt, part);
            for (length, price) in bill::prices(policy, from.as_second(), to.as_second()) {
                for (sum, watts) in money.iter_mut().zip(choice.draws) {
                    *sum += (price * (watts * length)).0;
                }
            }
            held.push(HeldGpus {
                class: choice.class,
                gpus: f64::from(gpus),
                from: time(from),
                to: time(to),
            });
        }
        // Attempts repeat work, and the last one shows how much is left for it. A faster job makes the bound lower.
        let begun = self.status.progress.as_ref().filter(|progress| progress.attempt == last.0);
        let begun = begun.map_or(0, |progress| progress.attempt_start.clamp(0, 99_999));
        let pace = f64::min(done, last.1 / (1.0 - f64::from(begun) / 100_000.0));
        if !pace.is_finite() || pace <= 0.0 {
            return None;
        }
        let scale: [f64; 2] =
            std::array::from_fn(|of| if money[of] > 0.0 { self.energy[of] / money[of] } else { 0.0 });
        let option = |choice: &Choice| RunOption {
            class: choice.class,
            gpus: choice.gpus,
            time: Seconds(choice.time * pace),
            power: choice.draws[0] * scale[0] + choice.draws[1] * scale[1],
            budgeted: Watts::ZERO,
        };
        let deadline = instants::deadline(&self.job.spec, self.job.metadata.creation_timestamp.as_ref());
        let known = KnownJob {
            submit: time(self.created),
            deadline: deadline.map(|deadline| time(deadline.0)),
            weight: rules::late_rate(policy, self.weight),
            options: choices.iter().flatten().map(option).collect(),
        };
        Some((known, held))
    }
}

/// The GPU types of all planned nodes, cordoned ones and those that are away included.
struct Classes {
    /// A class of the bound for each, in this order.
    types: Types,
    /// The least of a host that a GPU is billed for.
    hosts: BTreeMap<GpuType, Watts>,
}

impl Classes {
    fn from_index(index: &ClusterIndex, inventory: &Inventory<'_>) -> Self {
        let (mut types, mut hosts) = (Types::new(), BTreeMap::new());
        for (_, node) in index.nodes().iter() {
            let Some(product) = inventory.node_use(node).planned() else { continue };
            let (gpu_type, gpus) = (GpuType::new(product), whole_gpus(node));
            let host = boards::board(product, inventory.policy()).host(gpus);
            let share = host.share(1, u32::try_from(gpus).unwrap_or(u32::MAX));
            let least = hosts.entry(gpu_type.clone()).or_insert(share);
            *least = share.min(*least);
            let facts = types.entry(gpu_type).or_default();
            facts.gpus += gpus;
            facts.per_node = facts.per_node.max(gpus);
            facts.memory_mib = facts.memory_mib.max(gpu_memory(node));
        }
        Self { types, hosts }
    }

    /// A row of a job's table; `None` where no node of the type could take a worker.
    fn choice(&self, row: &Estimate, table: &Table, epochs: i32) -> Option<Choice> {
        let class = self.types.keys().position(|name| *name == row.gpu_type)?;
        let (host, per_node) = (self.hosts.get(&row.gpu_type)?, self.types.get(&row.gpu_type)?.per_node);
        let fits =
            |nodes: u32| row.gpus.0.is_multiple_of(nodes) && u64::from(row.gpus.0 / nodes.max(1)) <= per_node;
        let several =
            table.spread.iter().filter(|effect| fits(effect.nodes)).map(|effect| effect.time_factor);
        let spread = fits(1).then_some(1.0).into_iter().chain(several).min_by(f64::total_cmp)?;
        Some(Choice {
            class,
            gpus: row.gpus,
            time: f64::from(epochs.max(1)) * row.epoch.0 * spread,
            spread,
            draws: [row.power, *host * f64::from(row.gpus.0)],
        })
    }

    /// GPUs of each class: those that there are, or as many as were held at once while there were more.
    fn capacity(&self, edges: &[Time], held: &[HeldGpus]) -> Vec<GpuCount> {
        let of_class = |(class, gpus): (usize, u64)| {
            let own: Vec<&HeldGpus> = held.iter().filter(|held| held.class == class).collect();
            let used = |slice: &[Time]| {
                let within = |held: &&HeldGpus| (held.to.min(slice[1]) - held.from.max(slice[0])).0.max(0.0);
                own.iter().map(|held| within(held) * held.gpus).sum::<f64>() / (slice[1] - slice[0]).0
            };
            GpuCount(edges.windows(2).map(used).fold(gpus as f64, f64::max).ceil() as u32)
        };
        self.types.values().map(|facts| facts.gpus).enumerate().map(of_class).collect()
    }
}

fn time(at: Timestamp) -> Time {
    Time(at.as_millisecond() as f64 / 1_000.0)
}
