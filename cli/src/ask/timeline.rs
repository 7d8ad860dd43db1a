//! The jobs of a namespace over time: behind now what they did, ahead what is expected. The page of `ui` and `queue -o svg` draw the
//! same marks.
//!
//! **In**: the operator's queue, and TrainingJobs for attempts that ended. **Out**: rows with the job at the highest risk first.
//! **Never here**: a forecast, pixels, colours.

use std::collections::HashMap;

use andreas_api::Phase;
use andreas_api::query::{Queue, QueuedJob};
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{KEPT_PERCENT, SAFE_PERCENT};
use jiff::Timestamp;
use serde::Serialize;

use super::text;

/// Lengths of the time ahead that an axis may have, s.
const HORIZONS: [i64; 10] =
    [3_600, 7_200, 14_400, 28_800, 43_200, 86_400, 172_800, 345_600, 604_800, 2_592_000];
/// Part of the jobs whose ends an axis shows at least: one that ends in a month would hide what the others do today.
const SHOWN_PERCENT: usize = 90;
/// The time behind now, as a part of the time ahead.
pub const BEHIND: i64 = 6;

/// How a job stands to its deadline; the first is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Risk {
    /// The deadline has passed.
    Late,
    /// On time with less than 50 %, or no end is expected.
    High,
    /// With less than 90 %.
    Medium,
    /// With 90 % or more.
    Low,
    /// It has no deadline.
    None,
}

/// What a mark stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum MarkType {
    /// An attempt that ended.
    Past,
    /// From the median start to the median end.
    Run,
    /// The part of the run that lies behind now.
    Done,
    /// From the median end to the 90 % quantile.
    Tail,
    /// From the 10 % to the 90 % quantile of the start.
    Start,
    /// The same of the end.
    End,
    /// The median end.
    Median,
    /// The deadline.
    Due,
}

/// A mark on a row: an interval, or an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// What it stands for.
    pub kind: MarkType,
    /// Its begin, seconds since the epoch.
    pub from: i64,
    /// Its end; none: it has no end that is known.
    pub to: Option<i64>,
}

/// A job.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// As the operator answers.
    #[serde(flatten)]
    pub job: QueuedJob,
    /// How it stands to its deadline.
    pub risk: Risk,
    /// What is drawn of it, in this order.
    pub marks: Vec<Mark>,
    /// Its start in words.
    pub start_text: String,
    /// Its end in words.
    pub end_text: String,
    /// Its deadline in words.
    pub due_text: String,
    /// Fewest and most GPUs that its spec allows, where it may be read.
    pub allowed_gpus: Option<(i32, i32)>,
    /// It stands for a job of another kind.
    pub adopted: bool,
}

/// All rows and their axis.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The namespace.
    pub namespace: String,
    /// Instant that the forecast starts from, seconds since the epoch.
    pub at: i64,
    /// Now, seconds since the epoch.
    pub now: i64,
    /// Waiting jobs of the whole cluster.
    pub waiting: u32,
    /// Open jobs of the namespace, those without a row included.
    pub open: u32,
    /// Length of the time ahead that shows nearly all ends, s.
    pub horizon: i64,
    /// The jobs, the highest risk first.
    pub rows: Vec<Row>,
    /// What is missing, and why.
    pub notes: Vec<String>,
}

/// What a TrainingJob says beside the queue.
#[derive(Clone, Debug, Default)]
pub struct JobRecord {
    attempts: Vec<(i64, i64)>,
    gpus: (i32, i32),
    adopted: bool,
}

/// The same of each TrainingJob, by name.
pub fn records(jobs: Vec<SlimTrainingJob>) -> HashMap<String, JobRecord> {
    let of_job = |job: SlimTrainingJob| {
        let history = job.status.map(|status| status.history).unwrap_or_default();
        // An attempt that never ran has no length.
        let ran = |attempt: &andreas_api::training_job::AttemptRecord| {
            Some((attempt.started.as_ref()?.0.as_second(), attempt.ended.0.as_second()))
        };
        let record = JobRecord {
            attempts: history.iter().filter_map(ran).collect(),
            gpus: (job.spec.gpus.min, job.spec.gpus.max_total()),
            adopted: job.spec.adopts.is_some(),
        };
        Some((job.metadata.name?, record))
    };
    jobs.into_iter().filter_map(of_job).collect()
}

