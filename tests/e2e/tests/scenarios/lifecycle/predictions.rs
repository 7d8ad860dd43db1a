//! What is thought of runs while they run: an estimate that is wrong by a factor of two is put right by the first epochs, and plans
//! follow.

use std::str::FromStr;
use std::time::Duration;

use andreas_api::phase::{Outcome, Phase};
use andreas_api::training_job::Prediction;
use andreas_e2e::cluster::{A100, Cluster, Options, a100};
use andreas_e2e::job::{job, measured, profile};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::scrape;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

/// What is expected of a job now.
fn prediction(c: &Cluster, key: &str) -> Result<Prediction> {
    c.observer.seen().status(key).prediction.with_context(|| format!("nothing is expected of {key}"))
}

/// A user's table for A100, seconds and watts of one, two and four.
async fn table(c: &Cluster, name: &str, rows: [(i32, f64, i32); 3]) -> Result<()> {
    let rows = rows.map(|(gpus, seconds, watts)| measured(A100, gpus, (seconds * 1_000.0) as i64, watts));
    c.apply(&profile(name, &rows)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_epochs_after_its_start_a_run_that_takes_twice_as_long_as_its_user_said_has_the_right_end()
-> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        // given a table that says 5 s, and a run of 12 epochs of 10 s: a report that a busy machine sends some tenths of a
        // second late is little of an epoch
        table(c, "hopeful", [(1, 5.0, 300), (2, 5.0, 600), (4, 5.0, 1_200)]).await?;
        let tj = job("slow").epochs(12, 10.0).gpus(1, 1).profile("hopeful");
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let first = prediction(c, &key)?;
        ensure!((first.epoch_millis, first.source.as_str()) == (Some(5_000), "UserGiven"), "{first:?}");
        // when two epochs have passed, then the time of an epoch is known and another plan asked for: before the reports say
        // that the third is over
        let admin = c.operators.first().context("an operator")?.admin;
        until("another plan is asked for", DEFAULT_TIMEOUT, async || {
            let done = c.observer.seen().milli_percent(&key);
            let metrics = scrape::text(admin).await?;
            let asked =
                metrics.lines().find_map(|line| line.strip_prefix("andreas_prediction_deviations_total "));
            let asked = asked.is_some_and(|count| count.parse::<f64>().is_ok_and(|count| count >= 1.0));
            ensure!(
                asked || done < 3 * 100_000 / 12,
                "{done} thousandths of a percent, and no plan asked for"
            );
            Ok(asked)
        })
        .await?;
        // and the status says so, a minute after it was written last
        let mut known = None;
        until("the time of an epoch is in the status", DEFAULT_TIMEOUT, async || {
            let seen = prediction(c, &key)?;
            let interval = seen.epoch_millis_low..=seen.epoch_millis_high;
            let right = interval.contains(&Some(10_000)) && seen.source == "Observed";
            known = Some((seen, jiff::Timestamp::now()));
            Ok(right)
        })
        .await?;
        let (seen, now) = known.context("no forecast")?;
        // and in the end the end was right, within a tenth of what was left, and the first forecast was not
        c.observer
            .until("succeeded", Duration::from_secs(240), |s| s.phase(&key) == Phase::Succeeded)
            .await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.attempts == 1, "{status:?}");
        let end = status.completion_time.context("no completion")?.0;
        let left = end.duration_since(now).as_secs_f64();
        let off = |prediction: &Prediction| -> Result<f64> {
            let finish = prediction.finish_time.as_ref().context("no finish")?.0;
            Ok(finish.duration_since(end).as_secs_f64().abs() / left)
        };
        ensure!(off(&seen)? <= 0.1, "off by {:.2} of {left:.0} s: {seen:?}, ended {end}", off(&seen)?);
        ensure!(off(&first)? > 0.3, "the estimate was not wrong: {first:?}, ended {end}");
        Ok(())
    })
    .await
}

/// The operator's log from a job's first request for a new plan: the next plan, and the plan that gave the job more than
/// one GPU, with their number.
#[derive(Debug, Default, PartialEq)]
struct ReplanLog {
    requested: bool,
    next_plan: Option<u64>,
    given: Option<(u64, i32)>,
}

