//! The connections of a server, and the choice of the one to close when a new one comes at the limit.
//!
//! Half of the places are reserved for authenticated clients, with a token that a handler accepted or with a
//! certificate. Within each half the largest group loses its longest idle connection. A group is an address,
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
pub(super) struct Places {
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
    /// Cancelled when its place goes to another connection.
    pub(super) evicted: CancellationToken,
}

struct State {
    client: Option<Arc<str>>,
    in_flight: usize,
    /// Whether a request was answered.
    answered: bool,
    /// Time of its last activity.
    last: Instant,
}

/// A place that is held until this is dropped.
pub(super) struct Place {
    id: u64,
    places: Arc<Places>,
    pub(super) connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.held.lock().connections.remove(&self.id);
    }
}

impl Places {
    pub(super) fn new(limit: usize, fresh: Duration, overload: Overload) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), fresh, overload, held: Mutex::default() })
    }

    /// Takes a place for a new connection, and closes another one at the limit. `None` if all have a request
    /// of an authenticated client in flight.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let now = Instant::now();
        let mut held = self.held.lock();
        if held.connections.len() >= self.limit {
            let seen: Vec<Seen> = held.connections.iter().map(|(id, c)| c.seen(*id)).collect();
            let Some(id) = victim(&seen, self.limit) else {
                drop(held);
                self.overload.note();
                return None;
            };
            if let Some(connection) = held.connections.remove(&id) {
                connection.evicted.cancel();
                if connection.may_have_been_good(now, self.fresh) {
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
        Some(Place { id, places: Arc::clone(self), connection })
    }
}

impl Connection {
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

    fn seen(&self, id: u64) -> Seen {
        let state = self.state.lock();
        let group = state.client.clone().map_or(Group::Address(self.peer), Group::Client);
        Seen { id, group, busy: state.in_flight > 0, last: state.last }
    }

    fn may_have_been_good(&self, now: Instant, fresh: Duration) -> bool {
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
struct Seen {
    id: u64,
    group: Group,
    busy: bool,
    last: Instant,
}

impl Seen {
    fn known(&self) -> bool {
        matches!(self.group, Group::Client(_))
    }
}

/// The connection to close for a new one.
fn victim(seen: &[Seen], limit: usize) -> Option<u64> {
    let unknown = seen.iter().filter(|one| !one.known()).count();
    let of_known = || of_largest_group(seen.iter().filter(|one| one.known()), |one| !one.busy);
    let of_unknown = || of_largest_group(seen.iter().filter(|one| !one.known()), |_| true);
    if unknown * 2 >= limit { of_unknown() } else { of_known().or_else(of_unknown) }
}

/// Among those that `may` close: the largest group, idle before busy, longest idle first.
fn of_largest_group<'a>(all: impl Iterator<Item = &'a Seen>, may: impl Fn(&Seen) -> bool) -> Option<u64> {
    let all: Vec<&Seen> = all.collect();
    let mut sizes: HashMap<&Group, usize> = HashMap::new();
    for one in &all {
        *sizes.entry(&one.group).or_default() += 1;
    }
    let order = |one: &&Seen| {
        let size = sizes.get(&one.group).copied().unwrap_or(0);
        (std::cmp::Reverse(size), one.busy, one.last, one.id)
    };
    all.iter().copied().filter(|one| may(one)).min_by_key(order).map(|one| one.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 8;

    fn places() -> (Arc<Places>, Overload) {
        let overload = Overload::default();
        (Places::new(LIMIT, Duration::from_secs(5), overload.clone()), overload)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn pass(seconds: u64) -> impl Future<Output = ()> {
        tokio::time::advance(Duration::from_secs(seconds))
    }

    fn open(place: &Place) -> bool {
        !place.connection.evicted.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_places_are_taken_the_address_with_most_connections_loses_its_longest_idle_one() {
        let (places, _) = places();
        let other = places.take(address(9)).unwrap();
        pass(10).await;
        let many: Vec<Place> = (0..7).map(|_| places.take(address(1)).unwrap()).collect();
        many[0].connection.touch();
        pass(1).await;
        many[0].connection.touch();
        let newcomer = places.take(address(2)).unwrap();
        assert!(open(&other) && open(&newcomer) && open(&many[0]));
        assert_eq!(many.iter().filter(|place| !open(place)).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_the_places_are_kept_for_clients_that_have_shown_who_they_are() {
        let (places, _) = places();
        let known: Vec<Place> = (0..4).map(|_| places.take(address(1)).unwrap()).collect();
        known.iter().for_each(|place| place.connection.authenticated("team"));
        let silent: Vec<Place> = (0..1_000).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(known.iter().all(open));
        assert_eq!(silent.iter().filter(|place| open(place)).count(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_good_token_cannot_take_every_place() {
        let (places, _) = places();
        let other = places.take(address(3)).unwrap();
        other.connection.authenticated("small");
        let greedy: Vec<Place> = (0..7).map(|_| places.take(address(1)).unwrap()).collect();
        greedy.iter().for_each(|place| place.connection.authenticated("greedy"));
        let newcomers: Vec<Place> = (0..4).map(|_| places.take(address(2)).unwrap()).collect();
        assert!(newcomers.iter().all(open) && open(&other));
        assert_eq!(greedy.iter().filter(|place| open(place)).count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_known_clients_are_never_cut_off() {
        let (places, overload) = places();
        let busy: Vec<Place> = (0..LIMIT).map(|_| places.take(address(1)).unwrap()).collect();
        busy.iter().for_each(|place| place.connection.authenticated("team"));
        let requests: Vec<InFlight> = busy.iter().map(|place| place.connection.begin()).collect();
        assert!(places.take(address(2)).is_none());
        assert!(overload.last().is_some(), "a refused connection is remembered");
        drop(requests);
        assert!(places.take(address(2)).is_some());
        assert_eq!(busy.iter().filter(|place| !open(place)).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_connection_that_may_have_been_a_good_one_counts_as_lost() {
        let (places, overload) = places();
        let _old: Vec<Place> = (0..LIMIT).map(|_| places.take(address(1)).unwrap()).collect();
        pass(6).await;
        let _new = places.take(address(1)).unwrap();
        assert_eq!(overload.last(), None, "silent for six seconds: nothing was lost");
        let _more: Vec<Place> = (0..LIMIT).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(overload.last().is_some(), "cut off right after it was opened");
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_given_back() {
        let (places, _) = places();
        for _ in 0..100 {
            let place = places.take(address(1)).unwrap();
            assert!(open(&place));
        }
        assert!(places.held.lock().connections.is_empty());
    }
}
