//! The watch against a scripted API server: what it asks, what it makes of the answers, and what cannot stop it.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use andreas_runtime::watch::{Event, ObjectKey, WatchConfig, WatchMetrics, Watcher};
use futures::{FutureExt, StreamExt};
use http::{Request, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Thing {
    metadata: ObjectMeta,
    size: u32,
}

impl kube::Resource for Thing {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;
    fn kind(_: &()) -> Cow<'_, str> {
        "Thing".into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        "example.com".into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        "things".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What the server does with the next request.
enum Reply {
    Text(u16, String),
    /// A watch: these lines, then open for ever, or ended.
    Lines(Vec<String>, bool),
    /// A watch that ends after this time without a line.
    Quiet(Duration),
    /// Says nothing at all.
    Silence,
}

struct Api {
    watcher: Watcher<Thing>,
    asked: mpsc::UnboundedReceiver<(String, Instant)>,
}

fn api(replies: Vec<Reply>) -> Api {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<axum::body::Body>>();
    let (sender, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut replies = replies.into_iter();
        while let Some((request, send)) = handle.next_request().await {
            let _ = sender.send((request.uri().to_string(), Instant::now()));
            let (status, body) = match replies.next().unwrap_or(Reply::Silence) {
                Reply::Text(status, text) => (status, axum::body::Body::from(text)),
                Reply::Lines(lines, open) => {
                    let lines = futures::stream::iter(
                        lines.into_iter().map(|line| Ok::<_, std::io::Error>(line + "\n")),
                    );
                    let body = if open {
                        axum::body::Body::from_stream(lines.chain(futures::stream::pending()))
                    } else {
                        axum::body::Body::from_stream(lines)
                    };
                    (200, body)
                }
                Reply::Quiet(lasts) => {
                    let end = tokio::time::sleep(lasts).map(|()| Ok::<_, std::io::Error>(Vec::new()));
                    (200, axum::body::Body::from_stream(end.into_stream()))
                }
                Reply::Silence => {
                    // Keeps the request waiting for as long as the test runs.
                    std::mem::forget(send);
                    continue;
                }
            };
            send.send_response(
                Response::builder().status(StatusCode::from_u16(status).unwrap()).body(body).unwrap(),
            );
        }
    });
    let config = WatchConfig { page: 2, ..WatchConfig::default() }.labels("team=a");
    Api { watcher: Watcher::new(Client::new(service, "default"), config, &WatchMetrics::default()), asked }
}

fn thing(name: &str, version: u32, size: u32) -> String {
    format!(
        r#"{{"kind":"Thing","metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}},"size":{size}}}"#
    )
}

fn page(version: u32, next: &str, items: &[String]) -> Reply {
    let items = items.join(",");
    Reply::Text(
        200,
        format!(r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{items}]}}"#),
    )
}

fn line(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}

fn said(event: &Event<Thing>) -> String {
    match event {
        Event::Applied(thing) => {
            format!("applied {} {}", thing.metadata.name.as_deref().unwrap_or("?"), thing.size)
        }
        Event::Deleted { key, last } => {
            format!("deleted {key} last {:?}", last.as_ref().map(|thing| thing.size))
        }
        Event::Undecodable { key, .. } => {
            format!("undecodable {}", key.as_ref().map_or("?".into(), |k| k.to_string()))
        }
        Event::Rewound => "rewound".into(),
        Event::Reset(present) => {
            let mut names: Vec<_> = present.iter().map(|key| key.name.as_str()).collect();
            names.sort_unstable();
            format!("reset {}", names.join(","))
        }
    }
}

impl Api {
    async fn events(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..count {
            let event = tokio::time::timeout(Duration::from_secs(300), self.watcher.next()).await;
            all.push(said(&event.unwrap_or_else(|_| panic!("only {all:?}"))));
        }
        all
    }

