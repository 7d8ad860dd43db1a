//! Objects as the release before this one stored them, on a real API server with this release's definitions: they are served, read,
//! and planned.

use std::time::Duration;

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_api::{EnergyPolicy, GpuNode, TrainingJob, TrainingProfile};
use andreas_e2e::api::yaml;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// Recorded from that release while it ran.
const OBJECTS: &str = include_str!("../../../fixtures/older_objects.yaml");

fn objects() -> Result<Vec<Value>> {
    OBJECTS.split("\n---\n").skip(1).map(yaml).collect()
}

/// The resource of a kind of ours.
fn plural(kind: &str) -> String {
    if kind == "EnergyPolicy" { "energypolicies".into() } else { format!("{}s", kind.to_lowercase()) }
}

/// Path of an object of ours at the API server.
fn path(object: &Value) -> Result<String> {
    let kind = object["kind"].as_str().context("a kind")?;
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let namespace = object["metadata"]["namespace"].as_str();
    let folder = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
    Ok(format!("/apis/andreas.dev/v1alpha1/{folder}{}/{name}", plural(kind)))
}

/// The object as it is served.
async fn served(c: &Cluster, object: &Value) -> Result<Value> {
    let request = http::Request::get(path(object)?).body(Vec::new())?;
    Ok(c.testbed.client().request(request).await?)
}

/// A merge patch of exactly these bytes.
async fn patch(c: &Cluster, path: &str, body: &Value) -> Result<()> {
    let request = http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(serde_json::to_vec(body)?)?;
    c.testbed.client().request::<Value>(request).await?;
    Ok(())
}

/// Repeats what fails, for a while: a definition that was just changed is served a moment later.
async fn again<T>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let until = std::time::Instant::now() + DEFAULT_TIMEOUT;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if std::time::Instant::now() > until => return Err(error.context(what.to_owned())),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Puts an object into the store with everything it holds, whatever this release's definitions would drop or refuse.
async fn store(c: &Cluster, object: &Value) -> Result<()> {
    let path = path(object)?;
    if served(c, object).await.is_err() {
        let (collection, _) = path.rsplit_once('/').context("a path")?;
        let request = http::Request::post(collection).body(serde_json::to_vec(object)?)?;
        c.testbed.client().request::<Value>(request).await?;
    }
    patch(c, &path, &json!({"spec": object["spec"]})).await?;
    patch(c, &format!("{path}/status"), &json!({"status": object["status"]})).await?;
    let stored = served(c, object).await?;
    ensure!(holds(&stored["spec"], &object["spec"]), "{path} lost some of its spec: {}", stored["spec"]);
    ensure!(
        holds(&stored["status"], &object["status"]),
        "{path} lost some of its status: {}",
        stored["status"]
    );
    Ok(())
}

/// Whether everything of `part` is in `whole`.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| holds(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
        }
        _ => whole == part,
    }
}

/// Stores the objects while the definitions let everything through, and puts the definitions back.
async fn store_all(c: &Cluster, objects: &[Value]) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(c.testbed.client());
    let mut ours = api.list(&ListParams::default()).await?.items;
    ours.retain(|definition| definition.spec.group == "andreas.dev");
    ensure!(ours.len() == 4, "{} definitions", ours.len());
    // A GpuNode's status is its agent's alone to write, and there is none here.
    c.kubectl("delete validatingadmissionpolicybinding andreas-gpunode-status").await?;
    let anything =
        json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    for definition in &ours {
        let mut open = serde_json::to_value(definition)?;
        let version = &mut open["spec"]["versions"][0];
        version["schema"] = anything.clone();
        // They must be in the schema.
        version["selectableFields"].take();
        let name = definition.metadata.name.as_deref().context("a name")?;
        api.replace(name, &PostParams::default(), &serde_json::from_value(open)?).await?;
    }
    for object in objects {
        again("storing an object", async || store(c, object).await).await?;
    }
    for definition in &ours {
        let name = definition.metadata.name.as_deref().context("a name")?;
        let back = json!({"spec": {"versions": definition.spec.versions}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(&back)).await?;
    }
    // What they no longer know is not served any more.
    again("the definitions of this release", async || {
        let node = objects.iter().find(|object| object["kind"] == "GpuNode").context("a GpuNode")?;
        let served = served(c, node).await?;
        if served.to_string().contains("podUid") {
            bail!("still served: {served}");
        }
        Ok(())
    })
    .await
}

