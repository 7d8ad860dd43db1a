//! The power budget beside what simulated GPUs really draw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use andreas_api::phase::{Outcome, Phase};
use andreas_api::slim::SlimGpuNode;
use andreas_e2e::cluster::{A100, Cluster, Group, Options, a100, short_runs};
use andreas_e2e::job::{Job, job, measured, profile};
use andreas_e2e::nodes::client;
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use anyhow::{Result, ensure};
use kube::Api;
use serde_json::json;
use tokio::task::JoinHandle;

/// How often the drivers are asked.
const EVERY: Duration = Duration::from_millis(100);

/// The draw of all GPUs of a cluster, watched by their drivers.
struct Draw {
    /// Highest sum so far, mW, and looks.
    seen: Arc<(AtomicU64, AtomicU64)>,
    watch: JoinHandle<()>,
}

impl Draw {
    fn watch(cluster: &Cluster) -> Self {
        let seen = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let (nodes, shared) = (client(&cluster.testbed), Arc::clone(&seen));
        let watch = tokio::spawn(async move {
            loop {
                if let Ok(nodes) = nodes.nodes().await {
                    let sum: f64 = nodes.iter().flat_map(|node| &node.hardware).map(|gpu| gpu.watts).sum();
                    shared.0.fetch_max((sum * 1e3) as u64, Ordering::Relaxed);
                    shared.1.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { seen, watch }
    }

    /// Highest draw so far, W.
    fn highest(&self) -> f64 {
        self.seen.0.load(Ordering::Relaxed) as f64 / 1e3
    }

    fn looks(&self) -> u64 {
        self.seen.1.load(Ordering::Relaxed)
    }
}

impl Drop for Draw {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// The agents of so many nodes report so many GPUs each.
async fn agents_report(cluster: &Cluster, nodes: usize, gpus: usize) -> Result<Vec<SlimGpuNode>> {
    let mut all = Vec::new();
    let all_report = async || {
        all = Api::<SlimGpuNode>::all(cluster.testbed.client()).list(&Default::default()).await?.items;
        let reports = |node: &&SlimGpuNode| {
            node.status.as_ref().is_some_and(|s| s.agent_version.is_some() && s.gpus.len() == gpus)
        };
        Ok(all.iter().filter(reports).count() == nodes)
    };
    until("the agents report", Duration::from_secs(120), all_report).await?;
    Ok(all)
}

/// Waits for the end of all jobs, one after the other.
async fn all_succeed(cluster: &mut Cluster, jobs: &[Job]) -> Result<()> {
    for tj in jobs {
        // Those before it in the queue have their time, too.
        for _ in jobs {
            if cluster.wait_for_phase(tj, Phase::Succeeded).await.is_ok() {
                break;
            }
        }
        cluster.wait_for_phase(tj, Phase::Succeeded).await?;
    }
    Ok(())
}

/// Given a budget for one job of eight GPUs at work, and four jobs whose user says that they draw 1 W; when all have run, then each
/// began under a guard that its boards kept, and the GPUs have never drawn more than the budget.
#[tokio::test(flavor = "multi_thread")]
async fn users_who_understate_their_draw_do_not_break_the_power_budget() -> Result<()> {
    const BUDGET: f64 = 5_500.0;
    let mut policy = short_runs();
    policy["powerBudget"] = json!({"watts": BUDGET});
    // Only GPUs are measured here.
    policy["gpuTypes"] =
        json!([{"name": A100, "idleWatts": 52, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 0}]);
    let group = Group { gpus: 8, ..a100(4) };
    let options = Options {
        name: "watts".into(),
        groups: vec![group],
        policy,
        install: Some(json!({})),
        ..Options::default()
    };
    scenario(options, async |c| {
        agents_report(c, 4, 8).await?;
        let draw = Draw::watch(c);
        let mut jobs = Vec::new();
        for n in 0..4 {
            // Each with a profile of its own: nothing is known of it but its user's word.
            let name = format!("modest-{n}");
            c.apply(&profile(&name, &[measured(A100, 8, 500, 1)])).await?;
            let tj = job(&name).gpus(8, 1).epochs(8, 0.5).profile(name);
            c.submit(&tj).await?;
            jobs.push(tj);
        }
        c.wait_for_phase(&jobs[0], Phase::Running).await?;
        let held = c.observer.seen().status(&jobs[0].key()).allocation;
        // Four tenths of the maximum: below that nobody knows how slow a board is.
        ensure!(held.as_ref().is_some_and(|held| held.guard_watts == Some(160)), "{held:?}");
        all_succeed(c, &jobs).await?;
        let highest = draw.highest();
        println!("highest draw {highest:.0} W of {BUDGET} W in {} looks", draw.looks());
        ensure!(highest < BUDGET, "{highest} W");
        // One job at work and 24 idle GPUs: what was watched is the draw.
        ensure!(highest > 3_500.0, "no job was seen at work: {highest} W");
        Ok(())
    })
    .await
}

/// Given agents that only observe, and a budget that two jobs would keep under power limits only; when both have run, then none was
/// given a limit and the GPUs have never drawn more than the budget.
#[tokio::test(flavor = "multi_thread")]
async fn limits_that_nobody_sets_save_no_watts() -> Result<()> {
    const BUDGET: f64 = 2_500.0;
    let mut policy = short_runs();
    policy["powerBudget"] = json!({"watts": BUDGET});
    // Only GPUs are measured here.
    policy["gpuTypes"] =
        json!([{"name": A100, "idleWatts": 52, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 0}]);
    policy["limits"] = json!("On");
    let options = Options {
        name: "observing".into(),
        groups: vec![a100(2)],
        policy,
        install: Some(json!({"agent": {"observe": true}})),
        ..Options::default()
    };
    scenario(options, async |c| {
        for node in agents_report(c, 2, 4).await? {
            let gpus = node.status.unwrap_or_default().gpus;
            let none = gpus.iter().all(|g| g.min_limit_watts.is_none() && g.max_limit_watts.is_none());
            ensure!(none, "an agent that observes promises no limit: {gpus:?}");
        }
        let draw = Draw::watch(c);
        c.apply(&profile("known", &[measured(A100, 4, 500, 1_500)])).await?;
        let jobs: Vec<Job> =
            ["first", "second"].map(|name| job(name).gpus(4, 1).epochs(8, 0.5).profile("known")).into();
        for tj in &jobs {
            c.submit(tj).await?;
        }
        all_succeed(c, &jobs).await?;
        let highest = draw.highest();
        println!("highest draw {highest:.0} W of {BUDGET} W in {} looks", draw.looks());
        ensure!(highest < BUDGET, "{highest} W");
        ensure!(highest > 1_500.0, "no job was seen at work: {highest} W");
        Ok(())
    })
    .await
}

/// Given a budget for one job of eight GPUs at work; when an urgent job on free GPUs of another node gets the watts of a light one
/// that takes its whole grace to leave, then the GPUs have never drawn more than the budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_preemption_for_watts_never_draws_more_than_the_power_budget() -> Result<()> {
    const BUDGET: f64 = 4_000.0;
    const GRACE: i32 = 20;
    let mut policy = short_runs();
    policy["powerBudget"] = json!({"watts": BUDGET});
    // Only GPUs are measured here.
    policy["gpuTypes"] =
        json!([{"name": A100, "idleWatts": 52, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 0}]);
    let options = Options {
        name: "preempted".into(),
        groups: vec![Group { gpus: 8, ..a100(2) }],
        policy,
        install: Some(json!({})),
        ..Options::default()
    };
    scenario(options, async |c| {
        agents_report(c, 2, 8).await?;
        let draw = Draw::watch(c);
        c.apply(&profile("known", &[measured(A100, 8, 500, 2_400)])).await?;
        let on = |node: &str| json!({"kubernetes.io/hostname": node});
        let known = |name: &str| job(name).gpus(8, 1).profile("known");
        let light =
            known("light").epochs(2_000, 0.5).spec("weight", json!(1)).pod("nodeSelector", on("a100-0"));
        let light = light.without("deadlineAfter").checkpoint(GRACE).env("TRAINER_IGNORE_TERM", 1);
        c.submit(&light).await?;
        c.wait_for_phase(&light, Phase::Running).await?;
        let urgent =
            known("urgent").epochs(8, 0.5).spec("weight", json!(1_000)).spec("deadlineAfter", json!("1m"));
        let urgent = urgent.pod("nodeSelector", on("a100-1"));
        c.submit(&urgent).await?;
        c.wait_for_phase(&light, Phase::Stopping).await?;
        let stopping = Instant::now();
        c.wait_for_phase(&urgent, Phase::Running).await?;
        let waited = stopping.elapsed();
        c.wait_for_phase(&urgent, Phase::Succeeded).await?;
        let highest = draw.highest();
        println!("highest draw {highest:.0} W of {BUDGET} W in {} looks, waited {waited:?}", draw.looks());
        ensure!(highest < BUDGET, "{highest} W");
        ensure!(highest > 2_000.0, "no job was seen at work: {highest} W");
        ensure!(waited > Duration::from_secs(15), "it did not wait for the grace of the other: {waited:?}");
        // One look at a time: each holds what was seen.
        let light = c.observer.seen().status(&light.key());
        let urgent = c.observer.seen().status(&urgent.key());
        ensure!(urgent.attempts == 1, "{urgent:?}");
        ensure!(light.history.first().is_some_and(|a| a.outcome == Outcome::Stopped), "{:?}", light.history);
        Ok(())
    })
    .await
}
