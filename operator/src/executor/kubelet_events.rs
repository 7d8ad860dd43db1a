//! Events of pods, read live when an attempt is judged.
//!
//! A tenant may write Events about its own pods, as many and as large as the API server takes: of each pod one page is read,
//! up to a size and a time.

use std::collections::BTreeSet;
use std::time::Duration;

use andreas_lifecycle::{EventsUnread, KubeletEvents, PodEvent};
use futures::StreamExt;
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::Request;
use serde::Deserialize;

/// Most Events of a pod. A kubelet writes 25 at once, and one in five minutes after that.
const MOST_EVENTS: u32 = 200;
/// Most bytes of their page. An Event of a kubelet has about one kilobyte.
const MOST_BYTES: usize = 1 << 20;
/// Time for all pods of an attempt.
const TIME: Duration = Duration::from_secs(5);
/// Pages at a time.
const AT_ONCE: usize = 8;

/// What is read of a page.
#[derive(Deserialize)]
struct Page {
    items: Vec<KubeletEvent>,
}

/// What is read of an Event.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct KubeletEvent {
    #[serde(rename = "type")]
    type_: String,
    reason: String,
    message: String,
    involved_object: Regarding,
    source: Source,
    reporting_component: String,
    first_timestamp: Option<Timestamp>,
    event_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Regarding {
    field_path: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Source {
    component: String,
}

impl KubeletEvent {
    /// `None`: another program's. Those of Karpenter have the same reasons.
    fn into_event(self) -> Option<PodEvent> {
        let by_others = |name: &str| !name.is_empty() && name != "kubelet";
        if by_others(&self.source.component) || by_others(&self.reporting_component) {
            return None;
        }
        // `spec.containers{train}`
        let container =
            self.involved_object.field_path.split_once('{').map(|(_, name)| name.trim_end_matches('}'));
        Some(PodEvent {
            container: container.map(str::to_owned),
            warning: self.type_ == "Warning",
            first: self.first_timestamp.or(self.event_time),
            reason: self.reason,
            message: self.message,
        })
    }
}

/// The Events of these pods, or why each could not be read.
pub async fn read(client: &Client, namespace: &str, uids: BTreeSet<String>) -> KubeletEvents {
    let deadline = tokio::time::Instant::now() + TIME;
    let ask = |uid: String| async move {
        let late = |_| unread("not in time", false);
        let answer = tokio::time::timeout_at(deadline, page(client, namespace, &uid)).await;
        (uid, answer.unwrap_or_else(|elapsed| Err(late(elapsed))))
    };
    futures::stream::iter(uids).map(ask).buffer_unordered(AT_ONCE).collect().await
}

fn unread(message: impl ToString, lasting: bool) -> EventsUnread {
    EventsUnread { message: message.to_string(), lasting }
}

async fn page(client: &Client, namespace: &str, uid: &str) -> Result<Vec<PodEvent>, EventsUnread> {
    let url = <Event as kube::Resource>::url_path(&(), Some(namespace));
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(MOST_EVENTS);
    let request = Request::new(url).list(&about).map_err(|error| unread(error, true))?;
    let response = client.send(request.map(Body::from)).await.map_err(|error| unread(error, false))?;
    let status = response.status();
    if !status.is_success() {
        let lasting = status.is_client_error() && ![401, 408, 410, 429].contains(&status.as_u16());
        return Err(unread(format!("the API server answers {status}"), lasting));
    }
    let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|error| {
        let too_large = error.is::<http_body_util::LengthLimitError>();
        unread(error, too_large)
    })?;
    let page: Page = serde_json::from_slice(&body.to_bytes()).map_err(|error| unread(error, true))?;
    Ok(page.items.into_iter().filter_map(KubeletEvent::into_event).collect())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{ApiServer, failure};

    async fn asked(code: u16, body: Value) -> Result<Vec<PodEvent>, EventsUnread> {
        let server = ApiServer::new(vec![(Method::GET, "/namespaces/team/events", code, body)]);
        let mut answers = read(&server.client(), "team", BTreeSet::from(["u1".to_owned()])).await;
        answers.remove("u1").expect("an answer")
    }

    fn event(component: &str) -> Value {
        json!({
            "metadata": {"name": "a.1"}, "type": "Warning", "reason": "Evicted", "message": "too large", "count": 1,
            "involvedObject": {"kind": "Pod", "uid": "u1", "fieldPath": "spec.containers{train}"},
            "source": {"component": component, "host": "n1"}, "firstTimestamp": "2026-01-01T00:00:00Z", "eventTime": null,
        })
    }

    #[tokio::test]
    async fn events_of_kubelets_alone_are_read() {
        let list = json!({"kind": "EventList", "items": [event("karpenter"), event("kubelet"), {"reason": "Killing"}]});
        let events = asked(200, list).await.expect("events");
        assert_eq!(
            events.iter().map(|event| event.reason.as_str()).collect::<Vec<_>>(),
            ["Evicted", "Killing"]
        );
        let evicted = &events[0];
        assert_eq!((evicted.container.as_deref(), evicted.warning), (Some("train"), true));
        assert_eq!(evicted.first, Some("2026-01-01T00:00:00Z".parse().expect("a time")));
    }

    #[tokio::test]
    async fn a_missing_right_and_a_page_that_is_too_large_are_no_use_to_ask_again_and_a_busy_server_is() {
        for (code, lasting) in [(403, true), (429, false), (500, false), (410, false)] {
            let why = asked(code, failure(code, "events is forbidden")).await.expect_err("no events");
            assert_eq!(why.lasting, lasting, "{code}");
        }
        let why =
            asked(200, json!({"items": [{"message": "x".repeat(MOST_BYTES)}]})).await.expect_err("too large");
        assert!(why.lasting, "{}", why.message);
        assert!(asked(200, json!({"items": 7})).await.is_err());
    }
}
