//! Objects at the API server's limit of size: operator and extender start again within the chart's memory limits.

use std::time::{Duration, Instant};

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::job;
use andreas_e2e::scenario::{SOON, scenario};
use andreas_e2e::scrape;
use andreas_testbed::Process;
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

/// The chart's memory limits.
const OPERATOR_MIB: f64 = 1_024.0;
const EXTENDER_MIB: f64 = 256.0;
/// Requests in flight of whoever floods.
const AT_A_TIME: usize = 8;

fn api(c: &Cluster, group: &str, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(c.testbed.client(), namespace, &resource)
}

async fn create_all(api: &Api<DynamicObject>, objects: impl Iterator<Item = Value>) -> Result<()> {
    let creations = objects.map(|object| async move {
        let object: DynamicObject = serde_json::from_value(object)?;
        api.create(&PostParams::default(), &object).await?;
        anyhow::Ok(())
    });
    stream::iter(creations).buffer_unordered(AT_A_TIME).try_collect().await
}

/// Largest memory that a process has had, MiB.
fn peak_mib(process: &Process) -> Result<f64> {
    let pid = process.pid().context("it does not run")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
}

/// Starts the operator again; how long until all its caches are filled and it plans.
async fn restart_operator(c: &Cluster) -> Result<Duration> {
    let operator = c.operators.first().context("no operator")?;
    operator.process.stop().await;
    let started = Instant::now();
    operator.process.start_again()?;
    let planned = |text: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix("andreas_plans_total "))
            .is_some_and(|count| count != "0")
    };
    while !scrape::text(operator.admin).await.is_ok_and(|text| planned(&text)) {
        ensure!(started.elapsed() < 3 * SOON, "no plan {:?} after its start", started.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(started.elapsed())
}

/// A job whose environment has `kib` KiB.
fn large(name: &str, namespace: &str, kib: usize) -> Value {
    let text = "x".repeat(32_000);
    let tj = (0..kib * 1024 / text.len())
        .fold(job(name).namespace(namespace), |tj, n| tj.env(&format!("TEXT_{n}"), &text));
    tj.build()
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_objects_at_the_api_servers_limit_fit_into_memory() -> Result<()> {
    scenario(Options::default(), async |c| {
        c.make_namespace("large").await?;
        // given 300 jobs and 300 pods of 1.3 MB
        let jobs = api(c, "andreas.dev", "v1alpha1", "TrainingJob", "large");
        create_all(&jobs, (0..300).map(|n| large(&format!("large-{n}"), "large", 1_300))).await?;
        let pods = api(c, "", "v1", "Pod", "large");
        let text = "x".repeat(130_000);
        let env: Vec<Value> = (0..10).map(|n| json!({"name": format!("T{n}"), "value": text})).collect();
        let pod = |n: usize| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{n}"), "namespace": "large"},
                   "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x", "env": env}]}})
        };
        create_all(&pods, (0..300).map(pod)).await?;
        // then such a job waits and says what is wrong with it
        let key = "large/large-299";
        c.observer.until("it says why", SOON, |s| s.has_reason(key, Reason::TemplateRejected)).await?;
        let words = c.observer.seen().message(key, Reason::TemplateRejected);
        ensure!(words.contains("spec.template") && words.contains("64 kB"), "{words}");
        // when operator and extender are started again
        let extender = c.extender.as_ref().context("extender mode")?;
        extender.stop().await;
        extender.start_again()?;
        let ready = restart_operator(c).await?;
        // then another tenant's job is planned, bound and run
        let tj = job("other");
        c.submit(&tj).await?;
        c.reaches(&tj, Phase::Succeeded).await?;
        // and both are below the chart's limits
        let operator = peak_mib(&c.operators[0].process)?;
        let extender = peak_mib(c.extender.as_ref().context("extender mode")?)?;
        eprintln!("operator ready after {ready:?}, {operator:.0} MiB; extender {extender:.0} MiB");
        ensure!(operator < OPERATOR_MIB, "operator: {operator:.0} MiB");
        ensure!(extender < EXTENDER_MIB, "extender: {extender:.0} MiB");
        Ok(())
    })
    .await
}
