//! What one tenant can do to others with many objects, large objects and many edits: nothing that they would notice.

use std::time::{Duration, Instant};

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::api;
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::{Job, job};
use andreas_e2e::keeper::peak_mib;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use anyhow::{Result, ensure};
use serde_json::json;

/// Most that a tenant's flood may delay another one's job by.
const DELAY: Duration = Duration::from_secs(10);

/// From its creation until it runs.
async fn time_to_run(c: &mut Cluster, tj: &Job) -> Result<Duration> {
    let began = Instant::now();
    c.submit(tj).await?;
    let key = tj.key();
    // That it runs may be recorded together with its end.
    let runs = |phase| matches!(phase, Phase::Running | Phase::Succeeded);
    c.observer.until(&format!("{key} runs"), DEFAULT_TIMEOUT, |s| runs(s.phase(&key))).await?;
    Ok(began.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_refused_jobs_of_one_tenant_do_not_delay_anothers() -> Result<()> {
    scenario(Options { heavy: true, ..Options::default() }, async |c| {
        c.make_namespace("flood").await?;
        c.make_namespace("zoo").await?;
        let before = time_to_run(c, &job("before").namespace("zoo").epochs(4, 0.3)).await?;
        // given thousands of jobs whose template the API server refuses
        let refused = |n: usize| {
            job(&format!("flood-{n}")).namespace("flood").pod("serviceAccountName", json!("missing")).build()
        };
        let lost = api::create_all(&c.testbed.client(), (0..FLOOD).map(refused)).await?;
        let why = lost.first().map(|status| status.message.as_str()).unwrap_or_default();
        ensure!(lost.len() * 100 <= FLOOD, "no flood: {} were not made, one with {why}", lost.len());
        // when another tenant submits one, then it runs soon
        let took = time_to_run(c, &job("urgent").namespace("zoo").epochs(4, 0.3)).await?;
        // and so it does when the operator has just been started again
        c.restart_operator().await?;
        let after = time_to_run(c, &job("urgent-too").namespace("zoo").epochs(4, 0.3)).await?;
        eprintln!(
            "runs after {took:?}, after a restart {after:?}; {:.0} MiB",
            peak_mib(&c.operators[0].process)?
        );
        ensure!(took.max(after) < before + DELAY, "{took:?} and {after:?} instead of {before:?}");
        c.wait_for_reason(&job("flood-0").namespace("flood"), Reason::TemplateRejected).await?;
        Ok(())
    })
    .await
}

/// How many jobs flood: enough that one after the other they would take minutes.
const FLOOD: usize = 3_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_edits_costs_one_status_write_a_second_and_delays_nobody() -> Result<()> {
    scenario(Options { heavy: true, ..Options::default() }, async |c| {
        c.make_namespace("zoo").await?;
        let before = time_to_run(c, &job("before").namespace("zoo").epochs(4, 0.3)).await?;
        let stormy = job("stormy").spec("gpus", json!({"min": 1, "types": ["NVIDIA-B300"]}));
        c.submit(&stormy).await?;
        c.wait_for_reason(&stormy, Reason::NoFeasibleGpuType).await?;
        // given a tenant that edits its job as fast as it can
        let (client, object) = (c.testbed.client(), stormy.build());
        let storm = tokio::spawn(async move {
            for weight in (1..1_000).cycle() {
                drop(api::patch(&client, &object, &json!({"spec": {"weight": weight}}), false).await);
            }
        });
        let began = Instant::now();
        let took = time_to_run(c, &job("calm").namespace("zoo").epochs(20, 0.3)).await?;
        // A rate is taken over ten seconds at least.
        tokio::time::sleep(Duration::from_secs(10).saturating_sub(began.elapsed())).await;
        storm.abort();
        let seconds = began.elapsed().as_secs_f64();
        // then its status was written about once a second, and the other tenant's job ran
        let (mut edits, mut writes) = (0, 0);
        for event in c.testbed.audit_log()? {
            let event = event?;
            if event.object_ref.name == "stormy" && event.verb == "patch" {
                if event.object_ref.subresource == "status" {
                    writes += 1;
                } else if (200..300).contains(&event.code()) {
                    // A refused edit is no reason for a write.
                    edits += 1;
                }
            }
        }
        eprintln!(
            "{edits} edits and {writes} status writes in {seconds:.0} s; the other job ran after {took:?}"
        );
        ensure!(took < before + DELAY, "{took:?} instead of {before:?}");
        ensure!(edits > 3 * writes, "no storm: {edits} edits");
        // Some are tried a second time after a conflict; some were written before the storm.
        ensure!(f64::from(writes) <= 1.5 * seconds + 5.0, "{writes} status writes in {seconds:.0} s");
        Ok(())
    })
    .await
}
