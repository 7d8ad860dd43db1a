//! Attempts and ends of jobs, by the statuses that are written.

use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::AttemptRecord;
use andreas_api::{Outcome, Phase, Reason, TrainingJobStatus};
use andreas_cluster::energy::bill::Bill;
use andreas_lifecycle::ENDS;
use andreas_runtime::metrics::Labels;
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::list;
use super::totals::{self, Totals};

/// Attempts and ends of jobs, by the statuses that are written.
#[derive(Clone, Debug)]
pub(super) struct JobMetrics {
    attempts: Family<Labels<2>, Counter>,
    ended: Family<Labels<2>, Counter>,
    restarts: Counter,
    waited: Histogram,
    totals: Arc<Mutex<Totals>>,
}

/// For the waiting of jobs: buckets from a second to ten days. An alert asks for the one of four hours.
fn duration_histogram() -> Histogram {
    Histogram::new([
        0.0, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0,
        864_000.0,
    ])
}

impl JobMetrics {
    pub(super) fn register(registry: &mut Registry, totals: Arc<Mutex<Totals>>) -> Self {
        let this = Self {
            attempts: list::ATTEMPTS.create(registry),
            ended: list::ENDED.create(registry),
            restarts: list::RESTARTS.create(registry),
            waited: list::WAITED.register(registry, duration_histogram()),
            totals,
        };
        this.begin_at_zero();
        this
    }

    fn begin_at_zero(&self) {
        for (outcome, reasons) in ENDS {
            let outcome = outcome_label(outcome);
            for reason in reasons {
                let _ = self.attempts.get_or_create(&[("outcome", outcome), ("reason", reason.as_str())]);
            }
        }
        for phase in [Phase::Succeeded.as_str(), Phase::Failed.as_str()] {
            for deadline in ["met", "missed", "none"] {
                let _ = self.ended.get_or_create(&[("phase", phase), ("deadline", deadline)]);
            }
        }
    }

    /// Records a status write; `job` holds the status before it.
    pub(super) fn wrote_status(&self, job: &SlimTrainingJob, after: &TrainingJobStatus) {
        let unwritten = TrainingJobStatus::default();
        let before = job.status.as_ref().unwrap_or(&unwritten);
        let last = before.history.last().map_or(0, |record| record.attempt);
        let ended = after.history.last().filter(|record| record.attempt > last);
        if let Some(record) = ended {
            let reason = Reason::parse(&record.reason).unwrap_or(Reason::Invalid).as_str();
            self.attempts
                .get_or_create(&[("outcome", outcome_label(record.outcome)), ("reason", reason)])
                .inc();
        }
        self.account(job, after, ended);
        self.restarts.inc_by(u64::try_from(after.restarts.saturating_sub(before.restarts)).unwrap_or(0));
        let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
        if let (None, Some(start), Some(created)) = (&before.start_time, &after.start_time, created) {
            self.waited.observe(seconds(created, start.0));
        }
        if after.phase.is_terminal() && !before.phase.is_terminal() {
            self.job_ended(job, after);
        }
    }

    fn job_ended(&self, job: &SlimTrainingJob, after: &TrainingJobStatus) {
        let deadline = match after.deadline_met() {
            None => "none",
            Some(true) => "met",
            Some(false) => "missed",
        };
        self.ended.get_or_create(&[("phase", after.phase.as_str()), ("deadline", deadline)]).inc();
        if let Some(total) = &after.consumption {
            let namespace = job.namespace().unwrap_or_default();
            self.totals.lock().late(&namespace, total.lateness_cost_micros);
        }
    }

    /// Adds energy and cost of an attempt that ended (`ended`), or of a late measurement.
    fn account(&self, job: &SlimTrainingJob, after: &TrainingJobStatus, ended: Option<&AttemptRecord>) {
        let total = |status: Option<&TrainingJobStatus>| {
            let total = status.and_then(|status| status.consumption.as_ref());
            total.map_or(Bill::default(), |total| Bill {
                joules: total.joules,
                micros: total.energy_cost_micros,
                host_joules: total.host_joules,
                host_micros: total.host_cost_micros,
            })
        };
        let more = totals::difference(total(job.status.as_ref()), total(Some(after)));
        let Some(last) = after.history.last().filter(|_| more != Bill::default()) else { return };
        let namespace = job.namespace().unwrap_or_default();
        let Some(record) = ended else {
            self.totals.lock().corrected(&namespace, &last.gpu_type, more);
            return;
        };
        let attempt = totals::Attempt {
            uid: job.uid().unwrap_or_default(),
            attempt: record.attempt,
            namespace,
            gpu_type: record.gpu_type.clone(),
            started: record.started.as_ref().map(|time| time.0),
        };
        self.totals.lock().ended(&attempt, more);
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

fn outcome_label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Finished => "Finished",
        Outcome::Stopped => "Stopped",
        Outcome::UserFailure => "UserFailure",
        Outcome::ClusterFailure => "ClusterFailure",
        Outcome::Withdrawn => "Withdrawn",
    }
}
