//! The connections of a server, and the choice of the one to close when a new one comes at the limit.
//!
//! Half of the slots are reserved for clients that a handler has marked as authenticated. Within each half the largest group loses its longest idle connection. A group is an address,
//! or the client that a handler named. There is no fixed cap per address, because many pods may share the
//! address of a node or gateway.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::Limits;
use super::overload::Overload;

/// The connections of one listener.
pub(super) struct ConnectionSlots {
    limit: usize,
    /// A connection closed before this age, without an answer, may have been legitimate.
    fresh: Duration,
    overload: Overload,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

/// One connection.
pub(super) struct Connection {
    peer: IpAddr,
    opened: Instant,
    state: Mutex<State>,
    /// Cancelled when its slot goes to another connection.
    evicted: CancellationToken,
}

struct State {
    client: Option<Arc<str>>,
    in_flight: usize,
    /// Whether a request was answered.
    answered: bool,
    /// Time of its last activity.
    last: Instant,
}

/// A connection's slot, held until this is dropped.
pub(super) struct ConnectionSlot {
    id: u64,
    slots: Arc<ConnectionSlots>,
    connection: Arc<Connection>,
}

impl ConnectionSlot {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.held.lock().connections.remove(&self.id);
    }
}

impl ConnectionSlots {
    pub(super) fn new(limit: usize, fresh: Duration, overload: Overload) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), fresh, overload, held: Mutex::default() })
    }

    /// Takes a slot for a new connection, and closes another one at the limit. `None` if all have a request
    /// of an authenticated client in flight.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let now = Instant::now();
        let mut held = self.held.lock();
        if held.connections.len() >= self.limit {
            let seen: Vec<ConnectionInfo> = held.connections.iter().map(|(id, c)| c.seen(*id)).collect();
            let Some(id) = victim(&seen, self.limit) else {
                drop(held);
                self.overload.note();
                return None;
            };
            if let Some(connection) = held.connections.remove(&id) {
                connection.evicted.cancel();
                if connection.may_have_been_legitimate(now, self.fresh) {
                    self.overload.note();
                }
            }
        }
        let connection = Arc::new(Connection {
            peer,
            opened: now,
            state: Mutex::new(State { client: None, in_flight: 0, answered: false, last: now }),
            evicted: CancellationToken::new(),
        });
        held.next += 1;
        let id = held.next;
        held.connections.insert(id, Arc::clone(&connection));
        Some(ConnectionSlot { id, slots: Arc::clone(self), connection })
    }
}

impl Connection {
    /// Cancelled when its slot goes to another connection.
    pub(super) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }

    /// Marks its client as authenticated.
    pub(super) fn authenticated(&self, client: &str) {
        let mut state = self.state.lock();
        if state.client.as_deref() != Some(client) {
            state.client = Some(client.into());
        }
    }

    /// Starts a request; it is in flight until the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.state.lock().in_flight += 1;
        InFlight(Arc::clone(self))
    }

    /// Records that data was sent.
    pub(super) fn touch(&self) {
        self.state.lock().last = Instant::now();
    }

    /// Idle deadline: `first` after `established` without any request, else `unknown` or `known` after the
    /// last activity. `None` while a request is in flight.
    pub(super) fn closes(&self, established: Instant, limits: &Limits) -> Option<Instant> {
        let state = self.state.lock();
        if state.in_flight > 0 {
            return None;
        }
        Some(match (state.answered, &state.client) {
            (false, _) => established + limits.header,
            (true, None) => state.last + limits.idle_unknown,
            (true, Some(_)) => state.last + limits.idle,
        })
    }

    fn seen(&self, id: u64) -> ConnectionInfo {
        let state = self.state.lock();
        let group = state.client.clone().map_or(Group::Address(self.peer), Group::Client);
        ConnectionInfo { id, group, busy: state.in_flight > 0, last: state.last }
    }

    fn may_have_been_legitimate(&self, now: Instant, fresh: Duration) -> bool {
        let state = self.state.lock();
        state.in_flight > 0 || (!state.answered && now.duration_since(self.opened) < fresh)
    }
}

/// A request in flight.
pub(super) struct InFlight(Arc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.answered = true;
        state.last = Instant::now();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Address(IpAddr),
    Client(Arc<str>),
}

/// Data for the choice of the connection to close.
#[derive(Clone, Debug)]
struct ConnectionInfo {
    id: u64,
    group: Group,
    busy: bool,
    last: Instant,
}

impl ConnectionInfo {
    fn known(&self) -> bool {
        matches!(self.group, Group::Client(_))
    }
}

