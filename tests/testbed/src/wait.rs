//! Waiting for a condition, and watching that one goes on to hold: what a test does in place of a fixed sleep.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Least pause between two looks. After a look that takes long the pause is longer, for others need the machine too.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits until a condition holds, and says how long that took.
///
/// # Errors
/// What the look says, or that the condition did not hold within the limit.
pub async fn until(
    what: &str,
    limit: Duration,
    mut holds: impl AsyncFnMut() -> Result<bool>,
) -> Result<Duration> {
    let since = Instant::now();
    loop {
        let look = Instant::now();
        if holds().await? {
            return Ok(since.elapsed());
        }
        ensure!(since.elapsed() < limit, "not within {limit:?}: {what}");
        pause_after(look).await;
    }
}

/// Watches for some time that a condition goes on to hold. What must not happen needs this time to happen in, so here
/// no condition can take the place of the time.
///
/// # Errors
/// What a look says, or that the condition no longer holds.
pub async fn stays(what: &str, time: Duration, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let since = Instant::now();
    loop {
        let (look, over) = (Instant::now(), since.elapsed() >= time);
        ensure!(holds().await?, "no longer so after {:?}: {what}", since.elapsed());
        if over {
            return Ok(());
        }
        pause_after(look).await;
    }
}

async fn pause_after(look: Instant) {
    tokio::time::sleep(PAUSE.max(2 * look.elapsed())).await;
}
