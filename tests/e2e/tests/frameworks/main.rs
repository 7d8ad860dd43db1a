//! Real training frameworks on real nodes: PyTorch under torchrun, Hugging Face's Trainer, Lightning, Kubeflow's SDK.
//! Processors take the place of GPUs in the programs; everything else is as in a cluster.
//!
//! `make long WHAT=frameworks` runs them, one after another, in namespaces of their own. Loss curves and transcripts lie in
//! `target/frameworks/results` afterwards.

mod curves;

use std::time::Duration;

use andreas_api::TrainingJobStatus;
use andreas_api::phase::{Outcome, Phase};
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_kubelets::Gpus;
use anyhow::{Context as _, Result, ensure};
use curves::{Curve, claimed, save_transcript};
use serde_json::json;

/// Importing PyTorch in four processes takes most of it on a machine of two cores.
const LIMIT: Duration = Duration::from_secs(400);

/// Two nodes of 2 A100 each, and the chart with its default values.
fn two_nodes() -> Options {
    let gpus = Gpus::Simulated { product: "NVIDIA-A100-SXM4-80GB".to_owned(), count: 2, memory_mib: 81_920 };
    Options {
        name: "frameworks".into(),
        groups: Vec::new(),
        real_nodes: vec![gpus; 2],
        install: Some(json!({})),
        ..Options::default()
    }
}

/// A job of the sample image. Reports say how far it is; an epoch is the whole run.
fn program(name: &str, command: &[&str]) -> Job {
    job(name)
        .spec("epochs", json!(1))
        .spec("startTimeout", json!("15m"))
        .spec("retries", json!(0))
        .checkpoint(60)
        // Long enough for a stop in the middle: reports leave every five seconds, and are written every ten.
        .env("SECONDS_PER_STEP", 0.15)
        .env("CURVE", "$(CHECKPOINT_DIR)/curve.jsonl")
        .container("image", json!("andreas.dev/frameworks:dev"))
        .container("command", json!(command))
        .container("resources", json!({"requests": {"cpu": "20m", "memory": "64Mi"}}))
}

async fn until(c: &mut Cluster, job: &Job, phase: Phase) -> Result<()> {
    let key = job.key();
    let reached = |s: &andreas_e2e::seen::ClusterHistory| s.phase(&key) == phase;
    c.observer.until(&format!("{key} {}", phase.as_str()), LIMIT, reached).await
}

async fn until_percent(c: &mut Cluster, job: &Job, percent: i32) -> Result<()> {
    let key = job.key();
    c.observer
        .until(&format!("{key} at {percent} %"), LIMIT, |s| s.milli_percent(&key) >= percent * 1_000)
        .await
}

/// Runs a program until it is so far, stops it, and lets it go on with two GPUs of one node to its end.
async fn goes_on_with_two_gpus(c: &mut Cluster, run: &Job, percent: i32) -> Result<TrainingJobStatus> {
    c.submit(run).await?;
    until_percent(c, run, percent).await?;
    c.edit(&run.key(), &json!({"suspend": true})).await?;
    until(c, run, Phase::Suspended).await?;
    c.edit(&run.key(), &json!({"gpus": {"min": 2, "max": 2, "maxNodes": 1}, "suspend": false})).await?;
    until(c, run, Phase::Succeeded).await?;
    Ok(c.observer.seen().status(&run.key()))
}

/// A command and what it printed.
async fn shown(c: &Cluster, command: &str) -> Result<String> {
    Ok(format!("$ kubectl {command}\n{}\n", c.kubectl(command).await?))
}