/// The connection to close for a new one.
fn victim(seen: &[ConnectionInfo], limit: usize) -> Option<u64> {
    let unknown = seen.iter().filter(|one| !one.known()).count();
    let of_known = || of_largest_group(seen.iter().filter(|one| one.known()), |one| !one.busy);
    let of_unknown = || of_largest_group(seen.iter().filter(|one| !one.known()), |_| true);
    if unknown * 2 >= limit { of_unknown() } else { of_known().or_else(of_unknown) }
}

/// Among those that `may` close: the largest group, idle before busy, longest idle first.
fn of_largest_group<'a>(
    all: impl Iterator<Item = &'a ConnectionInfo>,
    may: impl Fn(&ConnectionInfo) -> bool,
) -> Option<u64> {
    let all: Vec<&ConnectionInfo> = all.collect();
    let mut sizes: HashMap<&Group, usize> = HashMap::new();
    for one in &all {
        *sizes.entry(&one.group).or_default() += 1;
    }
    let order = |one: &&ConnectionInfo| {
        let size = sizes.get(&one.group).copied().unwrap_or(0);
        (std::cmp::Reverse(size), one.busy, one.last, one.id)
    };
    all.iter().copied().filter(|one| may(one)).min_by_key(order).map(|one| one.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 8;

    fn slots() -> (Arc<ConnectionSlots>, Overload) {
        let overload = Overload::default();
        (ConnectionSlots::new(LIMIT, Duration::from_secs(5), overload.clone()), overload)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn pass(seconds: u64) -> impl Future<Output = ()> {
        tokio::time::advance(Duration::from_secs(seconds))
    }

    fn open(slot: &ConnectionSlot) -> bool {
        !slot.connection.evicted.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_slots_are_taken_the_address_with_most_connections_loses_its_longest_idle_one() {
        let (slots, _) = slots();
        let other = slots.take(address(9)).unwrap();
        pass(10).await;
        let many: Vec<ConnectionSlot> = (0..7).map(|_| slots.take(address(1)).unwrap()).collect();
        many[0].connection.touch();
        pass(1).await;
        many[0].connection.touch();
        let newcomer = slots.take(address(2)).unwrap();
        assert!(open(&other) && open(&newcomer) && open(&many[0]));
        assert_eq!(many.iter().filter(|slot| !open(slot)).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_the_slots_are_kept_for_authenticated_clients() {
        let (slots, _) = slots();
        let known: Vec<ConnectionSlot> = (0..4).map(|_| slots.take(address(1)).unwrap()).collect();
        known.iter().for_each(|slot| slot.connection.authenticated("team"));
        let silent: Vec<ConnectionSlot> = (0..1_000).map(|_| slots.take(address(1)).unwrap()).collect();
        assert!(known.iter().all(open));
        assert_eq!(silent.iter().filter(|slot| open(slot)).count(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_good_token_cannot_take_every_slot() {
        let (slots, _) = slots();
        let other = slots.take(address(3)).unwrap();
        other.connection.authenticated("small");
        let greedy: Vec<ConnectionSlot> = (0..7).map(|_| slots.take(address(1)).unwrap()).collect();
        greedy.iter().for_each(|slot| slot.connection.authenticated("greedy"));
        let newcomers: Vec<ConnectionSlot> = (0..4).map(|_| slots.take(address(2)).unwrap()).collect();
        assert!(newcomers.iter().all(open) && open(&other));
        assert_eq!(greedy.iter().filter(|slot| open(slot)).count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_known_clients_are_never_cut_off() {
        let (slots, overload) = slots();
        let busy: Vec<ConnectionSlot> = (0..LIMIT).map(|_| slots.take(address(1)).unwrap()).collect();
        busy.iter().for_each(|slot| slot.connection.authenticated("team"));
        let requests: Vec<InFlight> = busy.iter().map(|slot| slot.connection.begin()).collect();
        assert!(slots.take(address(2)).is_none());
        assert!(overload.last().is_some(), "a refused connection is remembered");
        drop(requests);
        assert!(slots.take(address(2)).is_some());
        assert_eq!(busy.iter().filter(|slot| !open(slot)).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_connection_that_may_have_been_legitimate_counts_as_lost() {
        let (slots, overload) = slots();
        let _old: Vec<ConnectionSlot> = (0..LIMIT).map(|_| slots.take(address(1)).unwrap()).collect();
        pass(6).await;
        let _new = slots.take(address(1)).unwrap();
        assert_eq!(overload.last(), None, "silent for six seconds: nothing was lost");
        let _more: Vec<ConnectionSlot> = (0..LIMIT).map(|_| slots.take(address(1)).unwrap()).collect();
        assert!(overload.last().is_some(), "cut off right after it was opened");
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_released() {
        let (slots, _) = slots();
        for _ in 0..100 {
            let slot = slots.take(address(1)).unwrap();
            assert!(open(&slot));
        }
        assert!(slots.held.lock().connections.is_empty());
    }
}
