//! An operator's clock that is an hour off: runs end, stop and go on as if nothing were, and the clock is reported.

use andreas_api::phase::{Outcome, Phase};
use andreas_e2e::cluster::{Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::scenario::scenario;
use andreas_e2e::scrape;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

const HOUR: i64 = 3_600;

/// A run with every time-out there is, stopped once with a checkpoint, under such a clock.
async fn a_run_is_well(operator_clock: i64) -> Result<()> {
    let options = Options { groups: vec![a100(2)], operator_clock, ..Options::default() };
    scenario(options, async |c| {
        let tj = job("steady")
            .gpus(8, 2)
            .epochs(90, 0.5)
            .checkpoint(10)
            .stays_at(0.4)
            .spec("startTimeout", json!("2m"))
            // Longer than it stays there until it is stopped, and still less than the clock is off.
            .spec("progressTimeout", json!("10m"))
            .spec("maxRunTime", json!("30m"));
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_percent(&tj, 20).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.attempts == 1 && status.history.is_empty(), "{status:?}");
        let metrics = scrape::text(c.operators[0].admin).await?;
        let skew = metrics.lines().find_map(|line| line.strip_prefix("andreas_clock_skew_seconds "));
        let skew: f64 = skew.context("no skew is reported")?.parse()?;
        println!("skew of {skew:.1} s reported");
        ensure!((skew - operator_clock as f64).abs() < 10.0, "{skew} s reported");
        // when it is stopped with a checkpoint and goes on
        c.kubectl("patch tj steady --type=merge -p {\"spec\":{\"suspend\":true}}").await?;
        c.wait_for_phase(&tj, Phase::Suspended).await?;
        c.kubectl("patch tj steady --type=merge -p {\"spec\":{\"suspend\":false}}").await?;
        // then the stop is no end of the run, and nothing else ended it
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        let outcomes: Vec<Outcome> = status.history.iter().map(|record| record.outcome).collect();
        ensure!(outcomes == [Outcome::Stopped, Outcome::Finished], "{:?}", status.history);
        ensure!(status.user_failures == 0 && status.cluster_failures == 0, "{status:?}");
        ensure!(status.excluded_nodes.is_empty(), "{:?}", status.excluded_nodes);
        println!("operator {operator_clock} s ahead: {outcomes:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_an_hour_ahead_withdraws_and_fails_nothing() -> Result<()> {
    a_run_is_well(HOUR).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_an_hour_behind_keeps_nothing_waiting() -> Result<()> {
    a_run_is_well(-HOUR).await
}
