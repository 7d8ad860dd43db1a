//! Starts our programs again when they end, as a kubelet would.

use std::sync::Arc;
use std::time::Duration;

use andreas_testbed::{Process, ProcessState};
use tokio::task::JoinHandle;

/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How an operator ends by itself, as one does that lost its Lease.
const ENDED_ITSELF: ProcessState = ProcessState::Exited(1);

/// Keeps processes running; dropped, it no longer does.
#[derive(Debug)]
pub struct Supervisor(JoinHandle<()>);

impl Supervisor {
    /// Starts them again whenever they end.
    #[must_use]
    pub fn of(processes: Vec<Arc<Process>>) -> Self {
        Self::where_ended(processes, |_| true)
    }

    /// Starts those again that ended themselves, and none that a scenario has stopped or killed: on a machine that stood still for
    /// seconds, an operator may lose its Lease.
    #[must_use]
    pub fn unless_killed(processes: Vec<Arc<Process>>) -> Self {
        Self::where_ended(processes, |state| state == ENDED_ITSELF)
    }

    fn where_ended(processes: Vec<Arc<Process>>, again: fn(ProcessState) -> bool) -> Self {
        Self(tokio::spawn(async move {
            loop {
                for process in processes.iter().filter(|one| one.pid().is_none() && again(one.state())) {
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
