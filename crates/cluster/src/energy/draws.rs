//! Watts that jobs count for against the power budget.
//!
//! A user's own watts, and predictions from them, decide the cost of a run only. They never decide what fits
//! the budget: it protects a real breaker. Where every agent of a type sets power limits, an unmeasured run has one
//! that is near its prediction, and counts for it: its *guard* ([`TypeDraw::guard`]). Elsewhere it counts for at least what measured
//! profiles on its GPU type count for, and half of the board's maximum; with too few of those, for the board's maximum. A
//! measured run counts for its measurement and a margin.
//!
//! **In**: the index, the policy. **Out**: a bound per GPU type ([`TypeDraw`]), the measured draw of a run
//! ([`measured`]), and whether a run's power limit is in force ([`limit_in_force`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use andreas_api::energy_policy::Limits;
use andreas_api::gpu_node::{GpuCondition, GpuState};
use andreas_api::slim::{SlimNode, SlimTrainingJob};
use andreas_api::training_job::Allocation;
use andreas_api::training_profile::Observation;
use andreas_api::{EnergyPolicySpec, GpuNodeStatus};
use andreas_model::{ObjectKey, REPORT_MARGIN, TypeDraw, Watts};
use andreas_planner::LimitsCount;
use jiff::{SignedDuration, Timestamp};

use super::inventory::Inventory;
use super::types::Types;
use crate::index::{
    ClusterIndex, MOST_GPUS, agent_status, is_worker, name_of, pods_of, reporting_agent, whole_gpus,
};
use crate::policy::boards::Board;

/// Time from the first report that shows a step until a run counts as measured. Agents report at least once a minute, and the first reports
/// may show an idle GPU.
const SETTLED: SignedDuration = SignedDuration::from_secs(120);
/// Running time of all workers that takes its place where no progress is reported: they may load data, at nearly idle GPUs. A profile's
/// row says something of other runs after that time too: it is a mean over the whole run, its start included.
const SETTLED_WITHOUT_PROGRESS: SignedDuration = SignedDuration::from_mins(15);
/// Measured profiles of a type that are required before their draw replaces the board's maximum.
const FEWEST: usize = 3;
/// The least that an unmeasured run counts for, as a part of the board's maximum: profiles of a few runs that slept say little of it.
const LEAST: f64 = 0.5;
/// Step of a type's bound, as a part of the board's maximum: avoids new tables for every watt.
const STEP: f64 = 0.05;
/// A power limit that is not in force after this time is not offered again during the attempt.
const SET_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// A GPU that draws this part of its power limit is held back by it: drivers keep the mean just below it.
const AT_GUARD: f64 = 0.95;
/// Maximum remembered runs; beyond that all are dropped.
const MAX_REMEMBERED_RUNS: usize = 50_000;

/// Sets the budget draw of every type. `running`: measured draw per GPU of runs, by type.
pub fn fill(index: &ClusterIndex, inventory: &Inventory<'_>, running: &[(&str, f64)], types: &mut Types) {
    let profiles = ProfileDraws::from_index(index);
    for (name, facts) in types.iter_mut() {
        let board = inventory.board(name.as_str());
        let (idle, max) = (board.idle.0, board.max.0);
        let highest = profiles.highest(name.as_str(), &board);
        let now = running.iter().filter(|(of, _)| *of == name.as_str()).map(|(_, each)| *each);
        let highest = now.map(|each| each * REPORT_MARGIN).fold(highest, f64::max);
        let unmeasured = ((highest / max / STEP).ceil() * STEP * max).clamp(idle.min(max), max);
        let range = facts.limits.filter(|_| inventory.policy().power_budget.limits_power());
        let guards = range.map(|(low, high)| (f64::from(low), f64::from(high)));
        facts.draw = Some(TypeDraw { idle, max, unmeasured, guards });
    }
}

/// What one GPU of measured profiles counts for by type: the most that each profile showed, with the margin of a measurement, W.
pub struct ProfileDraws<'a>(BTreeMap<&'a str, Vec<f64>>);

impl<'a> ProfileDraws<'a> {
    /// The draws of all profiles.
    pub fn from_index(index: &'a ClusterIndex) -> Self {
        let mut of_profiles: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (_, profile) in index.profiles().iter() {
            let rows = profile.status.iter().flat_map(|status| &status.observations);
            let mut most: BTreeMap<&str, f64> = BTreeMap::new();
            // Draw under a limit differs from that without one.
            let conclusive =
                |row: &&Observation| row.power_limit_watts.is_none() && row.gpus > 0 && lasted(row);
            for row in rows.filter(conclusive) {
                let Some(watts) = row.watts else { continue };
                let each = REPORT_MARGIN * f64::from(watts) / f64::from(row.gpus);
                let known = most.entry(row.gpu_type.as_str()).or_insert(0.0);
                *known = known.max(each);
            }
            for (gpu_type, each) in most {
                of_profiles.entry(gpu_type).or_default().push(each);
            }
        }
        Self(of_profiles)
    }

