//! Measures energy, money and watts above the budget.
//!
//! Work is counted to its end: jobs' GPUs, hosts with a job, hosts that start up. Idle draw (GPUs without a job, hosts
//! without one) is counted from the first to the last submission only: after that the length of the last job would
//! decide it. Of a looped trace all draw within its window is counted.

use andreas_model::{GpuType, Joules, Money, Seconds, Time, Watts};
use andreas_planner::NodePower;

use super::live::ActiveJob;
use super::nodes::{NodeStates, Sleep};
use crate::outcome::{PowerPoint, Summary};
use crate::scenario::Scenario;

/// Draw of the cluster until the next event, W.
#[derive(Debug, Default)]
struct Draw {
    jobs: f64,
    /// Hosts with a job.
    hosts: f64,
    /// Hosts that start up.
    waking: f64,
    /// Hosts without a job.
    empty_hosts: f64,
    /// GPUs without a job.
    idle: f64,
    asleep: usize,
    /// Money per second by the catalogue, if there is one.
    catalogue: f64,
}

/// Sums of a replay.
#[derive(Debug)]
pub(super) struct Meter {
    pub power: Vec<PowerPoint>,
    /// Idle watts of each node's GPUs.
    idle_w: Vec<f64>,
    used: Vec<u32>,
    /// GPUs of jobs that draw, by node.
    drawing: Vec<u32>,
    /// From when to when idle draw counts, and all other draw.
    idle_window: (Time, Time),
    window: (Time, Time),
    /// With [`Sleep::Oracle`]: since when each node is empty.
    gaps: Option<Vec<Option<Time>>>,
}

impl Meter {
    pub fn new(scenario: &Scenario, sleep: Sleep) -> Self {
        let idle =
            |kind: &GpuType| scenario.gpu_types.iter().find(|t| t.name == *kind).map_or(0.0, |t| t.idle.0);
        let submits = || scenario.jobs.iter().map(|job| job.submit);
        let (first, last) = (submits().next(), submits().next_back());
        let submitted = (first.unwrap_or(Time::ZERO), last.unwrap_or(Time::ZERO));
        Self {
            power: Vec::new(),
            idle_w: scenario.nodes.iter().map(|n| idle(&n.gpu_type)).collect(),
            used: vec![0; scenario.nodes.len()],
            drawing: vec![0; scenario.nodes.len()],
            idle_window: scenario.window.unwrap_or(submitted),
            window: scenario.window.unwrap_or((Time(f64::NEG_INFINITY), Time(f64::INFINITY))),
            gaps: (sleep == Sleep::Oracle).then(|| vec![None; scenario.nodes.len()]),
        }
    }

    /// GPUs in use by node.
    pub fn used(&mut self, live: &[ActiveJob]) -> &[u32] {
        self.used.fill(0);
        for run in live.iter().filter_map(|l| l.run.as_ref()) {
            for node in &run.nodes {
                self.used[*node] += run.place.gpus_per_node.0;
            }
        }
        &self.used
    }

    /// Adds the draw between two events.
    pub fn count(
        &mut self,
        scenario: &Scenario,
        live: &[ActiveJob],
        nodes: &NodeStates,
        (from, to): (Time, Time),
        sum: &mut Summary,
    ) {
        if to.0 <= from.0 {
            return;
        }
        let draw = self.draw(scenario, live, nodes, from);
        self.close_gaps(scenario, nodes, from, sum);
        if let Some((from, to)) = clipped((from, to), self.window) {
            let length = to - from;
            sum.job_energy += Joules(draw.jobs * length.0);
            sum.host_energy += Joules(draw.hosts * length.0);
            sum.wake_energy += Joules(draw.waking * length.0);
            // With a catalogue, watts only stand for its prices.
            if scenario.catalogue.is_none() {
                sum.energy_cost += cost(scenario, draw.jobs + draw.hosts + draw.waking, from, to);
            }
            sum.energy_cost += Money(draw.catalogue * length.0);
        }
        if let Some((from, to)) = clipped((from, to), self.idle_window) {
            let length = to - from;
            sum.idle_energy += Joules(draw.idle * length.0);
            sum.empty_host_energy += Joules(draw.empty_hosts * length.0);
            sum.idle_cost += cost(scenario, draw.idle + draw.empty_hosts, from, to);
            sum.asleep += Seconds(draw.asleep as f64 * length.0);
        }
        let hosts = draw.hosts + draw.waking + draw.empty_hosts;
        let total = draw.jobs + hosts + draw.idle;
        for (begin, end, budget) in scenario.budget.iter().flat_map(|b| b.pieces(from, to)) {
            // Below a microwatt is rounding.
            if total > budget.0 + 1e-6 {
                sum.violation_time += end - begin;
                sum.violation_energy += Joules((total - budget.0) * (end - begin).0);
            }
        }
        let point =
            PowerPoint { at: from, jobs: Watts(draw.jobs), hosts: Watts(hosts), idle: Watts(draw.idle) };
        let same = |p: &PowerPoint| PowerPoint { at: from, ..*p } == point;
        if !self.power.last().is_some_and(same) {
            self.power.push(point);
        }
    }

    /// Adds what wake-ups that begin now take beside the draw of hosts that start up.
    pub fn wake_ups(&self, scenario: &Scenario, count: usize, now: Time, sum: &mut Summary) {
        let (from, to) = self.window;
        if count == 0 || !(from..to).contains(&now) {
            return;
        }
        let joules = scenario.sleep.wake_j * count as f64;
        sum.wake_energy += Joules(joules);
        if scenario.catalogue.is_none() {
            sum.energy_cost += cost(scenario, joules, now, now + Seconds(1.0));
        }
    }

