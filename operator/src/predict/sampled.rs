//! Forecasts by sampling, as the background thread leaves them for the next plans.

use std::sync::Arc;

use andreas_forecast::{Forecast, JobForecast, Quantiles};
use andreas_model::{JobId, Time};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A forecast older than this is not used.
const FRESH: SignedDuration = SignedDuration::from_secs(180);

/// Start and end of a job by sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Median start.
    pub start: Option<Timestamp>,
    /// 10 %, 50 % and 90 % quantile of the end.
    pub finish: (Option<Timestamp>, Option<Timestamp>, Option<Timestamp>),
    /// The end as it was sampled, and when.
    pub uncorrected: (Quantiles, Time),
    /// Probability of being on time; 1 without a deadline.
    pub on_time: f64,
}

/// An instant of the planner; `None` if it is infinite or out of range.
pub fn timestamp(at: Time) -> Option<Timestamp> {
    at.is_finite().then(|| Timestamp::from_second(at.0 as i64).ok()).flatten()
}

impl Sampled {
    fn from_forecast(job: &JobForecast, now: Time) -> Self {
        let finish = job.finish;
        Self {
            start: timestamp(job.start.p50),
            finish: (timestamp(finish.p10), timestamp(finish.p50), timestamp(finish.p90)),
            uncorrected: (job.sampled_finish, now),
            on_time: job.on_time,
        }
    }
}

/// A forecast and the instant of its plan.
type Dated = (Timestamp, Arc<Forecast>);

/// The newest forecast. Clones share it.
#[derive(Clone, Default)]
pub struct Forecasts {
    newest: Arc<Mutex<Option<Dated>>>,
}

/// A forecast that is fresh.
pub struct Fresh(Arc<Forecast>);

impl Fresh {
    /// The forecast of a job; `None` if the snapshot lacked it.
    pub fn job(&self, id: &JobId) -> Option<Sampled> {
        self.0.job(id).map(|job| Sampled::from_forecast(job, self.0.now))
    }
}

impl Forecasts {
    /// Stores a forecast from that instant.
    pub fn keep(&self, at: Timestamp, forecast: Arc<Forecast>) {
        *self.newest.lock() = Some((at, forecast));
    }

    /// The newest one, if it is not too old.
    pub fn fresh(&self, now: Timestamp) -> Option<Fresh> {
        let newest = self.newest.lock();
        let (at, forecast) = newest.as_ref()?;
        (now.duration_since(*at) <= FRESH).then(|| Fresh(Arc::clone(forecast)))
    }
}
