//! How much one address may make us ask the API server: every token that is not known costs a TokenReview.
//!
//! Several training programs may share an address, a node's or a gateway's, where traffic to Services is masqueraded. So the
//! bound is that of a thousand programs, each of which asks once a minute, with room for those of a node to begin at once.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Reviews that an address may use at once.
const BURST: f64 = 256.0;
/// Reviews a second that it gets back.
const PER_SECOND: f64 = 16.0;
/// Addresses that are remembered at most.
const MAX_PEERS: usize = 10_000;

#[derive(Clone, Copy)]
struct Peer {
    left: f64,
    seen: Instant,
}

impl Peer {
    fn at(self, now: Instant) -> Self {
        let back = now.duration_since(self.seen).as_secs_f64() * PER_SECOND;
        Self { left: (self.left + back).min(BURST), seen: now }
    }
}

/// What each address has left.
#[derive(Default)]
pub struct Peers {
    known: Mutex<HashMap<IpAddr, Peer>>,
}

impl Peers {
    /// Uses one review of that address; `false` where it has none left.
    pub fn admit(&self, address: IpAddr, now: Instant) -> bool {
        let mut known = self.known.lock();
        if known.len() >= MAX_PEERS && !known.contains_key(&address) {
            // Who has all of it left need not be remembered.
            known.retain(|_, peer| peer.at(now).left < BURST);
            if known.len() >= MAX_PEERS {
                return false;
            }
        }
        let peer = known.entry(address).or_insert(Peer { left: BURST, seen: now });
        *peer = peer.at(now);
        let enough = peer.left >= 1.0;
        if enough {
            peer.left -= 1.0;
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
        let (peers, now) = (Peers::default(), Instant::now());
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let admitted = |at: Instant| (0..1_000).filter(|_| peers.admit(one, at)).count();
        assert_eq!(admitted(now), 256);
        assert!(peers.admit(other, now));
        assert_eq!(admitted(now + Duration::from_secs(5)), 80);
    }

    #[test]
    fn addresses_do_not_pile_up() {
        let (peers, start) = (Peers::default(), Instant::now());
        for n in 0..30_000_u32 {
            let now = start + Duration::from_millis(u64::from(n));
            assert!(peers.admit(IpAddr::from(n.to_be_bytes()), now), "{n}");
        }
        assert!(peers.known.lock().len() <= MAX_PEERS);
    }
}