    fn draw(&mut self, scenario: &Scenario, live: &[ActiveJob], nodes: &NodeStates, now: Time) -> Draw {
        self.used(live);
        self.drawing.fill(0);
        let mut draw = Draw::default();
        for run in live.iter().filter_map(|l| l.run.as_ref()).filter(|run| run.draws_from.0 <= now.0) {
            draw.jobs += run.watts;
            for node in &run.nodes {
                self.drawing[*node] += run.place.gpus_per_node.0;
            }
        }
        for (i, node) in scenario.nodes.iter().enumerate() {
            let used = self.used[i];
            if nodes.is_down(i) {
                continue;
            }
            if nodes.power(i) == NodePower::Asleep {
                draw.asleep += 1;
                continue;
            }
            draw.idle += f64::from(node.free_gpus.0.saturating_sub(self.drawing[i])) * self.idle_w[i];
            let busy = node.host_busy.0.max(node.host_idle.0);
            match (nodes.power(i), used) {
                (NodePower::Waking { .. }, _) => draw.waking += busy,
                (_, 0) => draw.empty_hosts += node.host_idle.0,
                (_, used) => {
                    draw.hosts += busy;
                    let rates = scenario.catalogue.as_ref().and_then(|c| c.get(&node.gpu_type));
                    draw.catalogue += rates.and_then(|r| r.get(used as usize - 1)).map_or(0.0, |r| r.0);
                }
            }
        }
        draw
    }

    /// With known gaps: what sleeping in each gap that has ended would have saved.
    fn close_gaps(&mut self, scenario: &Scenario, nodes: &NodeStates, now: Time, sum: &mut Summary) {
        let Some(mut gaps) = self.gaps.take() else { return };
        for (i, gap) in gaps.iter_mut().enumerate() {
            match (*gap, self.used[i] == 0 && !nodes.is_down(i)) {
                (None, true) => *gap = Some(now),
                (Some(since), false) => {
                    self.sleep_through(scenario, i, (since, now), sum);
                    *gap = None;
                }
                _ => {}
            }
        }
        self.gaps = Some(gaps);
    }

    /// Closes the accounts at the end of the replay.
    pub fn finish(&mut self, scenario: &Scenario, now: Time, sum: &mut Summary) {
        for (i, gap) in self.gaps.take().unwrap_or_default().into_iter().enumerate() {
            if let Some(since) = gap {
                self.sleep_through(scenario, i, (since, now), sum);
            }
        }
    }

    /// Takes back the idle draw of a gap if a sleep, with its wake-up at the end, costs less.
    fn sleep_through(&self, scenario: &Scenario, i: usize, gap: (Time, Time), sum: &mut Summary) {
        let Some((from, to)) = clipped(gap, self.idle_window) else { return };
        let (node, model) = (&scenario.nodes[i], &scenario.sleep);
        let gpus = self.idle_w[i] * f64::from(node.free_gpus.0);
        let busy = node.host_busy.0.max(node.host_idle.0);
        // A gap that outlasts the account is not woken from.
        let wakes = gap.1.0 <= self.idle_window.1.0;
        let awake = if wakes { Time((to.0 - model.wake_s).max(from.0)) } else { to };
        let saved = cost(scenario, node.host_idle.0 + gpus, from, awake);
        let extra = if wakes { model.wake_j + (busy - node.host_idle.0) * model.wake_s } else { 0.0 };
        let extra = cost(scenario, extra, awake, awake + Seconds(1.0));
        if (wakes && (gap.1 - gap.0).0 < model.wake_s) || saved.0 <= extra.0 {
            return;
        }
        sum.sleeps += 1;
        sum.asleep += awake - from;
        sum.idle_energy -= Joules(gpus * (awake - from).0);
        sum.empty_host_energy -= Joules(node.host_idle.0 * (to - from).0);
        let waking = if wakes { busy * (to - awake).0 + model.wake_j } else { 0.0 };
        sum.wake_energy += Joules(waking);
        let moved = cost(scenario, node.host_idle.0, awake, to);
        sum.idle_cost = sum.idle_cost - saved - moved;
        sum.energy_cost = sum.energy_cost + moved + extra;
    }
}

/// The part of a time span within a window.
fn clipped((from, to): (Time, Time), window: (Time, Time)) -> Option<(Time, Time)> {
    let (from, to) = (Time(from.0.max(window.0.0)), Time(to.0.min(window.1.0)));
    (to.0 > from.0).then_some((from, to))
}

/// Money for a constant draw, W.
fn cost(scenario: &Scenario, watts: f64, from: Time, to: Time) -> Money {
    scenario.tariff.pieces(from, to).map(|(begin, end, price)| price * Joules(watts * (end - begin).0)).sum()
}

/// Lateness cost of a job. Nothing is summed for jobs that were submitted outside a looped trace's window.
pub(super) fn lateness(scenario: &Scenario, live: &ActiveJob, finish: Time, sum: &mut Summary) -> Money {
    let job = &live.truth;
    let late = job.deadline.map(|deadline| finish - deadline);
    let charges = scenario.lateness.charges(late, finish - job.submit);
    sum.with_deadline += usize::from(late.is_some());
    sum.late_jobs += usize::from(charges.tardiness > Seconds::ZERO);
    sum.tardiness += charges.tardiness;
    sum.tardiness_cost += job.weight * charges.tardiness;
    sum.miss_cost += job.weight * charges.miss;
    sum.turnaround_cost += job.weight * charges.turnaround;
    job.weight * charges.sum()
}
