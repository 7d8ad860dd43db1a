//! Admission that is down, and admission that changes pods: what others install in a cluster costs no GPU of third parties.

use std::time::Duration;

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{TRAINER_IMAGE, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Result, ensure};
use serde_json::json;

/// Longest for what waits for a time-out or a back-off first.
const LATER: Duration = Duration::from_secs(240);
/// Longest that the API server may take to use an admission configuration.
const USED_WITHIN: Duration = Duration::from_secs(60);

/// A webhook for pods of the namespace `team` with that label that nobody answers: the API server says 500.
async fn break_admission(c: &Cluster, label: &str, value: &str) -> Result<()> {
    let labelled = format!("object.metadata.?labels['{label}'].orValue('') == '{value}'");
    c.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "down"},
        "webhooks": [{
            "name": "down.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 2,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}},
            "matchConditions": [{"name": "some", "expression": format!("{labelled} || object.metadata.name == 'probe'")}],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    }))
    .await?;
    let probe = "run probe -n team --image=x --dry-run=server";
    until("the webhook is called", USED_WITHIN, async || Ok(c.kubectl(probe).await.is_err())).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_whose_second_pod_cannot_be_made_gives_its_gpus_to_another_namespace() -> Result<()> {
    scenario(Options { groups: vec![a100(2)], ..Options::default() }, async |c| {
        // given an admission webhook that is down, for the second pod of each gang of a namespace
        c.make_namespace("team").await?;
        break_admission(c, "andreas.dev/index", "1").await?;
        let half = job("half").namespace("team").gpus(8, 2).spec("retries", json!(0)).checkpoint(2);
        let key = half.key();
        c.submit(&half).await?;
        c.wait_for_phase(&half, Phase::Starting).await?;
        // when its time to be placed is over, then no pod of it is left, with the server's words and no retry used
        c.observer
            .until("withdrawn", LATER, |s| s.status(&key).history.iter().any(|a| a.attempt == 1))
            .await?;
        let first = c.observer.seen().status(&key).history[0].clone();
        ensure!(
            first.outcome == Outcome::Withdrawn && first.reason == Reason::PlacementTimeout.as_str(),
            "{first:?}"
        );
        ensure!(
            first.message.contains("1 of 2 pods could not be made") && first.message.contains("webhook"),
            "{first:?}"
        );
        let pods = "get pods -n team -o name";
        until("no pod is left", DEFAULT_TIMEOUT, async || Ok(c.kubectl(pods).await?.is_empty())).await?;
        // and another namespace's gang runs on those GPUs
        let other = job("other").gpus(8, 2);
        c.submit(&other).await?;
        let next = other.key();
        c.observer
            .until("the other gang runs", DEFAULT_TIMEOUT, |s| {
                matches!(s.phase(&next), Phase::Running | Phase::Succeeded)
            })
            .await?;
        let status = c.observer.seen().status(&key);
        ensure!(
            status.attempts == 1 && status.user_failures == 0 && status.cluster_failures == 0,
            "{status:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_whose_pods_cannot_be_made_is_given_no_gpus_until_they_can() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        // given an admission webhook that is down for all pods of TrainingJobs of a namespace
        c.make_namespace("team").await?;
        break_admission(c, "andreas.dev/job", "first").await?;
        let first = job("first").namespace("team").gpus(4, 1);
        let key = first.key();
        c.submit(&first).await?;
        c.observer
            .until("it says why it waits", DEFAULT_TIMEOUT, |s| {
                s.message(&key, Reason::NotPlannedYet)
                    .contains("does not make or bind pods of this namespace")
            })
            .await?;
        // then another namespace's job runs, and the first one was given nothing
        let other = job("other").gpus(4, 1);
        c.submit(&other).await?;
        c.wait_for_phase(&other, Phase::Succeeded).await?;
        ensure!(c.observer.seen().status(&key).attempts == 0);
        // and when the webhook is gone it runs by itself, once the back-off ends
        c.kubectl("delete validatingwebhookconfiguration down").await?;
        c.observer.until("it succeeded", LATER, |s| s.phase(&key) == Phase::Succeeded).await
    })
    .await
}

/// Every pod of the namespace `team` gets a container in front of its own that outlives the training.
async fn inject_container(c: &Cluster) -> Result<()> {
    let container = format!(
        "Object.spec.containers{{name: 'proxy', image: '{TRAINER_IMAGE}', env: [\
         Object.spec.containers.env{{name: 'TRAINER_EPOCHS', value: '1000'}}, \
         Object.spec.containers.env{{name: 'TRAINER_SECONDS_PER_EPOCH', value: '10'}}]}}"
    );
    c.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "proxy"},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {
                "expression": format!("[JSONPatch{{op: 'add', path: '/spec/containers/0', value: {container}}}]")}}],
        },
    }))
    .await?;
    c.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "proxy"}, "spec": {"policyName": "proxy"},
    }))
    .await?;
    let probe = "run probe -n team --image=x --dry-run=server -o jsonpath={.spec.containers[0].name}";
    let mutated = async || Ok(c.kubectl(probe).await.map_or(true, |name| name == "proxy"));
    until("the policy is used", USED_WITHIN, mutated).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_succeeds_though_a_container_injected_before_its_own_goes_on() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        // given admission that puts a container in front of the one that trains
        c.make_namespace("team").await?;
        inject_container(c).await?;
        let tj = job("meshed").namespace("team").gpus(4, 1).epochs(6, 0.3);
        let key = tj.key();
        c.submit(&tj).await?;
        // then the job ends with its training, and its pod is deleted though the other container runs
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        c.observer
            .until("its pod is deleted", DEFAULT_TIMEOUT, |s| {
                let uid = s.job(&key).and_then(|j| j.metadata.uid.clone()).unwrap_or_default();
                let pods = s.pods_of(&uid);
                !pods.is_empty() && pods.iter().all(|pod| pod.deleted)
            })
            .await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.attempts == 1 && status.history[0].outcome == Outcome::Finished, "{status:?}");
        ensure!(status.progress.is_some_and(|p| p.milli_percent == 100_000));
        Ok(())
    })
    .await
}