    /// What a GPU of a run that nobody has measured counts for, W: the most that any measured profile counts for, and with too few
    /// of them the board's maximum.
    pub fn highest(&self, gpu_type: &str, board: &Board) -> f64 {
        let known = self.0.get(gpu_type).filter(|known| known.len() >= FEWEST);
        let highest = known.map(|known| known.iter().copied().fold(board.max.0 * LEAST, f64::max));
        highest.map_or(board.max.0, |highest| highest.min(board.max.0))
    }
}

/// Whether the operator timed a run for so long that the mean of its draw is hardly that of its start.
fn lasted(row: &Observation) -> bool {
    let observed = row.milli_epochs.saturating_mul(row.millis_per_epoch) / 1_000;
    !row.claimed && SignedDuration::from_millis(observed) >= SETTLED_WITHOUT_PROGRESS
}

/// What a run counts for that holds its GPUs and is `predicted` to draw so much: for its measured draw of `each` watts per GPU, if there
/// is one, and for no more than its guard. One that was held back by its guard may draw the boards' maximum without it.
pub fn of_held(draw: TypeDraw, predicted: f64, each: Option<f64>, held: &Allocation) -> f64 {
    let gpus = u32::try_from(held.gpus).unwrap_or(0);
    let all = |watts: f64| watts * f64::from(gpus);
    let counted = match (each, held.guard_watts) {
        (Some(each), _) => draw.of_measured(each, gpus),
        (None, Some(_)) => f64::INFINITY,
        (None, None) if held.guard_reached => all(draw.max),
        (None, None) => draw.of_predicted(predicted, gpus),
    };
    held.guard_watts.map_or(counted, |guard| counted.min(all(f64::from(guard))))
}

/// Whether a GPU that draws `each` watts under this guard would draw more without it.
pub fn is_at_guard(each: f64, guard: i32) -> bool {
    each >= AT_GUARD * f64::from(guard)
}

/// Draw of all GPUs of a run, W, by its agents' last reports; `None` if one of them reports nothing, or no longer.
pub fn reported(index: &ClusterIndex, key: &ObjectKey, allocation: &Allocation) -> Option<f64> {
    let mut sum = 0.0;
    for (node, pods) in workers(index, key, allocation)? {
        let status = reporting_agent(index, &node_key(node))?;
        let held = status.gpus.iter().filter(|gpu| gpu.holder.as_ref().is_some_and(|pod| pods.contains(pod)));
        let answering = held.filter(|gpu| gpu.state != GpuCondition::Unhealthy);
        // Many virtual GPUs do not report their draw.
        let watts: Vec<i32> = answering.filter_map(|gpu| gpu.watts).filter(|watts| *watts > 0).collect();
        if i32::try_from(watts.len()) != Ok(allocation.gpus_per_worker) {
            return None;
        }
        sum += watts.into_iter().map(f64::from).sum::<f64>();
    }
    Some(sum)
}

/// The same for a measured run: it has run long enough and under no other power limit before.
pub fn measured(
    index: &ClusterIndex,
    key: &ObjectKey,
    allocation: &Allocation,
    now: Timestamp,
) -> Option<f64> {
    let usable = settled(index, key, allocation, now) && !allocation.limit_changed;
    usable.then(|| reported(index, key, allocation)).flatten()
}

/// Whether a run is old enough for its agents' reports to show its draw.
pub fn settled(index: &ClusterIndex, key: &ObjectKey, allocation: &Allocation, now: Timestamp) -> bool {
    let job = index.jobs().get(key);
    let progress = job.and_then(|job| job.status.as_ref()?.progress.as_ref());
    let first = progress.and_then(|report| report.first_step(allocation.attempt)).map(|first| first.at.0);
    let lasted = |since: Timestamp, least: SignedDuration| now.duration_since(since) >= least;
    let Some(running) = &allocation.running_time else { return false };
    lasted(running.0, SETTLED_WITHOUT_PROGRESS) || first.is_some_and(|first| lasted(first, SETTLED))
}