/// Runs a program on `first` GPUs over both nodes, stops it, lets it go on with `second`, and compares its loss with
/// that of a run on `second` GPUs without a stop.
async fn stops_and_resumes(
    c: &mut Cluster,
    name: &str,
    run: Job,
    (first, second): (i32, i32),
    percent: i32,
) -> Result<()> {
    let key = run.key();
    let stopped = run.clone().gpus(first, first.min(2));
    c.submit(&stopped).await?;
    until_percent(c, &stopped, percent).await?;
    let pods = "get pods -o custom-columns=POD:.metadata.name,NODE:.spec.nodeName,STATUS:.status.phase";
    let jobs = "get trainingjobs";
    let mut transcript = shown(c, jobs).await? + &shown(c, pods).await?;
    c.edit(&key, &json!({"suspend": true})).await?;
    until(c, &stopped, Phase::Suspended).await?;
    let status = c.observer.seen().status(&key);
    ensure!(status.history.last().is_some_and(|a| a.outcome == Outcome::Stopped), "{:?}", status.history);
    let saved = c.observer.seen().milli_percent(&key);
    transcript += &shown(c, jobs).await?;
    // On another number of GPUs.
    c.edit(&key, &json!({"gpus": {"min": second, "max": second, "maxNodes": 1}, "suspend": false})).await?;
    until(c, &stopped, Phase::Succeeded).await?;
    let status = c.observer.seen().status(&key);
    let progress = status.progress.clone().context("progress")?;
    ensure!(status.attempts == 2 && status.user_failures == 0, "{status:?}");
    ensure!(progress.milli_percent == 100_000 && progress.stepwise, "{progress:?}");
    ensure!(progress.attempt_start > 0 && progress.attempt_start >= saved - 5_000, "{saved}: {progress:?}");
    // The first line and the last one of its rank 0, without the framework's warnings.
    let log = c.kubectl(&format!("logs {name}-2-0")).await?;
    let said: Vec<&str> =
        log.lines().filter(|l| l.starts_with("attempt") || l.starts_with("finished")).collect();
    transcript += &format!("$ kubectl logs {name}-2-0\n{}\n\n", said.join("\n"));

    let whole = run.named(&format!("{name}-whole")).gpus(second, 1);
    c.submit(&whole).await?;
    until(c, &whole, Phase::Succeeded).await?;
    transcript += &shown(c, jobs).await?;
    let (with, without) = (Curve::of(c, name).await?, Curve::of(c, &format!("{name}-whole")).await?);
    save_transcript(name, &transcript, &with, &without)?;
    let (a, b) = (with.last_loss()?, without.last_loss()?);
    ensure!((a - b).abs() <= 0.01 * b, "loss {a} with a stop, {b} without");
    let mut numbers = vec![first, second];
    numbers.dedup();
    ensure!(with.processes() == numbers, "{:?}", with.processes());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn torchrun_over_two_nodes_resumes_on_half_the_gpus_with_the_same_loss() -> Result<()> {
    scenario(two_nodes(), async |c| {
        let run = program("ddp", &["torchrun", "/srv/programs/ddp.py"])
            .env("STEPS", 300)
            .env("SECONDS_PER_STEP", 0.1);
        stops_and_resumes(c, "ddp", run, (4, 2), 20).await
    })
    .await
}

/// Given programs that know nothing of us, run by `python -m andreas_progress`; when they are stopped and go on, then their optimizer
/// steps are counted on from the checkpoint that they took up.
#[tokio::test(flavor = "multi_thread")]
async fn plain_programs_report_without_code_of_ours() -> Result<()> {
    scenario(two_nodes(), async |c| {
        for (name, file) in [("plain", "plain_ddp.py"), ("accelerate", "accelerate_loop.py")] {
            let file = format!("/srv/programs/{file}");
            let command = ["torchrun", "-m", "andreas_progress", "--steps", "200", &file];
            let run = program(name, &command).env("STEPS", 200).gpus(4, 2);
            let status = goes_on_with_two_gpus(c, &run, 25).await?;
            let progress = status.progress.clone().context("progress")?;
            ensure!(status.attempts == 2 && status.user_failures == 0, "{status:?}");
            ensure!(progress.milli_percent == 100_000 && progress.stepwise, "{progress:?}");
            // It saves every tenth of the way.
            ensure!((20_000..=60_000).contains(&progress.attempt_start), "{progress:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hugging_faces_trainer_resumes_with_the_same_loss() -> Result<()> {
    scenario(two_nodes(), async |c| {
        let run = program("hf", &["torchrun", "/srv/programs/huggingface.py"]).env("STEPS", 200);
        stops_and_resumes(c, "hf", run, (4, 2), 20).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hugging_faces_own_callback_reports_and_saves_without_code_of_ours() -> Result<()> {
    scenario(two_nodes(), async |c| {
        let own = program("hf-own", &["python3", "/srv/programs/huggingface.py"])
            .env("STEPS", 300)
            .env("CALLBACK", "own");
        stops_and_resumes(c, "hf-own", own, (1, 1), 10).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lightning_stops_and_resumes() -> Result<()> {
    scenario(two_nodes(), async |c| {
        let run = program("lightning", &["torchrun", "/srv/programs/lightning_fit.py"]).gpus(4, 2);
        // Stopped before its first validation, which comes after 256 steps.
        let early = run.clone().named("lightning-early").env("BATCH", 16).env("VAL_CHECK_INTERVAL", "1.0");
        for (name, run) in
            [("lightning", run.env("STEPS", 300)), ("lightning-early", early.env("STEPS", 512))]
        {
            let status = goes_on_with_two_gpus(c, &run, 10).await?;
            let start = status.progress.as_ref().map_or(0, |progress| progress.attempt_start);
            ensure!(status.attempts == 2 && start >= 10_000, "{status:?}");
            // A fit that fails once it has saved is a stop too, for the operator.
            let ends = std::fs::read_to_string(claimed(c, name, "curve.jsonl.ends").await?)?;
            ensure!(ends == "stopped\nfinished\n", "{ends}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeflows_sdk_reports_counted_steps() -> Result<()> {
    scenario(two_nodes(), async |c| {
        let run = program("sdk", &["python3", "/srv/programs/kubeflow_sdk.py"]).env("STEPS", 60);
        c.submit(&run).await?;
        until_percent(c, &run, 20).await?;
        until(c, &run, Phase::Succeeded).await?;
        let progress = c.observer.seen().status(&run.key()).progress.context("progress")?;
        ensure!(progress.stepwise, "{progress:?}");
        Ok(())
    })
    .await
}
