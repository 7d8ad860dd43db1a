//! A plan of the live cluster is made again without it.

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{A100, Cluster, Options, a100, short_runs};
use andreas_e2e::job::{Job, job};
use andreas_e2e::pages;
use andreas_e2e::replanned::{Recorder, plan_of};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Jobs that the offline plan wants elsewhere than the cluster has them, or `None` while the snapshot still has jobs on their way.
async fn differences(c: &Cluster) -> Result<Option<Vec<String>>> {
    let text = pages::read(c, "/snapshot").await?;
    let saved: Value = serde_json::from_str(&text)?;
    let jobs = saved["jobs"].as_array().context("jobs")?;
    let settled = |job: &Value| job["state"] == "Waiting" || job["state"]["Running"].is_object();
    if jobs.len() != 5 || !jobs.iter().all(settled) {
        return Ok(None);
    }
    let plan = serde_json::to_value(plan_of(text.as_bytes())?)?;
    let planned = plan["jobs"].as_object().with_context(|| plan.to_string())?;
    let differs = planned.iter().filter_map(|(key, planned)| {
        let status = c.observer.seen().status(key);
        let live = status.allocation.map(|a| (a.nodes, i64::from(a.gpus_per_worker)));
        let run = planned["decision"].get("Run").map(|run| {
            let nodes = run["nodes"].as_array().into_iter().flatten();
            let nodes: Vec<String> = nodes.filter_map(|n| Some(n.as_str()?.to_owned())).collect();
            (nodes, run["gpus_per_node"].as_i64().unwrap_or(0))
        });
        (live != run).then(|| format!("{key}: live {live:?}, offline {run:?}"))
    });
    Ok(Some(differs.collect()))
}

/// Given a cluster with more jobs than room; when a snapshot of it is planned on another machine, then each job is where the plan has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_saved_snapshot_is_planned_as_the_cluster_runs() -> Result<()> {
    // None of them ends meanwhile, and each takes as long as is thought of unknown ones.
    let mut policy = short_runs();
    policy["unknownJobs"]["runTime"] = json!("600s");
    let options = Options { groups: vec![a100(2)], policy, ..Options::default() };
    scenario(options, async |c| {
        for number in 0..5 {
            let tj = job(&format!("j{number}")).gpus(4, 1).epochs(600, 1.0);
            c.submit(&tj.spec("deadlineAfter", json!("10h"))).await?;
        }
        c.observer
            .until("two run", DEFAULT_TIMEOUT, |seen| {
                let running = (0..5).filter(|n| seen.phase(&format!("default/j{n}")) == Phase::Running);
                running.count() == 2
            })
            .await?;
        // The last plan may be older than what runs now, until the next one.
        let mut last = None;
        let waited = until("the plans are the same", DEFAULT_TIMEOUT, async || {
            last = differences(c).await?;
            Ok(last.as_ref().is_some_and(Vec::is_empty))
        })
        .await;
        waited.with_context(|| format!("{last:?}"))?;
        Ok(())
    })
    .await
}

/// Given jobs of one to four GPUs under a power budget; when they come, run and end, then each of the operator's
/// plans can be made again from its snapshot, to the last digit.
#[tokio::test(flavor = "multi_thread")]
async fn every_plan_of_a_run_is_made_again_from_its_snapshot() -> Result<()> {
    let mut policy = short_runs();
    policy["powerBudget"] = json!({"watts": 3_000});
    policy["gpuTypes"] =
        json!([{"name": A100, "idleWatts": 52, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 0}]);
    scenario(Options { groups: vec![a100(2)], policy, ..Options::default() }, async |c| {
        let recorder = Recorder::start(c, &c.testbed.data_dir().join("plans")).await?;
        let jobs: Vec<Job> = (1..=6)
            .map(|n| job(&format!("j{n}")).epochs(8 + n, 0.5).spec("gpus", json!({"min": 1, "max": 4})))
            .collect();
        for tj in &jobs {
            c.submit(tj).await?;
        }
        for tj in &jobs {
            c.wait_for_phase(tj, Phase::Succeeded).await?;
        }
        let (plans, differ) = recorder.end(c).await?.plan_again()?;
        println!("{} plans, {} made again, {} the same", plans.made, plans.again, plans.same);
        ensure!(differ.is_empty(), "{}", differ.join("\n"));
        ensure!(plans.again >= 3, "{plans:?}");
        Ok(())
    })
    .await
}
