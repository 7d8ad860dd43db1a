//! The forecast of a job: the [`Prediction`] in its status.
//!
//! The lifecycle decides whether a prediction is worth a write.

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{KEPT_PERCENT, Prediction, SAFE_PERCENT};
use andreas_cluster::energy::bill::whole;
use andreas_cluster::instants::deadline;
use andreas_model::normal::QUANTILE_90;
use andreas_model::{Seconds, Watts};
use andreas_predictor::on_time_probability;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::outlook::Outlook;
use super::sampled::Sampled;

/// Maximum distance of a forecast instant, s; beyond it none is given.
const FURTHEST: f64 = 3.2e8;

fn after(at: Timestamp, seconds: f64) -> Option<Time> {
    let ahead = SignedDuration::try_from_secs_f64(seconds.clamp(0.0, FURTHEST)).ok()?;
    // Whole seconds: the status must not change by moving fractions.
    let at = at.checked_add(ahead).ok()?;
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

/// A plan's forecast for a waiting job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    /// Probability of being on time if it started now.
    pub on_time: Option<f64>,
    /// Start and end by sampling, which knows the spread of the jobs ahead of it.
    pub sampled: Option<Sampled>,
}

/// The prediction in a status, from the job's outlook.
pub fn prediction(job: &SlimTrainingJob, outlook: &Outlook, now: Timestamp, waiting: Waiting) -> Prediction {
    let status = job.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref()).map(|deadline| deadline.0);
    let available = due.map(|due| Seconds(due.duration_since(now).as_secs_f64()));
    let left = Seconds(outlook.seconds_left);
    let sigma = outlook.epoch.sigma;
    // A job that waits: by sampling where there is such a forecast.
    let sampled = waiting.sampled.filter(|_| allocation.is_none());
    let if_started_now = waiting.on_time.filter(|_| allocation.is_none());
    let probability = available.map(|available| match sampled {
        Some(sampled) => sampled.on_time,
        None => if_started_now.unwrap_or_else(|| on_time_probability(left, sigma, available)),
    });
    let on_time_percent = probability.map(percent);
    let late = due.is_some_and(|due| due <= now);
    let finish = |z: f64| {
        if let Some(sampled) = sampled {
            let at = if z < 0.0 {
                sampled.finish.0
            } else if z > 0.0 {
                sampled.finish.2
            } else {
                sampled.finish.1
            };
            return at.map(|at| Time(at.max(now)));
        }
        allocation?;
        after(now, (left * f64::exp(z * QUANTILE_90 * sigma)).0)
    };
    let started = status.and_then(|status| status.start_time.clone());
    let watts = allocation.map_or(0, |allocation| allocation.watts.max(0));
    let epoch = outlook.attempt.map(|_| outlook.epoch);
    let millis = |seconds: f64| whole(seconds * 1_000.0).max(1);
    Prediction {
        start_time: started.or_else(|| sampled?.start.map(|at| Time(at.max(now)))),
        finish_time: finish(0.0),
        finish_p10: finish(-1.0),
        finish_p90: finish(1.0),
        on_time_percent,
        risk: risk(on_time_percent, late).to_owned(),
        source: outlook.epoch.source.as_str().to_owned(),
        epoch_millis: epoch.map(|epoch| millis(epoch.median)),
        epoch_millis_low: epoch.map(|epoch| millis(epoch.low())),
        epoch_millis_high: epoch.map(|epoch| millis(epoch.high())),
        joules: whole((Watts(f64::from(watts)) * left).0),
    }
}

/// A probability as whole percent, which is what is written and compared everywhere.
pub fn percent(probability: f64) -> i32 {
    (probability.clamp(0.0, 1.0) * 100.0).round() as i32
}

fn risk(percent: Option<i32>, late: bool) -> &'static str {
    match percent {
        None => "None",
        Some(_) if late => "Late",
        Some(SAFE_PERCENT..) => "Low",
        Some(KEPT_PERCENT..) => "Medium",
        Some(_) => "High",
    }
}
