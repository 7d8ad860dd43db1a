//! What is due and said, and which Secrets can be used.

use std::collections::BTreeMap;

use andreas_api::TrainingJobStatus;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::addresses::{Addresses, Channel, Hosts, SlimSecret, read};
use super::notices::{Message, Notice, due, message};
use crate::testing::{at, slim_job};

mod delivery;

fn status(value: Value) -> TrainingJobStatus {
    serde_json::from_value(value).expect("a status")
}

fn predicted(finish: i64, risk: &str, sent: Value) -> TrainingJobStatus {
    status(json!({
        "phase": "Running", "attempts": 1, "notifications": sent,
        "prediction": {"finishTime": at(finish).to_string(), "risk": risk, "source": "Observed", "onTimePercent": 30},
    }))
}

fn sent(finish: i64, since: i64) -> Value {
    json!({"sent": [], "finishTime": at(finish).to_string(), "since": at(since).to_string()})
}

#[test]
fn starts_and_ends_are_due_unless_they_were_before_the_secret() {
    let ended = |phase: &str| {
        status(
            json!({"phase": phase, "startTime": at(100).to_string(), "completionTime": at(200).to_string()}),
        )
    };
    assert_eq!(due(&ended("Succeeded"), at(0)), [Notice::Started, Notice::Succeeded]);
    assert_eq!(due(&ended("Failed"), at(150)), [Notice::Failed]);
    assert_eq!(due(&ended("Failed"), at(201)), []);
    assert_eq!(due(&status(json!({"phase": "Pending"})), at(0)), []);
}

#[test]
fn a_risk_is_due_until_the_end() {
    for (risk, expected) in
        [("Low", vec![]), ("Medium", vec![]), ("High", vec![Notice::AtRisk]), ("Late", vec![Notice::AtRisk])]
    {
        assert_eq!(due(&predicted(1_000, risk, json!({})), at(0)), expected, "{risk}");
    }
    let mut ended = predicted(1_000, "Late", json!({}));
    ended.phase = andreas_api::Phase::Succeeded;
    assert_eq!(due(&ended, at(0)), []);
}

#[test]
fn a_delay_is_due_from_a_quarter_of_the_time_left_and_a_minute_on() {
    // Told at 0 that it ends at 1,000.
    for (finish, expected) in [(900, false), (1_249, false), (1_250, true)] {
        let found = due(&predicted(finish, "Low", sent(1_000, 0)), at(0));
        assert_eq!(found.contains(&Notice::Delayed), expected, "{finish}");
    }
    // A quarter of 40 s is less than a minute.
    for (finish, expected) in [(99, false), (100, true)] {
        assert_eq!(
            due(&predicted(finish, "Low", sent(40, 0)), at(0)).contains(&Notice::Delayed),
            expected,
            "{finish}"
        );
    }
    assert_eq!(due(&predicted(9_000, "Low", json!({})), at(0)), [], "nothing was told yet");
}

fn message_of(notice: Notice, status: &Value, template: &str) -> Message {
    message(&slim_job(1, status), notice, template, at(0))
}

#[test]
fn a_message_is_of_the_run_alone_and_has_one_identity() {
    let failed = json!({
        "phase": "Failed", "attempts": 2, "completionTime": at(200).to_string(), "deadline": at(150).to_string(),
        "display": {"duration": "2h5m", "energy": "1.24 kWh"},
        "history": [{"attempt": 2, "outcome": "UserFailure", "reason": "ContainerFailed", "message": "worker 0 exited with 1:\n{name} no data",
            "gpuType": "T4", "gpus": 1, "placement": "n", "ended": at(200).to_string()}],
    });
    let first = message_of(Notice::Failed, &failed, "{event} {namespace}/{name}: {text}");
    assert_eq!(
        first.text,
        "Failed team/bert: failed after 2h5m, deadline missed, 1.24 kWh: ContainerFailed worker 0 exited with 1: {name} no data"
    );
    assert_eq!(first.event["data"]["text"], first.text.as_str());
    assert_eq!(first.event["type"], "dev.andreas.trainingjob.failed");
    assert_eq!(message_of(Notice::Failed, &failed, "other").id, first.id);
    // A delay may be told again, of the next one.
    let delayed = |since| serde_json::to_value(predicted(2_000, "Low", sent(1_000, since))).expect("JSON");
    let ids = [0, 500].map(|since| message_of(Notice::Delayed, &delayed(since), "{text}").id);
    assert_ne!(ids[0], ids[1]);
    assert!(
        message_of(Notice::Delayed, &delayed(0), "{text}")
            .text
            .starts_with("ends 16m40s later than told before, expected")
    );
    let long = "x".repeat(3_000);
    assert_eq!(message_of(Notice::Failed, &failed, &long).text.len(), 1_000);
}

