//! Sums over jobs.

use std::collections::BTreeMap;

use andreas_api::Phase;
use andreas_api::names::{ANNOTATION_USER, LABEL_PROFILE};
use andreas_api::slim::SlimTrainingJob;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::Group;

/// What the jobs of a group have used.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sum {
    /// The group: one text for each key.
    pub group: Vec<String>,
    /// Currency of money; empty where none is known yet.
    pub currency: String,
    /// Jobs.
    pub jobs: u64,
    /// Those that have not ended.
    pub open: u64,
    /// Those that failed.
    pub failed: u64,
    /// Hours times GPUs of all attempts.
    pub gpu_hours: f64,
    /// Energy of the GPUs of ended attempts, J.
    pub joules: i64,
    /// The part of it that is measured by the GPUs' counters, J; mixed jobs do not count here.
    pub measured_joules: i64,
    /// Price of `joules`, millionths of the currency.
    pub energy_micros: i64,
    /// These attempts' share of their nodes' energy besides the GPUs, J.
    pub host_joules: i64,
    /// Price of `host_joules`, millionths of the currency.
    pub host_micros: i64,
    /// What lateness and time in the system count in plans, millionths of the currency.
    pub lateness_micros: i64,
    /// Jobs with a deadline.
    pub with_deadline: u64,
    /// Those that missed it: they ended after it, failed, or have not ended and are past it.
    pub late: u64,
    /// Time past it of all of them, s; nothing where a job failed before.
    pub late_seconds: i64,
    /// Jobs whose status does not keep all attempts.
    #[serde(skip)]
    pub incomplete: u64,
    /// Attempts that run: their GPU-hours count until now, their energy not yet.
    #[serde(skip)]
    pub running: u64,
}

impl Sum {
    /// Energy of GPUs and of the share of hosts, J.
    pub fn all_joules(&self) -> i64 {
        self.joules.saturating_add(self.host_joules)
    }

    /// Its price, millionths of the currency.
    pub fn cost_micros(&self) -> i64 {
        self.energy_micros.saturating_add(self.host_micros)
    }

    /// Part of the GPUs' energy that is measured, 0 to 1.
    pub fn measured_share(&self) -> f64 {
        if self.joules > 0 { self.measured_joules as f64 / self.joules as f64 } else { 0.0 }
    }
}

/// Sums of the jobs that ended since `since` or have not ended, by these keys, in the keys' order. Money of two currencies is not
/// added: there are two sums then.
pub fn sums(
    jobs: &[SlimTrainingJob],
    by: &[Group],
    since: Option<Timestamp>,
    zone: &TimeZone,
    now: Timestamp,
) -> Vec<Sum> {
    let mut sums: BTreeMap<(Vec<String>, String), Sum> = BTreeMap::new();
    let known = jobs.iter().filter_map(currency).next().unwrap_or_default();
    for job in jobs {
        let ended = job.status.as_ref().and_then(|status| status.completion_time.as_ref()).map(|at| at.0);
        if since.is_some_and(|since| ended.is_some_and(|ended| ended < since)) {
            continue;
        }
        let group: Vec<String> = by.iter().map(|key| name(*key, job, ended.unwrap_or(now), zone)).collect();
        let currency = currency(job).unwrap_or_else(|| known.clone());
        let sum = sums.entry((group.clone(), currency.clone())).or_insert_with(|| Sum {
            group,
            currency,
            ..Sum::default()
        });
        add(sum, job, now);
    }
    sums.into_values().collect()
}

fn add(sum: &mut Sum, job: &SlimTrainingJob, now: Timestamp) {
    let status = job.status.clone().unwrap_or_default();
    sum.jobs += 1;
    sum.open += u64::from(!status.phase.is_terminal());
    sum.failed += u64::from(status.phase == Phase::Failed);
    if let Some(used) = &status.consumption {
        sum.joules = sum.joules.saturating_add(used.joules);
        sum.energy_micros = sum.energy_micros.saturating_add(used.energy_cost_micros);
        sum.host_joules = sum.host_joules.saturating_add(used.host_joules);
        sum.host_micros = sum.host_micros.saturating_add(used.host_cost_micros);
        sum.lateness_micros = sum.lateness_micros.saturating_add(used.lateness_cost_micros);
        if used.source == "Measured" {
            sum.measured_joules = sum.measured_joules.saturating_add(used.joules);
        }
    }
    if let Some(deadline) = &status.deadline {
        let ended = status.completion_time.as_ref().map_or(now, |at| at.0);
        let late = ended.as_second() - deadline.0.as_second();
        sum.with_deadline += 1;
        sum.late += u64::from(!status.deadline_met().unwrap_or(late <= 0));
        sum.late_seconds = sum.late_seconds.saturating_add(late.max(0));
    }
    let seconds = |from: Timestamp, until: Timestamp| (until.as_second() - from.as_second()).max(0) as f64;
    let mut gpu_seconds = 0.0;
    for attempt in &status.history {
        if let Some(started) = &attempt.started {
            gpu_seconds += f64::from(attempt.gpus.max(0)) * seconds(started.0, attempt.ended.0);
        }
    }
    let mut known = status.history.len();
    if let Some(allocation) = &status.allocation {
        let recorded = status.history.iter().any(|attempt| attempt.attempt == allocation.attempt);
        if let Some(running) = allocation.running_time.as_ref().filter(|_| !recorded) {
            gpu_seconds += f64::from(allocation.gpus.max(0)) * seconds(running.0, now);
            sum.running += 1;
        }
        known += usize::from(!recorded);
    }
    sum.gpu_hours += gpu_seconds / 3600.0;
    sum.incomplete += u64::from(i64::try_from(known).is_ok_and(|known| known < status.attempts));
}

/// What a job is called in a group.
fn name(key: Group, job: &SlimTrainingJob, at: Timestamp, zone: &TimeZone) -> String {
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let own = job.metadata.name.clone().unwrap_or_default();
    match key {
        Group::Namespace => namespace,
        Group::Job => format!("{namespace}/{own}"),
        Group::Month => zone.to_datetime(at).strftime("%Y-%m").to_string(),
        Group::User => {
            let annotations = job.metadata.annotations.as_ref();
            let user = annotations.and_then(|all| all.get(ANNOTATION_USER));
            user.filter(|user| !user.is_empty()).cloned().unwrap_or_else(|| "unknown".to_owned())
        }
        Group::Profile => {
            let used = job.status.as_ref().and_then(|status| status.profile.as_ref());
            let label = job.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_PROFILE));
            let named = used.map(|used| used.name.as_str()).or(job.spec.profile());
            named.or(label.map(String::as_str)).map_or(own, str::to_owned)
        }
    }
}

fn currency(job: &SlimTrainingJob) -> Option<String> {
    let currency = &job.status.as_ref()?.consumption.as_ref()?.currency;
    (!currency.is_empty()).then(|| currency.clone())
}