impl ReplanLog {
    fn read(log: &str, key: &str) -> Self {
        fn number<T: FromStr>(line: &str, field: &str) -> Option<T> {
            let (_, rest) = line.split_once(field)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        }
        let mut replan = Self::default();
        let of_job = format!(" job={key} ");
        for line in log.lines() {
            if line.contains("plans again") && line.contains(&of_job) {
                replan.requested = true;
            }
            if line.contains("planning: takes a snapshot ") && replan.requested && replan.next_plan.is_none()
            {
                replan.next_plan = number(line, "plan=");
            }
            if line.contains("planning: decided ") && line.contains(&of_job) && replan.given.is_none() {
                let gpus = number(line, "gpus_per_worker: ").filter(|gpus| *gpus > 1);
                replan.given = number(line, "plan=").zip(gpus);
            }
        }
        replan
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_plan_gives_more_gpus_to_a_run_that_would_be_late_as_it_is() -> Result<()> {
    // Nothing but what happens asks for plans, and the operator says what each one knew.
    let options = Options {
        groups: vec![a100(1)],
        operator_args: vec!["--plan-every".into(), "600".into()],
        operator_log: "info,kube=warn,andreas_operator::planning=debug",
        ..Options::default()
    };
    scenario(options, async |c| {
        // given a run that its user thinks done in 120 s on one GPU, 45 s before its deadline; in truth it takes twice as long, and
        // has time for that on more GPUs only, and only if it gets them soon
        table(c, "hopeful", [(1, 6.0, 300), (2, 3.6, 640), (4, 2.7, 1_400)]).await?;
        let truth = json!({A100: {"1": 12.0, "2": 7.2, "4": 5.4}});
        let tj = job("late")
            .epochs(20, 12.0)
            .env("TRAINER_SECONDS_PER_EPOCH", truth)
            .checkpoint(5)
            .spec("gpus", json!({"min": 1, "max": 4}))
            .spec("deadlineAfter", json!("165s"))
            .profile("hopeful");
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let gpus = |c: &Cluster| c.observer.seen().status(&key).allocation.map_or(0, |held| held.gpus);
        ensure!(gpus(c) == 1, "one GPU is not thought cheapest: {}", gpus(c));
        // when a report tells how long its epochs take, then it gets more GPUs,
        c.observer
            .until("more GPUs", DEFAULT_TIMEOUT, |s| {
                s.status(&key).allocation.is_some_and(|allocation| allocation.gpus > 1)
            })
            .await?;
        // by the next plan there is
        let log = c.operators.first().context("an operator")?.process.log();
        let replan = ReplanLog::read(&log, &key);
        let (Some(next), Some((plan, given))) = (replan.next_plan, replan.given) else { bail!("{replan:?}") };
        ensure!(plan <= next && given == gpus(c), "not by the next plan: {replan:?}, {} GPUs", gpus(c));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_would_now_be_late_gets_more_gpus_in_time() -> Result<()> {
    // Nothing but what happens asks for plans.
    let operator_args = vec!["--plan-every".into(), "600".into()];
    scenario(Options { groups: vec![a100(1)], operator_args, ..Options::default() }, async |c| {
        // given a run for which one GPU is cheapest and enough, if its user is right, and 36 s too slow in truth
        table(c, "hopeful", [(1, 6.0, 300), (2, 3.4, 640), (4, 2.0, 1_400)]).await?;
        let truth = json!({A100: {"1": 12.0, "2": 6.8, "4": 4.0}});
        let tj = job("late")
            .epochs(12, 12.0)
            .env("TRAINER_SECONDS_PER_EPOCH", truth)
            .checkpoint(5)
            .spec("gpus", json!({"min": 1, "max": 4}))
            .spec("deadlineAfter", json!("108s"))
            .spec("weight", json!(1))
            .profile("hopeful");
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let gpus = c.observer.seen().status(&key).allocation.map(|allocation| allocation.gpus);
        ensure!(gpus == Some(1), "one GPU is not thought cheapest: {gpus:?}");
        // when the first epochs show it, then it goes on with more GPUs (as late as that is enough: one is cheapest still)
        c.observer
            .until("runs on more GPUs", DEFAULT_TIMEOUT, |s| {
                let status = s.status(&key);
                status.phase == Phase::Running && status.allocation.is_some_and(|held| held.gpus > 1)
            })
            .await?;
        let status = c.observer.seen().status(&key);
        let first = status.history.first().context("no history")?;
        ensure!((first.outcome, first.gpus) == (Outcome::Stopped, 1), "{first:?}");
        // and has time for the rest at its true pace; on one GPU it would not. Its end is not waited for: that would take as long again.
        let held = status.allocation.as_ref().context("no allocation")?.gpus;
        let epoch = if held == 4 { 4.0 } else { 6.8 };
        let done = status.progress.as_ref().map_or(0, |progress| progress.milli_percent);
        let left = 12.0 * epoch * f64::from(100_000 - done) / 100_000.0;
        let deadline = status.deadline.as_ref().context("no deadline")?.0;
        let available = deadline.duration_since(jiff::Timestamp::now()).as_secs_f64();
        ensure!(left <= available, "{left:.0} s left on {held} GPUs, {available:.0} s until the deadline");
        Ok(())
    })
    .await
}
