//! `whatif` and what then happens: each job of the demo's trace is asked about right before it is submitted.
//!
//! In: the demo's cluster on real nodes, its 40 jobs. Out: for how many of them start and end were forecast within ten
//! percent of the time since submission, or five seconds; for how many of these nothing else was submitted for a while; and
//! how many ends were between the 10 and the 90 % quantile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use andreas_e2e::apply::apply;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::workload::{self, Manifests, TimeScale};
use andreas_testbed::workspace_binary;
use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::process::Command;

use andreas_demo::nodes::Nodes;
use andreas_demo::{NAMESPACE, options};

/// How long all may take.
const LIMIT: Duration = Duration::from_secs(420);
/// Errors below are none: the second's precision of statuses, and the start-up of pods.
const SMALL: f64 = 5.0;
/// Part of the time since submission.
const PART: f64 = 0.1;

/// A job after which nothing is submitted for this long was asked about without the ones that would come, s.
const ALONE: f64 = 10.0;

/// What was said of a job, seconds since 1970.
struct Said {
    asked: f64,
    took: Duration,
    start: f64,
    end: f64,
    /// The 10 and 90 % quantiles of the end; the latter has none where a tenth of the futures has no end.
    between: (f64, Option<f64>),
}

/// Asks, submits, waits and compares.
///
/// # Errors
/// When the cluster does not start, a question has no answer, or jobs do not end in time.
pub async fn check() -> Result<()> {
    let nodes = Nodes::real();
    let cluster = Cluster::start(options(&nodes, None)).await?;
    let checked = ask_and_wait(&cluster, &nodes).await;
    cluster.stop().await;
    checked
}

async fn ask_and_wait(cluster: &Cluster, nodes: &Nodes) -> Result<()> {
    cluster.make_namespace(NAMESPACE).await?;
    let client = cluster.testbed.client();
    let began = Instant::now();
    let mut said: BTreeMap<String, Said> = BTreeMap::new();
    let jobs = workload::jobs(TimeScale::DEMO)?;
    for job in &jobs {
        let at = Duration::from_secs_f64(job.submit_offset_s);
        tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
        let Manifests { profile, claim, mut job } = nodes.manifests(job);
        for mut object in [profile, claim] {
            object["metadata"]["namespace"] = json!(NAMESPACE);
            apply(&client, &object).await?;
        }
        job["metadata"]["namespace"] = json!(NAMESPACE);
        let name = job["metadata"]["name"].as_str().context("a name")?.to_owned();
        let answer = ask(cluster, &job).await.with_context(|| name.clone())?;
        apply(&client, &job).await?;
        said.insert(name, answer);
    }
    while cluster
        .observer
        .seen()
        .jobs
        .values()
        .filter(|v| v.job.status.as_ref().is_some_and(|s| s.phase.is_terminal()))
        .count()
        < jobs.len()
    {
        if began.elapsed() > LIMIT {
            bail!("not all of {} jobs ended within {LIMIT:?}", jobs.len());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let seen = cluster.observer.seen();
    let said_at: Vec<f64> = said.values().map(|said| said.asked).collect();
    let (mut starts, mut ends, mut between) = (0, 0, 0);
    // Of jobs after which nothing came for a while: how many there are, and how many starts and ends of theirs were right.
    let mut alone = (0, 0, 0);
    let mut took: Vec<Duration> = said.values().map(|s| s.took).collect();
    println!("{:<32} {:>16} {:>16} {:>8}", "job", "start: said, was", "end: said, was", "asked");
    for view in seen.jobs.values() {
        let name = view.job.metadata.name.as_deref().unwrap_or_default();
        let (Some(said), Some(status)) = (said.get(name), &view.job.status) else { continue };
        let start = status.start_time.as_ref().map_or(f64::NAN, |at| at.0.as_second() as f64);
        let end = status.completion_time.as_ref().map_or(f64::NAN, |at| at.0.as_second() as f64);
        let good =
            |said_at: f64, was: f64, from: f64| (said_at - was).abs() <= SMALL.max(PART * (was - from));
        let right = (good(said.start, start, said.asked), good(said.end, end, said.asked));
        starts += usize::from(right.0);
        ends += usize::from(right.1);
        // Ends are kept in whole seconds.
        between += usize::from(
            said.between.0 - 1.0 <= end && said.between.1.is_none_or(|latest| end <= latest + 1.0),
        );
        if !said_at.iter().any(|other| *other > said.asked && *other < said.asked + ALONE) {
            alone = (alone.0 + 1, alone.1 + usize::from(right.0), alone.2 + usize::from(right.1));
        }
        println!(
            "{name:<32} {:>7.0} {:>7.0} {} {:>7.0} {:>6.0} {} {:>6} ms",
            said.start - said.asked,
            start - said.asked,
            if right.0 { ' ' } else { '!' },
            said.end - said.asked,
            end - said.asked,
            if right.1 { ' ' } else { '!' },
            said.took.as_millis()
        );
    }
    took.sort();
    println!(
        "within 10 % of the time since submission, or 5 s: start {starts}, end {ends} of {}; the command took {} ms (median), {} ms (95 %)",
        said.len(),
        took[took.len() / 2].as_millis(),
        took[(took.len() * 95).div_ceil(100) - 1].as_millis()
    );
    println!(
        "nothing else was submitted within {ALONE} s after {} of them: start {}, end {}; {between} of {} ended between p10 and p90",
        alone.0,
        alone.1,
        alone.2,
        said.len()
    );
    Ok(())
}

/// `kubectl andreas whatif -f JOB`.
async fn ask(cluster: &Cluster, job: &Value) -> Result<Said> {
    let file = cluster.testbed.data_dir().join("asked.json");
    std::fs::write(&file, job.to_string())?;
    let asked = Instant::now();
    let at = Timestamp::now().as_millisecond() as f64 / 1000.0;
    let output = Command::new(workspace_binary("kubectl-andreas")?)
        .args(["whatif", "-o", "json", "-n", NAMESPACE, "-f"])
        .arg(&file)
        .arg("--kubeconfig")
        .arg(cluster.testbed.kubeconfig())
        .output()
        .await?;
    let took = asked.elapsed();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let time = |pointer: &str| -> Result<f64> {
        let text = answer
            .pointer(pointer)
            .and_then(Value::as_str)
            .with_context(|| format!("{pointer}: {answer}"))?;
        Ok(text.parse::<Timestamp>()?.as_millisecond() as f64 / 1000.0)
    };
    Ok(Said {
        asked: at,
        took,
        start: time("/job/expected/start/p50")?,
        end: time("/job/expected/finish/p50")?,
        between: (time("/job/expected/finish/p10")?, time("/job/expected/finish/p90").ok()),
    })
}
