//! A long run in which everything happens that may happen: submissions, edits, deletions, killed and frozen programs, silent
//! and rebooted nodes, forced deletions, and an API server behind a fault proxy.
//!
//! What happens is drawn from one seed; when it happens depends on the machine. [`Observer`](crate::observer::Observer)
//! checks the objects, [`devices`] what the nodes' device managers and containers say. At the end all is mended: every
//! job must end, and nothing may be left.

mod actions;
mod devices;
mod numbers;

use std::fmt;
use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use anyhow::{Result, ensure};

use crate::cluster::{Cluster, Options, a100, t4};
use crate::observer::describe;
use crate::scenario::{SOON, scenario};

use actions::Actor;
use devices::DeviceCheck;

/// Between two things that happen, ms.
const PAUSE_MS: (u64, u64) = (300, 2_500);
/// From the last thing that happens until every job has ended.
const ALL_END: Duration = Duration::from_secs(300);

/// How long, and what is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// Time in which things happen; the end takes up to some minutes more.
    pub lasts: Duration,
    /// Another seed, another story.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// From the first to the last thing that happened.
    pub lasted: Duration,
    /// Jobs that were submitted, and how they ended.
    pub submitted: usize,
    /// Jobs that succeeded.
    pub succeeded: usize,
    /// Jobs that failed, as they were made to.
    pub failed: usize,
    /// Jobs that were deleted.
    pub deleted: usize,
    /// Attempts of all jobs.
    pub attempts: i64,
    /// What was done, by its name.
    pub done: std::collections::BTreeMap<&'static str, usize>,
    /// Calls that a rule of the fault proxy met.
    pub calls_met: u64,
    /// How often devices and containers were looked at.
    pub looks: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done: Vec<String> = self.done.iter().map(|(what, count)| format!("{what} {count}")).collect();
        write!(
            f,
            "soak: seed {}, {:.1} min, {} jobs ({} succeeded, {} failed, {} deleted) in {} attempts, {} calls met by \
             faults, {} looks at devices; {}",
            self.seed,
            self.lasted.as_secs_f64() / 60.0,
            self.submitted,
            self.succeeded,
            self.failed,
            self.deleted,
            self.attempts,
            self.calls_met,
            self.looks,
            done.join(", ")
        )
    }
}

/// Runs it on a cluster of its own.
///
/// # Errors
/// What was seen that must not be, jobs that did not end, and what was left.
pub async fn run(soak: Soak) -> Result<Report> {
    let options = Options {
        name: "soak".into(),
        groups: vec![a100(3), t4(2)],
        fault_proxy: true,
        ..Options::default()
    };
    let mut report = Report { seed: soak.seed, ..Report::default() };
    let kept = &mut report;
    scenario(options, async |c| story(c, soak, kept).await).await.map_err(|error| {
        error.context(format!("soak with seed {} over {} s", soak.seed, soak.lasts.as_secs()))
    })?;
    Ok(report)
}

async fn story(c: &mut Cluster, soak: Soak, report: &mut Report) -> Result<()> {
    let keeper = c.keep_operators_running();
    c.collect_garbage().await?;
    let devices = DeviceCheck::start(crate::nodes::client(&c.testbed));
    let mut actor = Actor::new(c, soak.seed).await?;
    let start = Instant::now();
    while start.elapsed() < soak.lasts {
        actor.act(c).await?;
        tokio::time::sleep(actor.pause(PAUSE_MS)).await;
        no_violation(c, &devices)?;
    }
    report.lasted = start.elapsed();
    actor.mend(c).await?;
    all_end(c, &actor).await?;
    no_violation(c, &devices)?;
    actor.fill(c, report);
    report.looks = devices.looks();
    nothing_is_left(c).await?;
    drop(keeper);
    Ok(())
}

fn no_violation(c: &Cluster, devices: &DeviceCheck) -> Result<()> {
    let mut all: Vec<String> = c.observer.seen().violations.iter().cloned().collect();
    all.extend(devices.violations());
    ensure!(all.is_empty(), "{}", all.join("; "));
    Ok(())
}

async fn all_end(c: &mut Cluster, actor: &Actor) -> Result<()> {
    let keys: Vec<String> = actor.open(c);
    let end = Instant::now() + ALL_END;
    loop {
        let open: Vec<&String> = {
            let seen = c.observer.seen();
            let ended = |key: &&String| {
                let gone = seen.jobs.get(*key).is_none_or(|view| view.deleted);
                gone || matches!(seen.phase(key), Phase::Succeeded | Phase::Failed)
            };
            keys.iter().filter(|key| !ended(key)).collect()
        };
        if open.is_empty() {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "{} jobs did not end: {open:?}\n{}",
            open.len(),
            describe(&c.observer.seen())
        );
        c.observer.changed().await;
    }
}

/// With the jobs their pods go, and every GPU is free in the device managers' books.
async fn nothing_is_left(c: &mut Cluster) -> Result<()> {
    c.kubectl("delete trainingjobs --all --all-namespaces --wait=true --timeout=180s").await?;
    c.observer
        .until("no pod is left", 3 * SOON, |s| {
            s.pods.values().all(|p| p.deleted || p.label(andreas_api::names::LABEL_JOB).is_empty())
        })
        .await?;
    let nodes = crate::nodes::client(&c.testbed);
    let end = Instant::now() + SOON;
    loop {
        let held: Vec<String> = nodes
            .nodes()
            .await?
            .into_iter()
            .flat_map(|node| node.gpus.into_iter().map(move |gpu| (node.name.clone(), gpu)))
            .filter_map(|(node, gpu)| gpu.holder.map(|pod| format!("{} on {node} by {pod}", gpu.uuid)))
            .collect();
        if held.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "GPUs are still held: {held:?}");
        c.observer.changed().await;
    }
}
