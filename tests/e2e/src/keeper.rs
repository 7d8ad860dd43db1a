//! Starts our programs again when they end, as a kubelet would in a cluster.

use std::sync::Arc;
use std::time::Duration;

use andreas_testbed::Process;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Keeps the operators of a cluster running; dropped, it no longer does.
#[derive(Debug)]
pub struct Keeper(JoinHandle<()>);

impl Cluster {
    /// Starts an operator again whenever it ends: one that loses its Lease ends itself.
    #[must_use]
    pub fn keep_operators_running(&self) -> Keeper {
        let processes: Vec<Arc<Process>> = self.operators.iter().map(|one| one.process.clone()).collect();
        Keeper(tokio::spawn(async move {
            loop {
                for process in processes.iter().filter(|process| process.pid().is_none()) {
                    // Whoever started it a moment before was as good.
                    drop(process.start_again());
                }
                tokio::time::sleep(LOOK).await;
            }
        }))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether scenarios run at full length (`ANDREAS_LONG=1`) or in a short form.
pub fn at_full_length() -> bool {
    std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1")
}

/// The first time at full length, else the second.
pub fn full_or(full: Duration, short: Duration) -> Duration {
    if at_full_length() { full } else { short }
}
