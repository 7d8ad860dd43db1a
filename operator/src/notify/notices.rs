//! What is to be told of a run, and in which words: from its status alone.

use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{AttemptRecord, Notifications, Prediction};
use andreas_api::{Phase, TrainingJobStatus};
use andreas_cluster::instants::seconds_between;
use andreas_lifecycle::is_delayed;
use andreas_lifecycle::status::duration_text;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

/// Maximum text of a notice, characters.
const MAX_TEXT: usize = 1_000;

andreas_model::names! {
    /// What is told of a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Notice {
        /// All workers of the first attempt run.
        Started,
        /// On time with a probability below 50 %, or the deadline has passed.
        AtRisk,
        /// The predicted end is later than told by a quarter of the time that was left.
        Delayed,
        /// Done.
        Succeeded,
        /// Given up.
        Failed,
    }
}

/// What is to be told now of a run. What ended or began before `since` is not: nobody had asked.
pub fn due(status: &TrainingJobStatus, since: Timestamp) -> Vec<Notice> {
    let recent = |at: Option<&Time>| at.is_some_and(|at| at.0 >= since);
    let mut found = Vec::new();
    if recent(status.start_time.as_ref()) {
        found.push(Notice::Started);
    }
    if status.phase.is_terminal() {
        if recent(status.completion_time.as_ref()) {
            found.push(if status.phase == Phase::Succeeded { Notice::Succeeded } else { Notice::Failed });
        }
        return found;
    }
    let Some(prediction) = &status.prediction else { return found };
    if prediction.is_at_risk() {
        found.push(Notice::AtRisk);
    }
    if status.notifications.as_ref().is_some_and(|sent| delayed(sent, prediction)) {
        found.push(Notice::Delayed);
    }
    found
}

/// The end is later than that of `sent` by as much as people are told of.
fn delayed(sent: &Notifications, prediction: &Prediction) -> bool {
    match (&prediction.finish_time, &sent.finish_time, &sent.since) {
        (Some(now), Some(before), Some(at)) => is_delayed(at.0, before.0, now.0),
        _ => false,
    }
}

/// What a receiver gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The same for each time that it is sent.
    pub id: String,
    /// One line.
    pub text: String,
    /// Of programs: a CloudEvent (1.0, JSON format).
    pub event: Value,
}

/// The message about a notice that is due.
pub fn message(job: &SlimTrainingJob, notice: Notice, template: &str, now: Timestamp) -> Message {
    let meta = |field: &Option<String>| field.clone().unwrap_or_default();
    let (namespace, name) = (meta(&job.metadata.namespace), meta(&job.metadata.name));
    let status = job.status.clone().unwrap_or_default();
    let sent = status.notifications.clone().unwrap_or_default();
    let mut id = format!("{}/{}", meta(&job.metadata.uid), notice.as_str());
    if let (Notice::Delayed, Some(since)) = (notice, &sent.since) {
        // It may be sent more than once.
        id = format!("{id}/{}", since.0.as_second());
    }
    let words = words(&status, &sent, notice);
    let deadline = status.deadline.as_ref().map(|at| instant(at.0)).unwrap_or_default();
    let text: String = template
        .replace("{event}", notice.as_str())
        .replace("{namespace}", &namespace)
        .replace("{name}", &name)
        .replace("{deadline}", &deadline)
        // Last: nothing in it is a placeholder.
        .replace("{text}", &words)
        .chars()
        // One line: it is the subject of a mail.
        .map(|one| if one.is_control() { ' ' } else { one })
        .take(MAX_TEXT)
        .collect();
    let prediction = status.prediction.as_ref();
    let event = json!({
        "specversion": "1.0",
        "id": id,
        "source": format!("/apis/andreas.dev/v1alpha1/namespaces/{namespace}/trainingjobs/{name}"),
        "type": format!("dev.andreas.trainingjob.{}", notice.as_str().to_lowercase()),
        "time": instant(now),
        "datacontenttype": "application/json",
        "data": {
            "namespace": namespace,
            "name": name,
            "text": text,
            "phase": status.phase.as_str(),
            "attempts": status.attempts,
            "deadline": status.deadline,
            "startTime": status.start_time,
            "completionTime": status.completion_time,
            "predictedFinishTime": prediction.and_then(|known| known.finish_time.clone()),
            "onTimePercent": prediction.and_then(|known| known.on_time_percent),
        },
    });
    Message { id, text, event }
}

fn words(status: &TrainingJobStatus, sent: &Notifications, notice: Notice) -> String {
    let prediction = status.prediction.as_ref();
    let end = prediction.and_then(|known| known.finish_time.as_ref());
    let expected = end.map(|end| format!(", expected to end at {}", instant(end.0))).unwrap_or_default();
    let last = status.history.last();
    match notice {
        Notice::Started => {
            let place = match (&status.allocation, last) {
                (Some(held), _) => format!(" on {} x {}", held.gpus, held.gpu_type),
                (None, Some(AttemptRecord { gpus, gpu_type, .. })) => format!(" on {gpus} x {gpu_type}"),
                (None, None) => String::new(),
            };
            format!("runs{place}{expected}")
        }
        Notice::AtRisk => match prediction.and_then(|known| known.on_time_percent) {
            Some(percent) if prediction.is_some_and(|known| known.risk != "Late") => {
                format!("meets its deadline with a probability of {percent} %{expected}")
            }
            _ => format!("has not ended by its deadline{expected}"),
        },
        Notice::Delayed => {
            let before = sent.finish_time.as_ref();
            let later = before.zip(end).map(|(was, end)| seconds_between(was.0, end.0)).unwrap_or_default();
            format!("ends {} later than told before{expected}", duration_text(later))
        }
        Notice::Succeeded | Notice::Failed => {
            let mut words = String::from(if notice == Notice::Succeeded { "succeeded" } else { "failed" });
            if let Some(took) = &status.display.duration {
                words += &format!(" after {took}");
            }
            words += match status.deadline_met() {
                Some(true) => ", before its deadline",
                Some(false) => ", deadline missed",
                None => "",
            };
            if let Some(energy) = &status.display.energy {
                words += &format!(", {energy}");
            }
            if let Some(cost) = &status.display.energy_cost {
                words += &format!(", {cost}");
            }
            if let (Notice::Failed, Some(last)) = (notice, last) {
                words += &format!(": {} {}", last.reason, last.message);
            }
            words
        }
    }
}

/// Whole seconds of UTC.
fn instant(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}
