//! Silence: an API server that is away, watches that stop, an extender that hangs.

use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::keeper::full_or;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_testbed::faults::{Fault, Rule, Select, Verb};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

const OPERATOR: &str = "operator-0";
const CALLERS: [&str; 2] = [OPERATOR, "extender"];
/// From the API server's return to the next plan.
const NEXT_PLAN: Duration = Duration::from_secs(10);
/// A watch lasts 30 s, spread by a fifth, and is given up 5 s later.
const WATCH_GIVEN_UP: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread")]
async fn silence_costs_its_own_time_and_no_job() -> Result<()> {
    let options = Options { fault_proxy: true, groups: vec![a100(2)], ..Options::default() };
    scenario(options, async |c| {
        let _keeper = c.keep_operators_running();
        c.collect_garbage().await?;
        a_plan_follows_the_api_servers_return(c).await?;
        stopped_watches_are_noticed_and_resumed(c).await?;
        a_hanging_extender_stops_the_scheduler_only_while_it_hangs(c).await
    })
    .await
}

async fn a_plan_follows_the_api_servers_return(c: &mut Cluster) -> Result<()> {
    let away = full_or(Duration::from_secs(300), Duration::from_secs(30));
    // given a run that goes on until it is deleted, and a job submitted while the API server is away
    let epochs = i32::try_from(away.as_secs()).unwrap_or(300) * 2 + 2000;
    let running = job("running").gpus(1, 1).epochs(epochs, 0.5);
    c.submit(&running).await?;
    c.wait_for_phase(&running, Phase::Running).await?;
    c.faults()?.cut_off(None);
    let since = Instant::now();
    let waits = job("waits").epochs(4, 0.3);
    c.submit(&waits).await?;
    c.observer.until("away long enough", away + DEFAULT_TIMEOUT, |_| since.elapsed() > away).await?;
    // when it is back
    let starts_before = c.operators[0].process.starts();
    c.faults()?.let_in(None);
    let back = Instant::now();
    let key = waits.key();
    c.observer.until("planned", DEFAULT_TIMEOUT, |s| s.status(&key).allocation.is_some()).await?;
    let planned = back.elapsed();
    // then the job is planned soon, with few lists, and the run was not touched
    let starts = c.operators[0].process.starts();
    println!("API server away {} s: planned {planned:.1?} after its return, {starts} starts", away.as_secs());
    c.wait_for_phase(&waits, Phase::Succeeded).await?;
    for caller in CALLERS {
        let lists = c.faults()?.records().since(back).only(|r| r.caller == caller).lists();
        println!("{caller} listed {lists:?}");
        // An operator that was away for too long ends, perhaps only now, and its next process lists too.
        let starts = c.operators[0].process.starts() - starts_before;
        let allowed = if caller == OPERATOR { 1 + starts as usize } else { 1 };
        ensure!(lists.values().all(|count| *count <= allowed), "{caller} listed again and again: {lists:?}");
    }
    ensure!(planned <= NEXT_PLAN, "planned after {planned:?}");
    let status = c.observer.seen().status(&running.key());
    ensure!(status.phase == Phase::Running && status.attempts == 1, "{status:?}");
    c.kubectl("delete trainingjob running --wait=false").await?;
    Ok(())
}

/// How often the operator has lost its Lease so far, by its log.
fn leases_lost(c: &Cluster) -> Result<usize> {
    let log = std::fs::read_to_string(c.operators[0].process.log_path())?;
    Ok(log.matches("lost leadership").count())
}

async fn stopped_watches_are_noticed_and_resumed(c: &mut Cluster) -> Result<()> {
    // given watches on which nothing comes any more, not even their end
    let select = Select::verbs([Verb::Watch]).caller(OPERATOR).caller("extender");
    let lost_before = leases_lost(c)?;
    let rule = c.faults()?.add(Rule::new(select, Fault::HoldOpenWatches));
    let start = Instant::now();
    // when a job is submitted
    let tj = job("unheard").epochs(4, 0.3);
    c.submit(&tj).await?;
    // then the watches are given up in time and resumed where they were, without a list
    let key = tj.key();
    c.observer
        .until("succeeded", WATCH_GIVEN_UP + DEFAULT_TIMEOUT, |s| s.phase(&key) == Phase::Succeeded)
        .await?;
    println!("watches stopped: the job succeeded after {:.1?}", start.elapsed());
    for caller in CALLERS {
        let lists = c.faults()?.records().since(start).only(|r| r.caller == caller).lists();
        // On a slow machine an operator may lose its Lease, and its next process lists.
        let allowed = if caller == OPERATOR { leases_lost(c)? - lost_before } else { 0 };
        ensure!(
            lists.values().all(|count| *count <= allowed),
            "{caller} listed instead of resumed: {lists:?}"
        );
    }
    c.faults()?.remove(rule);
    Ok(())
}

async fn a_hanging_extender_stops_the_scheduler_only_while_it_hangs(c: &mut Cluster) -> Result<()> {
    let extender = c.extender.as_ref().context("extender mode")?;
    // when the extender is stopped in its tracks and a job waits to be bound
    extender.pause()?;
    let tj = job("unbound").epochs(4, 0.3);
    c.submit(&tj).await?;
    c.wait_for_phase(&tj, Phase::Starting).await?;
    // then pods of the cluster's own scheduler are bound all the same
    c.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": andreas_e2e::job::TRAINER_IMAGE}]},
    }))
    .await?;
    c.observer
        .until("the plain pod is bound", DEFAULT_TIMEOUT, |s| {
            s.pods
                .values()
                .any(|p| p.pod.metadata.name.as_deref() == Some("plain") && p.pod.spec.node_name.is_some())
        })
        .await?;
    // and when it goes on, the job runs; a placement that timed out meanwhile was nobody's fault
    c.extender.as_ref().context("extender mode")?.resume()?;
    let (key, resumed) = (tj.key(), Instant::now());
    c.observer.until("succeeded", 2 * DEFAULT_TIMEOUT, |s| s.phase(&key) == Phase::Succeeded).await?;
    println!("extender went on: the job succeeded after {:.1?}", resumed.elapsed());
    let status = c.observer.seen().status(&key);
    ensure!(status.user_failures == 0, "{:?}", status.history);
    Ok(())
}
