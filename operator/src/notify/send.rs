//! One delivery.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};

use super::addresses::Channel;
use super::mail;
use super::notices::Message;

/// Longest time that a receiver can put us off.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It will not be, as it is.
    #[error("refused: {0}")]
    Refused(String),
    /// It may be later; not before that time where the receiver says one.
    #[error("{0}")]
    Later(String, Option<Duration>),
    /// Some receivers of a mail may take it later. The server works, and the others have it or refused it.
    #[error("{0}")]
    PutOff(String),
}

/// Delivers a message by one channel. `settled` are the receivers of a mail that need it no more: [`mail::send`] adds to them.
///
/// # Errors
/// [`Failure`]. A receiver that took it and whose answer was lost counts as `Later`: it gets the same `id` again.
pub async fn send(
    channel: &Channel,
    message: &Message,
    settled: &mut BTreeSet<String>,
) -> Result<(), Failure> {
    match channel {
        Channel::Webhook { client, url, token } => {
            let mut request = client.post(url.clone());
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            post(request, "application/cloudevents+json", &message.event).await
        }
        Channel::Slack { client, url } => {
            post(client.post(url.clone()), "application/json", &json!({ "text": escaped(&message.text) }))
                .await
        }
        Channel::Mail { server, from, to } => mail::send(server, from, to, message, settled).await,
    }
}

/// Slack makes links and calls of what stands in angle brackets: <https://api.slack.com/reference/surfaces/formatting#escaping>.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

async fn post(request: reqwest::RequestBuilder, kind: &str, body: &Value) -> Result<(), Failure> {
    let sent = request.header(CONTENT_TYPE, kind).body(body.to_string()).send().await;
    // Without the address: it is the secret of a channel of Slack.
    let answer = sent.map_err(|error| Failure::Later(without_address(error), None))?;
    let (status, code) = (answer.status(), format!("HTTP {}", answer.status()));
    // The first: a token is to be repaired, as a password of a mail server.
    let later = [
        StatusCode::UNAUTHORIZED,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    if status.is_success() {
        Ok(())
    } else if status.is_server_error() || later.contains(&status) {
        let after = answer.headers().get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.parse().ok());
        Err(Failure::Later(code, after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER))))
    } else {
        Err(Failure::Refused(code))
    }
}

fn without_address(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        words += &format!(": {next}");
        cause = next.source();
    }
    words
}