fn secret(data: &[(&str, &str)]) -> SlimSecret {
    let data: BTreeMap<&str, ByteString> =
        data.iter().map(|(key, value)| (*key, ByteString(value.as_bytes().to_vec()))).collect();
    let metadata = json!({"name": "andreas-notifications", "namespace": "team", "uid": "u", "creationTimestamp": at(7).to_string()});
    serde_json::from_value(json!({"metadata": metadata, "data": data})).expect("a Secret")
}

fn parsed(data: &[(&str, &str)]) -> Result<Addresses, String> {
    andreas_runtime::install_crypto();
    read(&secret(data), &Hosts::new(&["hooks.slack.com".into(), "*.Example.com".into()]))
}

#[tokio::test]
async fn a_secret_names_the_channels_of_its_namespace() {
    let all = [
        ("webhook", "https://ci.example.com/hook\n"),
        ("webhookToken", "t"),
        ("slack", "https://hooks.slack.com/services/T/B/x"),
        ("smtp", "smtps://user:word@mail.example.com:465"),
        ("from", "gpu@example.com"),
        ("to", "Ada <ada@example.com>, bob@example.com"),
    ];
    let addresses = parsed(&all).expect("addresses");
    let names: Vec<_> = addresses.channels.iter().map(Channel::name).collect();
    assert_eq!(names, ["webhook", "slack", "smtp"]);
    assert_eq!((addresses.since, addresses.notices.len()), (at(7), Notice::ALL.len()));
    let plain = parsed(&[
        ("smtp", "smtp://mail.example.com:25"),
        ("from", "a@b.c"),
        ("to", "a@b.c"),
        ("events", "Failed, Started"),
    ]);
    assert_eq!(plain.expect("addresses").notices, [Notice::Failed, Notice::Started]);
}

#[tokio::test]
async fn an_invalid_secret_is_refused_by_key_without_its_values() {
    let slack = ("slack", "https://hooks.slack.com/secret");
    let long = "x".repeat(2_001);
    for (data, words) in [
        (vec![], "none of webhook, slack and smtp is there"),
        (vec![("slak", "https://hooks.slack.com/secret")], "slak: no such key; these are: webhook"),
        (vec![("slack", "http://hooks.slack.com/secret")], "slack: must begin with https://"),
        (vec![("slack", "secret")], "slack: relative URL"),
        (
            vec![("webhook", "https://169.254.169.254/secret")],
            "webhook: the administrator does not allow the host 169.254.169.254",
        ),
        (
            vec![("webhook", "https://example.com/secret")],
            "webhook: the administrator does not allow the host example.com",
        ),
        (
            vec![("webhook", "https://ci.example.com@evil.org/secret")],
            "webhook: the administrator does not allow the host evil.org",
        ),
        (vec![("webhook", "https://badexample.com/secret")], "does not allow the host badexample.com"),
        (
            vec![slack, ("events", "Started,Done")],
            "events: Done is none of Started, AtRisk, Delayed, Succeeded, Failed",
        ),
        (vec![slack, ("template", "{who}")], "template: {who} is none of {event}"),
        (vec![slack, ("template", &long)], "template: longer than 2000 characters"),
        (vec![slack, ("ca.crt", "secret")], "ca.crt: no certificate"),
        (vec![("smtp", "smtps://mail.example.com")], "from: missing beside smtp"),
        (vec![("smtp", "smtps://mail.example.com"), ("from", "a@b.c")], "to: missing beside smtp"),
        (vec![("smtp", "smtps://mail.example.com"), ("from", "a@b.c"), ("to", "nobody")], "to: "),
        (
            vec![("smtp", "smtp://u:secret@mail.example.com"), ("from", "a@b.c"), ("to", "a@b.c")],
            "smtp: a password needs smtps://",
        ),
        (
            vec![("smtp", "https://mail.example.com"), ("from", "a@b.c"), ("to", "a@b.c")],
            "smtp: must be smtps://HOST",
        ),
        (
            vec![("smtp", "smtp://localhost"), ("from", "a@b.c"), ("to", "a@b.c")],
            "smtp: the administrator does not allow the host localhost",
        ),
    ] {
        let fault = parsed(&data).expect_err(words);
        assert!(fault.contains(words), "{fault}, not {words}");
        assert!(!fault.contains("secret"), "{fault}");
    }
}
