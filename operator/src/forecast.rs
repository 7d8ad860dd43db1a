//! Forecasts of a job.
//!
//! **In**: a job's spec and status, its table of predictions, the instant. **Out**: the remaining work
//! ([`outlook`], for the planner) and the [`Prediction`] in the status.
//!
//! The lifecycle decides whether a prediction is worth a write; `/forecasts` serves current ones.

use andreas_api::TrainingJobStatus;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::Prediction;
use andreas_core::{Seconds, Watts};
use andreas_predictor::progress::{FASTEST, Pace, blended, furthest, still_left};
use andreas_predictor::{Estimate, Source, on_time_probability};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::energy::bill::whole;
use crate::instants::{deadline, since};
use crate::ledger::JobMemory;
use crate::snapshot::tables::Table;

/// Maximum distance of a forecast instant, s; beyond it none is given.
const FURTHEST: f64 = 3.2e8;
/// Standard deviation of the log pace between reports of one attempt, if only their mean is known.
const PACE_SIGMA: f64 = 0.15;
/// Minimum standard deviation of the log of one observed epoch, as used by [`blended`].
const LEAST_SIGMA: f64 = 0.1;
/// Standard deviations to the ends of a 90 % interval.
const Z95: f64 = 1.644_853_626_951_472_2;
/// A pace that differs by more than this from the last plan's is news for the planner, however wide the
/// interval.
const OFF_PLAN: f64 = 0.2;
/// Epochs after which the time since an attempt's start gives its pace, start-up included. Two timed reports
/// give it sooner.
const LEAST_UNTIMED: f64 = 1.0;
/// Minimum standard deviation of the log of an end behind a queue.
const QUEUE_SIGMA: f64 = 0.4;

/// Remaining work of a run and its pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Epochs left, at least 0.
    pub epochs_left: f64,
    /// Epoch time on its allocation; without one, on its conservative or fastest configuration.
    pub epoch: Estimate,
    /// Observed pace relative to the table on its allocation; 1 without observation.
    pub pace_factor: f64,
    /// Its attempt has reported progress.
    pub reported: bool,
    /// The attempt, if the table has its configuration; `epoch` is then for that one.
    pub attempt: Option<i64>,
    /// Observed pace of that attempt.
    pub seen: Option<Pace>,
    /// Duration of the whole run at that pace, s.
    pub whole_seconds: f64,
    /// Remaining time at that pace, s.
    pub seconds_left: f64,
    /// It should have ended by its own reports: `seconds_left` grows until it does.
    pub overdue: bool,
}

impl Outlook {
    /// Whether a run deviates enough from `planned` for a new plan: the observed epoch is outside the plan's
    /// 90 % interval, or the pace differs by a fifth.
    pub fn has_left(&self, planned: &Outlook) -> bool {
        let outside = match (self.seen, self.attempt == planned.attempt) {
            (Some(seen), true) => {
                let sigma = planned.epoch.sigma.hypot(spread(seen));
                (seen.epoch.0 / planned.epoch.median).ln().abs() > Z95 * sigma
            }
            _ => false,
        };
        outside || (self.pace_factor / planned.pace_factor - 1.0).abs() > OFF_PLAN
    }
}

/// Standard deviation of the log pace after the observed epochs.
fn spread(seen: Pace) -> f64 {
    seen.sigma.max(LEAST_SIGMA) / seen.epochs.max(0.1).sqrt()
}

