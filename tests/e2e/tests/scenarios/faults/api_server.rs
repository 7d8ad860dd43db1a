//! An API server that answers, but not with what was hoped for.

use std::time::{Duration, Instant};

use andreas_api::phase::{Outcome, Phase};
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::keeper::full_or;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::faults::{Fault, Records, Rule, Select, Share, Verb};
use anyhow::{Result, ensure};

/// The caller of the one operator.
const OPERATOR: &str = "operator-0";
/// Requests per second that an operator may make while half of its writes conflict.
const MAX_PER_SECOND: usize = 10;

fn options() -> Options {
    Options { fault_proxy: true, groups: vec![a100(2)], ..Options::default() }
}

/// What the operator asked since then, but for the renewals of its Lease.
fn asked_since(c: &Cluster, start: Instant) -> Result<Records> {
    let all = c.faults()?.records().since(start);
    Ok(all.only(|r| r.caller == OPERATOR && r.resource != "leases"))
}

/// One cluster, one fault after the other; each leaves everything as it was.
#[tokio::test(flavor = "multi_thread")]
async fn refused_calls_stop_no_other_job_and_fail_nobody() -> Result<()> {
    scenario(options(), async |c| {
        let _keeper = c.keep_operators_running();
        c.collect_garbage().await?;
        c.make_namespace("calm").await?;
        c.make_namespace("broken").await?;
        conflicts_slow_the_operator_down_and_no_other_job(c).await?;
        a_busy_api_server_is_given_time_and_nobody_fails(c).await?;
        refused_pods_of_one_namespace_leave_the_gpus_to_others(c).await
    })
    .await
}

/// Half of the patches conflict while an editor changes a job five times a second.
async fn conflicts_slow_the_operator_down_and_no_other_job(c: &mut Cluster) -> Result<()> {
    let lasts = full_or(Duration::from_secs(60), Duration::from_secs(20));
    let edited = job("edited").gpus(1, 1).epochs(400, 0.4).env("TRAINER_NO_PROGRESS", 1);
    c.submit(&edited).await?;
    c.wait_for_phase(&edited, Phase::Running).await?;

    let conflict = Fault::Answer { status: 409, retry_after: None };
    let select = Select::verbs([Verb::Patch]).caller(OPERATOR);
    let half = Share::PerMille { share: 500, seed: 11 };
    let rule = c.faults()?.add(Rule::new(select, conflict).share(half));
    let start = Instant::now();
    let calm = job("calm").namespace("calm").epochs(6, 0.4);
    c.submit(&calm).await?;
    let mut weight = 1;
    while start.elapsed() < lasts {
        weight = weight % 1000 + 1;
        c.edit(&edited.key(), &serde_json::json!({"weight": weight})).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    c.wait_for_phase(&calm, Phase::Succeeded).await?;
    let met = c.faults()?.met(rule);
    c.faults()?.remove(rule);

    let asked = asked_since(c, start)?;
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap_or(1).max(1);
    println!(
        "conflicts: {met} in {seconds} s, {} requests of the operator, {} in the busiest 10 s; {:?}",
        asked.len(),
        asked.most_within(Duration::from_secs(10)),
        asked.count_by(|r| format!("{:?} {}", r.verb, r.resource)),
    );
    ensure!(met > 0, "nothing conflicted");
    ensure!(asked.len() <= MAX_PER_SECOND * seconds, "{} requests in {seconds} s", asked.len());
    let busiest = asked.most_within(Duration::from_secs(10));
    ensure!(busiest <= MAX_PER_SECOND * 10, "{busiest} requests in the busiest 10 s");
    let status = c.observer.seen().status(&edited.key());
    ensure!(status.attempts == 1 && status.restarts == 0, "the edited job was disturbed: {status:?}");
    c.kubectl("delete trainingjob edited --wait=false").await?;
    Ok(())
}

/// Every call is answered with 429 and a `Retry-After`.
async fn a_busy_api_server_is_given_time_and_nobody_fails(c: &mut Cluster) -> Result<()> {
    let lasts = full_or(Duration::from_secs(60), Duration::from_secs(15));
    let running = job("through-busy").gpus(1, 1).epochs(30, 0.5).namespace("calm");
    c.submit(&running).await?;
    c.wait_for_phase(&running, Phase::Running).await?;

    let busy = Fault::Answer { status: 429, retry_after: Some(1) };
    let rule = c.faults()?.add(Rule::new(Select::all().caller(OPERATOR), busy).lasts(lasts));
    let start = Instant::now();
    let waits = job("waits").namespace("calm").epochs(4, 0.3);
    c.submit(&waits).await?;
    c.observer.until("busy no longer", lasts + DEFAULT_TIMEOUT, |_| start.elapsed() > lasts).await?;
    let asked = asked_since(c, start)?.only(|r| r.status == Some(429));
    println!(
        "busy: {} refused in {} s, {} in the busiest 10 s",
        asked.len(),
        lasts.as_secs(),
        asked.most_within(Duration::from_secs(10))
    );
    ensure!(c.faults()?.met(rule) > 0, "nothing was refused");
    ensure!(
        asked.most_within(Duration::from_secs(10)) <= 20 * 10,
        "a busy server is asked again and again: {:?}",
        asked.count_by(|r| format!("{:?} {}", r.verb, r.resource))
    );
    for tj in [&running, &waits] {
        c.wait_for_phase(tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&tj.key());
        ensure!(status.attempts == 1 && status.user_failures == 0, "{}: {:?}", tj.key(), status.history);
    }
    Ok(())
}

/// Members with index 1 of one namespace cannot be made: half a gang holds nothing, and the GPUs go to others.
async fn refused_pods_of_one_namespace_leave_the_gpus_to_others(c: &mut Cluster) -> Result<()> {
    let select = Select::verbs([Verb::Create])
        .resource("pods")
        .namespace("broken")
        .label(andreas_api::names::LABEL_INDEX, "1");
    let rule = c.faults()?.add(Rule::new(select, Fault::Answer { status: 500, retry_after: None }));
    // given a gang that wants every GPU, and whose second member is refused
    let gang = job("gang").namespace("broken").gpus(8, 2).epochs(4, 0.3);
    c.submit(&gang).await?;
    let met = c.faults()?.until_met(rule, 1, DEFAULT_TIMEOUT).await;
    ensure!(met.is_ok(), "the gang was not tried");
    // then the job of another namespace runs on those GPUs, and no member of the gang stays
    let other = job("other").namespace("calm").gpus(8, 2).epochs(4, 0.3);
    c.submit(&other).await?;
    c.wait_for_phase(&other, Phase::Succeeded).await?;
    // and when pods can be made again the gang runs, without a failure of its own
    c.faults()?.remove(rule);
    let key = gang.key();
    c.observer
        .until("the gang succeeded", 3 * DEFAULT_TIMEOUT, |s| s.phase(&key) == Phase::Succeeded)
        .await?;
    let status = c.observer.seen().status(&key);
    ensure!(status.user_failures == 0, "{:?}", status.history);
    ensure!(status.history.iter().all(|a| a.outcome != Outcome::UserFailure), "{:?}", status.history);
    Ok(())
}