/// Whether a run's power limit is in force: its agents report, support limits, know this one and have set it. One above a GPU's ceiling is
/// met without being set. The setting of a broken GPU is not known. An agent that is silent may see no leader either, and then it has lifted all limits.
pub fn limit_in_force(
    index: &ClusterIndex,
    key: &ObjectKey,
    allocation: &Allocation,
    policy: &EnergyPolicySpec,
) -> bool {
    let Some(watts) = allocation.power_limit_watts else { return true };
    if policy.limits != Limits::On {
        return false;
    }
    let in_force = |node: &str, pod: &String| {
        let node = node_key(node);
        let gpu_node = index.gpu_nodes().get(&node)?;
        let status = reporting_agent(index, &node)?;
        // Its guard may be lower.
        let known = gpu_node.spec.limits.iter().any(|limit| limit.pod == *pod && limit.watts <= watts);
        let carried_out = gpu_node.metadata.generation.is_some_and(|g| status.observed_generation >= Some(g));
        let mut held = status.gpus.iter().filter(|gpu| gpu.holder.as_ref() == Some(pod)).peekable();
        let taken = held.peek().is_some()
            && held.all(|gpu| {
                gpu.state != GpuCondition::Unhealthy && gpu.min_limit_watts.is_some_and(|low| low <= watts)
            });
        Some(known && carried_out && taken)
    };
    let all =
        |(node, pods): &(&str, BTreeSet<String>)| pods.iter().all(|pod| in_force(node, pod) == Some(true));
    workers(index, key, allocation).is_some_and(|workers| workers.iter().all(all))
}

/// The names of an allocation's bound pods by node: one of each, or those among which an adopted workload divides a node's GPUs. `None`
/// unless all exist.
fn workers<'a>(
    index: &ClusterIndex,
    key: &ObjectKey,
    allocation: &'a Allocation,
) -> Option<Vec<(&'a str, BTreeSet<String>)>> {
    let job = index.jobs().get(key)?;
    let on = |node: &'a String| {
        let own = index.pods_on(node).filter(|pod| is_worker(pod, job, allocation.attempt));
        (node.as_str(), own.map(|pod| name_of(&pod.metadata)).collect::<BTreeSet<_>>())
    };
    let workers: Vec<_> = allocation.nodes.iter().map(on).collect();
    let are_all = workers.iter().map(|(_, pods)| pods.len()).sum::<usize>() >= pods_of(job, allocation).0;
    (!workers.is_empty() && are_all && workers.iter().all(|(_, pods)| !pods.is_empty())).then_some(workers)
}

/// Draw of GPUs held by foreign pods, as reported by the agent; `None` if it does not know all holders or draws, or is silent. A pod that
/// has ended draws nothing any more, though the last report names it: what takes its watts would be stopped for them. GPUs of foreign
/// pods that it does not name count for the board's maximum: an agent of an idle node may have ended unnoticed. Bounded by the node's
/// number of GPUs and the board's maximum, so a faulty or compromised agent cannot exhaust the power budget.
pub fn foreign_power(
    index: &ClusterIndex,
    key: &ObjectKey,
    node: &SlimNode,
    ours: &BTreeSet<String>,
    max: Watts,
) -> Option<Watts> {
    let status = reporting_agent(index, key)?;
    let blind =
        status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "False");
    let unnamed =
        |gpu: &GpuState| gpu.state == GpuCondition::Held && gpu.holder.is_none() && gpu.shares.is_empty();
    if blind || status.gpus.iter().any(unnamed) {
        return None;
    }
    let is_foreign = |pod: &String| !ours.contains(pod) && !index.has_ended(&key.name, pod);
    let foreign = status.gpus.iter().filter(|gpu| gpu.holder.as_ref().is_some_and(is_foreign));
    // No GPU that is held draws nothing: its draw is not reported.
    let draw = |gpu: &GpuState| {
        gpu.watts.filter(|watts| *watts > 0).map_or(max.0, |watts| f64::from(watts).min(max.0))
    };
    let mut draws: Vec<f64> = foreign.map(draw).collect();
    draws.extend(std::iter::repeat_n(max.0, unnamed_foreign(index, key, status)));
    draws.sort_by(|a, b| b.total_cmp(a));
    let there = whole_gpus(node).max(index.foreign_use(&key.name).gpus).min(MOST_GPUS);
    let most = usize::try_from(there).unwrap_or(usize::MAX);
    Some(Watts(draws.into_iter().take(most).sum()))
}

/// GPUs that foreign pods have requested for a while and that the agent does not see them hold.
fn unnamed_foreign(index: &ClusterIndex, key: &ObjectKey, status: &GpuNodeStatus) -> usize {
    // Pods that share a GPU are named apart, and request more GPUs than there are.
    if status.gpus.iter().any(|gpu| !gpu.shares.is_empty()) {
        return 0;
    }
    let unnamed = index.foreign_to_be_named(&key.name).map(|(pod, requested)| {
        let held = status.gpus.iter().filter(|gpu| gpu.holder.as_deref() == Some(pod)).count();
        usize::try_from(requested.min(MOST_GPUS)).unwrap_or(usize::MAX).saturating_sub(held)
    });
    unnamed.fold(0, usize::saturating_add).min(usize::try_from(MOST_GPUS).unwrap_or(usize::MAX))
}