/// A prediction with its uncertainty adjusted to the observation. If the deviation exceeds chance, the spread
/// is the maximum-likelihood one. So a table that is wrong by a factor of two does not win by its narrow
/// interval.
fn doubted(predicted: Estimate, seen: Pace) -> Estimate {
    let off = (seen.epoch.0 / predicted.median).ln();
    let likeliest = (off * off - spread(seen) * spread(seen)).max(0.0).sqrt();
    if likeliest.is_finite() {
        Estimate { sigma: predicted.sigma.max(likeliest), ..predicted }
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
        Some(Estimate { median: estimate.median * slower, ..*estimate })
    });
    let fastest = || table.times.iter().min_by(|a, b| a.median.total_cmp(&b.median)).copied();
    let cautious = || table.cautious.filter(|_| table.prior).and_then(|at| table.times.get(at).copied());
    // No GPU type fits: only the usual duration of a run is known.
    let unknown = Estimate::prior(table.usual_run.0 / epochs);
    let predicted = held.or_else(cautious).or_else(fastest).unwrap_or(unknown);

    let progress = status.and_then(|status| status.progress.as_ref());
    let fraction_of = |milli: i32| (f64::from(milli) / 100_000.0).clamp(0.0, 1.0);
    let present = progress.filter(|progress| allocation.is_some_and(|a| a.attempt == progress.attempt));
    // Saved progress counts for the next attempt; without a checkpoint it starts at 0.
    let saved =
        progress.filter(|_| job.spec.checkpoint.is_some()).map_or(0.0, |p| fraction_of(p.milli_percent));

    let seen = present.filter(|p| p.millis_per_epoch > 0).and_then(|p| {
        let since_start = (fraction_of(p.milli_percent) - fraction_of(p.attempt_start)).max(0.0) * epochs;
        let timed = p.timed_milli_epochs as f64 / 1_000.0;
        let watched = if timed > 0.0 { timed } else { since_start };
        let epoch = Seconds(p.millis_per_epoch as f64 / 1_000.0);
        let tells = timed > 0.0 || since_start >= LEAST_UNTIMED;
        tells.then_some(Pace { epoch, epochs: watched, sigma: PACE_SIGMA })
    });
    // Bound on self-reported progress: the predicted time, if the model is known.
    let bounds = held.filter(|held| held.source != Source::Prior);
    let seen = seen.map(|seen| match bounds {
        Some(held) => Pace { epoch: Seconds(seen.epoch.0.max(held.median / FASTEST)), ..seen },
        None => seen,
    });
    let epoch = seen.map_or(predicted, |seen| blended(doubted(predicted, seen), seen));
    let whole = Seconds(epoch.median * epochs);
    let longest = Seconds(predicted.median.max(epoch.median) * epochs);
    let running = allocation.and_then(|a| a.running_time.as_ref());
    let (reported, ago) = match (present, running) {
        (Some(p), Some(running)) => {
            let furthest = bounds.map_or(1.0, |held| {
                let elapsed = since(running.0, now);
                furthest(fraction_of(p.attempt_start), elapsed, Seconds(held.median * epochs))
            });
            (fraction_of(p.milli_percent).min(furthest), since(p.at.0, now))
        }
        (None, Some(running)) => (saved, since(running.0, now)),
        (Some(p), None) => (fraction_of(p.milli_percent), Seconds::ZERO),
        (None, None) => (saved, Seconds::ZERO),
    };
    let expected = epochs * (1.0 - reported);
    let in_epochs = |time: Seconds| time.0 / epoch.median;
    let epochs_left = match running {
        Some(_) => still_left(expected, in_epochs(ago), epochs, in_epochs(longest)),
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
        seen,
        whole_seconds: whole.0,
        seconds_left: left,
        overdue,
    }
}

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
    /// Expected start.
    pub starts: Option<Timestamp>,
}

