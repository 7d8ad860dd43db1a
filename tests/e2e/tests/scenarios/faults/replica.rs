//! Answers of an older replica: what was is shown as what is. Writes carry what they were made from, so nothing is
//! deleted and nothing is started twice.

use std::time::Instant;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::faults::{Fault, Records, Rule, Select, Verb};
use anyhow::{Context as _, Result, ensure};
use kube::api::{Api, ListParams};
use serde_json::json;

const OPERATOR: &str = "operator-0";

/// The version that everything has now.
async fn version(c: &Cluster) -> Result<u64> {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(c.testbed.client());
    let list = namespaces.list(&ListParams::default()).await?;
    Ok(list.metadata.resource_version.context("a list has a version")?.parse()?)
}

fn uid_of_pod(c: &Cluster, name: &str) -> Option<String> {
    let seen = c.observer.seen();
    let mut live = seen.pods.values().filter(|p| p.is_live());
    live.find(|p| p.pod.metadata.name.as_deref() == Some(name)).and_then(|p| p.pod.metadata.uid.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_replica_makes_nothing_start_twice_or_vanish() -> Result<()> {
    let options = Options { fault_proxy: true, groups: vec![a100(1)], ..Options::default() };
    scenario(options, async |c| {
        nothing_starts_twice(c).await?;
        nothing_is_deleted_by_an_older_look(c).await
    })
    .await
}

/// The operator starts on answers from before the job was placed.
async fn nothing_starts_twice(c: &mut Cluster) -> Result<()> {
    let tj = job("placed").gpus(1, 1).epochs(1000, 0.4);
    let key = tj.key();
    c.operators[0].process.kill();
    c.submit(&tj).await?;
    let before = version(c).await?;
    c.operators[0].process.start_again()?;
    c.wait_for_phase(&tj, Phase::Running).await?;
    c.operators[0].process.kill();

    let older = Fault::OlderReads { version: before };
    let rule = c.faults()?.add(Rule::new(Select::reads().caller(OPERATOR), older));
    let started = Instant::now();
    c.operators[0].process.start_again()?;
    // it wants to place the job again, and is refused
    let refused = |seen: &Records| {
        seen.0.iter().any(|r| {
            r.at >= started
                && r.caller == OPERATOR
                && r.resource == "trainingjobs/status"
                && r.status == Some(409)
        })
    };
    ensure!(c.faults()?.until(DEFAULT_TIMEOUT, refused).await, "the older answers led to no write");
    let status = c.observer.seen().status(&key);
    ensure!(status.phase == Phase::Running && status.attempts == 1, "{status:?}");
    c.faults()?.remove(rule);
    sees_what_is(c, &tj).await?;
    {
        let seen = c.observer.seen();
        let status = seen.status(&key);
        ensure!(status.phase == Phase::Running, "{status:?}");
        ensure!(status.attempts == 1 && status.restarts == 0, "{status:?}");
        let uid = seen.job(&key).and_then(|j| j.metadata.uid.clone()).context("no uid")?;
        ensure!(seen.pods_of(&uid).len() == 1, "{} pods", seen.pods_of(&uid).len());
    }
    c.kubectl("delete trainingjob placed --wait=false").await?;
    Ok(())
}

/// Edits a job and waits until the operator has acted on the edit: it sees what is again.
async fn sees_what_is(c: &mut Cluster, tj: &Job) -> Result<()> {
    c.edit(&tj.key(), &json!({"weight": 20})).await?;
    let key = tj.key();
    c.observer
        .until("the edit is acted on", DEFAULT_TIMEOUT, |s| {
            s.job(&key).is_some_and(|j| {
                j.spec.weight == 20
                    && j.status.as_ref().and_then(|s| s.observed_generation) == j.metadata.generation
            })
        })
        .await
}

/// The operator sees a job that was to be stopped; meanwhile another one runs under its name.
async fn nothing_is_deleted_by_an_older_look(c: &mut Cluster) -> Result<()> {
    c.collect_garbage().await?;
    let tj = job("again").gpus(1, 1).epochs(2000, 0.4);
    c.submit(&tj).await?;
    c.wait_for_phase(&tj, Phase::Running).await?;
    let old = uid_of_pod(c, "again-1-0").context("no pod")?;
    c.operators[0].process.kill();
    c.edit(&tj.key(), &json!({"suspend": true})).await?;
    let before = version(c).await?;
    c.kubectl("delete trainingjob again --cascade=foreground --wait=true").await?;
    c.operators[0].process.start_again()?;
    c.submit(&tj).await?;
    c.observer
        .until("the new one runs", DEFAULT_TIMEOUT, |s| {
            let mut live = s.pods.values().filter(|p| p.is_live());
            live.any(|p| {
                p.pod.metadata.name.as_deref() == Some("again-1-0")
                    && p.pod.metadata.uid.as_ref() != Some(&old)
            }) && s.phase("default/again") == Phase::Running
        })
        .await?;
    let new = uid_of_pod(c, "again-1-0").context("no pod")?;
    c.operators[0].process.kill();

    let older = Fault::OlderReads { version: before };
    let rule = c.faults()?.add(Rule::new(Select::reads().caller(OPERATOR), older));
    let started = Instant::now();
    c.operators[0].process.start_again()?;
    // it wants to stop what it sees: the writes name the old objects and are refused
    let refused = |seen: &Records| {
        seen.0.iter().any(|r| {
            r.at >= started
                && r.caller == OPERATOR
                && matches!(r.verb, Verb::Patch | Verb::Delete)
                && r.name.starts_with("again")
                && r.status.is_some_and(|code| code == 409 || code == 404)
        })
    };
    ensure!(c.faults()?.until(DEFAULT_TIMEOUT, refused).await, "the older answers led to no write");
    ensure!(uid_of_pod(c, "again-1-0").as_ref() == Some(&new), "the new job's pod was deleted");
    c.faults()?.remove(rule);
    let records = c.faults()?.records().since(started);
    let codes = records.0.iter().filter(|r| r.name.starts_with("again")).filter_map(|r| r.status);
    println!(
        "writes that an older look led to and that were refused: {}",
        codes.filter(|code| [404, 409].contains(code)).count()
    );
    sees_what_is(c, &tj).await?;
    ensure!(uid_of_pod(c, "again-1-0").as_ref() == Some(&new), "the new job's pod was deleted");
    let status = c.observer.seen().status(&tj.key());
    ensure!(status.phase == Phase::Running && status.attempts == 1, "{status:?}");
    Ok(())
}
