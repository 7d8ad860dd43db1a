//! Rate limits for shared resources: one token bucket per address, namespace or other key.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of clients remembered.
const MAX_KEPT: usize = 10_000;

/// How many uses there are at once, and how many come back in a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Uses at once.
    pub burst: f64,
    /// Uses that are regained per second.
    pub per_second: f64,
}

/// Token bucket with a steady refill rate.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, tokens: rate.burst, at: now }
    }

    fn fill(&mut self, now: Instant) {
        let since = now.duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * self.rate.per_second).min(self.rate.burst);
        self.at = now;
    }

    /// Takes a token.
    ///
    /// # Errors
    /// The time until one is available.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / self.rate.per_second))
    }

    /// Takes a token in advance and returns the time until it is available, at most `longest`. Later callers
    /// wait longer.
    pub fn take_in_advance(&mut self, now: Instant, longest: Duration) -> Duration {
        self.fill(now);
        let least = -longest.as_secs_f64() * self.rate.per_second;
        self.tokens = (self.tokens - 1.0).max(least);
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.rate.per_second)
    }

    /// Whether it is full, and so need not be stored.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.tokens >= self.rate.burst
    }
}

/// Token buckets of equal size, by key.
pub struct Buckets<K> {
    rate: Rate,
    known: Mutex<HashMap<K, Bucket>>,
}

/// Token reviews, limited by sender address: every unknown token costs the API server a TokenReview.
///
/// Several programs may share the address of a node or gateway, where traffic to Services is masqueraded. The
/// limit therefore suits a thousand programs that each ask once a minute, and a node's programs starting at
/// once.
pub type Reviews = Buckets<IpAddr>;

impl Reviews {
    /// Burst of 256, 16 per second.
    #[must_use]
    pub fn by_address() -> Self {
        Self::new(256, 16)
    }
}

impl<K: Eq + Hash> Buckets<K> {
    /// Full buckets of `burst` uses that regain `per_second` uses per second.
    #[must_use]
    pub fn new(burst: u32, per_second: u32) -> Self {
        let rate = Rate { burst: burst.into(), per_second: per_second.into() };
        Self { rate, known: Mutex::default() }
    }

    /// Takes one use of a client; `false` if none is left.
    #[must_use]
    pub fn admit(&self, client: K, now: Instant) -> bool {
        let mut known = self.known.lock();
        if known.len() >= MAX_KEPT && !known.contains_key(&client) {
            known.retain(|_, bucket| !bucket.is_full(now));
            if known.len() >= MAX_KEPT {
                return false;
            }
        }
        known.entry(client).or_insert_with(|| Bucket::full(self.rate, now)).take(now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_uses_up_its_own_share_and_nobody_elses() {
        let (reviews, now) = (Reviews::by_address(), Instant::now());
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let admitted = |at: Instant| (0..1_000).filter(|_| reviews.admit(one, at)).count();
        assert_eq!(admitted(now), 256);
        assert!(reviews.admit(other, now));
        assert_eq!(admitted(now + Duration::from_secs(5)), 80);
    }

    #[test]
    fn addresses_do_not_pile_up() {
        let (reviews, start) = (Reviews::by_address(), Instant::now());
        for n in 0..30_000_u32 {
            let now = start + Duration::from_millis(u64::from(n));
            assert!(reviews.admit(IpAddr::from(n.to_be_bytes()), now), "{n}");
        }
        assert!(reviews.known.lock().len() <= MAX_KEPT);
    }
}
