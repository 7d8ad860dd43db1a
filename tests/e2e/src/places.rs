//! How many scenarios run at a time: most of a scenario is waiting, but what they wait for comes late where the machine is busy.
//! A few run on any machine, and more while its cores have time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

/// So many places are given at any time, on a slow machine of two cores too.
const LEAST: u32 = 3;
/// No more are given on any machine.
const MOST: u32 = 8;
/// Places that a heavy scenario takes. One of them runs at a time.
const HEAVY: u32 = 3;
/// A place above [`LEAST`] is given after cores were idle for this share of [`LOOK`].
const IDLE_SHARE: f64 = 0.2;
/// What a scenario starts keeps the cores busy for longer than this: the next look sees it.
const LOOK: Duration = Duration::from_secs(4);

static FREE: Semaphore = Semaphore::const_new(MOST as usize);
/// One heavy scenario at a time.
static ONE_HEAVY: Semaphore = Semaphore::const_new(1);
/// One at a time takes places and looks at the cores.
static DOOR: Semaphore = Semaphore::const_new(1);

/// Taken until it is dropped.
pub struct Place {
    _free: SemaphorePermit<'static>,
    _one_heavy: Option<SemaphorePermit<'static>>,
}

/// Waits for a place, in the order of the calls. Heavy scenarios wait for each other first; the next one then holds up all others until it
/// has its places.
///
/// # Errors
/// When the machine does not say how busy it is.
pub async fn take(heavy: bool) -> Result<Place> {
    let one_heavy = if heavy { Some(ONE_HEAVY.acquire().await?) } else { None };
    let _door = DOOR.acquire().await?;
    let free = FREE.acquire_many(if heavy { HEAVY } else { 1 }).await?;
    while FREE.available_permits() < (MOST - LEAST) as usize {
        let before = CoreTime::now()?;
        tokio::time::sleep(LOOK).await;
        if CoreTime::now()?.idle_share_since(before) >= IDLE_SHARE {
            break;
        }
    }
    Ok(Place { _free: free, _one_heavy: one_heavy })
}

/// What the cores did since the machine started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CoreTime {
    idle: u64,
    all: u64,
}

impl CoreTime {
    /// From `/proc/stat` (man 5 proc_stat).
    fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        Self::parse(&text).with_context(|| format!("/proc/stat: {}", text.lines().next().unwrap_or_default()))
    }

    fn parse(text: &str) -> Option<Self> {
        let ticks = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the users' already.
        let ticks: Vec<u64> =
            ticks.split_whitespace().take(8).map(|t| t.parse().ok()).collect::<Option<_>>()?;
        Some(Self { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.iter().sum() })
    }

    fn idle_share_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.idle.saturating_sub(before.idle) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_share_is_that_of_the_time_between_two_looks() {
        let before = CoreTime::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        let after = CoreTime::parse("cpu  150 0 60 820 60 0 0 10 7 0\ncpu0 1 2 3 4\n").unwrap();
        assert_eq!(before, CoreTime { idle: 850, all: 1000 });
        assert_eq!(after.idle_share_since(before), 0.3);
        assert_eq!(CoreTime::parse("cpu  1 2\n"), None);
        assert!(CoreTime::now().unwrap().all > 0);
    }
}
