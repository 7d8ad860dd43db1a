//! How much one address may make us ask the API server: every token that is not known costs a TokenReview.
//!
//! Several training programs may share an address (a node's, where traffic to Services is masqueraded), so the bound is that
//! of a full node whose tokens are all forgotten at once, and each program then asks once a minute.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Reviews that an address may use at once.
const BURST: f64 = 128.0;
/// Reviews a second that it gets back.
const PER_SECOND: f64 = 4.0;
/// Of these in flight: half of all, so that nobody has the endpoint to themselves.
const IN_FLIGHT: usize = super::token::REVIEWS / 2;
/// Addresses that are remembered at most.
const MAX_PEERS: usize = 10_000;

struct Peer {
    left: f64,
    seen: Instant,
    in_flight: usize,
}

/// What each address has left.
#[derive(Default)]
pub struct Peers {
    known: Mutex<HashMap<IpAddr, Peer>>,
}

/// One review under way; its place is free again when this goes.
pub struct Place<'a> {
    peers: &'a Peers,
    address: IpAddr,
}

impl Peers {
    /// A place for one more review; `None` where the address has used up its own.
    pub fn admit(&self, address: IpAddr, now: Instant) -> Option<Place<'_>> {
        let mut known = self.known.lock();
        if known.len() >= MAX_PEERS && !known.contains_key(&address) {
            known.retain(|_, peer| peer.in_flight > 0 || left(peer, now) < BURST);
            if known.len() >= MAX_PEERS {
                return None;
            }
        }
        let peer = known.entry(address).or_insert(Peer { left: BURST, seen: now, in_flight: 0 });
        peer.left = left(peer, now);
        peer.seen = now;
        if peer.left < 1.0 || peer.in_flight >= IN_FLIGHT {
            return None;
        }
        peer.left -= 1.0;
        peer.in_flight += 1;
        Some(Place { peers: self, address })
    }
}

fn left(peer: &Peer, now: Instant) -> f64 {
    (peer.left + now.duration_since(peer.seen).as_secs_f64() * PER_SECOND).min(BURST)
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(peer) = self.peers.known.lock().get_mut(&self.address) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn an_address_uses_up_its_own_share_and_nobody_elses() {
        let (peers, now) = (Peers::default(), Instant::now());
        let admitted = (0..1_000).filter(|_| peers.admit(ONE, now).is_some()).count();
        assert_eq!(admitted, 128);
        assert!(peers.admit(OTHER, now).is_some());
        let later = now + Duration::from_secs(10);
        assert_eq!((0..1_000).filter(|_| peers.admit(ONE, later).is_some()).count(), 40);
    }

    #[test]
    fn an_address_has_half_the_places_at_most() {
        let (peers, now) = (Peers::default(), Instant::now());
        let mut held: Vec<_> = std::iter::from_fn(|| peers.admit(ONE, now)).collect();
        assert_eq!(held.len(), 4);
        assert!(peers.admit(OTHER, now).is_some());
        held.pop();
        assert!(peers.admit(ONE, now).is_some());
    }

    #[test]
    fn addresses_do_not_pile_up() {
        let (peers, now) = (Peers::default(), Instant::now());
        for n in 0..30_000_u32 {
            let now = now + Duration::from_millis(u64::from(n));
            assert!(peers.admit(IpAddr::from(n.to_be_bytes()), now).is_some(), "{n}");
        }
        assert!(peers.known.lock().len() <= MAX_PEERS);
    }
}
