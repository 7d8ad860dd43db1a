//! Starts our programs again, when they end, as a kubelet would in a cluster, or by will; and what memory they took.

use std::time::{Duration, Instant};

use andreas_testbed::Process;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result};

use crate::cluster::Cluster;
use crate::scenario::DEFAULT_TIMEOUT;
use crate::scrape;
use crate::supervisor::Supervisor;

impl Cluster {
    /// Starts an operator again whenever it ends.
    #[must_use]
    pub fn keep_operators_running(&self) -> Supervisor {
        Supervisor::of(self.operators.iter().map(|one| one.process.clone()).collect())
    }

    /// Starts the first operator again; how long until all its caches are filled and it has planned.
    ///
    /// # Errors
    /// When it has not within six minutes.
    pub async fn restart_operator(&self) -> Result<Duration> {
        let operator = self.operators.first().context("no operator")?;
        operator.process.stop().await;
        let started = Instant::now();
        operator.process.start_again()?;
        let planned = |text: &str| {
            let count =
                text.lines().find_map(|line| line.strip_prefix("andreas_plan_duration_seconds_count "));
            count.is_some_and(|count| count != "0")
        };
        until("a plan after its start", 3 * DEFAULT_TIMEOUT, async || {
            Ok(scrape::text(operator.admin).await.is_ok_and(|text| planned(&text)))
        })
        .await?;
        Ok(started.elapsed())
    }
}

/// Largest memory that a process has had, MiB.
///
/// # Errors
/// When it does not run.
pub fn peak_mib(process: &Process) -> Result<f64> {
    let pid = process.pid().context("it does not run")?;
    memory_mib(pid).map(|(_, peak)| peak).context("no memory of it in /proc")
}

/// Resident memory of a process now and at its peak, MiB; `None` when it is gone.
pub fn memory_mib(pid: u32) -> Option<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()
    };
    Some((field("VmRSS:")? / 1024.0, field("VmHWM:")? / 1024.0))
}

/// Whether scenarios run at full length (`ANDREAS_LONG=1`) or in a short form.
pub fn at_full_length() -> bool {
    std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1")
}

/// The first time at full length, else the second.
pub fn full_or<T>(full: T, short: T) -> T {
    if at_full_length() { full } else { short }
}
