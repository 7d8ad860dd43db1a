//! Rate limits for shared resources: one token bucket per address, namespace or other key.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of clients remembered.
const MAX_KEPT: usize = 10_000;

/// Token buckets of equal size, by key.
pub struct Buckets<K> {
    burst: f64,
    per_second: f64,
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

#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    seen: Instant,
}

impl<K: Eq + Hash> Buckets<K> {
    /// Full buckets of `burst` uses that regain `per_second` uses per second.
    #[must_use]
    pub fn new(burst: u32, per_second: u32) -> Self {
        Self { burst: burst.into(), per_second: per_second.into(), known: Mutex::default() }
    }

    /// Takes one use of a client; `false` if none is left.
    #[must_use]
    pub fn admit(&self, client: K, now: Instant) -> bool {
        let at = |bucket: &Bucket| {
            let back = now.duration_since(bucket.seen).as_secs_f64() * self.per_second;
            Bucket { left: (bucket.left + back).min(self.burst), seen: now }
        };
        let mut known = self.known.lock();
        if known.len() >= MAX_KEPT && !known.contains_key(&client) {
            // Full buckets need not be stored.
            known.retain(|_, bucket| at(bucket).left < self.burst);
            if known.len() >= MAX_KEPT {
                return false;
            }
        }
        let bucket = known.entry(client).or_insert(Bucket { left: self.burst, seen: now });
        *bucket = at(bucket);
        let enough = bucket.left >= 1.0;
        if enough {
            bucket.left -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
