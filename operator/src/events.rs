//! Events for users: sent in the background, a few at a time. One that is lost changes nothing; none ever holds up a pod.

use std::sync::Arc;

use andreas_api::slim::SlimTrainingJob;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder};
use tokio::sync::mpsc;

use crate::lifecycle::EventNote;

/// Events that wait to be sent at most; more are dropped.
const QUEUE: usize = 4_096;
/// Events in flight.
const IN_FLIGHT: usize = 4;
/// Longest text of an event (`events.k8s.io/v1`).
const LONGEST: usize = 1_000;

/// Where events are put.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// A queue, and the loop that empties it until all senders are gone.
    pub fn new(recorder: Recorder) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let waiting = futures::stream::unfold(waiting, |mut waiting: mpsc::Receiver<_>| async move {
            waiting.recv().await.map(|next| (next, waiting))
        });
        let recorder = Arc::new(recorder);
        let send = waiting.for_each_concurrent(IN_FLIGHT, move |(event, about): (Event, ObjectReference)| {
            let recorder = Arc::clone(&recorder);
            async move {
                if let Err(error) = recorder.publish(&event, &about).await {
                    tracing::debug!(%error, "event not published");
                }
            }
        });
        (Self { queue }, send)
    }

    /// Tells the user of a job.
    pub fn tell(&self, job: &SlimTrainingJob, note: &EventNote) {
        let event = Event {
            type_: if note.warning { EventType::Warning } else { EventType::Normal },
            reason: note.reason.as_str().to_owned(),
            note: (!note.message.is_empty()).then(|| note.message.chars().take(LONGEST).collect()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        if self.queue.try_send((event, job.object_ref(&()))).is_err() {
            tracing::debug!("event dropped: too many wait");
        }
    }
}
