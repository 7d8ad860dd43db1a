//! Conditions to wait for, and what the kernel says of a process.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use andreas_testbed::wait;

/// Room for a busy machine; nothing here needs more than a few seconds on an idle one.
pub const LIMIT: Duration = Duration::from_secs(60);

pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    wait::until(what, LIMIT, async || Ok(check().await)).await.unwrap();
}

/// The kernel's letter for the state of a process that exists.
pub fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Whether a process exists and is not merely waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    process_state(pid).is_some_and(|state| state != 'Z')
}
