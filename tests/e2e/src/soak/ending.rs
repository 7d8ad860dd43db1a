//! What must hold when all is mended.

use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::phase::Phase;
use anyhow::{Result, ensure};

use super::actions::Actor;
use crate::cluster::Cluster;
use crate::scenario::DEFAULT_TIMEOUT;
use crate::seen::describe;

/// From the last thing that happens until every job has ended.
const ALL_END: Duration = Duration::from_secs(600);

/// Every job that was not deleted ends.
pub(super) async fn all_end(c: &mut Cluster, actor: &Actor) -> Result<()> {
    let end = Instant::now() + ALL_END;
    loop {
        let open = actor.open(c);
        if open.is_empty() {
            return Ok(());
        }
        let seen = || describe(&c.observer.seen());
        ensure!(Instant::now() < end, "{} jobs did not end: {open:?}\n{}", open.len(), seen());
        c.observer.changed().await;
    }
}

/// Jobs fail only if they were made to, and only as often: nothing else that happened was their users' doing.
pub(super) fn nobody_was_blamed(c: &Cluster, actor: &Actor) -> Result<()> {
    let seen = c.observer.seen();
    for key in actor.jobs.keys().filter(|key| !actor.deleted.contains(*key)) {
        let (failures, failed) = (seen.status(key).user_failures.max(0), seen.phase(key) == Phase::Failed);
        let failures = u64::try_from(failures)?;
        match actor.failing.get(key) {
            None => ensure!(!failed && failures == 0, "failures of the cluster count as the user's: {key}"),
            Some(failing) => {
                let says = || format!("{key}: {failing:?}, failed: {failed}, userFailures: {failures}");
                ensure!(failures <= failing.attempts, "counted twice, or not the user's: {}", says());
                ensure!(failed == (failures > failing.retries), "retries are not what was asked: {}", says());
            }
        }
    }
    Ok(())
}

/// With the jobs their pods go, and every GPU is free in the device managers' books.
pub(super) async fn nothing_is_left(c: &mut Cluster) -> Result<()> {
    c.kubectl("delete trainingjobs --all --all-namespaces --wait=true --timeout=180s").await?;
    c.observer
        .until("no pod is left", 3 * DEFAULT_TIMEOUT, |s| {
            s.pods.values().all(|p| p.deleted || p.label(names::LABEL_JOB).is_empty())
        })
        .await?;
    let nodes = crate::nodes::client(&c.testbed);
    let end = Instant::now() + DEFAULT_TIMEOUT;
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
