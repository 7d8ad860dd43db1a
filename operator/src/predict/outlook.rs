//! Remaining work of a run and its pace, from its table and its reports.

use andreas_api::TrainingJobStatus;
use andreas_api::slim::SlimTrainingJob;
use andreas_cluster::instants::since;
use andreas_model::Seconds;
use andreas_model::normal::QUANTILE_95;
use andreas_predictor::progress::{FASTEST, Pace, blended, max_plausible_progress, remaining_epochs};
use andreas_predictor::{LogNormal, Source};
use jiff::Timestamp;

use super::table::Table;

/// Standard deviation of the log pace between reports of one attempt, if only their mean is known.
const PACE_SIGMA: f64 = 0.15;
/// A pace that differs by more than this from the last plan's is news for the planner, however wide the
/// interval.
const OFF_PLAN: f64 = 0.2;
/// Epochs after which the time since an attempt's start gives its pace, start-up included. Two timed reports
/// give it sooner.
const MIN_UNTIMED: f64 = 1.0;

/// Remaining work of a run and its pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Epochs left, at least 0.
    pub epochs_left: f64,
    /// Epoch time on its allocation; without one, on its usual (nothing known) or fastest configuration.
    pub epoch: LogNormal,
    /// Observed pace relative to the table on its allocation; 1 without observation.
    pub pace_factor: f64,
    /// Its attempt has reported progress.
    pub reported: bool,
    /// The attempt, if the table has its configuration; `epoch` is then for that one.
    pub attempt: Option<i64>,
    /// Observed pace of that attempt.
    pub observed: Option<Pace>,
    /// Duration of the whole run at that pace, s.
    pub whole_seconds: f64,
    /// Remaining time at that pace, s.
    pub seconds_left: f64,
    /// It should have ended by its own reports, which are believed no more.
    pub overdue: bool,
}

impl Outlook {
    /// Whether a run deviates enough from `planned` for a new plan: the observed epoch is outside the plan's
    /// 90 % interval, or the pace differs by a fifth.
    pub fn deviates_from(&self, planned: &Outlook) -> bool {
        let outside = match (self.observed, self.attempt == planned.attempt) {
            (Some(observed), true) => {
                let sigma = planned.epoch.sigma.hypot(observed.noise());
                (observed.epoch.0 / planned.epoch.median).ln().abs() > QUANTILE_95 * sigma
            }
            _ => false,
        };
        outside || (self.pace_factor / planned.pace_factor - 1.0).abs() > OFF_PLAN
    }
}

/// A prediction with its uncertainty adjusted to the observation. If the deviation exceeds chance, the spread
/// is the maximum-likelihood one. So a table that is wrong by a factor of two does not win by its narrow
/// interval.
fn widened(predicted: LogNormal, observed: Pace) -> LogNormal {
    let off = (observed.epoch.0 / predicted.median).ln();
    let likeliest = (off * off - observed.noise() * observed.noise()).max(0.0).sqrt();
    if likeliest.is_finite() {
        LogNormal { sigma: predicted.sigma.max(likeliest), ..predicted }
    } else {
        predicted
    }
}

/// Remaining work of a run.
pub fn outlook(
    job: &SlimTrainingJob,
    status: Option<&TrainingJobStatus>,
    table: &Table,
    now: Timestamp,
) -> Outlook {
    let epochs = f64::from(job.spec.epochs.max(1));
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let held = allocation.and_then(|a| {
        let (_, estimate) = table.row(&a.gpu_type, u32::try_from(a.gpus).ok()?)?;
        let slower =
            table.spread_factor(a.nodes.len()) * table.limit_factor(&a.gpu_type, a.power_limit_watts);
        Some(LogNormal { median: estimate.median * slower, ..*estimate })
    });
    let fastest = || table.times.iter().min_by(|a, b| a.median.total_cmp(&b.median)).copied();
    let usual = || table.usual_row.filter(|_| table.prior).and_then(|at| table.times.get(at).copied());
    // No GPU type fits: only the usual duration of a run is known.
    let unknown = LogNormal::prior(table.usual_run.0 / epochs);
    let predicted = held.or_else(usual).or_else(fastest).unwrap_or(unknown);

    let progress = status.and_then(|status| status.progress.as_ref());
    let fraction_of = |milli: i32| (f64::from(milli) / 100_000.0).clamp(0.0, 1.0);
    let present = progress.filter(|progress| allocation.is_some_and(|a| a.attempt == progress.attempt));
    // Saved progress counts for the next attempt; without a checkpoint it starts at 0.
    let saved =
        progress.filter(|_| job.spec.checkpoint.is_some()).map_or(0.0, |p| fraction_of(p.milli_percent));

    let observed = present.filter(|p| p.millis_per_epoch > 0).and_then(|p| {
        let since_start = (fraction_of(p.milli_percent) - fraction_of(p.attempt_start)).max(0.0) * epochs;
        let timed = p.timed_milli_epochs as f64 / 1_000.0;
        let watched = if timed > 0.0 { timed } else { since_start };
        let epoch = Seconds(p.millis_per_epoch as f64 / 1_000.0);
        let enough = timed > 0.0 || since_start >= MIN_UNTIMED;
        enough.then_some(Pace { epoch, epochs: watched, sigma: PACE_SIGMA })
    });
    // Bound on self-reported progress: the predicted time, if the model is known.
    let bounds = held.filter(|held| held.source != Source::Prior);
    let observed = observed.map(|observed| match bounds {
        Some(held) => Pace { epoch: Seconds(observed.epoch.0.max(held.median / FASTEST)), ..observed },
        None => observed,
    });
    let epoch = observed.map_or(predicted, |observed| blended(widened(predicted, observed), observed));
    let whole = Seconds(epoch.median * epochs);
    let longest = Seconds(predicted.median.max(epoch.median) * epochs);
    let running = allocation.and_then(|a| a.running_time.as_ref());
    let (reported, ago) = match (present, running) {
        (Some(p), Some(running)) => {
            let max_plausible_progress = bounds.map_or(1.0, |held| {
                let elapsed = since(running.0, now);
                max_plausible_progress(fraction_of(p.attempt_start), elapsed, Seconds(held.median * epochs))
            });
            (fraction_of(p.milli_percent).min(max_plausible_progress), since(p.at.0, now))
        }
        (None, Some(running)) => (saved, since(running.0, now)),
        (Some(p), None) => (fraction_of(p.milli_percent), Seconds::ZERO),
        (None, None) => (saved, Seconds::ZERO),
    };
    let expected = epochs * (1.0 - reported);
    let in_epochs = |time: Seconds| time.0 / epoch.median;
    let epochs_left = match running {
        Some(running) => {
            let begun = present.map_or(saved, |progress| fraction_of(progress.attempt_start));
            let by_pace = epochs * (1.0 - begun) - in_epochs(since(running.0, now));
            remaining_epochs(expected, in_epochs(ago), epochs, by_pace, in_epochs(longest))
        }
        None => expected,
    };
    let overdue = running.is_some() && in_epochs(ago) > expected;
    let left = epochs_left * epoch.median;
    Outlook {
        epochs_left,
        epoch,
        pace_factor: if held.is_some() { epoch.median / predicted.median } else { 1.0 },
        reported: present.is_some(),
        attempt: held.and(allocation).map(|allocation| allocation.attempt),
        observed,
        whole_seconds: whole.0,
        seconds_left: left,
        overdue,
    }
}
