//! JobSets, TrainJobs, PyTorchJobs and RayJobs, each with its real controller.

use std::time::Duration;

use andreas_api::names::LABEL_ADOPTED_ATTEMPT;
use andreas_api::phase::Phase;
use andreas_e2e::adoption::{Workload, added, workload, writes};
use andreas_e2e::cluster::Cluster;
use andreas_e2e::controllers;
use andreas_e2e::job::job;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::seen::ClusterHistory;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{get, long, nodes_in, options, profiles, urgent, wait_for, wait_for_pods, wait_until_given_back};

/// Pods of a scenario's job. Several members of a PyTorchJob find each other by names that pretend nodes do not know.
fn pods(kind: &str) -> i64 {
    if kind == "PyTorchJob" { 1 } else { 2 }
}

/// Planned and on its node: a RayJob runs on until its end is written, the others have ended and their pods stay.
async fn runs(c: &mut Cluster, kind: &'static str) -> Result<Workload> {
    let pods = pods(kind);
    let (epochs, looked_at) = if kind == "RayJob" { (1000, Phase::Running) } else { (10, Phase::Succeeded) };
    let runs = workload(kind, "runs").pods(pods, 4 / pods).epochs(epochs, 0.3);
    let runs = runs.annotation("deadline-after", "1h");
    c.apply(&runs.build()).await?;
    wait_for(c, &runs, looked_at).await?;
    // The only node.
    wait_for_pods(c, &runs, pods, "a100-0").await?;
    Ok(runs)
}

/// Accounted and done, and its adoption cost a bounded number of writes: the TrainingJob and three of its status, and for a TrainJob
/// its JobSet, which has the templates.
async fn is_done(c: &mut Cluster, kind: &str, runs: &Workload) -> Result<()> {
    wait_for(c, runs, Phase::Succeeded).await?;
    let status = c.observer.seen().status(&runs.mirror());
    let used = status.consumption.context("no energy")?;
    ensure!(used.joules > 0 && status.history.len() == 1, "{used:?} {:?}", status.history);
    let record = &status.history[0];
    ensure!(record.gpus == 4 && record.placement.contains("a100-0"), "{record:?}");
    // What is observed of a run is written up to a second after its end.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let all = writes(c)?;
    let (added, most) = (added(&all, 1), if kind == "TrainJob" { 5 } else { 4 });
    println!("{kind}: adoption adds {added} writes");
    // None at all: the log names the operator otherwise, and nothing was counted.
    ensure!((3..=most).contains(&added), "{added} writes instead of 3 to {most}: {all:?}");
    Ok(())
}

/// Gives way to a heavier job, goes on later, and is left as it was, suspended, when its label goes.
async fn gives_way(c: &mut Cluster, kind: &'static str) -> Result<()> {
    profiles(c).await?;
    let pods = pods(kind);
    let long = long(kind).pods(pods, 4 / pods);
    c.apply(&long.clone().not_adopted().build()).await?;
    let found = get(c, &long).await?;
    c.kubectl(&format!("label {} andreas.dev/adopt=true", long.resource())).await?;
    wait_for(c, &long, Phase::Running).await?;
    // It is not moved before its minRunTime, 3 s.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let urgent = urgent();
    c.submit(&urgent).await?;
    c.wait_for_phase(&urgent, Phase::Running).await?;
    let suspended = |object: &serde_json::Value| {
        object["spec"]["suspend"] == true || object["spec"]["runPolicy"]["suspend"] == true
    };
    ensure!(suspended(&get(c, &long).await?), "it is not suspended");
    c.edit(&urgent.key(), &json!({"suspend": true})).await?;
    c.wait_for_phase(&urgent, Phase::Suspended).await?;
    wait_for(c, &long, Phase::Running).await?;
    let status = c.observer.seen().status(&long.mirror());
    ensure!(status.attempts == 2 && status.restarts == 1, "{} {}", status.attempts, status.restarts);
    c.edit(&long.mirror(), &serde_json::json!({"suspend": true})).await?;
    wait_for(c, &long, Phase::Suspended).await?;
    c.kubectl(&format!("label {} andreas.dev/adopt-", long.resource())).await?;
    wait_until_given_back(c, &long).await?;
    let left = get(c, &long).await?;
    ensure!(suspended(&left), "it was started");
    ensure!(left["metadata"]["annotations"]["andreas.dev/found"].is_null(), "{}", left["metadata"]);
    ensure!(left["spec"] == found["spec"], "{}\ninstead of\n{}", left["spec"], found["spec"]);
    Ok(())
}

