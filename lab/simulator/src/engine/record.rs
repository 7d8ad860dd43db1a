//! What a replay records and returns: sums over the window, the outcome of each job, and where jobs ran.

use std::collections::BTreeMap;

use andreas_model::{JobId, Money, Seconds, Time};
use andreas_planner::{Job, Plan};

use super::live::ActiveJob;
use super::meter::{self, Meter};
use super::nodes::NodeStates;
use super::run::Run;
use crate::outcome::{JobOutcome, Replayed, Segment, Summary, percentile};
use crate::scenario::Scenario;

/// Everything recorded so far.
pub(super) struct Record {
    pub meter: Meter,
    pub sum: Summary,
    /// Jobs that ended, or did not by the end of the replay.
    outcomes: Vec<JobOutcome>,
    segments: Vec<Segment>,
    turnarounds: Vec<f64>,
    /// Sum and number of the gaps, and of the missed savings, that decisions state.
    gaps: (f64, usize),
    missed_savings: (f64, usize),
    last_end: Time,
}

impl Record {
    pub fn new(scenario: &Scenario, meter: Meter, now: Time) -> Self {
        Self {
            meter,
            sum: Summary { jobs: scenario.counted(), ..Summary::default() },
            outcomes: Vec::new(),
            segments: Vec::new(),
            turnarounds: Vec::new(),
            gaps: (0.0, 0),
            missed_savings: (0.0, 0),
            last_end: now,
        }
    }

    /// Number of ended jobs.
    pub fn ended(&self) -> usize {
        self.outcomes.len()
    }

    /// A plan was made.
    pub fn decision(&mut self, plan: &Plan) {
        self.sum.decisions += 1;
        if plan.allowed_power.is_some_and(|allowed| plan.budgeted_power.0 > allowed.0 + 1e-6) {
            self.sum.planned_violations += 1;
        }
        if let Some(gap) = plan.gap {
            self.gaps = (self.gaps.0 + gap, self.gaps.1 + 1);
        }
        if let Some(missed) = plan.missed_saving {
            self.missed_savings = (self.missed_savings.0 + missed, self.missed_savings.1 + 1);
        }
    }

    /// Draw between two events.
    pub fn draw(&mut self, scenario: &Scenario, live: &[ActiveJob], nodes: &NodeStates, span: (Time, Time)) {
        self.meter.count(scenario, live, nodes, span, &mut self.sum);
    }

    /// Wake-ups that begin now.
    pub fn wake_ups(&mut self, scenario: &Scenario, count: usize, now: Time) {
        self.meter.wake_ups(scenario, count, now, &mut self.sum);
    }

    /// A run of the job with this index is over.
    pub fn run(&mut self, job: usize, run: &Run, now: Time) {
        if now.0 > run.since.0 {
            self.segments.push(Segment {
                job,
                nodes: run.place.nodes.as_slice().into(),
                gpus: run.place.gpus_per_node.0,
                from: run.since,
                to: now,
            });
        }
    }

    /// A job has ended.
    pub fn end(&mut self, scenario: &Scenario, live: &ActiveJob, now: Time) {
        let counts = scenario.counts(&live.truth);
        let mut unseen = Summary::default();
        let sum = if counts { &mut self.sum } else { &mut unseen };
        let bill = meter::lateness(scenario, live, now, sum);
        if counts {
            self.turnarounds.push((now - live.truth.submit).0);
        }
        self.last_end = now;
        self.outcomes.push(outcome(live, Some(now), bill, counts));
    }

    /// Sums up; `live` are the jobs that have not ended.
    pub fn finish(mut self, scenario: &Scenario, live: &[ActiveJob], now: Time) -> Replayed {
        self.meter.finish(scenario, now, &mut self.sum);
        for live in live {
            let counts = scenario.counts(&live.truth);
            self.sum.unfinished += usize::from(counts);
            self.outcomes.push(outcome(live, None, Money::ZERO, counts));
        }
        let mut jobs: Vec<Option<JobOutcome>> = vec![None; scenario.jobs.len()];
        let index: BTreeMap<&JobId, usize> =
            scenario.jobs.iter().enumerate().map(|(i, j): (usize, &Job)| (&j.id, i)).collect();
        for job in self.outcomes {
            if let Some(i) = index.get(&job.id) {
                jobs[*i] = Some(job);
            }
        }
        let sum = &mut self.sum;
        self.turnarounds.sort_by(f64::total_cmp);
        let count = self.turnarounds.len().max(1) as f64;
        sum.mean_turnaround = Seconds(self.turnarounds.iter().sum::<f64>() / count);
        sum.p95_turnaround = Seconds(percentile(&self.turnarounds, 0.95));
        sum.total = sum.energy_cost + sum.tardiness_cost + sum.miss_cost + sum.turnaround_cost;
        sum.total_with_idle = sum.total + sum.idle_cost;
        sum.makespan = scenario.jobs.first().map_or(Seconds::ZERO, |j| self.last_end - j.submit);
        let mean = |(sum, count): (f64, usize)| (count > 0).then(|| sum / count as f64);
        (sum.mean_gap, sum.mean_missed_saving) = (mean(self.gaps), mean(self.missed_savings));
        Replayed {
            summary: self.sum,
            jobs: jobs.into_iter().flatten().collect(),
            segments: self.segments,
            power: self.meter.power,
        }
    }
}

/// The outcome of a job that ended, or did not.
fn outcome(live: &ActiveJob, finish: Option<Time>, lateness_cost: Money, counted: bool) -> JobOutcome {
    JobOutcome {
        id: live.truth.id.clone(),
        submit: live.truth.submit,
        deadline: live.truth.deadline,
        start: live.starts.first,
        finish,
        energy: live.energy,
        lateness_cost,
        restarts: live.starts.restarts,
        counted,
    }
}
