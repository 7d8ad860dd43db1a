//! Random numbers for the timing of retries. Not for secrets, not reproducible.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A uniform random duration in `base x [1 - spread, 1 + spread]`; `spread` is clamped to 0..=1.
pub(crate) fn spread(base: Duration, spread: f64) -> Duration {
    let spread = spread.clamp(0.0, 1.0);
    // RandomState is seeded per instance, which is random enough for retries.
    let draw = RandomState::new().build_hasher().finish();
    let unit = (draw >> 11) as f64 / (1_u64 << 53) as f64;
    base.mul_f64(1.0 - spread + 2.0 * spread * unit)
}

/// Exponential backoff with a cap: from `min`, doubling to `max`, each with +/- 25 % jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The next wait; never above the cap.
    pub(crate) fn wait(&mut self) -> Duration {
        let wait = spread(self.next, 0.25).min(self.max);
        self.next = (self.next * 2).min(self.max);
        wait
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_never_above() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let waits: Vec<_> = (0..12).map(|_| backoff.wait()).collect();
        assert!(waits[0] >= Duration::from_millis(75) && waits[0] <= Duration::from_millis(125));
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(2)));
        assert!(waits[11] >= Duration::from_millis(1500));
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(125));
    }
}
