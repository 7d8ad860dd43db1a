//! What the API server says: quota, refused templates, names, forged pods, deadlines.

use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use anyhow::{Result, ensure};
use serde_json::json;

fn namespace(name: &str, labels: serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_makes_jobs_wait_with_the_reason() -> Result<()> {
    scenario(Options::default(), async |c| {
        c.apply(&namespace("small", json!({}))).await?;
        c.apply(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "small"},
            "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
        }))
        .await?;
        let first =
            job("first").namespace("small").gpus(2, 1).epochs(1000, 0.4).spec("preemption", json!("Never"));
        let second = job("second").namespace("small").gpus(2, 1).epochs(4, 0.3);
        let never = job("never").namespace("small").gpus(4, 1);
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        c.submit(&second).await?;
        c.submit(&never).await?;
        c.wait_for_reason(&second, Reason::QuotaExceeded).await?;
        c.wait_for_reason(&never, Reason::QuotaExceeded).await?;
        // when the first is stopped, then the next one has its part of the quota
        c.edit(&first.key(), &json!({"suspend": true})).await?;
        c.wait_for_phase(&second, Phase::Succeeded).await?;
        ensure!(c.observer.seen().phase(&never.key()) == Phase::Pending, "it waits for ever, and says why");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preemption_for_quota_is_refused_by_nobody() -> Result<()> {
    scenario(Options { groups: vec![a100(2)], ..Options::default() }, async |c| {
        // given a light job that uses up the quota of its namespace, and takes its whole grace to leave
        c.apply(&namespace("small", json!({}))).await?;
        c.apply(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "small"},
            "spec": {"hard": {"requests.nvidia.com/gpu": "4"}},
        }))
        .await?;
        let of_small = |name: &str| job(name).namespace("small").gpus(4, 1);
        let light = of_small("light").epochs(2_000, 0.5).without("deadlineAfter").spec("weight", json!(1));
        let light = light.checkpoint(12).env("TRAINER_IGNORE_TERM", 1);
        c.submit(&light).await?;
        c.wait_for_phase(&light, Phase::Running).await?;
        // when an urgent one gets its part of the quota
        let urgent = of_small("urgent").epochs(8, 0.3).spec("weight", json!(1_000));
        let urgent = urgent.spec("deadlineAfter", json!("1m"));
        c.submit(&urgent).await?;
        c.wait_for_phase(&light, Phase::Stopping).await?;
        let stopping = Instant::now();
        c.wait_for_phase(&urgent, Phase::Running).await?;
        let waited = stopping.elapsed();
        c.wait_for_phase(&urgent, Phase::Succeeded).await?;
        // then it starts when the other has left, and no pod of it was refused
        ensure!(waited > Duration::from_secs(8), "it did not wait for the grace of the other: {waited:?}");
        let status = c.observer.seen().status(&urgent.key());
        ensure!(status.attempts == 1, "{:?}", status.history);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_refused_waits_with_the_servers_words() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a namespace under the restricted pod security standard and a job that wants a hostPath
        c.apply(&namespace("strict", json!({"pod-security.kubernetes.io/enforce": "restricted"}))).await?;
        let tj = job("host-path")
            .namespace("strict")
            .pod("volumes", json!([{"name": "host", "hostPath": {"path": "/"}}]));
        let account = job("no-account").pod("serviceAccountName", json!("not-there-yet"));
        c.submit(&tj).await?;
        c.submit(&account).await?;
        c.wait_for_reason(&tj, Reason::TemplateRejected).await?;
        let words = c.observer.seen().message(&tj.key(), Reason::TemplateRejected);
        ensure!(words.contains("hostPath"), "the server's words: {words}");
        // and a missing service account waits until it is there
        c.wait_for_reason(&account, Reason::TemplateRejected).await?;
        c.kubectl("create serviceaccount not-there-yet").await?;
        c.wait_for_phase(&account, Phase::Succeeded).await?;
        ensure!(c.observer.seen().phase(&tj.key()) == Phase::Pending);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_relabelled_pods_are_refused() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a tenant with the right to do anything in its namespace
        c.kubectl("create serviceaccount tenant").await?;
        c.kubectl("create rolebinding tenant --clusterrole=admin --serviceaccount=default:tenant").await?;
        let tenant = c.testbed.kubeconfig_for_service_account("default", "tenant").await?;
        let tj = job("real").epochs(30, 0.4);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let uid = c.observer.seen().job(&tj.key()).and_then(|j| j.metadata.uid.clone()).unwrap_or_default();
        // when it makes a pod that says it belongs to the job
        let forged = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "real-9-0", "namespace": "default",
                "labels": {names::LABEL_JOB: "real", names::LABEL_JOB_UID: uid, names::LABEL_ATTEMPT: "9", names::LABEL_INDEX: "0", names::LABEL_ALLOCATION: "9"},
                "ownerReferences": [{"apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": "real", "uid": uid, "controller": true}],
            },
            "spec": {"schedulerName": "andreas", "containers": [{"name": "x", "image": "andreas.dev/trainer:dev", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        });
        let path = c.testbed.data_dir().join("forged.json");
        std::fs::write(&path, forged.to_string())?;
        let made = c.testbed.kubectl_as(&tenant, ["create", "-f", &path.to_string_lossy()]).await?;
        ensure!(!made.success(), "a forged pod was accepted");
        // or takes the label off a real one, then both are refused
        let relabelled = c.testbed.kubectl_as(&tenant, ["label", "pod", "real-1-0", "andreas.dev/job-"]).await?;
        ensure!(!relabelled.success(), "a member was relabelled");
        let ordinary = c.testbed.kubectl_as(&tenant, ["run", "mine", "--image=missing/x"]).await?;
        ensure!(ordinary.success(), "pods of others are untouched: {}", ordinary.stderr);
        c.wait_for_phase(&tj, Phase::Succeeded).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn names_deadlines_and_ranges_are_checked_when_applied() -> Result<()> {
    scenario(Options::default(), async |c| {
        let refused = [
            (
                "past deadline",
                job("past").without("deadlineAfter").spec("deadline", json!("2020-01-01T00:00:00Z")),
                "deadline",
            ),
            ("min above max", job("minmax").spec("gpus", json!({"min": 4, "max": 2})), "min"),
            ("weight 0", job("weight").spec("weight", json!(0)), "weight"),
            ("a long name", job(&"a".repeat(49)), "48"),
            ("a node name", job("node").pod("nodeName", json!("a100-0")), "nodeName"),
            (
                "GPUs in the template",
                job("gpus").container("resources", json!({"limits": {"nvidia.com/gpu": "1"}})),
                "nvidia.com/gpu",
            ),
            (
                "10 kB of container name",
                job("container").spec("container", json!("x".repeat(10_000))),
                "container",
            ),
        ];
        for (what, tj, word) in refused {
            let path = c.testbed.data_dir().join("refused.json");
            std::fs::write(&path, tj.build().to_string())?;
            let output = c.testbed.kubectl(["create", "-f", &path.to_string_lossy()]).await?;
            ensure!(!output.success(), "{what} was accepted");
            ensure!(
                output.stderr.contains(word),
                "{what}: the message does not say {word:?}: {}",
                output.stderr
            );
        }
        // what is possible but not here is accepted and waits with a reason
        let unknown = job("unknown").spec("gpus", json!({"min": 1, "types": ["NVIDIA-B300"]}));
        let large = job("large").container("resources", json!({"requests": {"memory": "100Ti"}}));
        c.submit(&unknown).await?;
        c.submit(&large).await?;
        c.wait_for_reason(&unknown, Reason::NoFeasibleGpuType).await?;
        c.wait_for_reason(&large, Reason::NoFeasibleNode).await?;
        c.assert_holds("waiting", Duration::from_secs(2), |s| s.phase(&unknown.key()) == Phase::Pending).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_default_request_of_a_limit_range_is_planned_with() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a namespace whose containers ask for 300 GiB of memory unless they say otherwise, and a node without so much
        c.make_namespace("defaults").await?;
        c.apply(&json!({
            "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "memory", "namespace": "defaults"},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"memory": "300Gi"}}]},
        }))
        .await?;
        c.apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "namespace": "default"},
            "spec": {"nodeName": "a100-0", "containers": [{"name": "x", "image": "missing/x",
                "resources": {"requests": {"memory": "300Gi"}}}]},
        }))
        .await?;
        let tj = job("modest")
            .namespace("defaults")
            .epochs(4, 0.3)
            .container("resources", json!({"requests": {"cpu": "1"}}));
        // when it says nothing of memory, then the plan knows what it will ask for and takes the other node at once
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&tj.key());
        ensure!(status.attempts == 1 && status.history[0].placement == "a100-1", "{:?}", status.history);
        // and what no node has is said without a single attempt
        let never = job("greedy")
            .namespace("defaults")
            .container("resources", json!({"requests": {"cpu": "1", "memory": "900Gi"}}));
        c.submit(&never).await?;
        c.wait_for_reason(&never, Reason::NoFeasibleNode).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_admission_refuses_and_adds_decides_sizes_and_nodes_before_gpus_are_held() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a namespace whose containers may have two GPUs, and a class of runtimes that has its own nodes
        c.make_namespace("small").await?;
        c.apply(&json!({
            "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "gpus", "namespace": "small"},
            "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}}]},
        }))
        .await?;
        c.apply(&json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "own"}, "handler": "own",
            "scheduling": {"nodeSelector": {"kubernetes.io/hostname": "a100-1"}}, "overhead": {"podFixed": {"cpu": "1"}},
        }))
        .await?;
        let elastic = job("elastic").namespace("small").epochs(4, 0.3).spec("gpus", json!({"min": 1, "max": 4}));
        let classed = job("classed").epochs(4, 0.3).pod("runtimeClassName", json!("own"));
        c.submit(&elastic).await?;
        c.submit(&classed).await?;
        // then both run in their first attempts, on what is allowed
        for tj in [&elastic, &classed] {
            c.wait_for_phase(tj, Phase::Succeeded).await?;
            ensure!(c.observer.seen().status(&tj.key()).attempts == 1, "{:?}", tj.key());
        }
        let status = c.observer.seen().status(&elastic.key());
        ensure!(status.history[0].gpus <= 2, "{:?}", status.history);
        let accepted = status.conditions.iter().find(|condition| condition.type_ == "TemplateAccepted");
        ensure!(accepted.is_some_and(|accepted| accepted.message.contains("usage per Container is 2")), "{accepted:?}");
        let status = c.observer.seen().status(&classed.key());
        ensure!(status.history[0].placement == "a100-1", "{:?}", status.history);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_counts_jobs_of_other_namespaces_and_does_not_name_them() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        // given a job of one namespace that holds all GPUs
        c.make_namespace("secret-team").await?;
        let holds = job("merger-model-7")
            .namespace("secret-team")
            .gpus(4, 1)
            .epochs(1000, 0.5)
            .spec("preemption", json!("Never"));
        c.submit(&holds).await?;
        c.wait_for_phase(&holds, Phase::Running).await?;
        // when a job of another namespace waits for them
        let waits = job("curious").gpus(4, 1);
        c.submit(&waits).await?;
        c.wait_for_reason(&waits, Reason::WaitingForCapacity).await?;
        let words = c.observer.seen().message(&waits.key(), Reason::WaitingForCapacity);
        ensure!(words.contains("1 job of another namespace"), "{words}");
        // then neither its status nor an event about it names the other job or its namespace
        let status = c.kubectl("get trainingjob curious -o json").await?;
        let events = c.kubectl("get events -o json").await?;
        for text in [&status, &events] {
            ensure!(!text.contains("merger-model-7") && !text.contains("secret-team"), "{text}");
        }
        Ok(())
    })
    .await
}