/// The Jobs of a JobSet that was given back say nothing of ours, and run when their owner starts it.
async fn left_as_found(c: &Cluster, of: &Workload) -> Result<()> {
    let own = "-l jobset.sigs.k8s.io/jobset-name=long -o json";
    let list = async |kind: &str| -> Result<Vec<Value>> {
        let text = c.kubectl(&format!("get {kind} {own}")).await?;
        let mut found: Value = serde_json::from_str(&text)?;
        Ok(found["items"].take().as_array().cloned().unwrap_or_default())
    };
    let clean = |labels: &Value, spec: &Value| {
        let of = |name: &str| !labels[format!("andreas.dev/{name}")].is_null();
        let ours = of("adopted") || of("job") || of("adopted-attempt");
        !ours && spec["nodeSelector"]["kubernetes.io/hostname"].is_null() && spec["schedulingGates"].is_null()
    };
    until("its Jobs are made again", DEFAULT_TIMEOUT, async || {
        let jobs = list("jobs").await?;
        let template = |job: &Value| job["spec"]["template"].clone();
        let as_found = |job: &Value| clean(&template(job)["metadata"]["labels"], &template(job)["spec"]);
        Ok(jobs.len() == 1 && jobs.iter().all(as_found))
    })
    .await?;
    c.kubectl(&format!("patch {} --type=merge -p {{\"spec\":{{\"suspend\":false}}}}", of.resource())).await?;
    until("its pods run without us", DEFAULT_TIMEOUT, async || {
        let pods = list("pods").await?;
        let runs = |pod: &&Value| {
            pod["status"]["phase"] == "Running" && clean(&pod["metadata"]["labels"], &json!({}))
        };
        Ok(pods.iter().filter(runs).count() == 2)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn a_job_set_is_adopted() -> Result<()> {
    scenario(options(1, &["JobSet"]), async |c| {
        let _controller = controllers::job_set(c).await?;
        let job_set = runs(c, "JobSet").await?;
        is_done(c, "JobSet", &job_set).await?;
        gives_way(c, "JobSet").await?;
        left_as_found(c, &long("JobSet")).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn a_job_set_that_ran_on_one_node_goes_on_over_two() -> Result<()> {
    scenario(options(2, &["JobSet"]), async |c| {
        let _controller = controllers::job_set(c).await?;
        // given a JobSet whose two pods ran on one node
        let moves = workload("JobSet", "moves").pods(2, 1).epochs(20, 0.3).annotation("checkpoint", "true");
        c.apply(&moves.build()).await?;
        wait_for(c, &moves, Phase::Running).await?;
        c.edit(&moves.mirror(), &json!({"suspend": true})).await?;
        wait_for(c, &moves, Phase::Suspended).await?;
        // when one GPU is left on each of two nodes
        for name in ["a", "b"] {
            let holds = job(name).gpus(3, 1).epochs(200, 0.3).spec("preemption", "Never".into());
            c.submit(&holds).await?;
            c.wait_for_phase(&holds, Phase::Running).await?;
        }
        c.edit(&moves.mirror(), &json!({"suspend": null})).await?;
        wait_for(c, &moves, Phase::Running).await?;
        // then each pod is let onto its own, and the JobSet ends
        let mut nodes: Vec<String> = {
            let seen = c.observer.seen();
            let second = seen.pods.values().filter(|pod| pod.label(LABEL_ADOPTED_ATTEMPT) == "2");
            second.filter_map(|pod| pod.pod.spec.node_name.clone()).collect()
        };
        nodes.sort_unstable();
        ensure!(nodes == ["a100-0", "a100-1"], "{nodes:?}");
        wait_for(c, &moves, Phase::Succeeded).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn a_train_job_is_adopted() -> Result<()> {
    scenario(options(1, &["TrainJob"]), async |c| {
        let _job_set = controllers::job_set(c).await?;
        let _controller = controllers::trainer(c).await?;
        let train_job = runs(c, "TrainJob").await?;
        is_done(c, "TrainJob", &train_job).await?;
        gives_way(c, "TrainJob").await?;
        left_as_found(c, &long("TrainJob")).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn a_pytorch_job_is_adopted() -> Result<()> {
    scenario(options(1, &["PyTorchJob"]), async |c| {
        let _controller = controllers::training_operator(c).await?;
        let pytorch_job = runs(c, "PyTorchJob").await?;
        is_done(c, "PyTorchJob", &pytorch_job).await?;
        gives_way(c, "PyTorchJob").await
    })
    .await
}

/// KubeRay asks Ray's head how the program does. There is no Ray here: the end of the job is written by the test in its place.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn a_ray_job_is_adopted() -> Result<()> {
    scenario(options(1, &["RayJob"]), async |c| {
        let _controller = controllers::kuberay(c).await?;
        let ray_job = runs(c, "RayJob").await?;
        let status = r#"{"status":{"jobDeploymentStatus":"Complete","jobStatus":"SUCCEEDED"}}"#;
        let ended = async || {
            let name = ray_job.resource();
            c.testbed
                .kubectl(["patch", &name, "--subresource=status", "--type=merge", "-p", status])
                .await?
                .checked()?;
            Ok(get(c, &ray_job).await?["status"]["jobDeploymentStatus"] == "Complete")
        };
        until("the end in place of Ray's head", DEFAULT_TIMEOUT, ended).await?;
        c.kubectl("delete raycluster --all").await?;
        is_done(c, "RayJob", &ray_job).await?;
        gives_way(c, "RayJob").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds the controllers: make long WHAT=adoption"]
async fn pods_over_several_nodes_are_let_onto_them_evenly() -> Result<()> {
    scenario(options(2, &["Job", "PyTorchJob"]), async |c| {
        // given more GPUs than a node has
        let wide = workload("Job", "wide").pods(4, 2);
        c.apply(&wide.build()).await?;
        wait_for(c, &wide, Phase::Succeeded).await?;
        let evenly = |seen: &ClusterHistory| {
            let mut nodes = nodes_in(seen, &wide);
            nodes.sort();
            nodes == ["a100-0", "a100-0", "a100-1", "a100-1"]
        };
        c.observer.until("two pods on each node", DEFAULT_TIMEOUT, evenly).await?;
        // and a kind that is installed while the operator runs is adopted too
        let _controller = controllers::training_operator(c).await?;
        let late = workload("PyTorchJob", "late").pods(1, 4);
        c.apply(&late.build()).await?;
        wait_for(c, &late, Phase::Succeeded).await
    })
    .await
}
