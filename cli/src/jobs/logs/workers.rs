//! Which pods are the workers of an attempt, and in which order their logs are shown.

use andreas_api::names::{LABEL_ADOPTED, LABEL_ADOPTED_ATTEMPT, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_UID};
use andreas_api::slim::{SlimPod, SlimTrainingJob};
use k8s_openapi::jiff::Timestamp;

use crate::cluster::ClusterError;

/// A worker of the attempt that is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Its rank: the index of the pod in its gang.
    pub rank: usize,
    /// Its pod.
    pub pod: String,
    /// Its pod has a node.
    pub bound: bool,
    /// Its pod has ended.
    pub ended: bool,
    /// How its container failed.
    pub failure: Option<String>,
    /// When that was.
    pub failed_at: Option<Timestamp>,
}

/// Label of a Job's pods, by batch/v1: their number where it numbers them.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Labels of a job's pods, those of one attempt if it is given. The name alone would find pods of an earlier job too.
pub fn selector(job: &SlimTrainingJob, attempt: Option<i64>) -> String {
    let label = if job.spec.adopts.is_some() { LABEL_ADOPTED } else { LABEL_JOB_UID };
    let mut labels = format!("{label}={}", job.metadata.uid.as_deref().unwrap_or_default());
    if let Some(attempt) = attempt {
        labels += &format!(",{}={attempt}", attempt_label(job));
    }
    labels
}

/// The label of a job's pods that says their attempt.
fn attempt_label(job: &SlimTrainingJob) -> &'static str {
    if job.spec.adopts.is_some() { LABEL_ADOPTED_ATTEMPT } else { LABEL_ATTEMPT }
}

/// The workers of `attempt`, or of the newest attempt that has pods: the one that failed first, others that failed, the rest by
/// rank. Pods that another kind's controller made are ranked by their number, else by their name.
///
/// # Errors
/// When there are no such pods; the error says what is known of the attempt.
pub fn workers(
    job: &SlimTrainingJob,
    pods: Vec<SlimPod>,
    attempt: Option<i64>,
    rank: Option<usize>,
    container: &str,
) -> Result<Vec<Worker>, ClusterError> {
    let number = |pod: &SlimPod, label: &str| -> Option<i64> {
        pod.metadata.labels.as_ref()?.get(label)?.parse().ok()
    };
    let label = attempt_label(job);
    let newest = pods.iter().filter_map(|pod| number(pod, label)).max();
    let Some(attempt) = attempt.or(newest) else {
        return Err(ClusterError::NotFound(without_pods(job, None)));
    };
    let mut mine: Vec<&SlimPod> = pods.iter().filter(|pod| number(pod, label) == Some(attempt)).collect();
    let all: Vec<Worker> = if job.spec.adopts.is_some() {
        mine.sort_by_key(|pod| (number(pod, COMPLETION_INDEX), pod.metadata.name.clone()));
        mine.iter().enumerate().map(|(rank, pod)| worker(pod, rank, container)).collect()
    } else {
        let rank = |pod: &SlimPod| usize::try_from(number(pod, LABEL_INDEX)?).ok();
        mine.iter().filter_map(|pod| Some(worker(pod, rank(pod)?, container))).collect()
    };
    if all.is_empty() {
        return Err(ClusterError::NotFound(without_pods(job, Some(attempt))));
    }
    let mut shown: Vec<Worker> =
        all.into_iter().filter(|worker| rank.is_none_or(|rank| rank == worker.rank)).collect();
    if shown.is_empty() {
        let rank = rank.unwrap_or_default();
        return Err(ClusterError::NotFound(format!("a worker of rank {rank} in attempt {attempt}")));
    }
    shown.sort_by_key(|worker| (worker.failure.is_none(), worker.failed_at, worker.rank));
    Ok(shown)
}

fn worker(pod: &SlimPod, rank: usize, container: &str) -> Worker {
    let status = pod.status.container_statuses.iter().find(|status| status.name == container);
    let end = status.and_then(|status| status.state.terminated.as_ref()).filter(|end| end.exit_code != 0);
    let node = pod.spec.node_name.as_deref().unwrap_or("no node");
    let failure = end.map(|end| {
        let why = if end.reason.is_empty() { String::new() } else { format!(" ({})", end.reason) };
        format!("exit code {}{why} on {node}", end.exit_code)
    });
    Worker {
        rank,
        pod: pod.metadata.name.clone().unwrap_or_default(),
        bound: pod.spec.node_name.is_some(),
        ended: pod.has_ended(),
        failed_at: end.and_then(|end| end.finished_at.as_ref()).map(|at| at.0),
        failure,
    }
}

/// What is said where an attempt has no pods.
fn without_pods(job: &SlimTrainingJob, attempt: Option<i64>) -> String {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let record = attempt.and_then(|attempt| status.history.iter().find(|one| one.attempt == attempt));
    let what = match attempt {
        Some(attempt) => format!("a pod of attempt {attempt} of {name}"),
        None => format!("a pod of {name}"),
    };
    match record {
        Some(record) => {
            let line =
                if record.message.is_empty() { String::new() } else { format!(": {}", record.message) };
            format!(
                "{what} (it ended with {}{line}; spec.historyLimit keeps pods of ended attempts)",
                record.reason
            )
        }
        None if attempt.is_none() && status.attempts == 0 => {
            let why = status.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
            format!("{what} (it is {}{why})", status.phase.as_str())
        }
        None => what,
    }
}
