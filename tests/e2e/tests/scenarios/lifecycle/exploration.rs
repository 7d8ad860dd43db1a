//! `spec.profiling: Auto`: a run explores a GPU type that its profile was not measured on, for an epoch, where the
//! information is worth more than it costs. Without `Auto` none does.

use std::time::Duration;

use andreas_api::phase::{Outcome, Phase};
use andreas_e2e::cluster::{A100, Cluster, Group, Options, a100};
use andreas_e2e::job::{Job, job, measured, profile};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::seen::ClusterHistory;
use andreas_testbed::wait::until;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// H100 of 80 GB.
const H100: &str = "NVIDIA-H100-80GB-HBM3";

/// A run of so many epochs, of a profile that its user measured on A100 alone, 1 s on one; on H100 it takes more than
/// twice as long, which is not known.
async fn run(c: &Cluster, name: &str, epochs: i32, profiling: &str) -> Result<Job> {
    c.apply(&profile(name, &[measured(A100, 1, 1_000, 300)])).await?;
    let run = job(name)
        .epochs(epochs, 1.0)
        .env("TRAINER_SECONDS_PER_EPOCH", json!({A100: {"1": 1.0}, H100: {"1": 2.5}}))
        .checkpoint(5)
        .spec("profile", json!(name))
        .spec("profiling", json!(profiling));
    c.submit(&run).await?;
    Ok(run)
}

/// The GPU type that a run holds.
fn on(seen: &ClusterHistory, run: &Job) -> String {
    seen.status(&run.key()).allocation.map_or_else(String::new, |held| held.gpu_type)
}

/// Thousandths of an epoch for which a profile was observed on H100.
async fn known_on_h100(c: &Cluster, profile: &str) -> Result<i64> {
    let profile: Value =
        serde_json::from_str(&c.kubectl(&format!("get trainingprofile {profile} -o json")).await?)?;
    let rows = profile["status"]["observations"].as_array().cloned().unwrap_or_default();
    let there = rows.iter().filter(|row| row["gpuType"] == H100);
    Ok(there.filter_map(|row| row["milliEpochs"].as_i64()).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_profile_explores_an_unknown_gpu_type_for_an_epoch_where_that_is_worth_it() -> Result<()> {
    let h100 = Group { prefix: "h100-", count: 1, gpu: H100, gpus: 4, memory_mib: 81_920 };
    scenario(Options { groups: vec![a100(1), h100], ..Options::default() }, async |c| {
        // given three runs of new profiles: one that may explore and has much to gain, one with too little left to
        // gain, one that may not
        let curious = run(c, "curious", 300, "Auto").await?;
        let brief = run(c, "brief", 5, "Auto").await?;
        let settled = run(c, "settled", 300, "Off").await?;
        // then the first of them is given an H100, and leaves it again when it knows, after a few epochs, for it is dearer there
        let key = curious.key();
        c.observer
            .until("on an A100", 2 * DEFAULT_TIMEOUT, |s| {
                s.phase(&key) == Phase::Running && on(s, &curious) == A100
            })
            .await?;
        let status = c.observer.seen().status(&key);
        let exploration = status.history.first().cloned();
        let short = exploration.as_ref().is_some_and(|attempt| (1..=15_000).contains(&attempt.milli_percent));
        ensure!(short && status.attempts == 2, "no short exploration: {status:?}");
        ensure!(
            exploration.is_some_and(
                |attempt| (attempt.outcome, attempt.gpu_type.as_str()) == (Outcome::Stopped, H100)
            )
        );
        // what it saw is kept for its profile,
        let mut seen = 0;
        until("something is known of its profile there", DEFAULT_TIMEOUT, async || {
            seen = known_on_h100(c, "curious").await?;
            Ok(seen > 0)
        })
        .await?;
        ensure!(seen >= 1_000, "{seen} thousandths of an epoch are known");
        // so no run explores again, and the others never did
        c.assert_holds("where it is", Duration::from_secs(10), |s| on(s, &curious) == A100).await?;
        c.wait_for_phase(&brief, Phase::Succeeded).await?;
        for other in [&brief, &settled] {
            let status = c.observer.seen().status(&other.key());
            let places: Vec<_> = status.history.iter().map(|attempt| attempt.gpu_type.clone()).collect();
            ensure!(
                status.attempts == 1 && !places.contains(&H100.to_owned()),
                "{}: {status:?}",
                other.key()
            );
        }
        ensure!(on(&c.observer.seen(), &settled) == A100, "{}", on(&c.observer.seen(), &settled));
        ensure!(known_on_h100(c, "brief").await? + known_on_h100(c, "settled").await? == 0);
        Ok(())
    })
    .await
}
