//! What only a real API server shows: a pause that costs the leadership, a tenant's poisoned object, a kill -9,
//! a database restored from a backup.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::borrow::Cow;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use andreas_runtime::lease::{Ended, Held, KubeLeases, LeaseConfig, campaign};
use andreas_runtime::watch::{Event, WatchConfig, WatchMetrics, Watcher};
use andreas_testbed::wait::stays;
use andreas_testbed::{Component, Testbed};
use http::{Method, Request};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::{Deserialize, Deserializer};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A ConfigMap whose metadata is read without `managedFields`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Slim {
    #[serde(deserialize_with = "slim")]
    metadata: ObjectMeta,
}

fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        name: String,
        namespace: String,
        resource_version: String,
    }
    let meta = Meta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: Some(meta.name),
        namespace: Some(meta.namespace),
        resource_version: Some(meta.resource_version),
        ..ObjectMeta::default()
    })
}

impl kube::Resource for Slim {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;
    fn kind(_: &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        "configmaps".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

async fn client(testbed: &Testbed) -> Client {
    let file = Kubeconfig::read_from(testbed.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    andreas_runtime::client::build(config, "runtime-test/1", Duration::from_secs(2)).unwrap()
}

async fn candidate(testbed: &Testbed, name: &str) -> Held {
    let config = LeaseConfig {
        duration: Duration::from_secs(4),
        renew_deadline: Duration::from_millis(2500),
        retry: Duration::from_millis(400),
        ..LeaseConfig::new(name)
    };
    let store = KubeLeases::new(client(testbed).await, "default", "leader");
    campaign(store, config, CancellationToken::new()).await.unwrap().unwrap()
}

/// The next applied object's name; other events are passed over.
async fn next_name(watcher: &mut Watcher<Slim>, within: Duration) -> String {
    let applied = async {
        loop {
            if let Event::Applied(object) = watcher.next().await {
                break object.metadata.name.unwrap();
            }
        }
    };
    tokio::time::timeout(within, applied).await.expect("an object in time")
}

async fn make(client: &Client, name: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &map).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_and_watch_survive_a_real_api_server() {
    let testbed = Testbed::builder().without_scheduler().without_controller_manager().start().await.unwrap();
    one_leader_at_a_time(&testbed).await;
    one_object_stops_nobody_and_a_restart_is_survived(&testbed).await;
    a_restored_database_is_detected(&testbed).await;
    testbed.stop().await;
}

async fn one_leader_at_a_time(testbed: &Testbed) {
    let first = candidate(testbed, "first").await;
    let second = async {
        let held = candidate(testbed, "second").await;
        (held, Instant::now())
    };
    let outage = async {
        // while the second asks for the Lease again and again
        let leads = async || Ok(first.leadership.is_current());
        stays("the first leads", Duration::from_secs(3), leads).await.unwrap();
        // when: the API server is stopped in its tracks, connections stay open
        testbed.pause(Component::ApiServer).unwrap();
        let paused = Instant::now();
        first.leadership.lost().await;
        let lost = Instant::now();
        assert!(lost - paused < Duration::from_millis(3200), "{:?}", lost - paused);
        testbed.resume(Component::ApiServer).unwrap();
        lost
    };
    let ((second, started), lost) = tokio::join!(second, outage);
    // then: the second leads, and only after the first has stopped
    assert_eq!(first.renewing.await.unwrap(), Ended::Expired);
    assert!(started > lost, "two leaders");
    assert!(second.leadership.is_current() && second.leadership.transitions() == 1);
    second.renewing.abort();
}

async fn one_object_stops_nobody_and_a_restart_is_survived(testbed: &Testbed) {
    let client = client(testbed).await;
    make(&client, "poison").await;
    let deep = format!("{}{{}}{}", "{\"f:a\":".repeat(200), "}".repeat(200));
    let patch = format!(
        r#"{{"metadata":{{"managedFields":[{{"manager":"tenant","operation":"Update","apiVersion":"v1",
        "time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{deep}}}]}}}}"#
    );
    let request = Request::builder()
        .method(Method::PATCH)
        .uri("/api/v1/namespaces/default/configmaps/poison")
        .header("content-type", "application/merge-patch+json")
        .body(patch.into_bytes())
        .unwrap();
    client.request_text(request).await.expect("the API server accepts it");
    let whole: Api<ConfigMap> = Api::all(client.clone());
    assert!(
        whole.list(&ListParams::default()).await.is_err(),
        "whole objects can be read: slim ones are not needed"
    );

    let config = WatchConfig::default().namespace("default");
    let mut watcher: Watcher<Slim> = Watcher::new(client.clone(), config, &WatchMetrics::default());
    let mut listed = Vec::new();
    loop {
        match watcher.next().await {
            Event::Applied(object) => listed.push(object.metadata.name.unwrap()),
            Event::Reset(present) => break assert_eq!(present.len(), listed.len()),
            other => panic!("{other:?}"),
        }
    }
    assert!(listed.contains(&"poison".to_owned()), "{listed:?}");
    make(&client, "before").await;
    assert_eq!(next_name(&mut watcher, Duration::from_secs(5)).await, "before");

    // when: kill -9 and a new start while nobody reads
    testbed.kill(Component::ApiServer).unwrap();
    let reader = tokio::spawn(async move {
        loop {
            let name = next_name(&mut watcher, Duration::from_secs(60)).await;
            if name == "after" {
                return Instant::now();
            }
        }
    });
    // It is away for a time in which the watch tries again, and fails.
    tokio::time::sleep(Duration::from_secs(1)).await;
    testbed.restart(Component::ApiServer).await.unwrap();
    testbed.wait_ready(Component::ApiServer).await.unwrap();
    let ready = Instant::now();
    make(&client, "after").await;
    let seen = reader.await.unwrap();
    println!(
        "seen {:?} after the API server was ready again; {}",
        seen - ready,
        json!({"listed": listed.len()})
    );
    assert!(seen - ready < Duration::from_secs(5), "{:?}", seen - ready);
}

async fn a_restored_database_is_detected(testbed: &Testbed) {
    let (etcd, backup) = (testbed.data_dir().join("etcd"), testbed.data_dir().join("etcd-backup"));
    let exchange = async |from: &Path, to: &Path| {
        testbed.kill(Component::ApiServer).unwrap();
        testbed.kill(Component::Etcd).unwrap();
        let _ = std::fs::remove_dir_all(to);
        let copied = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
        assert!(copied.success());
        testbed.restart(Component::Etcd).await.unwrap();
        testbed.restart(Component::ApiServer).await.unwrap();
    };
    exchange(&etcd, &backup).await;
    let client = client(testbed).await;
    let config = WatchConfig::default().namespace("default");
    let mut watcher: Watcher<Slim> = Watcher::new(client.clone(), config, &WatchMetrics::default());
    while !matches!(watcher.next().await, Event::Reset(_)) {}
    for number in 0..200 {
        make(&client, &format!("lost-{number}")).await;
    }
    while next_name(&mut watcher, Duration::from_secs(30)).await != "lost-199" {}

    // when: the database is as old as the backup; nothing that happens in it reaches the lost versions
    exchange(&backup, &etcd).await;
    let restored = Instant::now();
    let rewound = async { while watcher.next().await != Event::Rewound {} };
    tokio::time::timeout(Duration::from_secs(120), rewound)
        .await
        .expect("the older versions were not noticed");
    println!("noticed after {:?}", restored.elapsed());
    // then: what was lost is gone, and what comes is seen
    let present = loop {
        if let Event::Reset(present) = watcher.next().await {
            break present;
        }
    };
    assert!(!present.iter().any(|key| key.name.starts_with("lost-")), "{present:?}");
    assert!(present.iter().any(|key| key.name == "after"), "{present:?}");
    make(&client, "later").await;
    assert_eq!(next_name(&mut watcher, Duration::from_secs(5)).await, "later");
}
