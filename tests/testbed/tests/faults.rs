//! The fault proxy before a real API server: what is handed on, what goes wrong when it is asked to, and what is counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use andreas_testbed::Testbed;
use andreas_testbed::faults::{Fault, FaultProxy, Rule, Select, Share, Verb};
use common::{LIMIT, eventually, start};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

const CALLER: &str = "operator-0";

struct Bed {
    testbed: Testbed,
    proxy: FaultProxy,
    /// Through the proxy, as a service account.
    through: Api<ConfigMap>,
    /// Past it, as administrator.
    past: Api<ConfigMap>,
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"index": "1"}}})).unwrap()
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

impl Bed {
    async fn start() -> Self {
        let testbed = start(Testbed::builder().without_scheduler().without_controller_manager()).await;
        for command in [
            "create serviceaccount caller -n default",
            "create clusterrolebinding caller --clusterrole=cluster-admin --serviceaccount=default:caller",
        ] {
            testbed.kubectl(command.split(' ')).await.unwrap().checked().unwrap();
        }
        let proxy = testbed.fault_proxy().unwrap();
        let url = proxy.endpoint(CALLER).unwrap();
        let kubeconfig = testbed.kubeconfig_through_proxy(&url, CALLER, "default", "caller").await.unwrap();
        // Go's client speaks HTTP/2.
        let seen = testbed.kubectl_as(&kubeconfig, ["get", "namespaces", "-o", "name"]).await.unwrap();
        assert!(seen.checked().unwrap().stdout.contains("namespace/default"));
        let through = Api::default_namespaced(testbed.client_for(&kubeconfig).await.unwrap());
        let past = Api::default_namespaced(testbed.client());
        Self { testbed, proxy, through, past }
    }

    async fn make(&self, name: &str) {
        self.past.create(&PostParams::default(), &map(name)).await.unwrap();
    }