/// Every object can be had, and whole lists of them be read.
async fn all_are_served(c: &Cluster, objects: &[Value]) -> Result<()> {
    for object in objects {
        served(c, object).await.with_context(|| path(object).unwrap_or_default())?;
    }
    let (client, all) = (c.testbed.client(), ListParams::default());
    let jobs = Api::<TrainingJob>::all(client.clone()).list(&all).await.context("jobs")?;
    let profiles = Api::<TrainingProfile>::all(client.clone()).list(&all).await.context("profiles")?;
    let policies = Api::<EnergyPolicy>::all(client.clone()).list(&all).await.context("policies")?;
    let nodes = Api::<GpuNode>::all(client).list(&all).await.context("nodes")?;
    ensure!(jobs.items.len() >= 3 && !profiles.items.is_empty(), "{jobs:?} {profiles:?}");
    ensure!(policies.items.len() == 1 && nodes.items.len() == 3, "{policies:?} {nodes:?}");
    Ok(())
}

async fn succeeds(c: &mut Cluster, job: &Job) -> Result<()> {
    let key = job.key();
    c.observer
        .until(&format!("{key} Succeeded"), 2 * DEFAULT_TIMEOUT, |seen| seen.phase(&key) == Phase::Succeeded)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_the_release_before_are_served_and_planned() -> Result<()> {
    scenario(
        Options { name: "older-objects".into(), groups: vec![a100(3)], ..Options::default() },
        async |c| {
            // given a store that the release before has written, and no operator while that was so
            let objects = objects()?;
            // once this one has made an object of each node
            again("three GpuNodes", async || {
                let nodes = Api::<GpuNode>::all(c.testbed.client()).list(&ListParams::default()).await?;
                ensure!(nodes.items.len() == 3, "{} GpuNodes", nodes.items.len());
                Ok(())
            })
            .await?;
            c.operators[0].process.stop().await;
            store_all(c, &objects).await?;
            all_are_served(c, &objects).await?;
            // when this release's operator starts
            c.operators[0].process.start_again()?;
            // then the job that waited runs, with a startTimeout that would be refused now
            let (waiting, running, done) = (job("waiting"), job("running"), job("done"));
            succeeds(c, &waiting).await?;
            let status = c.observer.seen().status(&waiting.key());
            ensure!(
                (status.attempts, status.user_failures, status.cluster_failures) == (1, 0, 0),
                "{status:?}"
            );
            // and the one that ran, whose pod has gone since, has lost that attempt to the cluster and runs again
            succeeds(c, &running).await?;
            let status = c.observer.seen().status(&running.key());
            ensure!(
                (status.attempts, status.user_failures, status.cluster_failures) == (2, 0, 1),
                "{status:?}"
            );
            let lost = status.history.first().context("a history")?;
            let why = (lost.attempt, lost.outcome, lost.reason.as_str());
            ensure!(why == (1, Outcome::ClusterFailure, Reason::Vanished.as_str()), "{lost:?}");
            // and what had ended stays as it was
            let before =
                objects.iter().find(|o| path(o).is_ok_and(|path| path.ends_with("/trainingjobs/done")));
            let before = before.context("a job that has ended")?;
            let after = served(c, before).await?;
            for field in ["phase", "completionTime", "history", "consumption", "progress", "conditions"] {
                ensure!(
                    holds(&after["status"][field], &before["status"][field]),
                    "{field}: {}",
                    after["status"]
                );
            }
            ensure!(c.observer.seen().phases(&done.key()).last() == Some(&Phase::Succeeded));
            // and the policy is in force
            let policy =
                objects.iter().find(|object| object["kind"] == "EnergyPolicy").context("a policy")?;
            let policy = served(c, policy).await?;
            let conditions = policy["status"]["conditions"].as_array().context("conditions")?;
            ensure!(
                conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"),
                "{conditions:?}"
            );
            all_are_served(c, &objects).await
        },
    )
    .await
}
