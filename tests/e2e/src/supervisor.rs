//! Starts our programs again when they end, as a kubelet would.

use std::sync::Arc;
use std::time::Duration;

use andreas_testbed::{Process, ProcessState};
use tokio::task::JoinHandle;

/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(200);
/// What an operator logs that ends because it lost its Lease.
const LOST: &str = "lost leadership";

/// Keeps processes running; dropped, it no longer does.
#[derive(Debug)]
pub struct Supervisor(JoinHandle<()>);

impl Supervisor {
    /// Starts them again whenever they end.
    #[must_use]
    pub fn of(processes: Vec<Arc<Process>>) -> Self {
        Self::where_ended(processes, |_| true)
    }

    /// Starts those again that lost their Lease, as one may on a machine that stood still for seconds. Those that a scenario has stopped
    /// or killed, and those that ended with another error, stay away.
    #[must_use]
    pub fn where_lease_lost(processes: Vec<Arc<Process>>) -> Self {
        Self::where_ended(processes, |one| one.state() == ProcessState::Exited(1) && one.log().contains(LOST))
    }

    fn where_ended(processes: Vec<Arc<Process>>, again: fn(&Process) -> bool) -> Self {
        Self(tokio::spawn(async move {
            loop {
                for process in processes.iter().filter(|one| one.pid().is_none() && again(one)) {
                    // Whoever started it a moment before was as good.
                    drop(process.start_again());
                }
                tokio::time::sleep(LOOK).await;
            }
        }))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}