fn node_key(node: &str) -> ObjectKey {
    ObjectKey { namespace: String::new(), name: node.to_owned() }
}

/// Observations of runs across plans.
#[derive(Clone, Default)]
pub struct MeasuredDraws {
    /// Maximum measured draw of one GPU, W, by run.
    peaks: HashMap<Run, f64>,
    /// Since when a power limit is not in force, by run and limit.
    unset: HashMap<(Run, i32), Timestamp>,
}

/// The job's UID and its attempt.
type Run = (String, i64);

impl MeasuredDraws {
    /// Those of the runs that there are.
    pub fn of_runs(&self, index: &ClusterIndex) -> Self {
        let held = |job: &SlimTrainingJob| run(job, job.status.as_ref()?.allocation.as_ref()?);
        let runs: HashSet<Run> = index.jobs().iter().filter_map(|(_, job)| held(job)).collect();
        let peaks = self.peaks.iter().filter(|(run, _)| runs.contains(*run));
        let unset = self.unset.iter().filter(|((run, _), _)| runs.contains(run));
        Self {
            peaks: peaks.map(|(run, peak)| (run.clone(), *peak)).collect(),
            unset: unset.map(|(limit, since)| (limit.clone(), *since)).collect(),
        }
    }

    /// Maximum draw of one GPU of a run so far, W; `None` until it is measured.
    pub fn measured(
        &mut self,
        index: &ClusterIndex,
        key: &ObjectKey,
        job: &SlimTrainingJob,
        allocation: &Allocation,
        now: Timestamp,
    ) -> Option<f64> {
        if self.peaks.len() > MAX_REMEMBERED_RUNS {
            self.peaks.clear();
        }
        // Draw under a limit is no evidence for the run without one.
        let unlimited = allocation.power_limit_watts.is_none();
        let watts = measured(index, key, allocation, now).filter(|_| unlimited && allocation.gpus > 0)?;
        let each = watts / f64::from(allocation.gpus);
        if allocation.guard_watts.is_some_and(|guard| is_at_guard(each, guard)) {
            return None;
        }
        let peak = self.peaks.entry(run(job, allocation)?).or_insert(0.0);
        *peak = peak.max(each);
        Some(*peak)
    }

    /// From when on the job's power limits count; `None`: offer none, because one was not set in time or an agent of its nodes is silent.
    pub fn limits_count(
        &mut self,
        index: &ClusterIndex,
        key: &ObjectKey,
        job: &SlimTrainingJob,
        allocation: Option<&Allocation>,
        policy: &EnergyPolicySpec,
        now: Timestamp,
    ) -> Option<LimitsCount> {
        if policy.limits != Limits::On {
            return Some(LimitsCount::AtOnce);
        }
        let Some(allocation) = allocation else { return Some(LimitsCount::WhenSet) };
        let run = run(job, allocation)?;
        let overdue = |node: &String| {
            let key = node_key(node);
            agent_status(index, &key).is_some() && reporting_agent(index, &key).is_none()
        };
        if allocation.nodes.iter().any(overdue) {
            // Limits may be lifted there. They are offered again once it reports, and have their minute then.
            self.unset.retain(|(of, _), _| *of != run);
            return None;
        }
        let watts = allocation.power_limit_watts.filter(|_| !limit_in_force(index, key, allocation, policy));
        // The time counts from the pods' start: no limit can be set before.
        let started = allocation.running_time.is_some();
        if self.unset.len() > MAX_REMEMBERED_RUNS {
            self.unset.clear();
        }
        if let Some(watts) = watts.filter(|_| started) {
            self.unset.entry((run.clone(), watts)).or_insert(now);
        } else if let Some(watts) = allocation.power_limit_watts {
            self.unset.remove(&(run.clone(), watts));
        }
        let late = |since: &Timestamp| now.duration_since(*since) >= SET_WITHIN;
        let given_up = self.unset.iter().any(|((of, _), since)| *of == run && late(since));
        (!given_up).then_some(if watts.is_some() { LimitsCount::NotYetSet } else { LimitsCount::WhenSet })
    }
}

fn run(job: &SlimTrainingJob, allocation: &Allocation) -> Option<Run> {
    Some((job.metadata.uid.clone()?, allocation.attempt))
}
