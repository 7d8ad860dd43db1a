//! Nodes as NVIDIA's and the clouds' programs label them: which are used, and what people read of the others.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::cluster::{A100, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::scrape;
use andreas_test_nodes::Recorded;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// A short run on one GPU of a type.
fn on_type(name: &str, gpu_type: &str) -> Job {
    job(name).epochs(2, 0.2).spec("gpus", json!({"min": 1, "types": [gpu_type]}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_on_every_planned_type_and_excluded_nodes_say_why() -> Result<()> {
    let sets = Recorded::all()?;
    let recorded: Vec<String> = sets.keys().cloned().collect();
    scenario(Options { groups: vec![], recorded, ..Options::default() }, async |c| {
        // given one node of each recorded label set, one job for each type, and one for a type that only excluded nodes have
        let planned = || sets.iter().filter_map(|(name, set)| Some((name, set.planned.as_ref()?)));
        let jobs: Vec<Job> = planned().map(|(name, gpu_type)| on_type(name, gpu_type)).collect();
        for job in &jobs {
            c.submit(job).await?;
        }
        let waits = on_type("waits", "NVIDIA-A100-SXM4-40GB");
        c.submit(&waits).await?;
        // then every job of a planned type is done, and only planned nodes were used
        for job in &jobs {
            c.wait_for_phase(job, Phase::Succeeded).await?;
        }
        let used: BTreeSet<String> =
            c.observer.seen().pods.values().filter_map(|view| view.pod.spec.node_name.clone()).collect();
        let expected: BTreeSet<String> = planned().map(|(name, _)| format!("{name}-0")).collect();
        ensure!(used == expected, "used {used:?}");
        // the other waits, and says how many nodes are excluded and why
        c.wait_for_reason(&waits, Reason::NoFeasibleGpuType).await?;
        let words = c.observer.seen().message(&waits.key(), Reason::NoFeasibleGpuType);
        for part in ["MigInUse", "SharedGpus", "NoWholeGpus", "NoTypeLabel", "nvidia.com/gpu.product"] {
            ensure!(words.contains(part), "{part} is not in: {words}");
        }
        // and each GpuNode says it of its own node
        let expected: BTreeMap<String, Option<String>> = sets
            .iter()
            .filter(|(_, set)| !set.ignored)
            .map(|(name, set)| (format!("{name}-0"), set.excluded.clone()))
            .collect();
        let mut found = BTreeMap::new();
        let all_say_it = async || {
            let list: Value = serde_json::from_str(&c.kubectl("get gpunodes -o json").await?)?;
            let items = list["items"].as_array().context("a list")?;
            let reason = |node: &Value| node["spec"]["excluded"]["reason"].as_str().map(str::to_owned);
            let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            found = items.iter().map(|node| (name(node), reason(node))).collect();
            Ok(found == expected)
        };
        let waited = until("every GpuNode says it", DEFAULT_TIMEOUT, all_say_it).await;
        waited.with_context(|| format!("{found:#?} instead of {expected:#?}"))?;
        // and the metrics, from which alerts are made, count them
        let mut by_reason: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in expected.values().flatten() {
            *by_reason.entry(reason).or_default() += 1;
        }
        let mut lines: Vec<String> = by_reason
            .iter()
            .map(|(reason, count)| format!("andreas_excluded_nodes{{reason=\"{reason}\"}} {count}.0"))
            .collect();
        lines.push(format!("andreas_usable_nodes {}.0", planned().count()));
        let metrics = scrape::text(c.operators[0].admin).await?;
        for line in lines {
            ensure!(metrics.lines().any(|found| found == line), "{line} is not in the metrics");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn gpus_of_a_node_that_is_relabelled_stay_those_of_its_running_job() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        // given a job on all GPUs of the only node
        let first = job("first").gpus(4, 1).epochs(30, 0.4).spec("preemption", json!("Never"));
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        // when an upgrade gives the product another name, and a second job comes
        c.kubectl("label node a100-0 nvidia.com/gpu.product=NVIDIA-A100-80GB --overwrite").await?;
        let second = job("second").gpus(4, 1).epochs(2, 0.2);
        c.submit(&second).await?;
        // then the first one runs to its end, the second one waits until then, and runs on the type as it is called now
        c.wait_for_phase(&first, Phase::Succeeded).await?;
        c.wait_for_phase(&second, Phase::Succeeded).await?;
        let seen = c.observer.seen();
        let (of_first, of_second) = (seen.status(&first.key()), seen.status(&second.key()));
        ensure!(of_first.attempts == 1 && of_second.attempts == 1, "{of_first:?} {of_second:?}");
        ensure!(of_first.history.first().is_some_and(|attempt| attempt.gpu_type == A100), "{of_first:?}");
        let second_attempt = of_second.history.first();
        let started = second_attempt.and_then(|attempt| attempt.started.as_ref()).map(|time| time.0);
        let ended = of_first.history.first().map(|attempt| attempt.ended.0);
        ensure!(started >= ended, "the second one started at {started:?}, the first one ended at {ended:?}");
        ensure!(second_attempt.is_some_and(|attempt| attempt.gpu_type == "NVIDIA-A100-80GB"));
        Ok(())
    })
    .await
}
