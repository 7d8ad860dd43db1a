//! Measures energy, money and watts above the budget.

use andreas_core::{GpuType, Joules, Money, Seconds, Time, Watts};

use crate::outcome::{PowerPoint, Summary};
use crate::scenario::Scenario;

use super::live::ActiveJob;

/// Draw of the cluster until the next event.
#[derive(Debug, Default)]
struct Draw {
    jobs: f64,
    overhead: f64,
    idle: f64,
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
}

impl Meter {
    pub fn new(scenario: &Scenario) -> Self {
        let idle =
            |kind: &GpuType| scenario.gpu_types.iter().find(|t| t.name == *kind).map_or(0.0, |t| t.idle.0);
        Self {
            power: Vec::new(),
            idle_w: scenario.nodes.iter().map(|n| idle(&n.gpu_type)).collect(),
            used: vec![0; scenario.nodes.len()],
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
        down: &[bool],
        from: Time,
        to: Time,
        sum: &mut Summary,
    ) {
        if to.0 <= from.0 {
            return;
        }
        let draw = self.draw(scenario, live, down);
        let length = to - from;
        sum.job_energy += Joules(draw.jobs * length.0);
        sum.overhead_energy += Joules(draw.overhead * length.0);
        sum.idle_energy += Joules(draw.idle * length.0);
        for (begin, end, price) in scenario.tariff.pieces(from, to) {
            let seconds = (end - begin).0;
            // With a catalogue, watts only stand for its prices.
            if scenario.catalogue.is_none() {
                sum.energy_cost += price * Joules((draw.jobs + draw.overhead) * seconds);
            }
            sum.idle_cost += price * Joules(draw.idle * seconds);
        }
        sum.energy_cost += Money(draw.catalogue * length.0);
        let total = draw.jobs + draw.overhead + draw.idle;
        for (begin, end, budget) in scenario.budget.iter().flat_map(|b| b.pieces(from, to)) {
            // Below a microwatt is rounding.
            if total > budget.0 + 1e-6 {
                sum.violation_time += end - begin;
                sum.violation_energy += Joules((total - budget.0) * (end - begin).0);
            }
        }
        let point = PowerPoint {
            at: from,
            jobs: Watts(draw.jobs),
            overhead: Watts(draw.overhead),
            idle: Watts(draw.idle),
            budget: scenario.budget.as_ref().and_then(|b| b.at(from)),
        };
        let same = |p: &PowerPoint| PowerPoint { at: from, ..*p } == point;
        if !self.power.last().is_some_and(same) {
            self.power.push(point);
        }
    }

    fn draw(&mut self, scenario: &Scenario, live: &[ActiveJob], down: &[bool]) -> Draw {
        self.used(live);
        let mut draw =
            Draw { jobs: live.iter().filter_map(|l| Some(l.run.as_ref()?.watts)).sum(), ..Draw::default() };
        for (i, node) in scenario.nodes.iter().enumerate() {
            let used = self.used[i];
            if down[i] {
                continue;
            }
            draw.idle += f64::from(node.free_gpus.0.saturating_sub(used)) * self.idle_w[i];
            if used > 0 {
                draw.overhead += node.overhead.0;
                let rates = scenario.catalogue.as_ref().and_then(|c| c.get(&node.gpu_type));
                draw.catalogue += rates.and_then(|r| r.get(used as usize - 1)).map_or(0.0, |r| r.0);
            }
        }
        draw
    }
}

/// Lateness cost of a job.
pub(super) fn lateness(scenario: &Scenario, live: &ActiveJob, finish: Time, sum: &mut Summary) -> Money {
    let job = &live.truth;
    let rules = &scenario.lateness;
    let turnaround = finish - job.submit;
    let share = match job.deadline {
        Some(_) => rules.turnaround_share,
        // Jobs without a deadline need some cost to be started.
        None => rules.turnaround_share.max(0.1),
    };
    let mut bill = job.weight * (turnaround * share);
    sum.turnaround_cost += bill;
    if let Some(deadline) = job.deadline {
        sum.with_deadline += 1;
        let late = (finish - deadline).max(Seconds::ZERO);
        if late.0 > 0.0 {
            sum.late_jobs += 1;
            sum.tardiness += late;
            sum.tardiness_cost += job.weight * late;
            sum.miss_cost += job.weight * rules.late_fixed;
            bill += job.weight * (late + rules.late_fixed);
        }
    }
    bill
}