    /// Names of the objects that a watch through the proxy delivers, one by one.
    async fn watch(&self) -> impl futures::Stream<Item = String> + Unpin {
        let version =
            self.past.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        let events = self.through.watch(&WatchParams::default(), &version).await.unwrap();
        Box::pin(events.filter_map(async |event| match event {
            Ok(WatchEvent::Added(map)) => map.metadata.name,
            _ => None,
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_through_or_wrong_as_the_rules_say() {
    let bed = Bed::start().await;
    identity_and_counts_are_those_of_the_caller(&bed).await;
    half_of_the_patches_conflict(&bed).await;
    a_busy_server_says_when_to_come_back(&bed).await;
    creations_of_one_label_fail(&bed).await;
    an_answer_is_lost_after_the_write(&bed).await;
    an_answer_is_held_until_the_rule_is_removed(&bed).await;
    a_request_is_held_before_it_is_forwarded(&bed).await;
    a_watch_is_held_and_goes_on(&bed).await;
    an_older_replica_answers(&bed).await;
    a_caller_is_cut_off_and_let_in_again(&bed).await;
    bed.testbed.stop().await;
}

async fn identity_and_counts_are_those_of_the_caller(bed: &Bed) {
    bed.through.create(&PostParams::default(), &map("first")).await.unwrap();
    let created = bed.testbed.audit_log().unwrap().map(Result::unwrap).find(|event| {
        event.verb == "create"
            && event.object_ref.resource == "configmaps"
            && event.object_ref.name == "first"
    });
    let created = created.expect("the API server saw it");
    assert_eq!(created.user.username, "system:serviceaccount:default:caller");
    assert!(created.user_agent.ends_with("(operator-0)"), "{}", created.user_agent);
    let records = bed.proxy.records().only(|r| r.verb == Verb::Create && r.resource == "configmaps");
    assert_eq!(records.len(), 1);
    assert_eq!((records.0[0].status, records.0[0].upstream_status), (Some(201), Some(201)));
    assert_eq!((records.0[0].name.as_str(), records.0[0].caller.as_str()), ("first", CALLER));
}

async fn half_of_the_patches_conflict(bed: &Bed) {
    let conflict = Fault::Answer { status: 409, retry_after: None };
    let half = Share::PerMille { share: 500, seed: 3 };
    let rule = bed.proxy.add(Rule::new(Select::verbs([Verb::Patch]), conflict).share(half));
    let mut conflicts = 0;
    for number in 0..100 {
        let patch = Patch::Merge(json!({"data": {"n": number.to_string()}}));
        match bed.through.patch("first", &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(code(&error), 409, "{error}");
                conflicts += 1;
            }
        }
    }
    assert_eq!(bed.proxy.met(rule), conflicts);
    assert!((30..=70).contains(&conflicts), "{conflicts}");
    bed.proxy.remove(rule);
}

async fn a_busy_server_says_when_to_come_back(bed: &Bed) {
    let busy = Fault::Answer { status: 429, retry_after: Some(1) };
    let rule = bed.proxy.add(Rule::new(Select::all(), busy).lasts(Duration::from_millis(1500)));
    let since = Instant::now();
    eventually("served again", || async { bed.through.get("first").await.is_ok() }).await;
    assert!(since.elapsed() >= Duration::from_millis(1400), "{:?}", since.elapsed());
    assert!(bed.proxy.met(rule) > 0);
    let refused = bed.proxy.records().only(|r| r.status == Some(429));
    assert!(refused.0.iter().all(|r| r.upstream_status.is_none()), "the API server was asked");
}

async fn creations_of_one_label_fail(bed: &Bed) {
    let select = Select::verbs([Verb::Create]).namespace("default").label("index", "1");
    let rule = bed.proxy.add(Rule::new(select, Fault::Answer { status: 500, retry_after: None }));
    let refused = bed.through.create(&PostParams::default(), &map("refused")).await.unwrap_err();
    assert_eq!(code(&refused), 500);
    let mut other = map("other");
    other.metadata.labels = Some(BTreeMap::from([("index".to_owned(), "2".to_owned())]));
    bed.through.create(&PostParams::default(), &other).await.unwrap();
    assert!(bed.past.get_opt("refused").await.unwrap().is_none());
    bed.proxy.remove(rule);
}

async fn an_answer_is_lost_after_the_write(bed: &Bed) {
    // After 504 the client asks again by itself, and meets what it made.
    for (name, fault, wanted) in [("lost", Fault::LoseAnswer, 0), ("timed-out", Fault::GatewayTimeout, 409)] {
        let select = Select::verbs([Verb::Create]).name(name);
        let rule = bed.proxy.add(Rule::new(select, fault).share(Share::Nth(1)));
        let error = bed.through.create(&PostParams::default(), &map(name)).await.unwrap_err();
        assert_eq!(code(&error), wanted, "{error}");
        assert!(bed.past.get_opt(name).await.unwrap().is_some(), "{name} was not made");
        let first = bed.proxy.records().only(|r| r.name == name && r.verb == Verb::Create).0.remove(0);
        assert_eq!(first.upstream_status, Some(201));
        assert_eq!(first.status, if wanted == 0 { None } else { Some(504) });
        bed.proxy.remove(rule);
    }
}

async fn an_answer_is_held_until_the_rule_is_removed(bed: &Bed) {
    let rule = bed.proxy.add(Rule::new(Select::writes().name("held"), Fault::HoldAnswer));
    let through = bed.through.clone();
    let making = tokio::spawn(async move { through.create(&PostParams::default(), &map("held")).await });
    bed.proxy.until_held(rule, 1, LIMIT).await.unwrap();
    assert!(bed.past.get_opt("held").await.unwrap().is_some(), "held before it was done");
    assert!(!making.is_finished());
    bed.proxy.remove(rule);
    making.await.unwrap().unwrap();
}

async fn a_request_is_held_before_it_is_forwarded(bed: &Bed) {
    let rule = bed.proxy.add(Rule::new(Select::writes().name("later"), Fault::HoldRequest));
    let through = bed.through.clone();
    let making = tokio::spawn(async move { through.create(&PostParams::default(), &map("later")).await });
    bed.proxy.until_held(rule, 1, LIMIT).await.unwrap();
    assert!(bed.past.get_opt("later").await.unwrap().is_none());
    bed.proxy.remove(rule);
    making.await.unwrap().unwrap();
}

async fn a_watch_is_held_and_goes_on(bed: &Bed) {
    let mut names = bed.watch().await;
    bed.make("seen-1").await;
    assert_eq!(names.next().await.as_deref(), Some("seen-1"));
    let rule =
        bed.proxy.add(Rule::new(Select::verbs([Verb::Watch]).resource("configmaps"), Fault::HoldOpenWatches));
    bed.make("seen-2").await;
    let nothing = tokio::time::timeout(Duration::from_millis(700), names.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    bed.proxy.remove(rule);
    assert_eq!(names.next().await.as_deref(), Some("seen-2"));
}

async fn an_older_replica_answers(bed: &Bed) {
    let before = bed.past.list(&ListParams::default()).await.unwrap();
    let version = before.metadata.resource_version.unwrap().parse().unwrap();
    bed.make("young").await;
    bed.past.delete("first", &DeleteParams::default()).await.unwrap();
    let rule = bed.proxy.add(Rule::new(Select::reads(), Fault::OlderReads { version }));
    // what was deleted is there, what was made is not; reads of one object and lists agree
    let first = bed.through.get("first").await.unwrap();
    assert_eq!(first.metadata.name.as_deref(), Some("first"));
    assert!(bed.through.get_opt("young").await.unwrap().is_none());
    let paged = bed.through.list(&ListParams::default().limit(2)).await.unwrap();
    let token = paged.metadata.continue_.expect("further pages");
    let rest = bed.through.list(&ListParams::default().continue_token(&token)).await.unwrap();
    assert_eq!(paged.items.len() + rest.items.len(), before.items.len());
    // a write is not fooled
    let patch = Patch::Merge(json!({"data": {"x": "y"}}));
    let error = bed.through.patch("first", &PatchParams::default(), &patch).await.unwrap_err();
    assert_eq!(code(&error), 404);
    bed.proxy.remove(rule);
    assert!(bed.through.get_opt("first").await.unwrap().is_none());
    bed.through.get("young").await.unwrap();
}

async fn a_caller_is_cut_off_and_let_in_again(bed: &Bed) {
    let version = bed.past.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = Box::pin(bed.through.watch(&WatchParams::default(), &version).await.unwrap());
    bed.proxy.cut_off(Some(CALLER));
    let ended = async { while let Ok(Some(_)) = events.try_next().await {} };
    tokio::time::timeout(LIMIT, ended).await.expect("open watches end");
    let refused =
        || async { tokio::net::TcpStream::connect(bed.proxy.address(CALLER).unwrap()).await.is_err() };
    eventually("refused", refused).await;
    assert!(bed.through.get("young").await.is_err());
    bed.proxy.let_in(Some(CALLER));
    eventually("let in", || async { bed.through.get("young").await.is_ok() }).await;
}
