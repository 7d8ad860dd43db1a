//! Events for users: sent in the background, a few at a time. A lost event changes nothing, and none delays
//! a pod.

use andreas_api::slim::SlimTrainingJob;
use andreas_lifecycle::EventNote;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Maximum queued events; more are dropped.
const QUEUE: usize = 4_096;
/// Events in flight.
const IN_FLIGHT: usize = 4;
/// Maximum text of an event (`events.k8s.io/v1`), characters.
const MAX_NOTE_CHARS: usize = 1_000;

/// Queue for events.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Event, ObjectReference)>,
    last: CancellationToken,
}

impl Events {
    /// A queue and the loop that sends its events until [`Events::finish`], then the rest.
    pub fn new(client: Client, reporter: Reporter) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let last = CancellationToken::new();
        let state: (mpsc::Receiver<_>, _) = (waiting, last.clone());
        let waiting = futures::stream::unfold(state, |(mut waiting, last)| async move {
            let next = tokio::select! {
                next = waiting.recv() => next,
                () = last.cancelled() => {
                    waiting.close();
                    waiting.recv().await
                }
            };
            next.map(|next| (next, (waiting, last)))
        });
        let send = waiting.for_each_concurrent(IN_FLIGHT, move |(event, about): (Event, ObjectReference)| {
            // One recorder for all would count events of a reason within six minutes as one, with the text of the first. How
            // many there may be is limited before they are queued (`rate_limits`).
            let recorder = Recorder::new(client.clone(), reporter.clone());
            async move {
                if let Err(error) = recorder.publish(&event, &about).await {
                    tracing::debug!(%error, "event not published");
                }
            }
        });
        (Self { queue, last }, send)
    }

    /// No more events follow: the loop ends when the queue is empty.
    pub fn finish(&self) {
        self.last.cancel();
    }

    /// Queues an event for the user of a job.
    pub fn publish(&self, job: &SlimTrainingJob, note: &EventNote) {
        self.publish_about(job.object_ref(&()), note);
    }

    /// Queues an event about an object.
    pub fn publish_about(&self, about: ObjectReference, note: &EventNote) {
        let event = Event {
            type_: if note.warning { EventType::Warning } else { EventType::Normal },
            reason: note.reason.as_str().to_owned(),
            note: (!note.message.is_empty()).then(|| note.message.chars().take(MAX_NOTE_CHARS).collect()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        if self.queue.try_send((event, about)).is_err() {
            tracing::debug!("event dropped: too many wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use andreas_api::Reason;
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::testing::{self, ApiServer};

    #[tokio::test]
    async fn events_queued_before_shutdown_are_sent() {
        let server = ApiServer::new(Vec::new());
        let reporter = Reporter { controller: "test".into(), instance: None };
        let (events, send) = Events::new(server.client(), reporter);
        let job: SlimTrainingJob =
            serde_json::from_value(testing::job(1, &json!({"phase": "Running"}))).expect("a job");
        let reasons = [Reason::Running, Reason::Preempted, Reason::Completed];
        for reason in reasons {
            events.publish(&job, &EventNote { warning: false, reason, message: String::new() });
        }
        events.finish();
        // Others may hold the queue for longer.
        let held = events.clone();
        tokio::time::timeout(Duration::from_secs(2), send).await.expect("the loop ends");
        assert_eq!(server.sent(&Method::POST).len(), reasons.len());
        held.publish(&job, &EventNote { warning: false, reason: Reason::Running, message: String::new() });
    }

    // The clock is paused: a sleep ends when all else waits.
    #[tokio::test(start_paused = true)]
    async fn each_event_of_a_reason_has_its_own_text() {
        let created =
            || (Method::POST, "/events", 201, json!({"metadata": {"name": "e"}, "eventTime": null}));
        let server = ApiServer::new(vec![created(), created()]);
        let reporter = Reporter { controller: "test".into(), instance: None };
        let (events, send) = Events::new(server.client(), reporter);
        let sending = tokio::spawn(send);
        let job = testing::slim_job(1, &json!({"phase": "Running"}));
        let texts = ["worker 0 exited with 1: no data", "worker 0 exited with 1: CUDA out of memory"];
        for (sent, text) in (1..).zip(texts) {
            let (reason, message) = (Reason::ContainerFailed, text.to_owned());
            events.publish(&job, &EventNote { warning: true, reason, message });
            // The one before has been answered when the next one comes.
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(server.sent(&Method::POST).len(), sent, "{text}");
        }
        events.finish();
        tokio::time::timeout(Duration::from_secs(2), sending)
            .await
            .expect("the loop ends")
            .expect("no panic");
        let notes: Vec<_> = server.sent(&Method::POST).iter().map(|call| call.body["note"].clone()).collect();
        assert_eq!(notes, texts);
        assert!(server.sent(&Method::PATCH).is_empty());
    }
}
