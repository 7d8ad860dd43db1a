//! A job in a future: what it holds, how fast it trains there, and how it ends.
//!
//! Stops take no time beyond what the snapshot says of jobs that are stopping. A restart costs the snapshot's restart time on the new GPUs. A stop
//! loses the work since the last checkpoint, as far as the snapshot knows.

use andreas_model::{Joules, Money, Seconds, Tariff, Time};
use andreas_planner::{Decision, Estimate, Job, JobState, Placement};

use crate::hosts::Hosts;
use crate::job_forecast::Run;

/// Part of an epoch that counts as no remaining work (rounding).
pub(crate) const NOTHING: f64 = 1e-9;
/// Epoch time of a run without any estimate.
const UNKNOWN: Seconds = Seconds(3_600.0);

/// A job in a future.
pub(crate) struct Live<'a> {
    pub job: &'a Job,
    pub normal: f64,
    pub epochs_left: f64,
    pub active: Option<Active>,
    /// It stops and holds GPUs until then.
    pub leaving: Option<(Placement, Time)>,
    /// Start of its present run, else of its next one.
    pub start: Option<Time>,
    energy_cost: Money,
    /// Set at its end.
    pub ended: Option<Run>,
}

/// A job on GPUs.
#[derive(Clone)]
pub(crate) struct Active {
    pub place: Placement,
    pub since: Time,
    /// Begin of training: after a restart or the stop of its last run.
    ready: Time,
    pace: Pace,
    /// Its share of its hosts' draw, W.
    host_watts: f64,
}

/// How fast a job trains somewhere in this future.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// Time of an epoch.
    pub epoch: Seconds,
    /// Mean time of an epoch over all futures.
    pub mean: Seconds,
    pub rel_std: f64,
    pub watts: f64,
}

impl<'a> Live<'a> {
    pub fn new(job: &'a Job, normal: f64, now: Time, hosts: &Hosts<'_>) -> Self {
        let mut live = Self {
            job,
            normal,
            epochs_left: job.epochs_left,
            active: None,
            leaving: None,
            start: None,
            energy_cost: Money::ZERO,
            ended: None,
        };
        match &job.state {
            JobState::Waiting => {}
            JobState::Starting { target, since } => {
                let ready = now.max(*since);
                live.start = Some(ready);
                live.begin(target.clone(), *since, ready, hosts);
            }
            JobState::Running { placement, since } => live.begin(placement.clone(), *since, now, hosts),
            JobState::Stopping { holds, target, .. } => {
                let gone_at = job.state.gone_at(now).unwrap_or(now);
                match target {
                    Some(target) => live.begin(target.clone(), now, gone_at, hosts),
                    None => live.leaving = Some((holds.clone(), gone_at)),
                }
            }
        }
        live
    }

    fn begin(&mut self, place: Placement, since: Time, ready: Time, hosts: &Hosts<'_>) {
        let pace = pace(self.job, &place, self.normal);
        let host_watts = hosts.share(&place).0;
        self.start = self.start.or(Some(since));
        self.leaving = None;
        self.active = Some(Active { place, since, ready, pace, host_watts });
    }

    /// The placement that it holds at an instant, and until when if nothing changes.
    pub fn holds(&self, now: Time) -> Option<(&Placement, Time)> {
        match (&self.active, &self.leaving) {
            (Some(active), _) => Some((&active.place, self.end(active, now))),
            (None, Some((place, until))) if *until > now => Some((place, *until)),
            _ => None,
        }
    }

    fn end(&self, active: &Active, now: Time) -> Time {
        active.ready.max(now) + active.pace.epoch * self.epochs_left
    }

    /// Carries out a decision.
    pub fn apply(&mut self, decision: &Decision, now: Time, restart: Seconds, hosts: &Hosts<'_>) {
        let Decision::Run(place) = decision else { return self.stop() };
        if let Some(active) = &mut self.active {
            if active.place.same_gpus(place) {
                if active.place.limit != place.limit {
                    active.pace = pace(self.job, place, self.normal);
                }
                active.place = place.clone();
                return;
            }
            self.stop();
            let ready = hosts.on_from(place, now) + self.job.restart.unwrap_or(restart);
            return self.begin(place.clone(), now, ready, hosts);
        }
        let free_at = self.leaving.as_ref().map_or(now, |(_, until)| until.max(now));
        let free_at = free_at.max(hosts.on_from(place, now));
        let again =
            !matches!(self.job.state, JobState::Waiting | JobState::Starting { .. }) || self.start.is_some();
        let ready = free_at + if again { self.job.restart.unwrap_or(restart) } else { Seconds::ZERO };
        if !again {
            self.start = Some(ready);
        }
        self.begin(place.clone(), now, ready, hosts);
    }