impl Timeline {
    /// The rows of a queue.
    pub fn new(queue: Queue, records: &HashMap<String, JobRecord>, now: Timestamp) -> Self {
        let mut rows: Vec<Row> =
            queue.jobs.into_iter().map(|job| row(records.get(&job.name), job, now)).collect();
        let second = |at: Option<i64>| at.unwrap_or(i64::MAX);
        rows.sort_by_cached_key(|row| {
            let expected = row.job.expected.as_ref();
            let percent = expected.and_then(|e| e.on_time_percent).unwrap_or(0);
            let due = second(row.job.deadline.as_ref().map(|at| at.0.as_second()));
            let end = second(expected.map(|e| e.finish.p50.0.as_second()));
            (row.risk, percent, due, end, row.job.name.clone())
        });
        Self {
            namespace: queue.namespace,
            at: queue.at.0.as_second(),
            now: now.as_second(),
            waiting: queue.waiting,
            open: queue.open,
            horizon: horizon(&rows, now.as_second()),
            rows,
            notes: Vec::new(),
        }
    }
}

fn row(record: Option<&JobRecord>, job: QueuedJob, now: Timestamp) -> Row {
    let words = |of: fn(&andreas_api::query::Expected) -> &andreas_api::query::Interval| {
        job.expected.as_ref().map(|e| text::interval(of(e), now)).unwrap_or_default()
    };
    Row {
        risk: risk(&job, now),
        marks: marks(&job, record, now.as_second()),
        start_text: words(|e| &e.start),
        end_text: words(|e| &e.finish),
        due_text: job.deadline.as_ref().map(|at| text::from_now(at, now)).unwrap_or_default(),
        allowed_gpus: record.map(|record| record.gpus),
        adopted: record.is_some_and(|record| record.adopted),
        job,
    }
}

fn risk(job: &QueuedJob, now: Timestamp) -> Risk {
    let Some(deadline) = &job.deadline else { return Risk::None };
    if deadline.0 <= now {
        return Risk::Late;
    }
    match job.expected.as_ref().and_then(|e| e.on_time_percent) {
        Some(percent) if percent >= SAFE_PERCENT => Risk::Low,
        Some(percent) if percent >= KEPT_PERCENT => Risk::Medium,
        _ => Risk::High,
    }
}

fn marks(job: &QueuedJob, record: Option<&JobRecord>, now: i64) -> Vec<Mark> {
    let attempts = record.map(|record| record.attempts.as_slice()).unwrap_or_default();
    let mut marks: Vec<Mark> =
        attempts.iter().map(|(from, to)| Mark { kind: MarkType::Past, from: *from, to: Some(*to) }).collect();
    let mut mark = |kind, from, to| marks.push(Mark { kind, from, to });
    if let Some(e) = &job.expected {
        let second = |at: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| at.0.as_second();
        let (start, end) = (second(&e.start.p50), second(&e.finish.p50));
        mark(MarkType::Tail, end, e.finish.p90.as_ref().map(second));
        mark(MarkType::Run, start, Some(end));
        if start < now && matches!(job.phase, Phase::Running | Phase::Stopping) {
            mark(MarkType::Done, start, Some(now));
        } else {
            mark(MarkType::Start, second(&e.start.p10), e.start.p90.as_ref().map(second));
        }
        mark(MarkType::End, second(&e.finish.p10), e.finish.p90.as_ref().map(second));
        mark(MarkType::Median, end, Some(end));
    }
    if let Some(at) = &job.deadline {
        mark(MarkType::Due, at.0.as_second(), Some(at.0.as_second()));
    }
    marks
}

/// The shortest axis on which nearly all jobs end.
fn horizon(rows: &[Row], now: i64) -> i64 {
    let last = |row: &Row| {
        let finish = &row.job.expected.as_ref()?.finish;
        Some(finish.p90.as_ref().unwrap_or(&finish.p50).0.as_second() - now)
    };
    let mut ends: Vec<i64> = rows.iter().filter_map(last).collect();
    ends.sort_unstable();
    let most = ends.get((ends.len() * SHOWN_PERCENT).div_ceil(100).saturating_sub(1)).copied();
    let fits = |length: &&i64| **length >= most.unwrap_or(0);
    *HORIZONS.iter().find(fits).unwrap_or(&HORIZONS[HORIZONS.len() - 1])
}