/// The prediction in a status.
pub fn prediction(
    job: &SlimTrainingJob,
    status: Option<&TrainingJobStatus>,
    table: &Table,
    now: Timestamp,
    waiting: Waiting,
) -> Prediction {
    let outlook = outlook(job, status, table, now);
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let due = deadline(&job.spec, job.metadata.creation_timestamp.as_ref()).map(|deadline| deadline.0);
    let available = due.map(|due| Seconds(due.duration_since(now).as_secs_f64()));
    let left = Seconds(outlook.seconds_left);
    // The remaining wait and the total uncertainty.
    let (wait, sigma) = match (allocation, waiting.starts) {
        (Some(_), _) => (Some(Seconds::ZERO), outlook.epoch.sigma),
        (None, Some(start)) => (Some(since(now, start)), outlook.epoch.sigma.max(QUEUE_SIGMA)),
        (None, None) => (None, outlook.epoch.sigma),
    };
    let probability = available.map(|available| match (wait, waiting.on_time) {
        (None, Some(on_time)) => on_time,
        (wait, _) => on_time_probability(wait.unwrap_or(Seconds::ZERO) + left, sigma, available),
    });
    let late = due.is_some_and(|due| due <= now);
    let finish = |z: f64| {
        let until_end = (wait? + left) * f64::exp(z * 1.281_551_565_544_600_4 * sigma);
        after(now, until_end.0)
    };
    let started = status.and_then(|status| status.start_time.clone());
    let watts = allocation.map_or(0, |allocation| allocation.watts.max(0));
    let epoch = outlook.attempt.map(|_| outlook.epoch);
    let millis = |seconds: f64| whole(seconds * 1_000.0).max(1);
    Prediction {
        start_time: started.or_else(|| after(now, wait.filter(|_| allocation.is_none())?.0)),
        finish_time: finish(0.0),
        finish_p10: finish(-1.0),
        finish_p90: finish(1.0),
        on_time_percent: probability.map(|p| (p.clamp(0.0, 1.0) * 100.0).round() as i32),
        risk: risk(probability, late).to_owned(),
        source: outlook.epoch.source.as_str().to_owned(),
        epoch_millis: epoch.map(|epoch| millis(epoch.median)),
        epoch_millis_low: epoch.map(|epoch| millis(epoch.low())),
        epoch_millis_high: epoch.map(|epoch| millis(epoch.high())),
        joules: whole((Watts(f64::from(watts)) * left).0),
    }
}

/// A job's forecast from its memory; `None` before its first plan and after its end.
pub fn of(job: &SlimTrainingJob, memory: &JobMemory, now: Timestamp) -> Option<Prediction> {
    let status = job.status.as_ref();
    if status.is_some_and(|status| status.phase.is_terminal()) {
        return None;
    }
    let waiting = Waiting { on_time: memory.on_time, starts: memory.starts };
    Some(prediction(job, status, memory.table.as_ref()?, now, waiting))
}