    fn stop(&mut self) {
        if let Some(active) = self.active.take() {
            // The snapshot counts no work as lost if the job saves its state often.
            let lost = self.job.lost.0 / active.pace.epoch.0;
            self.epochs_left += lost;
        }
    }

    /// Trains until an instant, or its end if that comes before.
    pub fn advance(&mut self, from: Time, to: Time, tariff: &Tariff) {
        let Some(active) = &self.active else { return };
        let end = self.end(active, from);
        let until = end.min(to);
        let trains = (until - active.ready.max(from)).0.max(0.0);
        self.epochs_left = (self.epochs_left - trains / active.pace.epoch.0).max(0.0);
        self.energy_cost += energy_cost(tariff, active.pace.watts + active.host_watts, from, until);
        if end <= to || self.epochs_left <= NOTHING * self.job.epochs_left.max(1.0) {
            self.finish(until);
        }
    }

    fn finish(&mut self, end: Time) {
        let Some(active) = self.active.take() else { return };
        let whole = (end - active.ready.max(active.since)).0.max(0.0) / active.pace.epoch.0;
        self.ended = Some(Run {
            start: self.start.unwrap_or(active.since),
            end,
            gpu_type: active.place.gpu_type.clone(),
            gpus: active.place.total_gpus().0,
            energy_cost: self.energy_cost,
            last: (active.ready.max(active.since), active.pace.mean * whole, active.pace.rel_std),
        });
        self.epochs_left = 0.0;
    }

    /// Runs to its end on the nodes that it holds.
    pub fn run_out(&mut self, now: Time, until: Time, tariff: &Tariff) {
        if self.active.is_some() {
            self.epochs_left = self.epochs_left.max(NOTHING);
            self.advance(now, until, tariff);
            self.finish(until);
        }
    }

    /// Runs from `start` to its end on a configuration of the table, whatever the nodes.
    pub fn run_on(&mut self, row: &Estimate, start: Time, tariff: &Tariff, hosts: &Hosts<'_>) -> Time {
        let pace = of_row(row, 1.0, 1.0, self.normal);
        let billed = pace.watts + hosts.share_of_type(&row.gpu_type, row.gpus.0).0;
        let end = start + pace.epoch * self.epochs_left;
        self.ended = Some(Run {
            start: self.start.unwrap_or(start),
            end,
            gpu_type: row.gpu_type.clone(),
            gpus: row.gpus.0,
            energy_cost: self.energy_cost + energy_cost(tariff, billed, start, end),
            last: (start, pace.mean * self.epochs_left, pace.rel_std),
        });
        end
    }
}

fn of_row(row: &Estimate, time_factor: f64, power_factor: f64, normal: f64) -> Pace {
    let sigma = row.rel_std;
    let mean = row.epoch * time_factor;
    let epoch = mean * libm::exp(sigma * normal - sigma * sigma / 2.0);
    Pace { epoch, mean, rel_std: sigma, watts: row.power.0 * power_factor }
}

/// Pace of a job on a placement. One that its table lacks has the pace of the nearest row of its type, else of
/// the slowest row.
fn pace(job: &Job, place: &Placement, normal: f64) -> Pace {
    let gpus = place.total_gpus();
    let nearest = job
        .estimates
        .iter()
        .filter(|row| row.gpu_type == place.gpu_type)
        .min_by_key(|row| (row.gpus.0.abs_diff(gpus.0), row.gpus));
    let slowest = || job.estimates.iter().max_by(|a, b| a.epoch.total_cmp(&b.epoch));
    let nodes = u32::try_from(place.nodes.len()).unwrap_or(u32::MAX);
    let spread = job.spread.iter().find(|s| s.nodes == nodes).map_or(1.0, |s| s.time_factor);
    let limit = job.limits.iter().find(|l| l.gpu_type == place.gpu_type && Some(l.limit) == place.limit);
    let (time_factor, power_factor) = limit.map_or((1.0, 1.0), |l| (l.time_factor, l.power_factor));
    match nearest.or_else(slowest) {
        Some(row) => of_row(row, spread * time_factor, power_factor, normal),
        None => {
            let epoch = UNKNOWN / job.epochs_left.max(NOTHING);
            Pace { epoch, mean: epoch, rel_std: 0.0, watts: 0.0 }
        }
    }
}

/// Mean time of an epoch of a job on a placement.
pub(crate) fn mean_epoch(job: &Job, place: &Placement) -> Seconds {
    pace(job, place, 0.0).mean
}

fn energy_cost(tariff: &Tariff, watts: f64, from: Time, to: Time) -> Money {
    if !to.is_finite() {
        return Money::ZERO;
    }
    tariff.pieces(from, to).map(|(begin, end, price)| price * Joules(watts * (end - begin).0)).sum()
}
