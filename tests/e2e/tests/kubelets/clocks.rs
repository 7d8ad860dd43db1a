//! The clock of one node of two is an hour off: kubelet, containerd, our agent and the trainer there read it. A gang over both nodes
//! stops, goes on and ends as if nothing were.

use std::time::Duration;

use andreas_api::phase::{Outcome, Phase};
use andreas_e2e::cluster::Cluster;
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::json;

use crate::gangs::{ends_well, small, went_on};
use crate::{nodes, real};

const HOUR: i32 = 3_600;
/// A kubelet renews its lease every ten seconds.
const RENEWED: Duration = Duration::from_secs(180);

/// How far ahead a time is that the API holds.
async fn ahead(c: &Cluster, line: &str) -> Result<f64> {
    let time: Timestamp = c.kubectl(line).await?.trim().parse()?;
    Ok((time - Timestamp::now()).total(jiff::Unit::Second)?)
}

/// Whether seconds are those of such a clock, by what was written within the last minute.
fn off_by(seconds: f64, wanted: i32) -> bool {
    (seconds - f64::from(wanted)).abs() < 60.0
}

async fn a_gang_is_well(c: &mut Cluster, name: &str, off: i32) -> Result<()> {
    let _clock = nodes(c)?.node("node-1")?.set_clock(off)?;
    let lease = "get lease node-1 --namespace kube-node-lease -o jsonpath={.spec.renewTime}";
    until("the lease is renewed by the wrong clock", RENEWED, async || {
        Ok(off_by(ahead(c, lease).await?, off))
    })
    .await?;
    println!("the lease of node-1 is {:.0} s ahead", ahead(c, lease).await?);

    // when a gang starts on both nodes, with every time-out there is
    let gang = small(job(name).gpus(8, 2).epochs(60, 0.5).checkpoint(15).stays_at(0.5))
        .spec("startTimeout", json!("2m"))
        .spec("progressTimeout", json!("10m"))
        .spec("maxRunTime", json!("30m"));
    let key = gang.key();
    c.submit(&gang).await?;
    c.wait_for_percent(&gang, 10).await?;
    let started =
        "get pods --output=jsonpath={.items[*].status.containerStatuses[0].state.running.startedAt}";
    println!("containers started, by their nodes: {}", c.kubectl(started).await?);

    // and is stopped with a checkpoint and goes on
    c.edit(&key, &json!({"suspend": true})).await?;
    c.wait_for_phase(&gang, Phase::Suspended).await?;
    let saved = c.observer.seen().milli_percent(&key);
    c.edit(&key, &json!({"suspend": false})).await?;
    ends_well(c, &gang).await?;

    // then the stop is no end of the run, nothing else ended it, and nobody is blamed
    let status = c.observer.seen().status(&key);
    let outcomes: Vec<Outcome> = status.history.iter().map(|record| record.outcome).collect();
    ensure!(outcomes == [Outcome::Stopped, Outcome::Finished], "{:?}", status.history);
    ensure!(status.user_failures == 0 && status.cluster_failures == 0, "{status:?}");
    ensure!(status.excluded_nodes.is_empty(), "{:?}", status.excluded_nodes);
    went_on(c, &gang, saved - 5_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_an_hour_ahead_then_an_hour_behind_costs_a_gang_nothing() -> Result<()> {
    scenario(real(2), async |c| {
        a_gang_is_well(c, "ahead", HOUR).await?;
        a_gang_is_well(c, "behind", -HOUR).await
    })
    .await
}
