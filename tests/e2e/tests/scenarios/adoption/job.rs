//! `batch/v1` Jobs with the label `andreas.dev/adopt`.

use std::time::Duration;

use andreas_api::names::{ANNOTATION_FOUND, GATE_NODE};
use andreas_api::phase::Phase;
use andreas_e2e::adoption::{Workload, Writes, added, workload, writes};
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use andreas_testbed::workspace_binary;
use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::{get, long, options, profiles, urgent, wait_for, wait_for_pods, wait_until_given_back};

const JOB: &[&str] = &["Job"];

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_job_is_planned_runs_on_its_node_and_is_accounted() -> Result<()> {
    scenario(options(2, JOB), async |c| {
        // given a suspended Job that asks for adoption, with a deadline and a weight
        let tune =
            workload("Job", "tune").pods(2, 2).annotation("deadline-after", "1h").annotation("weight", "40");
        c.apply(&tune.build()).await?;
        wait_for(c, &tune, Phase::Succeeded).await?;
        // then a TrainingJob stands for it, with what the annotations say
        let key = tune.mirror();
        let mirror = c.observer.seen().job(&key).cloned().context("no TrainingJob")?;
        ensure!(mirror.spec.weight == 40 && mirror.spec.deadline_after.is_some(), "{:?}", mirror.spec);
        let status = c.observer.seen().status(&key);
        let used = status.consumption.context("no energy")?;
        ensure!(used.joules > 0 && status.history.len() == 1, "{used:?} {:?}", status.history);
        let record = &status.history[0];
        ensure!(record.gpus == 4, "{record:?}");
        // and its pods ran where the plan said
        wait_for_pods(c, &tune, 2, &record.placement).await?;
        succeeded(c, &tune, 2).await?;
        // and one that is cancelled is gone, and is not made again
        let dropped = workload("Job", "dropped").pods(1, 1).epochs(400, 0.3);
        c.apply(&dropped.build()).await?;
        wait_for(c, &dropped, Phase::Running).await?;
        cancel(c, "job-dropped").await?;
        wait_until_given_back(c, &dropped).await?;
        until("the Job is gone", DEFAULT_TIMEOUT, async || Ok(get(c, &dropped).await.is_err())).await?;
        Ok(())
    })
    .await
}

/// Waits until the Job itself says that so many of its pods have ended well.
async fn succeeded(c: &Cluster, of: &Workload, pods: i64) -> Result<()> {
    let all = async || Ok(get(c, of).await?["status"]["succeeded"] == pods);
    until(&format!("{pods} pods of {} have ended well", of.resource()), DEFAULT_TIMEOUT, all).await?;
    Ok(())
}

