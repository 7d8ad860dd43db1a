//! Given API servers that answer late or never; when objects are written; then nothing waits for longer than it must.

use std::convert::Infallible;
use std::sync::Arc;

use andreas_api::slim::SlimPod;
use andreas_runtime::lease::{LeaseConfig, LeaseError, LeaseRecord, LeaseStore, campaign};
use andreas_runtime::testing::always_leading;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::{job, key_in, pod};

/// A Lease that can be acquired once and never renewed.
struct Once;

impl LeaseStore for Once {
    async fn get(&self) -> Result<LeaseRecord, LeaseError> {
        Err(LeaseError::NotFound)
    }

    async fn create(&self, spec: LeaseSpec) -> Result<LeaseRecord, LeaseError> {
        Ok(LeaseRecord { spec, ..LeaseRecord::default() })
    }

    async fn replace(&self, _: &LeaseRecord) -> Result<LeaseRecord, LeaseError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_ends_before_another_leader_may_begin() {
    // given a leader whose Lease is no longer renewed, and an API server that does not answer
    let asked: Arc<Mutex<Vec<http::Uri>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let hangs = tower::service_fn(move |request: http::Request<Body>| {
        seen.lock().push(request.uri().clone());
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    let began = Instant::now();
    let held = campaign(Once, LeaseConfig::new("a"), CancellationToken::new()).await;
    let held = held.expect("valid").expect("leads");
    let metrics = Metrics::register(&mut Registry::default());
    let writer = Writer::new(Client::new(hangs, "default"), 4, held.leadership.clone(), metrics);
    let write = async || {
        let key = ObjectKey { namespace: "team".into(), name: "bert".into() };
        writer.patch_status::<SlimTrainingJob>("status", &key, &Value::Null).await
    };
    // when it writes just before it gives up leadership
    tokio::time::sleep_until(began + Duration::from_millis(9_900)).await;
    assert!(write().await.is_err());
    // then it waits no longer than to a second before another replica may lead,
    assert_eq!(began.elapsed().as_secs(), 14);
    // the API server gets the time limit,
    let query = asked.lock()[0].query().map(str::to_owned).unwrap_or_default();
    assert!(query.contains("timeout=4") && query.ends_with("ms"), "{query}");
    // and no further request is sent
    assert!(matches!(write().await, Err(WriteError::NotLeader)));
    assert_eq!(asked.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn slow_admission_of_one_namespace_delays_no_write_of_another() {
    // given an API server behind a webhook that holds each pod of the namespace a for ten seconds
    let slow = tower::service_fn(|request: http::Request<Body>| async move {
        let of_a = request.uri().path().ends_with("/namespaces/a/pods");
        if of_a {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let answer = if of_a { pod(0, 1, "j1") } else { job(2, &Value::Null) };
        Ok::<_, Infallible>(http::Response::new(Body::from(answer.to_string().into_bytes())))
    });
    let metrics = Metrics::register(&mut Registry::default());
    let writer = Writer::new(Client::new(slow, "default"), 16, always_leading(), metrics);
    // when as many steps of it as there may be make dry runs
    let made = Arc::new(Mutex::new(0));
    for _ in 0..48 {
        let (writer, made) = (writer.clone(), Arc::clone(&made));
        let object: Pod = serde_json::from_value(pod(0, 1, "j1")).expect("a pod");
        tokio::spawn(async move {
            let answer = writer.create::<Pod, SlimPod>("dry_run", Some("a"), &object, true).await;
            *made.lock() += usize::from(answer.is_ok());
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    // then a status of another namespace is written at once,
    let began = Instant::now();
    let key = key_in("b", "bert");
    let written = writer.patch_status::<SlimTrainingJob>("status", &key, &Value::Null).await;
    assert!(written.is_ok(), "{:?}", written.err());
    assert_eq!(began.elapsed(), Duration::ZERO);
    // and the dry runs go on, three quarters of the writes at a time
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(*made.lock(), 12);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(*made.lock(), 48);
}

#[test]
fn a_write_counts_for_the_namespace_in_its_url() {
    for (url, namespace) in [
        ("/api/v1/namespaces/team/pods?dryRun=All", "team"),
        ("/apis/andreas.dev/v1alpha1/namespaces/team/trainingjobs/bert/status", "team"),
        ("/apis/andreas.dev/v1alpha1/gpunodes/n1", ""),
    ] {
        assert_eq!(namespace_of(&url.parse().expect("a URI")), namespace, "{url}");
    }
}

#[test]
fn a_time_out_joins_what_else_is_asked() {
    let join = |uri: &str| with_timeout(&uri.parse().expect("a URI"), Duration::from_secs(2)).to_string();
    assert_eq!(join("/api/v1/pods"), "/api/v1/pods?timeout=2000ms");
    assert_eq!(join("/api/v1/pods?"), "/api/v1/pods?timeout=2000ms");
    assert_eq!(join("/api/v1/pods?&dryRun=All"), "/api/v1/pods?&dryRun=All&timeout=2000ms");
}
