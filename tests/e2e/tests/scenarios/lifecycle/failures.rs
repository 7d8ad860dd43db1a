//! Attempts that fail: by the user's own making, by time-outs, by what the trainer claims.

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::{Options, T4, a100, t4};
use andreas_e2e::job::{job, measured, profile};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_user_failure_is_tried_again_until_the_retries_are_used() -> Result<()> {
    scenario(Options::default(), async |c| {
        // given a run that fails once and one that always fails
        let once = job("once")
            .env("TRAINER_FAIL_AT", 0.3)
            .env("TRAINER_EXIT_CODE", 7)
            .env("TRAINER_FAIL_ATTEMPTS", 1);
        let always =
            job("always").spec("retries", json!(1)).env("TRAINER_FAIL_AT", 0.3).env("TRAINER_EXIT_CODE", 9);
        c.submit(&once).await?;
        c.submit(&always).await?;
        // then the first succeeds at its second attempt
        c.wait_for_phase(&once, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&once.key());
        ensure!(status.attempts == 2 && status.user_failures == 1, "{status:?}");
        ensure!(status.history[0].outcome == Outcome::UserFailure && status.history[0].exit_code == Some(7));
        // and the second fails after two, with exit code and last line
        c.wait_for_phase(&always, Phase::Failed).await?;
        let status = c.observer.seen().status(&always.key());
        ensure!(status.attempts == 2 && status.user_failures == 2, "{status:?}");
        let last = status.history.last().context("no history")?;
        ensure!(last.exit_code == Some(9) && !last.message.is_empty(), "{last:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_memory_exhausted_on_a_type_leaves_that_type_out() -> Result<()> {
    scenario(Options { groups: vec![t4(1), a100(1)], ..Options::default() }, async |c| {
        // given a profile that makes T4 the better choice, and a model that does not fit it
        let table = [measured(T4, 1, 300, 60), measured(andreas_e2e::cluster::A100, 1, 300, 300)];
        c.apply(&profile("big", &table)).await?;
        let tj = job("big").profile("big").env("TRAINER_OOM_AT", 0.1).env("TRAINER_OOM_TYPES", T4);
        c.submit(&tj).await?;
        // then it fails there once, and succeeds on the other type
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&tj.key());
        ensure!(
            status.history[0].gpu_type == T4 && status.history[0].reason == Reason::OutOfMemory.as_str(),
            "{:?}",
            status.history
        );
        ensure!(status.history.last().is_some_and(|a| a.gpu_type != T4), "{:?}", status.history);
        let types = "get trainingprofile big -o jsonpath={.status.barred[*].gpuType}";
        until("the profile knows it", DEFAULT_TIMEOUT, async || Ok(c.kubectl(types).await?.contains(T4)))
            .await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hangs_and_runaways_are_ended() -> Result<()> {
    scenario(Options::default(), async |c| {
        let hangs = job("hangs")
            .spec("progressTimeout", json!("6s"))
            .spec("retries", json!(0))
            .epochs(10, 0.3)
            .env("TRAINER_HANG_AT", 0.4);
        let runs_away = job("runaway").spec("maxRunTime", json!("4s")).epochs(1000, 0.5);
        c.submit(&hangs).await?;
        c.submit(&runs_away).await?;
        c.wait_for_phase(&runs_away, Phase::Failed).await?;
        ensure!(c.observer.seen().has_reason(&runs_away.key(), Reason::MaxRunTime));
        c.wait_for_phase(&hangs, Phase::Failed).await?;
        let status = c.observer.seen().status(&hangs.key());
        ensure!(status.history[0].reason == Reason::ProgressTimeout.as_str(), "{:?}", status.history);
        Ok(())
    })
    .await
}
