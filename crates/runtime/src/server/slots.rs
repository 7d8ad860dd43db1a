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
            let victims = victims(&seen, self.limit);
            if victims.is_empty() {
                drop(held);
                self.overload.note();
                return None;
            }
            for connection in victims.iter().filter_map(|id| held.connections.remove(id)) {
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

/// The connections to close for a new one. Finding them looks at all: where there are many, a few go at once, so that thousands of clients
/// that come again and again cost no processor.
fn victims(seen: &[ConnectionInfo], limit: usize) -> Vec<u64> {
    let most = (limit / 32).max(1);
    let unknown = seen.iter().filter(|one| !one.known()).count();
    let of_known = || of_largest_group(seen.iter().filter(|one| one.known()), |one| !one.busy, most);
    // No more than those above their half.
    let above = (unknown + 1).saturating_sub(limit / 2).max(1);
    let of_unknown = || of_largest_group(seen.iter().filter(|one| !one.known()), |_| true, most.min(above));
    if unknown * 2 >= limit {
        return of_unknown();
    }
    let found = of_known();
    if found.is_empty() { of_unknown() } else { found }
}

/// Among those that `may` close: the largest group, idle before busy, longest idle first. At most `most`, and not so many that the group
/// becomes smaller than the next one; a busy one alone.
fn of_largest_group<'a>(
    all: impl Iterator<Item = &'a ConnectionInfo>,
    may: impl Fn(&ConnectionInfo) -> bool,
    most: usize,
) -> Vec<u64> {
    let all: Vec<&ConnectionInfo> = all.collect();
    let mut sizes: HashMap<&Group, usize> = HashMap::new();
    for one in &all {
        *sizes.entry(&one.group).or_default() += 1;
    }
    let size = |group: &Group| sizes.get(group).copied().unwrap_or(0);
    let order = |one: &&ConnectionInfo| (std::cmp::Reverse(size(&one.group)), one.busy, one.last, one.id);
    let Some(first) = all.iter().copied().filter(|one| may(one)).min_by_key(order) else { return Vec::new() };
    if first.busy {
        return vec![first.id];
    }
    let next = sizes.iter().filter(|(group, _)| ***group != first.group).map(|(_, size)| *size).max();
    let most = size(&first.group).saturating_sub(next.unwrap_or(0)).clamp(1, most);
    let mut idle: Vec<&ConnectionInfo> =
        all.iter().copied().filter(|one| one.group == first.group && !one.busy && may(one)).collect();
    idle.sort_unstable_by_key(|one| (one.last, one.id));
    idle.iter().take(most).map(|one| one.id).collect()
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
    async fn of_a_flood_a_few_are_closed_at_once_and_of_nobody_else_any() {
        let slots = ConnectionSlots::new(640, Duration::from_secs(5), Overload::default());
        let known = slots.take(address(1)).unwrap();
        known.connection.authenticated("team");
        let others: Vec<ConnectionSlot> = (0..30).map(|_| slots.take(address(3)).unwrap()).collect();
        pass(1).await;
        let flood: Vec<ConnectionSlot> = (0..5_000).map(|_| slots.take(address(2)).unwrap()).collect();
        assert!(open(&known) && others.iter().all(open));
        let left = flood.iter().filter(|slot| open(slot)).count();
        assert!((589..=609).contains(&left), "{left}");
        // The longest idle ones.
        assert!(flood[..5_000 - 609].iter().all(|slot| !open(slot)));
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
