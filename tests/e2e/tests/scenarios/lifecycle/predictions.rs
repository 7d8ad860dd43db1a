//! What is thought of runs while they run: an estimate that is wrong by a factor of two is put right by the first epochs, and plans
//! follow.

use std::str::FromStr;
use std::time::Duration;

use andreas_api::phase::{Outcome, Phase};
use andreas_api::training_job::Prediction;
use andreas_e2e::cluster::{A100, Cluster, Options, a100};
use andreas_e2e::job::{job, measured, profile};
use andreas_e2e::scenario::scenario;
use andreas_e2e::{pages, scrape};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::json;

/// One line of the operator's `/forecasts`.
#[derive(Deserialize)]
struct Forecast {
    namespace: String,
    name: String,
    prediction: Option<Prediction>,
}

/// What is expected of a job now.
async fn forecast(c: &Cluster, key: &str) -> Result<Prediction> {
    let all: Vec<Forecast> = serde_json::from_str(&pages::read(c, "/forecasts").await?)?;
    let own = all.into_iter().find(|f| format!("{}/{}", f.namespace, f.name) == key);
    own.and_then(|own| own.prediction).with_context(|| format!("nothing is forecast for {key}"))
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
        // given a table that says 5 s, and a run of 8 epochs of 10 s: a report that a busy machine sends some tenths of a
        // second late is little of an epoch
        table(c, "hopeful", [(1, 5.0, 300), (2, 5.0, 600), (4, 5.0, 1_200)]).await?;
        let tj = job("slow").epochs(8, 10.0).gpus(1, 1).spec("profile", json!("hopeful"));
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let first = forecast(c, &key).await?;
        ensure!((first.epoch_millis, first.source.as_str()) == (Some(5_000), "UserGiven"), "{first:?}");
        // when two epochs have passed: no later, for it is promised for then
        tokio::time::sleep(Duration::from_millis(2 * 10_000 + 1_500)).await;
        let seen = forecast(c, &key).await?;
        let now = jiff::Timestamp::now();
        // then the time of an epoch is known,
        let interval = seen.epoch_millis_low..=seen.epoch_millis_high;
        ensure!(interval.contains(&Some(10_000)), "{seen:?}");
        ensure!(seen.source == "Observed", "{seen:?}");
        // another plan was asked for at once,
        let metrics = scrape::text(c.operators.first().context("an operator")?.admin).await?;
        let asked =
            metrics.lines().find_map(|line| line.strip_prefix("andreas_prediction_deviations_total "));
        ensure!(asked.is_some_and(|count| count.parse::<f64>().is_ok_and(|count| count >= 1.0)), "{asked:?}");
        // and in the end the end was right, within a tenth of what was left, and the first forecast was not
        c.observer
            .until("succeeded", Duration::from_secs(120), |s| s.phase(&key) == Phase::Succeeded)
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
        // given a run that its user thinks done in 80 s on one GPU, 30 s before its deadline; in truth it takes twice as long, and
        // has time for that on four GPUs only, and only if it gets them soon
        table(c, "hopeful", [(1, 4.0, 300), (2, 2.4, 640), (4, 1.8, 1_400)]).await?;
        let truth = json!({A100: {"1": 8.0, "2": 4.8, "4": 3.6}});
        let tj = job("late")
            .epochs(20, 8.0)
            .env("TRAINER_SECONDS_PER_EPOCH", truth)
            .checkpoint(5)
            .spec("gpus", json!({"min": 1, "max": 4}))
            .spec("deadlineAfter", json!("110s"))
            .spec("profile", json!("hopeful"));
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let gpus = |c: &Cluster| c.observer.seen().status(&key).allocation.map_or(0, |held| held.gpus);
        ensure!(gpus(c) == 1, "one GPU is not thought cheapest: {}", gpus(c));
        // when a report tells how long its epochs take, then it gets more GPUs,
        c.observer
            .until("more GPUs", Duration::from_secs(60), |s| {
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
        // given a run for which one GPU is cheapest and enough, if its user is right, and 20 s too slow in truth
        table(c, "hopeful", [(1, 3.0, 300), (2, 1.7, 640), (4, 1.0, 1_400)]).await?;
        let truth = json!({A100: {"1": 6.0, "2": 3.4, "4": 2.0}});
        let tj = job("late")
            .epochs(12, 6.0)
            .env("TRAINER_SECONDS_PER_EPOCH", truth)
            .checkpoint(5)
            .spec("gpus", json!({"min": 1, "max": 4}))
            .spec("deadlineAfter", json!("54s"))
            .spec("weight", json!(1))
            .spec("profile", json!("hopeful"));
        let key = tj.key();
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let gpus = c.observer.seen().status(&key).allocation.map(|allocation| allocation.gpus);
        ensure!(gpus == Some(1), "one GPU is not thought cheapest: {gpus:?}");
        // when the first epochs show it, then it goes on with more GPUs (as late as that is enough: one is cheapest still)
        c.observer
            .until("more GPUs", Duration::from_secs(45), |s| {
                s.status(&key).allocation.is_some_and(|allocation| allocation.gpus > 1)
            })
            .await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        // and ends in time; on one GPU it would not have
        let status = c.observer.seen().status(&key);
        let first = status.history.first().context("no history")?;
        ensure!((first.outcome, first.gpus) == (Outcome::Stopped, 1), "{first:?}");
        ensure!(
            status.completion_time <= status.deadline,
            "{:?} > {:?}",
            status.completion_time,
            status.deadline
        );
        Ok(())
    })
    .await
}
