//! A long run in which everything happens that may happen: submissions, edits, deletions, pods deleted by force, killed and frozen
//! programs, silent, rebooted and deleted nodes, clocks that are set, and an API server behind a fault proxy.
//!
//! What is drawn depends on one seed and on what is there to draw from; when it happens depends on the machine.
//! [`Observer`](crate::observer::Observer) checks the objects, [`devices`](crate::devices) what the nodes' device managers, containers
//! and drivers say: who uses which GPU, and whether all GPUs together draw more than the power budget. At the end all is mended: every
//! job must end, no job may fail that was not made to, and nothing may be left.
//!
//! `actions` draws, `jobs`, `machines` and `faults` do what was drawn, `ending` checks the end, `usage` what
//! our programs hold, `report` says what came of it.

mod actions;
mod ending;
mod faults;
mod jobs;
mod machines;
mod report;
mod rng;
mod usage;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::json;

use crate::cluster::{A100, Cluster, Options, T4, a100, short_runs, t4};
use crate::scenario::{nobody_panicked, scenario};

pub use report::{BUDGET_WATTS, Report};

use actions::Actor;

/// Between two things that happen, ms.
const PAUSE_MS: (u64, u64) = (200, 2_000);
/// How often it is looked what is to be mended.
const MEND_EVERY: Duration = Duration::from_millis(200);
/// How often a line says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(300);

/// From so long on, no program of ours is killed or frozen in the last third.
const LONG_SOAK: Duration = Duration::from_secs(30 * 60);

/// How long, and what is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// Time in which things happen; the end takes up to some minutes more.
    pub lasts: Duration,
    /// Another seed, another scenario.
    pub seed: u64,
    /// Print every action and every repair with its second.
    pub verbose: bool,
}

impl Soak {
    /// Whether at its end no program of ours is killed or frozen, so that it is seen whether one holds more and more. Short soaks show nothing
    /// of it.
    fn ends_without_kills(&self) -> bool {
        self.lasts >= LONG_SOAK
    }

    /// Whether programs of ours are killed and frozen, so long after the start.
    fn kills_at(&self, time: Duration) -> bool {
        !self.ends_without_kills() || time < self.lasts * 2 / 3
    }
}

/// A whole number from the environment.
///
/// # Errors
/// When it is none.
pub fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.trim().parse().with_context(|| format!("{name}={text}: wanted a whole number")),
        Err(_) => Ok(default),
    }
}

/// Runs it on a cluster of its own. `SOAK_DIR` names a folder for everything that the cluster writes; it stays.
///
/// # Errors
/// What was seen that must not be, jobs that did not end, and what was left.
pub async fn run(soak: Soak) -> Result<Report> {
    let mut policy = short_runs();
    policy["powerBudget"] = json!({"watts": BUDGET_WATTS});
    // Only GPUs are looked at: no watts of the budget are for hosts.
    policy["gpuTypes"] = json!([
        {"name": A100, "idleWatts": 52, "maxWatts": 400, "hostIdleWatts": 0, "hostBusyWatts": 0},
        {"name": T4, "idleWatts": 10, "maxWatts": 70, "hostIdleWatts": 0, "hostBusyWatts": 0},
    ]);
    policy["limits"] = json!("On");
    policy["rest"] = json!({"mode": "On", "after": "5s"});
    let options = Options {
        heavy: true,
        name: "soak".into(),
        groups: vec![a100(3), t4(2)],
        policy,
        fault_proxy: true,
        clocks_can_be_set: true,
        agents: true,
        data_dir: std::env::var_os("SOAK_DIR").map(Into::into),
        ..Options::default()
    };
    let mut report = Report { seed: soak.seed, ..Report::default() };
    let kept = &mut report;
    scenario(options, async |c| run_soak(c, soak, kept).await).await.map_err(|error| {
        error.context(format!("soak with seed {} over {} s", soak.seed, soak.lasts.as_secs()))
    })?;
    // A budget that nothing comes near would be kept by any plan, and devices that nobody looks at have one user each.
    ensure!(report.highest_watts > BUDGET_WATTS / 2.0, "the budget was not put to the test: {report}");
    ensure!(report.looks as u64 >= soak.lasts.as_secs() / 2, "the devices were hardly looked at: {report}");
    ensure!(report.submitted > 0, "nothing happened: {report}");
    Ok(report)
}

async fn run_soak(c: &mut Cluster, soak: Soak, report: &mut Report) -> Result<()> {
    let keeper = c.keep_operators_running();
    c.collect_garbage().await?;
    {
        let devices = &mut c.observer.seen().devices;
        devices.budget_watts = Some(BUDGET_WATTS);
        devices.cut_off_nodes_count = true;
    }
    let mut actor = Actor::new(c, soak).await?;
    let result = act_and_end(c, soak, &mut actor, report).await;
    drop(keeper);
    result.map_err(|error| anyhow!("{error:#}\nwhat happened before:\n{}", actor.last_happened()))
}

async fn act_and_end(c: &mut Cluster, soak: Soak, actor: &mut Actor, report: &mut Report) -> Result<()> {
    let start = Instant::now();
    let mut reported = start;
    while start.elapsed() < soak.lasts {
        if reported.elapsed() >= TELL_EVERY {
            reported = Instant::now();
            println!("soak: {} min, {} jobs", start.elapsed().as_secs() / 60, actor.jobs.len());
        }
        actor.act(c).await?;
        let next = Instant::now() + actor.pause(PAUSE_MS);
        while Instant::now() < next {
            actor.mend_due(c).await?;
            actor.usage.look(c).await?;
            no_violation(c)?;
            tokio::time::sleep(MEND_EVERY).await;
        }
    }
    report.lasted = start.elapsed();
    actor.mend_all(c).await?;
    let mended = Instant::now();
    ending::all_end(c, actor).await?;
    report.all_ended_after = mended.elapsed();
    no_violation(c)?;
    nobody_panicked(c)?;
    actor.fill(c, report);
    ending::nobody_was_blamed(c, actor)?;
    actor.usage.check()?;
    ensure!(
        !soak.ends_without_kills() || actor.usage.lived_long("extender"),
        "nothing lived long: {}",
        actor.usage
    );
    ending::nothing_is_left(c).await
}

fn no_violation(c: &Cluster) -> Result<()> {
    let all: Vec<String> = c.observer.seen().violations.iter().cloned().collect();
    ensure!(all.is_empty(), "{}", all.join("; "));
    Ok(())
}