/// Seconds between two ticks of an axis of `seconds` with at most `most` of them.
pub fn tick(seconds: i64, most: i64) -> i64 {
    let steps = [300, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];
    *steps.iter().find(|step| seconds / **step <= most).unwrap_or(&2_592_000)
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The instant that [`timeline`] is of.
    pub const NOW: &str = "2026-11-24T12:00:00Z";

    fn at(minutes: i64) -> String {
        let now: Timestamp = NOW.parse().unwrap();
        (now + jiff::SignedDuration::from_mins(minutes)).to_string()
    }

    fn job(name: &str, phase: &str, extra: Value) -> Value {
        let mut job = json!({"name": name, "phase": phase, "weight": 10, "gpus": "2-8", "created": at(-60)});
        job.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        job
    }

    fn expected(start: [i64; 3], finish: [i64; 3], percent: Option<i32>) -> Value {
        let of = |[a, b, c]: [i64; 3]| json!({"p10": at(a), "p50": at(b), "p90": at(c)});
        let cost = json!({"energyCostMicros": 420_000, "latenessCostMicros": 120_000, "turnaroundCostMicros": 170_000});
        let mut e = json!({"start": of(start), "finish": of(finish), "gpuType": "NVIDIA-A100-SXM4-80GB", "gpus": 8, "cost": cost});
        if let Some(percent) = percent {
            e["onTimePercent"] = percent.into();
        }
        e
    }

    /// A few jobs: one of each kind.
    pub fn timeline() -> Timeline {
        let never = |mut e: Value| {
            e["finish"].as_object_mut().unwrap().remove("p90");
            e
        };
        let queue = json!({"namespace": "team-a", "at": at(0), "waiting": 9, "open": 6, "jobs": [
            job("llama", "Running", json!({"deadline": at(239), "gpuType": "NVIDIA-A100-SXM4-80GB", "gpus": "32",
                "expected": expected([-15, -15, -15], [35, 59, 104], Some(100))})),
            job("bert", "Pending", json!({"deadline": at(119), "position": 1, "reason": "WaitingForCapacity",
                "expected": expected([35, 59, 104], [68, 94, 138], Some(83))})),
            job("vision", "Running", json!({"gpuType": "Tesla-T4", "gpus": "4",
                "expected": expected([-10, -10, -10], [84, 89, 95], None)})),
            job("whisper", "Pending", json!({"deadline": at(150), "position": 2, "reason": "PowerBudget",
                "expected": never(expected([90, 120, 200], [150, 190, 0], Some(12)))})),
            job("old", "Pending", json!({"deadline": at(-20), "expected": expected([5, 6, 7], [20, 30, 45], Some(0))})),
            job("huge", "Pending", json!({"deadline": at(500), "reason": "NoSuchNodes"})),
        ]});
        let jobs = json!([{"metadata": {"name": "llama"}, "spec": {"template": {"spec": {"containers": []}}, "gpus": {"min": 8, "max": 32}},
            "status": {"phase": "Running", "history": [
                {"attempt": 1, "outcome": "Stopped", "reason": "Preempted", "gpuType": "T4", "gpus": 4, "placement": "n",
                 "started": at(-38), "ended": at(-22)},
                {"attempt": 2, "outcome": "Stopped", "reason": "Preempted", "gpuType": "T4", "gpus": 4, "placement": "n",
                 "ended": at(-18)}]}}]);
        let records = records(serde_json::from_value(jobs).unwrap());
        Timeline::new(serde_json::from_value(queue).unwrap(), &records, NOW.parse().unwrap())
    }

    #[test]
    fn the_job_at_the_highest_risk_stands_first() {
        let timeline = timeline();
        let order: Vec<_> = timeline.rows.iter().map(|row| (row.job.name.as_str(), row.risk)).collect();
        let expected = [
            ("old", Risk::Late),
            ("huge", Risk::High),
            ("whisper", Risk::High),
            ("bert", Risk::Medium),
            ("llama", Risk::Low),
            ("vision", Risk::None),
        ];
        assert_eq!(order, expected);
        // Of five jobs with an end the last one is at 190 minutes, and counts.
        assert_eq!((timeline.horizon, tick(timeline.horizon, 8)), (14_400, 1_800));
    }

    #[test]
    fn what_ran_lies_behind_now_and_what_is_expected_ahead() {
        let timeline = timeline();
        let now = timeline.now;
        let kinds = |name: &str| {
            let row = timeline.rows.iter().find(|row| row.job.name == name).unwrap();
            row.marks.iter().map(|mark| mark.kind).collect::<Vec<_>>()
        };
        let rest = [MarkType::End, MarkType::Median, MarkType::Due];
        assert_eq!(
            kinds("llama"),
            [&[MarkType::Past, MarkType::Tail, MarkType::Run, MarkType::Done][..], &rest].concat()
        );
        assert_eq!(kinds("bert"), [&[MarkType::Tail, MarkType::Run, MarkType::Start][..], &rest].concat());
        assert_eq!(kinds("huge"), [MarkType::Due]);
        let whisper = timeline.rows.iter().find(|row| row.job.name == "whisper").unwrap();
        assert_eq!(whisper.marks[0], Mark { kind: MarkType::Tail, from: now + 190 * 60, to: None });
        assert!(whisper.end_text.ends_with("to never)"), "{}", whisper.end_text);
    }
}