/// `kubectl andreas cancel`.
async fn cancel(c: &Cluster, job: &str) -> Result<()> {
    let mut command = Command::new(workspace_binary("kubectl-andreas")?);
    command.args(["cancel", job, "--kubeconfig"]).arg(c.testbed.kubeconfig());
    let output = command.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_an_elastic_job_follow_the_plan_and_are_restored() -> Result<()> {
    scenario(options(1, JOB), async |c| {
        // given a node with two of its four GPUs in use, and a Job of four pods that may have fewer
        let first = job("first").gpus(2, 1).epochs(1000, 0.3).spec("preemption", "Never".into());
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        let tune = workload("Job", "tune").pods(4, 1).epochs(1000, 0.3).annotation("gpus", "1-4");
        c.apply(&tune.clone().not_adopted().build()).await?;
        let found = get(c, &tune).await?;
        c.kubectl(&format!("label {} andreas.dev/adopt=true", tune.resource())).await?;
        // then it runs with as many pods as it was given GPUs
        wait_for(c, &tune, Phase::Running).await?;
        let status = c.observer.seen().status(&tune.mirror());
        let allocation = status.allocation.context("no allocation")?;
        let gpus = allocation.gpus;
        ensure!((1..=2).contains(&gpus), "{gpus}");
        wait_for_pods(c, &tune, gpus.into(), &allocation.nodes.join(", ")).await?;
        let object = get(c, &tune).await?;
        let spec = &object["spec"];
        ensure!(spec["parallelism"] == gpus && spec["completions"] == gpus, "{gpus}, {spec}");
        // and is what it was when its label goes
        c.edit(&tune.mirror(), &serde_json::json!({"suspend": true})).await?;
        wait_for(c, &tune, Phase::Suspended).await?;
        c.kubectl(&format!("label {} andreas.dev/adopt-", tune.resource())).await?;
        wait_until_given_back(c, &tune).await?;
        let left = get(c, &tune).await?;
        ensure!(left["spec"] == found["spec"], "{}\n{}", left["spec"], found["spec"]);
        // One that ends has as many results.
        let short = workload("Job", "short").pods(4, 1).annotation("gpus", "2");
        c.apply(&short.build()).await?;
        wait_for(c, &short, Phase::Succeeded).await?;
        succeeded(c, &short, 2).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_job_on_a_drained_node_goes_on_elsewhere() -> Result<()> {
    scenario(options(2, JOB), async |c| {
        let tune = workload("Job", "tune").pods(1, 2).epochs(1000, 0.3);
        c.apply(&tune.build()).await?;
        wait_for(c, &tune, Phase::Running).await?;
        let key = tune.mirror();
        let node = c.observer.seen().status(&key).allocation.context("no allocation")?.nodes[0].clone();
        // when its node is drained, its controller makes a pod that no other node may take
        c.kubectl(&format!("drain {node} --ignore-daemonsets --delete-emptydir-data --force --timeout=60s"))
            .await?;
        // then it is stopped, and runs on the other node, at the cluster's expense
        let moved = |status: &andreas_api::TrainingJobStatus| {
            let elsewhere = status.allocation.as_ref().is_some_and(|held| held.nodes != [node.clone()]);
            status.phase == Phase::Running && elsewhere
        };
        c.observer.until("it runs elsewhere", DEFAULT_TIMEOUT, |seen| moved(&seen.status(&key))).await?;
        let status = c.observer.seen().status(&key);
        ensure!((status.cluster_failures, status.user_failures) == (1, 0), "{status:?}");
        wait_for_pods(c, &tune, 1, &status.allocation.context("no allocation")?.nodes.join(", ")).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_job_whose_training_job_is_deleted_is_stopped_and_planned_anew() -> Result<()> {
    scenario(options(1, JOB), async |c| {
        let tune = workload("Job", "tune").pods(1, 2).epochs(1000, 0.3);
        c.apply(&tune.build()).await?;
        wait_for(c, &tune, Phase::Running).await?;
        let key = tune.mirror();
        let first = c.observer.seen().job(&key).and_then(|job| job.metadata.uid.clone());
        c.kubectl("delete trainingjob job-tune --wait=false").await?;
        let again = |seen: &andreas_e2e::seen::ClusterHistory| {
            let uid = seen.job(&key).and_then(|job| job.metadata.uid.clone());
            uid.is_some() && uid != first && seen.phase(&key) == Phase::Running
        };
        c.observer.until("another TrainingJob runs it", DEFAULT_TIMEOUT, again).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_job_gives_way_to_a_heavier_one_and_goes_on_later() -> Result<()> {
    scenario(options(1, JOB), async |c| {
        // given an adopted Job on all GPUs of the only node
        profiles(c).await?;
        let long = long("Job");
        c.apply(&long.build()).await?;
        wait_for(c, &long, Phase::Running).await?;
        // (it is not moved before its minRunTime, 3 s)
        tokio::time::sleep(Duration::from_secs(4)).await;
        // when a heavier TrainingJob comes
        let urgent = urgent();
        c.submit(&urgent).await?;
        c.wait_for_phase(&urgent, Phase::Running).await?;
        // then the Job is suspended, not failed
        let object = get(c, &long).await?;
        ensure!(object["spec"]["suspend"] == true, "{}", object["spec"]["suspend"]);
        // and resumed when that has left
        c.edit(&urgent.key(), &serde_json::json!({"suspend": true})).await?;
        c.wait_for_phase(&urgent, Phase::Suspended).await?;
        wait_for(c, &long, Phase::Running).await?;
        let status = c.observer.seen().status(&long.mirror());
        ensure!(status.restarts == 1 && status.attempts == 2, "{} {}", status.restarts, status.attempts);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_label_a_job_is_as_it_was_found() -> Result<()> {
    scenario(options(1, JOB), async |c| {
        // given an adopted Job that waits because a TrainingJob has the GPUs, and was never released
        let first = job("first").gpus(4, 1).epochs(1000, 0.3).spec("preemption", "Never".into());
        c.submit(&first).await?;
        c.wait_for_phase(&first, Phase::Running).await?;
        let waits = workload("Job", "waits").pods(1, 4);
        c.apply(&waits.build()).await?;
        let key = waits.mirror();
        c.observer.until("it is planned", DEFAULT_TIMEOUT, |s| s.job(&key).is_some()).await?;
        let found = get(c, &waits).await?;
        // when its label goes
        c.kubectl(&format!("label {} andreas.dev/adopt-", waits.resource())).await?;
        wait_until_given_back(c, &waits).await?;
        // then it is suspended as before
        let left = get(c, &waits).await?;
        ensure!(left["spec"] == found["spec"] && left["spec"]["suspend"] == true, "{}", left["spec"]);
        c.kubectl("delete trainingjob first").await?;

        // given another that was stopped after it had run
        let ran = workload("Job", "ran").pods(1, 4).epochs(1000, 0.3);
        c.apply(&ran.clone().not_adopted().build()).await?;
        let found = get(c, &ran).await?;
        c.kubectl(&format!("label {} andreas.dev/adopt=true", ran.resource())).await?;
        wait_for(c, &ran, Phase::Running).await?;
        c.edit(&ran.mirror(), &serde_json::json!({"suspend": true})).await?;
        wait_for(c, &ran, Phase::Suspended).await?;
        ensure!(!get(c, &ran).await?["metadata"]["annotations"][ANNOTATION_FOUND].is_null());
        // when its label goes, then its template is what it was
        c.kubectl(&format!("label {} andreas.dev/adopt-", ran.resource())).await?;
        wait_until_given_back(c, &ran).await?;
        let left = get(c, &ran).await?;
        ensure!(left["spec"] == found["spec"], "{}\n{}", left["spec"], found["spec"]);

        // given one that runs: it goes on, and its GPUs stay in use
        let runs = workload("Job", "runs").pods(1, 4).epochs(40, 0.3);
        c.apply(&runs.build()).await?;
        wait_for(c, &runs, Phase::Running).await?;
        c.kubectl(&format!("label {} andreas.dev/adopt-", runs.resource())).await?;
        wait_until_given_back(c, &runs).await?;
        let next = job("next").gpus(4, 1).epochs(3, 0.3);
        c.submit(&next).await?;
        c.wait_for_phase(&next, Phase::Succeeded).await?;
        let ended = async || Ok(get(c, &runs).await?["status"]["succeeded"] == 1);
        until("the first is known to have ended well", DEFAULT_TIMEOUT, ended).await?;
        // A pod on GPUs in use would have been refused by its node.
        let status = c.observer.seen().status(&next.key());
        ensure!((status.attempts, status.cluster_failures) == (1, 0), "{status:?}");
        Ok(())
    })
    .await
}

/// Given an adopted Job over two nodes that was given back while it ran; when one of its pods is made again, then no gate of ours holds
/// it: nobody plans it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_made_after_the_label_was_removed_is_not_held() -> Result<()> {
    scenario(options(2, JOB), async |c| {
        let wide = workload("Job", "wide").pods(2, 4).epochs(40, 0.3);
        c.apply(&wide.build()).await?;
        wait_for(c, &wide, Phase::Running).await?;
        c.kubectl(&format!("label {} andreas.dev/adopt-", wide.resource())).await?;
        wait_until_given_back(c, &wide).await?;
        let template = get(c, &wide).await?["spec"]["template"]["spec"].clone();
        ensure!(
            template["schedulingGates"][0]["name"] == GATE_NODE,
            "without a gate nothing is shown: {template}"
        );
        let pods = c.kubectl("get pods -l job-name=wide -o name").await?;
        let (first, before) = (pods.lines().next().context("a pod")?, pods.lines().count());
        ensure!(before == 2, "{pods}");
        c.kubectl(&format!("delete {first} --wait=false")).await?;
        let ended = async || Ok(get(c, &wide).await?["status"]["succeeded"] == 2);
        until("both of its pods have ended well", 2 * DEFAULT_TIMEOUT, ended).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_adopted_is_said_on_the_job() -> Result<()> {
    scenario(options(1, JOB), async |c| {
        let bad = workload("Job", "bad").annotation("weight", "heavy");
        let queued = workload("Job", "queued").label("kueue.x-k8s.io/queue-name", "q");
        c.apply(&bad.build()).await?;
        c.apply(&queued.build()).await?;
        for (of, words) in [(&bad, "no whole number"), (&queued, "Kueue starts it")] {
            let name = of.resource().replace("jobs.batch/", "");
            let said = async || {
                let events = c.kubectl(&format!("events --for job/{name} -o json")).await?;
                Ok(events.contains(words) && events.contains("NotAdopted"))
            };
            until(&format!("an event of {name}"), DEFAULT_TIMEOUT, said).await?;
            ensure!(get(c, of).await?["spec"]["suspend"] == true);
        }
        // Mended, it is planned.
        c.kubectl("annotate job bad andreas.dev/weight=20 --overwrite").await?;
        wait_for(c, &bad, Phase::Succeeded).await?;
        // A bound of the namespace holds here too.
        c.kubectl("annotate namespace default andreas.dev/max-weight=5").await?;
        let heavy = workload("Job", "heavy").annotation("weight", "50");
        c.apply(&heavy.build()).await?;
        let said = async || Ok(c.kubectl("events --for job/heavy -o json").await?.contains("above 5"));
        until("an event of heavy", DEFAULT_TIMEOUT, said).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn adoption_costs_a_bounded_number_of_writes() -> Result<()> {
    costs(options(1, JOB), 4).await
}

/// The energy that agents report after the end is one write of the status more. The wake is a write of the GpuNode, which is in no
/// namespace.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a cluster of its own for one figure: make long WHAT=adoption"]
async fn adoption_beside_agents_costs_one_write_more() -> Result<()> {
    costs(Options { agents: true, ..options(1, JOB) }, 5).await
}

async fn costs(options: Options, most: usize) -> Result<()> {
    scenario(options, async |c| {
        // given the writes of a Job that its user starts
        let alone = workload("Job", "alone").not_adopted();
        c.apply(&alone.build()).await?;
        c.kubectl("patch job alone --type=merge -p {\"spec\":{\"suspend\":false}}").await?;
        c.kubectl("wait job/alone --for=condition=Complete --timeout=180s").await?;
        let before = writes(c)?;
        // when the same Job is adopted
        let adopted = workload("Job", "adopted");
        c.apply(&adopted.build()).await?;
        wait_for(c, &adopted, Phase::Succeeded).await?;
        // What is observed of a run is written up to a second after its end.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let after = writes(c)?;
        // then it costs these writes more. What a namespace has from its beginning is left out, and events; the first run of a program
        // makes its TrainingProfile, whose writes are counted apart.
        let counted =
            |resource: &str| !["events", "configmaps", "serviceaccounts", "services"].contains(&resource);
        let of = |all: &Writes, wanted: &dyn Fn(&str) -> bool| -> usize {
            all.iter().filter(|((resource, _), _)| wanted(resource)).map(|(_, number)| number).sum()
        };
        let is_profile = |resource: &str| resource.starts_with("trainingprofiles");
        let alone = of(&before, &counted);
        let adopted = of(&after, &|resource| counted(resource) && !is_profile(resource)) - alone;
        println!("alone {alone}, adopted {adopted}, and {} of the profile", of(&after, &is_profile));
        for ((resource, user), count) in &after {
            let before = before.get(&(resource.clone(), user.clone())).unwrap_or(&0);
            println!("{resource} by {user}: {before}, then {}", count - before);
        }
        ensure!(adopted <= alone + most, "{adopted} writes, {alone} alone");
        // What is counted of the other kinds, whose controllers do not always write the same.
        let own = added(&after, 1);
        println!("the operator adds {own}");
        ensure!((3..=most).contains(&own), "the operator adds {own}: {after:?}");
        Ok(())
    })
    .await
}