    fn requests(&mut self) -> Vec<(String, Instant)> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn lists_by_pages_then_watches_and_resumes_from_the_last_version_or_bookmark() {
    let bookmark = r#"{"kind":"Thing","metadata":{"resourceVersion":"90"},"size":0}"#;
    let mut api = api(vec![
        page(10, "more", &[thing("a", 3, 1), thing("b", 4, 2)]),
        page(10, "", &[thing("c", 5, 3)]),
        Reply::Lines(vec![line("MODIFIED", &thing("a", 11, 7)), line("BOOKMARK", bookmark)], false),
        Reply::Lines(vec![line("DELETED", &thing("b", 91, 9))], false),
        Reply::Lines(vec![line("ADDED", &thing("d", 92, 4))], true),
    ]);
    let events = api.events(7).await;
    assert_eq!(
        events,
        [
            "applied a 1",
            "applied b 2",
            "applied c 3",
            "reset a,b,c",
            "applied a 7",
            "deleted n/b last Some(9)",
            "applied d 4"
        ]
    );
    let asked: Vec<_> = api.requests().into_iter().map(|(uri, _)| uri).collect();
    assert_eq!(asked[0], "/apis/example.com/v1/things?&labelSelector=team%3Da&limit=2");
    assert!(asked[1].contains("continue=more"), "{asked:?}");
    assert!(asked[2].contains("watch=true") && asked[2].contains("resourceVersion=10"), "{asked:?}");
    assert!(
        asked[2].contains("allowWatchBookmarks=true") && asked[2].contains("timeoutSeconds="),
        "{asked:?}"
    );
    assert!(asked[3].contains("resourceVersion=90"), "{asked:?}");
    assert!(asked[4].contains("resourceVersion=91"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn one_bad_object_stops_nobody_and_counts_as_present() {
    let deep = format!("{}1{}", "{\"f:a\":".repeat(9000), "}".repeat(9000));
    let nested = |name: &str, version: u32| {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}},"size":{deep}}}"#
        )
    };
    let nameless = r#"{"metadata":{"name":{"odd":true}},"size":1}"#.to_owned();
    let mut api = api(vec![
        page(10, "", &[thing("a", 3, 1), nested("poison", 4), nameless, thing("b", 5, 2)]),
        Reply::Lines(
            vec![
                line("MODIFIED", &nested("a", 11)),
                line("ADDED", &thing("c", 12, 3)),
                line("MODIFIED", &thing("a", 13, 8)),
                line("DELETED", &nested("poison", 14)),
            ],
            false,
        ),
        Reply::Lines(vec![line("ADDED", &thing("d", 15, 4))], true),
    ]);
    let events = api.events(10).await;
    assert_eq!(
        events,
        [
            "applied a 1",
            "undecodable n/poison",
            "undecodable ?",
            "applied b 2",
            "reset a,b,poison",
            "undecodable n/a",
            "applied c 3",
            "applied a 8",
            "deleted n/poison last None",
            "applied d 4",
        ]
    );
    let asked = api.requests();
    assert_eq!(asked.len(), 3, "a bad object caused another list: {asked:?}");
    assert!(asked[2].0.contains("resourceVersion=14"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn gone_lists_again_whether_it_comes_as_a_status_or_as_an_event() {
    let gone = r#"{"kind":"Status","status":"Failure","reason":"Expired","message":"too old","code":410}"#;
    let mut api = api(vec![
        page(10, "", &[thing("a", 3, 1)]),
        Reply::Text(410, gone.to_owned()),
        page(20, "", &[thing("b", 12, 1)]),
        Reply::Lines(vec![line("ERROR", gone)], true),
        page(30, "", &[]),
        Reply::Lines(vec![line("ADDED", &thing("c", 31, 1))], true),
    ]);
    let started = Instant::now();
    let events = api.events(6).await;
    assert_eq!(events, ["applied a 1", "reset a", "applied b 1", "reset b", "reset ", "applied c 1"]);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_expired_continue_token_lists_without_pages() {
    let gone =
        r#"{"kind":"Status","status":"Failure","reason":"Expired","message":"continue expired","code":410}"#;
    let mut api = api(vec![
        page(10, "more", &[thing("a", 3, 1)]),
        Reply::Text(410, gone.to_owned()),
        page(20, "", &[thing("b", 12, 1)]),
    ]);
    assert_eq!(api.events(3).await, ["applied a 1", "applied b 1", "reset b"]);
    assert!(!api.requests()[2].0.contains("limit="));
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_within_two_seconds_and_silence_is_noticed() {
    let unavailable = r#"{"kind":"Status","status":"Failure","message":"etcd is gone","code":500}"#;
    let mut replies: Vec<_> = (0..8).map(|_| Reply::Text(500, unavailable.to_owned())).collect();
    replies.extend([
        Reply::Text(200, "<html>a proxy</html>".into()),
        page(10, "", &[]),
        // a watch that says nothing, not even its end; then a list or watch that is never answered
        Reply::Lines(vec![], true),
        Reply::Silence,
        Reply::Lines(vec!["{\"type\":\"ADD".into()], false),
        Reply::Lines(vec![line("ADDED", &thing("z", 11, 1))], true),
    ]);
    let mut api = api(replies);
    assert_eq!(api.events(1).await, ["reset "]);
    let times: Vec<_> = api.requests().into_iter().map(|(_, at)| at).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= Duration::from_secs(2)), "{times:?}");
    let resumed = Instant::now();
    assert_eq!(api.events(1).await, ["applied z 1"]);
    assert!(resumed.elapsed() < Duration::from_secs(90), "{:?}", resumed.elapsed());
    assert!(
        api.requests().iter().all(|(uri, _)| uri.contains("resourceVersion=10")),
        "listed again without need"
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_a_wait_loses_nothing() {
    let mut api = api(vec![
        page(10, "", &[thing("a", 3, 1), thing("b", 4, 1)]),
        Reply::Lines(vec![line("ADDED", &thing("c", 11, 1)), line("DELETED", &thing("a", 12, 1))], true),
    ]);
    let mut seen = Vec::new();
    while seen.len() < 5 {
        // Polled in slices as a select! loop would.
        if let Ok(event) = tokio::time::timeout(Duration::from_nanos(1), api.watcher.next()).await {
            seen.push(event);
        }
    }
    let said: Vec<_> = seen.iter().map(said).collect();
    assert_eq!(said, ["applied a 1", "applied b 1", "reset a,b", "applied c 1", "deleted n/a last Some(1)"]);
    assert_eq!(seen[2], Event::Reset(HashSet::from([key("a"), key("b")])));
    assert_eq!(api.requests().len(), 2);
}

/// `limit=` of each request; 0 without.
fn limits(asked: &[(String, Instant)]) -> Vec<u32> {
    let limit = |uri: &str| uri.split("limit=").nth(1)?.split('&').next()?.parse().ok();
    asked.iter().map(|(uri, _)| limit(uri).unwrap_or(0)).collect()
}

#[tokio::test(start_paused = true)]
async fn large_objects_make_pages_small_and_small_ones_make_them_large_again() {
    let large = |name: &str| {
        let text = "x".repeat(20 << 20);
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"3"}},"size":1,"text":"{text}"}}"#
        )
    };
    let mut api = api(vec![
        page(10, "more", &[large("a"), large("b")]),
        page(10, "rest", &[thing("c", 4, 1)]),
        page(10, "", &[thing("d", 5, 1)]),
    ]);
    assert_eq!(api.events(5).await.last().map(String::as_str), Some("reset a,b,c,d"));
    assert_eq!(limits(&api.requests()), [2, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_takes_too_long_is_asked_for_again_and_smaller() {
    let mut api = api(vec![
        page(10, "more", &[thing("a", 3, 1), thing("b", 4, 1)]),
        Reply::Silence,
        page(10, "rest", &[thing("c", 5, 1)]),
        page(10, "", &[thing("d", 6, 1)]),
    ]);
    assert_eq!(api.events(5).await.last().map(String::as_str), Some("reset a,b,c,d"));
    let asked = api.requests();
    assert_eq!(limits(&asked), [2, 2, 1, 2], "{asked:?}");
    assert!(asked[1].0.contains("continue=more") && asked[2].0.contains("continue=more"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_page_that_breaks_off_leaves_nothing_behind() {
    let whole = r#"{"metadata":{"resourceVersion":"10","continue":""},"items":["#;
    let mut api = api(vec![
        // It breaks off after an object that is gone when it is asked for again.
        Reply::Text(200, format!("{whole}{},", thing("gone", 3, 1))),
        page(11, "", &[thing("a", 4, 1)]),
    ]);
    assert_eq!(api.events(3).await, ["applied gone 1", "applied a 1", "reset a"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_is_believed_whatever_its_versions() {
    let gone = r#"{"kind":"Status","status":"Failure","reason":"Timeout","code":504,
        "message":"Timeout: Too large resource version: 1000, current: 400"}"#;
    let mut api = api(vec![
        page(900, "", &[thing("a", 800, 1)]),
        Reply::Lines(vec![line("MODIFIED", &thing("a", 1_000, 2))], false),
        Reply::Text(504, gone.to_owned()),
        page(400, "", &[thing("a", 300, 7)]),
        page(400, "", &[thing("a", 300, 7)]),
        Reply::Lines(vec![line("MODIFIED", &thing("a", 401, 8))], true),
    ]);
    let events = api.events(7).await;
    assert_eq!(
        events,
        ["applied a 1", "reset a", "applied a 2", "applied a 7", "rewound", "applied a 7", "reset a"]
    );
    assert_eq!(api.events(1).await, ["applied a 8"]);
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_that_sends_nothing_to_watches_from_its_future_is_noticed() {
    let quiet = || Reply::Quiet(Duration::from_secs(29));
    let mut api = api(vec![
        page(900, "", &[thing("a", 800, 1)]),
        // The same versions: the watch goes on.
        quiet(),
        page(900, "", &[]),
        // An error says nothing about the versions.
        quiet(),
        Reply::Text(500, r#"{"kind":"Status","status":"Failure","message":"no","code":500}"#.to_owned()),
        quiet(),
        page(400, "", &[]),
        page(400, "", &[thing("a", 300, 7)]),
        page(400, "", &[thing("a", 300, 7)]),
        Reply::Lines(vec![line("MODIFIED", &thing("a", 401, 8))], true),
    ]);
    let events = api.events(7).await;
    assert_eq!(
        events,
        ["applied a 1", "reset a", "applied a 7", "rewound", "applied a 7", "reset a", "applied a 8"]
    );
    let asked = api.requests();
    assert!(asked[2].0.ends_with("limit=1") && asked[2].0.contains("team%3Da"), "{asked:?}");
    assert!(asked[3].0.contains("watch=true") && asked[3].0.contains("resourceVersion=900"), "{asked:?}");
    assert!(asked.len() == 10 && asked[5].0.contains("watch=true"), "{asked:?}");
}
