//! The control plane serves, and survives what is done to it.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use std::time::Duration;

use andreas_testbed::{Component, ProcessState, SchedulerConfig, Testbed};
use common::{eventually, ready_node, start};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

fn deployment(name: &str, scheduler: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "none.invalid/c"}]},
            },
        },
    }))
    .unwrap()
}

async fn bound_pods(testbed: &Testbed, app: &str) -> usize {
    let pods: Api<Pod> = Api::default_namespaced(testbed.client());
    let Ok(list) = pods.list(&ListParams::default().labels(&format!("app={app}"))).await else { return 0 };
    list.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_made_and_bound_and_survive_a_killed_api_server() {
    // given a test bed with one node
    let testbed = start(Testbed::builder()).await;
    let version = testbed.kubectl(["version"]).await.unwrap().checked().unwrap();
    assert!(version.stdout.contains("Server Version: v1.36"), "{}", version.stdout);
    ready_node(&testbed.client(), "node-1").await;

    // when a Deployment is created
    let deployments: Api<Deployment> = Api::default_namespaced(testbed.client());
    let web = deployment("web", "default-scheduler");
    deployments.create(&PostParams::default(), &web).await.unwrap();

    // then controller-manager and scheduler do their part, and the audit log says who bound the pods where
    eventually("three pods bound", || async { bound_pods(&testbed, "web").await == 3 }).await;
    let bindings: Vec<_> =
        testbed.audit_log().unwrap().map(Result::unwrap).filter(|event| event.is_binding()).collect();
    assert_eq!(bindings.len(), 3);
    for binding in &bindings {
        assert_eq!((binding.user.username.as_str(), binding.code()), ("system:kube-scheduler", 201));
        assert!(binding.user_agent.starts_with("kube-scheduler/"), "{}", binding.user_agent);
        assert_eq!(binding.request_object.as_ref().unwrap()["target"]["name"], "node-1");
    }

    // when the API server is killed, then it is gone ...
    testbed.kill(Component::ApiServer).unwrap();
    assert_eq!(testbed.process(Component::ApiServer).unwrap().state(), ProcessState::Signalled(9));
    assert!(!testbed.kubectl(["get", "nodes", "--request-timeout=2s"]).await.unwrap().success());
    // ... and back with everything, on the same address
    testbed.restart(Component::ApiServer).await.unwrap();
    assert_eq!(bound_pods(&testbed, "web").await, 3);
    let scaled = testbed.kubectl(["scale", "deployment", "web", "--replicas=4"]).await.unwrap();
    scaled.checked().unwrap();
    eventually("a fourth pod bound", || async { bound_pods(&testbed, "web").await == 4 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedulers_can_be_replaced_paused_and_joined_by_a_second_one() {
    let testbed = start(Testbed::builder()).await;
    ready_node(&testbed.client(), "node-1").await;
    let profile = |name: &str| {
        SchedulerConfig::Inline(json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": true},
            "profiles": [{"schedulerName": name}],
        }))
    };

    // given a scheduler that now serves one profile, and a second one that serves another
    testbed.set_scheduler_config(&profile("first")).await.unwrap();
    let rights = testbed.kubeconfig_for_user("system:kube-scheduler", None).unwrap();
    let second = testbed.spawn_scheduler("second-scheduler", &profile("second"), &rights).await.unwrap();

    // when the first is paused and both have work
    testbed.pause(Component::Scheduler).unwrap();
    let deployments: Api<Deployment> = Api::default_namespaced(testbed.client());
    for name in ["first", "second"] {
        deployments.create(&PostParams::default(), &deployment(name, name)).await.unwrap();
    }

    // then only the second binds, until the first goes on
    eventually("the second scheduler's pods bound", || async { bound_pods(&testbed, "second").await == 3 })
        .await;
    assert_eq!(bound_pods(&testbed, "first").await, 0);
    testbed.resume(Component::Scheduler).unwrap();
    eventually("the first scheduler's pods bound", || async { bound_pods(&testbed, "first").await == 3 })
        .await;
    assert_eq!(second.state(), ProcessState::Running);

    // and a profile that kube-scheduler refuses is answered with its own words
    let wrong = SchedulerConfig::Inline(json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 400,
    }));
    let error = testbed.set_scheduler_config(&wrong).await.unwrap_err().to_string();
    assert!(error.contains("percentageOfNodesToScore"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn identities_have_their_own_rights_and_no_more() {
    // given two nodes and the kubeconfigs of one of them and of a service account
    let testbed = start(Testbed::builder().without_scheduler()).await;
    for node in ["node-1", "node-2"] {
        ready_node(&testbed.client(), node).await;
    }
    let node = testbed.kubeconfig_for_node("node-1").unwrap();
    let account = testbed.kubeconfig_for_service_account("default", "default").await.unwrap();

    // then the node may label itself only
    let own = testbed.kubectl_as(&node, ["label", "node", "node-1", "rack=a"]).await.unwrap();
    own.checked().unwrap();
    let other = testbed.kubectl_as(&node, ["label", "node", "node-2", "rack=a"]).await.unwrap();
    assert!(!other.success() && other.stderr.contains("only its own Node object"), "{}", other.stderr);

    // and the service account is itself, without rights
    let me = testbed.kubectl_as(&account, ["auth", "whoami"]).await.unwrap().checked().unwrap();
    assert!(me.stdout.contains("system:serviceaccount:default:default"), "{}", me.stdout);
    let secrets = testbed.kubectl_as(&account, ["get", "secrets"]).await.unwrap();
    assert!(secrets.stderr.contains("Forbidden"), "{}", secrets.stderr);

    // and a pod's mount carries a token for the audience that was asked for
    let mount = testbed.service_account_mount("default", "default", &["andreas"]).await.unwrap();
    assert_eq!(std::fs::read_to_string(mount.folder.join("namespace")).unwrap(), "default");
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": mount.token, "audiences": ["andreas"]},
    });
    let manifest = testbed.data_dir().join("review.json");
    std::fs::write(&manifest, review.to_string()).unwrap();
    let args = ["create", "-o", "json", "-f", manifest.to_str().unwrap()];
    let answer = testbed.kubectl(args).await.unwrap().checked().unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(answer["status"]["authenticated"], true, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_and_a_kept_folder_brings_everything_back() {
    // given a chart installed on a test bed whose folder is kept
    let folder = tempfile::tempdir().unwrap();
    let build = || Testbed::builder().data_dir(folder.path()).without_scheduler();
    let testbed = start(build()).await;
    let chart = testbed.data_dir().join("chart");
    testbed.helm(["create", chart.to_str().unwrap()]).await.unwrap().checked().unwrap();
    let install = [
        "upgrade",
        "--install",
        "demo",
        chart.to_str().unwrap(),
        "--namespace",
        "demo",
        "--create-namespace",
    ];
    testbed.helm(install).await.unwrap().checked().unwrap();
    let account = testbed.kubeconfig_for_service_account("default", "default").await.unwrap();

    // when it is stopped and another one starts on the folder
    testbed.stop().await;
    drop(testbed);
    let again = start(build()).await;

    // then the release is there, and a token signed before is still good
    let releases = again.helm(["list", "--all-namespaces"]).await.unwrap().checked().unwrap();
    assert!(releases.stdout.contains("demo"), "{}", releases.stdout);
    let token = std::fs::read_to_string(account).unwrap();
    let token =
        serde_json::from_str::<serde_json::Value>(&token).unwrap()["users"][0]["user"]["token"].clone();
    let me = again.kubectl(["auth", "whoami", "--token", token.as_str().unwrap()]).await.unwrap();
    assert!(me.success(), "{}", me.stderr);
    drop(again);
    assert!(folder.path().join("etcd").is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_run_side_by_side_and_go_without_a_trace() {
    // given two test beds of one name
    let began = std::time::Instant::now();
    let (one, two) = tokio::join!(start(Testbed::builder()), start(Testbed::builder()));
    eprintln!("two test beds started in {:.1} s", began.elapsed().as_secs_f64());
    assert_ne!(one.api_server_url(), two.api_server_url());

    // then what is in one is not in the other
    ready_node(&one.client(), "only-here").await;
    let nodes = two.kubectl(["get", "nodes", "-o", "name"]).await.unwrap().checked().unwrap();
    assert_eq!(nodes.stdout, "");

    // when one goes, then its processes and folder are gone and the other serves on
    let (folder, pids) = (one.data_dir().to_owned(), common::pids(&one));
    assert_eq!(pids.len(), 4);
    drop(one);
    assert!(!folder.exists());
    assert!(pids.iter().all(|pid| !common::is_alive(*pid)));
    two.process(Component::ApiServer)
        .unwrap()
        .wait_until("alive", Duration::from_secs(1), || async { true })
        .await
        .unwrap();
    two.kubectl(["get", "namespaces"]).await.unwrap().checked().unwrap();
}