fn risk(probability: Option<f64>, late: bool) -> &'static str {
    match probability {
        None => "None",
        Some(_) if late => "Late",
        Some(p) if p >= 0.9 => "Low",
        Some(p) if p >= 0.5 => "Medium",
        Some(_) => "High",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_core::GpuCount;
    use serde_json::{Value, json};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn job(spec: Value, status: Value) -> SlimTrainingJob {
        let mut whole = json!({"epochs": 10, "template": {"spec": {"containers": []}}});
        whole.as_object_mut().expect("object").extend(spec.as_object().expect("object").clone());
        serde_json::from_value(json!({
            "metadata": {"name": "a", "creationTimestamp": at(0)}, "spec": whole, "status": status,
        }))
        .expect("a job")
    }

    /// 100 s per epoch on one A.
    fn table() -> Table {
        let row = andreas_planner::Estimate {
            gpu_type: "A".into(),
            gpus: GpuCount(1),
            epoch: Seconds(100.0),
            power: Watts(300.0),
            draw: None,
            rel_std: 0.2,
        };
        Table {
            rows: vec![row].into(),
            times: vec![Estimate { median: 100.0, sigma: 0.2, source: Source::UserGiven }],
            draws: vec![Estimate { median: 300.0, sigma: 0.1, source: Source::UserGiven }],
            spread: Vec::new(),
            limits: Vec::new(),
            prior: false,
            cautious: Some(0),
            usual_run: Seconds(14_400.0),
        }
    }

    fn running(progress: Value) -> Value {
        json!({
            "phase": "Running",
            "allocation": {"attempt": 1, "generation": 1, "gpuType": "A", "gpus": 1, "gpusPerWorker": 1, "nodes": ["n"],
                "placement": "n", "since": at(0), "runningTime": at(0), "watts": 300},
            "progress": progress,
        })
    }

    #[test]
    fn a_job_that_reports_nothing_is_thought_to_go_as_predicted() {
        let job = job(json!({}), running(json!(null)));
        let out = outlook(&job, job.status.as_ref(), &table(), at(250));
        assert!((out.epochs_left - 7.5).abs() < 1e-9 && !out.reported);
        assert!((out.seconds_left - 750.0).abs() < 1e-6);
    }

    #[test]
    fn a_run_that_reports_its_near_end_again_and_again_is_overdue() {
        let progress = json!({"milliPercent": 98_000, "text": "98%", "attempt": 1, "at": at(900), "millisPerEpoch": 90_000});
        let job = job(json!({}), running(progress));
        let overdue = |second| outlook(&job, job.status.as_ref(), &table(), at(second)).overdue;
        assert_eq!((overdue(901), overdue(1_000)), (false, true));
    }

    #[test]
    fn a_pace_that_is_seen_corrects_what_was_predicted() {
        // Half done in 1,000 s: twice as slow as the table says.
        let progress = json!({"milliPercent": 50_000, "text": "50%", "attempt": 1, "at": at(1_000), "millisPerEpoch": 200_000});
        let job = job(json!({"deadlineAfter": "1h"}), running(progress));
        let out = outlook(&job, job.status.as_ref(), &table(), at(1_000));
        assert!(out.pace_factor > 1.7 && out.pace_factor <= 2.0, "{}", out.pace_factor);
        assert_eq!(out.epochs_left, 5.0);
        let shown = prediction(&job, job.status.as_ref(), &table(), at(1_000), Waiting::default());
        assert_eq!((shown.risk.as_str(), shown.source.as_str()), ("Low", "Observed"));
        assert!(shown.finish_p10 < shown.finish_time && shown.finish_time < shown.finish_p90);
    }

    /// The table with the certainty of a user's own value.
    fn sure() -> Table {
        Table { times: vec![Estimate { median: 100.0, sigma: 0.05, source: Source::UserGiven }], ..table() }
    }

    /// After two timed epochs of that many seconds, with such a table.
    fn after_two_epochs(seconds: i64) -> (Outlook, Outlook, Prediction) {
        let sure = sure();
        let progress = json!({"milliPercent": 20_000, "text": "20%", "attempt": 1, "at": at(2 * seconds),
            "millisPerEpoch": seconds * 1_000, "timedMilliEpochs": 2_000, "stepwise": true});
        let before = job(json!({}), running(json!(null)));
        let after = job(json!({}), running(progress));
        let outlook = |job: &SlimTrainingJob, second| outlook(job, job.status.as_ref(), &sure, at(second));
        let shown = prediction(&after, after.status.as_ref(), &sure, at(2 * seconds), Waiting::default());
        (outlook(&before, 1), outlook(&after, 2 * seconds), shown)
    }

    #[test]
    fn two_epochs_put_an_estimate_right_that_is_wrong_by_two() {
        for truth in [50, 200] {
            let (planned, seen, shown) = after_two_epochs(truth);
            let left = 8.0 * truth as f64;
            assert!((seen.seconds_left / left - 1.0).abs() < 0.1, "{truth}: {seen:?}");
            assert!(seen.has_left(&planned), "{truth}: {planned:?} {seen:?}");
            assert!(!seen.has_left(&seen), "the next plan knows");
            let inside = shown.epoch_millis_low..=shown.epoch_millis_high;
            assert!(
                inside.contains(&Some(truth * 1_000)) && inside.contains(&shown.epoch_millis),
                "{shown:?}"
            );
        }
    }

    #[test]
    fn a_first_report_soon_after_the_start_tells_nothing_of_the_pace() {
        // given a program that imports for 40 s and then runs at the expected pace
        let report = |milli: i32, elapsed: i64, epoch: i64, timed: i64| {
            let progress = json!({"milliPercent": milli, "text": "", "attempt": 1, "at": at(elapsed), "stepwise": true,
                "millisPerEpoch": epoch * 1_000, "timedMilliEpochs": timed});
            let job = job(json!({}), running(progress));
            outlook(&job, job.status.as_ref(), &sure(), at(elapsed))
        };
        let before = job(json!({}), running(json!(null)));
        let planned = outlook(&before, before.status.as_ref(), &sure(), at(1));
        // 41 s for a hundredth of an epoch, by its own value and our clock since the start
        let first = report(100, 41, 4_100, 0);
        assert_eq!((first.seen, first.epoch), (None, planned.epoch));
        assert!(!first.has_left(&planned), "{first:?}");
        // A second report, timed from the first, is enough; so is a whole epoch.
        assert!(report(1_100, 51, 200, 500).has_left(&planned));
        assert!(report(10_000, 400, 400, 0).has_left(&planned));
    }

    #[test]
    fn what_goes_as_predicted_asks_for_no_plan_and_is_as_sure_as_before() {
        for truth in [95, 100, 108] {
            let (planned, seen, _) = after_two_epochs(truth);
            assert!(!seen.has_left(&planned), "{truth}");
            assert!(seen.epoch.sigma <= planned.epoch.sigma * 1.001, "{truth}: {seen:?}");
        }
        // The plan knew nothing of another attempt.
        let (planned, seen, _) = after_two_epochs(115);
        assert!(!seen.has_left(&Outlook { attempt: None, ..planned }));
    }

    #[test]
    fn a_program_that_says_it_is_almost_done_for_ever_is_neither_cheap_to_finish_nor_dear_to_stop() {
        // given a run of 1,000 s that posts 98.9 % after 5 s; a second report makes it look timed
        let liar = |second: i64| {
            let progress = json!({"milliPercent": 98_900, "text": "", "attempt": 1, "at": at(5),
                "millisPerEpoch": 500, "timedMilliEpochs": 9_800, "stepwise": true});
            let job = job(json!({}), running(progress));
            outlook(&job, job.status.as_ref(), &sure(), at(second))
        };
        // at first at most ten times the predicted pace is accepted
        let early = liar(6);
        assert!(early.epochs_left > 9.0 && early.epoch.median >= 10.0, "{early:?}");
        // then it is nearly done; the longer it does not end, the more remains, up to a whole run
        let seconds = |second| liar(second).seconds_left;
        assert!(seconds(200) > 50.0, "{}", seconds(200));
        assert!(seconds(600) > seconds(200), "{} {}", seconds(200), seconds(600));
        assert_eq!(seconds(100_000), 1_000.0);
    }

    #[test]
    fn a_job_that_no_gpu_type_fits_is_expected_to_take_the_usual_run_time() {
        let empty = Table {
            rows: [].into(),
            times: Vec::new(),
            cautious: None,
            usual_run: Seconds(3_600.0),
            ..table()
        };
        let job = job(json!({}), json!(null));
        let out = outlook(&job, None, &empty, at(0));
        assert_eq!((out.seconds_left, out.epoch.source), (3_600.0, Source::Prior));
    }

    #[test]
    fn only_a_checkpoint_carries_work_over() {
        let status = json!({"progress": {"milliPercent": 40_000, "text": "", "attempt": 1, "at": at(5)}});
        let without = job(json!({}), status.clone());
        assert_eq!(outlook(&without, without.status.as_ref(), &table(), at(9)).epochs_left, 10.0);
        let with = job(json!({"checkpoint": {}}), status);
        assert!((outlook(&with, with.status.as_ref(), &table(), at(9)).epochs_left - 6.0).abs() < 1e-9);
    }

    #[test]
    fn a_job_behind_a_queue_shows_when_it_may_start_and_end() {
        // 1,000 s of work, an hour to the deadline: comfortable if it started now, tight behind a wait of 40 minutes.
        let job = job(json!({"deadlineAfter": "1h"}), json!(null));
        let shown = |starts| prediction(&job, None, &table(), at(0), Waiting { on_time: Some(1.0), starts });
        assert_eq!((shown(None).risk.as_str(), shown(None).start_time), ("Low", None));
        let behind = shown(Some(at(2_400)));
        assert_eq!(behind.start_time, Some(Time(at(2_400))));
        assert_eq!(behind.finish_time, Some(Time(at(3_400))));
        assert_eq!(behind.risk, "Medium");
    }

    #[test]
    fn a_passed_deadline_is_late_and_no_deadline_is_no_risk() {
        let late = job(json!({"deadlineAfter": "1m"}), json!(null));
        assert_eq!(prediction(&late, None, &table(), at(100), Waiting::default()).risk, "Late");
        let free = job(json!({}), json!(null));
        let shown = prediction(&free, None, &table(), at(100), Waiting { on_time: Some(1.0), starts: None });
        assert_eq!((shown.risk.as_str(), shown.on_time_percent, shown.finish_time), ("None", None, None));
    }
}
