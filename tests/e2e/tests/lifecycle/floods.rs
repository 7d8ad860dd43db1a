//! What one tenant can do to others with many objects, large objects and many edits: nothing that they would notice.

use std::time::{Duration, Instant};

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{SOON, scenario};
use andreas_e2e::scrape;
use andreas_testbed::Process;
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

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

/// From its creation until it runs.
async fn time_to_run(c: &mut Cluster, tj: &Job) -> Result<Duration> {
    let began = Instant::now();
    c.submit(tj).await?;
    let key = tj.key();
    // That it runs may be recorded together with its end.
    let runs = |phase| matches!(phase, Phase::Running | Phase::Succeeded);
    c.observer.until(&format!("{key} runs"), SOON, |s| runs(s.phase(&key))).await?;
    Ok(began.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_refused_jobs_of_one_tenant_do_not_delay_anothers() -> Result<()> {
    scenario(Options::default(), async |c| {
        c.make_namespace("flood").await?;
        c.make_namespace("zoo").await?;
        // given thousands of jobs whose template the API server refuses
        let refused = |n: usize| {
            job(&format!("flood-{n}")).namespace("flood").pod("serviceAccountName", json!("missing")).build()
        };
        let jobs = api(c, "andreas.dev", "v1alpha1", "TrainingJob", "flood");
        create_all(&jobs, (0..FLOOD).map(refused)).await?;
        // when another tenant submits one, then it runs soon
        let took = time_to_run(c, &job("urgent").namespace("zoo").epochs(4, 0.3)).await?;
        // and so it does when the operator has just been started again
        restart_operator(c).await?;
        let after = time_to_run(c, &job("urgent-too").namespace("zoo").epochs(4, 0.3)).await?;
        eprintln!(
            "runs after {took:?}, after a restart {after:?}; {:.0} MiB",
            peak_mib(&c.operators[0].process)?
        );
        Ok(())
    })
    .await
}

/// How many jobs flood: enough that one after the other they would take minutes.
const FLOOD: usize = 5_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_edits_costs_one_status_write_a_second_and_delays_nobody() -> Result<()> {
    scenario(Options::default(), async |c| {
        c.make_namespace("zoo").await?;
        let stormy = job("stormy").spec("gpus", json!({"min": 1, "types": ["NVIDIA-B300"]}));
        c.submit(&stormy).await?;
        c.says(&stormy, Reason::NoFeasibleGpuType).await?;
        // given a tenant that edits its job as fast as it can
        let client = c.testbed.client();
        let storm = tokio::spawn(async move {
            let resource =
                ApiResource::from_gvk(&GroupVersionKind::gvk("andreas.dev", "v1alpha1", "TrainingJob"));
            let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
            for weight in (1..1_000).cycle() {
                let patch = kube::api::Patch::Merge(json!({"spec": {"weight": weight}}));
                let _ = api.patch("stormy", &kube::api::PatchParams::default(), &patch).await;
            }
        });
        let began = Instant::now();
        let took = time_to_run(c, &job("calm").namespace("zoo").epochs(20, 0.3)).await?;
        tokio::time::sleep(Duration::from_secs(10).saturating_sub(began.elapsed())).await;
        storm.abort();
        let seconds = began.elapsed().as_secs_f64();
        // then its status was written about once a second, and the other tenant's job ran
        let (mut edits, mut writes) = (0, 0);
        for event in c.testbed.audit_log()? {
            let event = event?;
            if event.object_ref.name == "stormy" && event.verb == "patch" {
                if event.object_ref.subresource == "status" { writes += 1 } else { edits += 1 }
            }
        }
        eprintln!(
            "{edits} edits and {writes} status writes in {seconds:.0} s; the other job ran after {took:?}"
        );
        ensure!(edits > 3 * writes, "no storm: {edits} edits");
        // Each may be tried a second time after a conflict; some were written before the storm.
        ensure!(f64::from(writes) <= 2.0 * seconds + 10.0, "{writes} status writes in {seconds:.0} s");
        Ok(())
    })
    .await
}
