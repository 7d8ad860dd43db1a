//! Learns how much demand is still to come, by GPU type and hour of the week.
//!
//! For every hour that has passed the learner knows the GPU-seconds that its newly submitted jobs wanted of a
//! type, and what they would pay per GPU-second not to wait. It keeps exponentially weighted means of both, one
//! for each hour of the week. It starts empty and expects nothing until it has seen an hour. It has no clock:
//! instants come with the snapshots.

use std::collections::BTreeMap;

use andreas_core::{GpuType, Seconds, Time};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::snapshot::{ComingDemand, DemandWindow, Estimate, Job, Snapshot};

const HOUR_S: f64 = 3600.0;
/// Hours of a week.
const HOURS: usize = 168;
/// Weight of the newest week in the means.
const NEWEST: f64 = 0.3;
/// Maximum number of GPU types; further ones are not learned.
const MAX_TYPES: usize = 64;

/// The learner's memory; at most 64 types with 168 hours each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandLearner {
    /// Jobs submitted up to here are counted; `None` before the first decision.
    seen: Option<Time>,
    /// Start of the hour that is being counted.
    hour: Option<Time>,
    types: BTreeMap<GpuType, TypeDemand>,
    /// By hour of the week: whether it was seen. A vector for the sake of its serialized form.
    known: Vec<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct TypeDemand {
    /// By hour of the week.
    means: Vec<Demand>,
    /// What the present hour has brought so far.
    counted: Demand,
}

/// GPU-seconds, and the money that they would pay together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Demand {
    gpu_seconds: f64,
    value: f64,
}

impl DemandLearner {
    /// Counts the jobs submitted since the last call, on the GPUs that the plan gives them. Jobs that wait count
    /// on the GPUs that need the least energy. A snapshot before the last one is ignored.
    pub fn observe(&mut self, snapshot: &Snapshot, plan: &Plan) {
        let now = snapshot.now;
        let Some(seen) = self.seen else {
            // What was there before was not submitted now.
            self.seen = Some(now);
            self.hour = Some(Time((now.0 / HOUR_S).floor() * HOUR_S));
            return;
        };
        if !now.0.is_finite() || now < seen {
            return;
        }
        self.close_hours(now);
        for job in snapshot.jobs.iter().filter(|job| job.submit > seen && job.submit <= now) {
            let Some(row) = wanted(job, plan) else { continue };
            let (gpus, seconds) = (f64::from(row.gpus.0), job.epochs_left * row.epoch.0);
            let share = match job.deadline {
                Some(_) => snapshot.lateness.turnaround_share,
                None => snapshot.lateness.turnaround_share.max(0.1),
            };
            if self.types.len() >= MAX_TYPES && !self.types.contains_key(&row.gpu_type) {
                continue;
            }
            let counted = &mut self.types.entry(row.gpu_type.clone()).or_default().counted;
            // A second of waiting costs its share of the weight; the GPUs of one second share that.
            counted.gpu_seconds += gpus * seconds;
            counted.value += job.weight.0 * share * seconds;
        }
        self.seen = Some(now);
    }

    /// Moves the hours that have ended into the means; hours without any job count as such.
    fn close_hours(&mut self, now: Time) {
        let Some(start) = self.hour else { return };
        let passed = ((now - start).0 / HOUR_S).floor();
        if passed < 1.0 {
            return;
        }
        self.known.resize(HOURS, false);
        // More than a week at once brings no more than every hour of the week without a job.
        for i in 0..(passed as usize).min(HOURS) {
            let hour = hour_of_week(start + Seconds(i as f64 * HOUR_S));
            for demand in self.types.values_mut() {
                demand.means.resize(HOURS, Demand::default());
                let counted = std::mem::take(&mut demand.counted);
                let mean = &mut demand.means[hour];
                let part = if self.known[hour] { NEWEST } else { 1.0 };
                mean.gpu_seconds += part * (counted.gpu_seconds - mean.gpu_seconds);
                mean.value += part * (counted.value - mean.value);
            }
            self.known[hour] = true;
        }
        self.hour = Some(start + Seconds(passed * HOUR_S));
    }

    /// Demand expected from `now` for this long, at most a week, in windows of at most an hour. Hours never seen
    /// bring nothing.
    pub fn coming(&self, now: Time, horizon: Seconds) -> Vec<ComingDemand> {
        let end = horizon.0.clamp(0.0, HOURS as f64 * HOUR_S);
        let window = |demand: &TypeDemand, from: f64| {
            let boundary = (((now.0 + from) / HOUR_S).floor() + 1.0) * HOUR_S - now.0;
            // Rounding may put a boundary where the window begins.
            let until = if boundary > from { boundary } else { from + HOUR_S };
            let mean = demand.means.get(hour_of_week(now + Seconds(from))).copied().unwrap_or_default();
            let part = (until.min(end) - from) / HOUR_S;
            let window = DemandWindow {
                from: Seconds(from),
                until: Seconds(until.min(end)),
                gpu_seconds: mean.gpu_seconds * part,
                price: if mean.gpu_seconds > 0.0 { mean.value / mean.gpu_seconds } else { 0.0 },
            };
            (window, until)
        };
        let of_type = |(name, demand): (&GpuType, &TypeDemand)| {
            let (mut windows, mut from) = (Vec::new(), 0.0);
            // A week may begin within an hour.
            for _ in 0..=HOURS {
                if from >= end {
                    break;
                }
                let (next, until) = window(demand, from);
                if next.gpu_seconds > 0.0 && next.until > next.from {
                    windows.push(next);
                }
                from = until;
            }
            ComingDemand { gpu_type: name.clone(), windows }
        };
        self.types.iter().map(of_type).filter(|demand| !demand.windows.is_empty()).collect()
    }
}

/// The row of a job's table that it gets, or that needs the least energy.
fn wanted<'a>(job: &'a Job, plan: &Plan) -> Option<&'a Estimate> {
    let place = plan.jobs.get(&job.id).and_then(|job| job.decision.placement());
    let given = place.and_then(|place| {
        job.estimates.iter().find(|r| r.gpu_type == place.gpu_type && r.gpus == place.total_gpus())
    });
    given.or_else(|| {
        let energy = |row: &Estimate| row.epoch.0 * row.power.0;
        job.estimates.iter().min_by(|a, b| energy(a).total_cmp(&energy(b)))
    })
}

fn hour_of_week(at: Time) -> usize {
    ((at.0 / HOUR_S).floor().rem_euclid(HOURS as f64)) as usize
}
