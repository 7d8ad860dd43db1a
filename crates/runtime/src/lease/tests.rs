//! Two candidates and the failures between them, on paused time.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::election::campaign_at;
use super::*;

/// An API server with one Lease, shared by all candidates.
#[derive(Clone, Default)]
struct Server {
    stored: Arc<Mutex<Option<LeaseRecord>>>,
}

/// One candidate's connection to it.
#[derive(Clone)]
struct Link {
    server: Server,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Default)]
struct Faults {
    /// Requests never arrive and are never answered.
    partitioned: bool,
    /// Writes arrive, answers do not.
    deaf: bool,
    /// Time between deciding to write and the write's arrival.
    slow_write: Duration,
    writes: usize,
}

impl Server {
    fn link(&self) -> Link {
        Link { server: self.clone(), faults: Arc::default() }
    }

    fn holder(&self) -> String {
        self.stored.lock().as_ref().and_then(|lease| lease.spec.holder_identity.clone()).unwrap_or_default()
    }

    fn touch(&self, change: impl FnOnce(&mut LeaseRecord)) {
        let mut stored = self.stored.lock();
        let lease = stored.as_mut().expect("there is a lease");
        change(lease);
        bump(lease);
    }
}

fn bump(lease: &mut LeaseRecord) {
    let version: u64 = lease.metadata.resource_version.as_deref().unwrap_or("0").parse().unwrap();
    lease.metadata.resource_version = Some((version + 1).to_string());
}

impl Link {
    async fn arrive(&self) {
        if self.faults.lock().partitioned {
            std::future::pending::<()>().await;
        }
    }

    async fn answer(&self) {
        if self.faults.lock().deaf {
            std::future::pending::<()>().await;
        }
    }
}

impl LeaseStore for Link {
    async fn get(&self) -> Result<LeaseRecord, LeaseError> {
        self.arrive().await;
        self.server.stored.lock().clone().ok_or(LeaseError::NotFound)
    }

    async fn create(&self, spec: LeaseSpec) -> Result<LeaseRecord, LeaseError> {
        self.arrive().await;
        let mut stored = self.server.stored.lock();
        if stored.is_some() {
            return Err(LeaseError::Conflict);
        }
        let mut lease = LeaseRecord { spec, ..LeaseRecord::default() };
        bump(&mut lease);
        *stored = Some(lease.clone());
        Ok(lease)
    }

    async fn replace(&self, record: &LeaseRecord) -> Result<LeaseRecord, LeaseError> {
        self.arrive().await;
        let slow = self.faults.lock().slow_write;
        sleep(slow).await;
        let written = {
            let mut stored = self.server.stored.lock();
            let lease = stored.as_mut().ok_or(LeaseError::NotFound)?;
            if lease.metadata.resource_version != record.metadata.resource_version {
                return Err(LeaseError::Conflict);
            }
            *lease = record.clone();
            bump(lease);
            lease.clone()
        };
        self.faults.lock().writes += 1;
        self.answer().await;
        Ok(written)
    }
}

fn fast() -> Timestamp {
    Timestamp::now() + SignedDuration::from_hours(5)
}

fn slow() -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(5)
}

async fn lead(link: &Link, name: &str) -> Held {
    try_lead(link, name, Timestamp::now, Duration::from_secs(60)).await.expect("leads within a minute")
}

async fn try_lead(link: &Link, name: &str, wall: fn() -> Timestamp, within: Duration) -> Option<Held> {
    let campaign = campaign_at(link.clone(), LeaseConfig::new(name), CancellationToken::new(), wall);
    timeout(within, campaign)
        .await
        .ok()
        .map(|held| held.expect("valid configuration").expect("not shut down"))
}

#[tokio::test(start_paused = true)]
async fn the_second_candidate_waits_as_long_as_the_first_renews_whatever_the_clocks_say() {
    for (wall_of_a, wall_of_b) in [(slow as fn() -> Timestamp, fast as fn() -> Timestamp), (fast, slow)] {
        let server = Server::default();
        let (a, b) = (server.link(), server.link());
        let held = try_lead(&a, "a", wall_of_a, Duration::from_secs(1))
            .await
            .expect("a free lease is taken at once");
        assert!(try_lead(&b, "b", wall_of_b, Duration::from_secs(600)).await.is_none());
        assert!(held.leadership.is_current());
        assert_eq!(server.holder(), "a");
        held.renewing.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_leader_stops_before_another_starts() {
    // given: a leads, b waits
    let server = Server::default();
    let (a, b) = (server.link(), server.link());
    let held = lead(&a, "a").await;
    let challenger = tokio::spawn(async move { (lead(&b, "b").await, Instant::now()) });
    sleep(Duration::from_secs(30)).await;
    // when: a is cut off
    a.faults.lock().partitioned = true;
    let cut = Instant::now();
    held.leadership.lost().await;
    let stopped = Instant::now();
    // then: a knows within its deadline, and b leads only after that
    assert!(!held.leadership.is_current());
    assert!(stopped - cut <= Duration::from_secs(10), "{:?}", stopped - cut);
    let (second, started) = challenger.await.unwrap();
    assert!(started > stopped, "two leaders");
    assert!(started - cut <= Duration::from_secs(20), "{:?}", started - cut);
    assert_eq!(held.renewing.await.unwrap(), Ended::Expired);
    assert_eq!((server.holder().as_str(), second.leadership.transitions()), ("b", 1));
}

#[tokio::test(start_paused = true)]
async fn a_write_of_the_old_leader_must_end_before_the_next_one_begins() {
    // given: a leads, b waits, and a is cut off
    let server = Server::default();
    let (a, b) = (server.link(), server.link());
    let held = lead(&a, "a").await;
    let challenger = tokio::spawn(async move { (lead(&b, "b").await, Instant::now()) });
    sleep(Duration::from_secs(30)).await;
    a.faults.lock().partitioned = true;
    // when: a checks before each write, as long as it believes to lead
    let mut last = Instant::now();
    while let Some(deadline) = held.leadership.write_deadline() {
        assert!(deadline >= Instant::now() + Duration::from_secs(4), "no time for a write");
        last = deadline;
        sleep(Duration::from_millis(10)).await;
    }
    // then: even its last write must have taken effect before b leads
    let (_second, started) = challenger.await.unwrap();
    assert!(last < started, "{:?} too late", last - started);
}

#[tokio::test(start_paused = true)]
async fn the_clock_alone_ends_leadership_even_when_the_renewing_task_does_not_run() {
    let server = Server::default();
    let held = lead(&server.link(), "a").await;
    held.renewing.abort();
    assert!(held.leadership.is_current());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(!held.leadership.is_current());
}

#[tokio::test(start_paused = true)]
async fn a_slow_challenger_cannot_erase_a_faster_ones_claim() {
    // given: a lease whose holder died
    let server = Server::default();
    let dead = lead(&server.link(), "dead").await;
    dead.renewing.abort();
    // when: two candidates find it expired at the same time and one's write takes long to arrive
    let (late, swift) = (server.link(), server.link());
    late.faults.lock().slow_write = Duration::from_secs(4);
    let late_task = tokio::spawn({
        let late = late.clone();
        async move { try_lead(&late, "late", Timestamp::now, Duration::from_secs(120)).await.is_some() }
    });
    let held = lead(&swift, "swift").await;
    // then: the late write is refused and the swift one leads on
    assert!(!late_task.await.unwrap());
    assert!(held.leadership.is_current());
    assert_eq!(server.holder(), "swift");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_and_a_foreign_label_do_not_cost_the_leadership() {
    let server = Server::default();
    let link = server.link();
    let held = lead(&link, "a").await;
    // when: a renewal arrives but its answer does not, then another client labels the lease
    link.faults.lock().deaf = true;
    sleep(Duration::from_secs(5)).await;
    link.faults.lock().deaf = false;
    sleep(Duration::from_secs(5)).await;
    server.touch(|lease| lease.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into()));
    sleep(Duration::from_secs(60)).await;
    // then
    assert!(held.leadership.is_current());
    let stored = server.stored.lock().clone().unwrap();
    assert_eq!(stored.metadata.labels.unwrap()["team"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_or_deleted_by_hand_ends_the_leader() {
    let server = Server::default();
    let held = lead(&server.link(), "a").await;
    server.touch(|lease| lease.spec.holder_identity = Some("admin".into()));
    assert_eq!(held.renewing.await.unwrap(), Ended::TakenBy("admin".into()));
    assert!(!held.leadership.is_current());

    let server = Server::default();
    let held = lead(&server.link(), "a").await;
    *server.stored.lock() = None;
    assert_eq!(held.renewing.await.unwrap(), Ended::Deleted);
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_so_that_the_next_need_not_wait() {
    let server = Server::default();
    let shutdown = CancellationToken::new();
    let campaign = campaign_at(server.link(), LeaseConfig::new("a"), shutdown.clone(), Timestamp::now);
    let held = campaign.await.unwrap().unwrap();
    let next = tokio::spawn({
        let link = server.link();
        async move { lead(&link, "b").await }
    });
    sleep(Duration::from_secs(7)).await;
    let asked = Instant::now();
    shutdown.cancel();
    assert_eq!(held.renewing.await.unwrap(), Ended::Released(true));
    assert!(!held.leadership.is_current());
    let second = next.await.unwrap();
    assert!(second.leadership.is_current());
    assert!(asked.elapsed() <= Duration::from_secs(3), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn times_that_contradict_each_other_are_refused() {
    let config = LeaseConfig { renew_deadline: Duration::from_secs(15), ..LeaseConfig::new("a") };
    let refused = campaign(Server::default().link(), config, CancellationToken::new()).await;
    assert!(matches!(refused, Err(LeaseError::Config)));
}

#[tokio::test(start_paused = true)]
async fn taking_over_from_an_earlier_process_of_the_same_name_is_recognised() {
    // given: a leads, having found no lease, and dies
    let server = Server::default();
    let a = server.link();
    let first = lead(&a, "a").await;
    assert!(!first.succeeds_itself);
    first.renewing.abort();
    // then: a process of the same identity succeeds itself, and one of another identity does not
    let again = lead(&server.link(), "a").await;
    assert!(again.succeeds_itself);
    again.renewing.abort();
    let b = lead(&server.link(), "b").await;
    assert!(!b.succeeds_itself);
    b.renewing.abort();
    // nor does one whose first claim took effect although its answer was lost
    let deaf = server.link();
    deaf.faults.lock().deaf = true;
    let claiming = tokio::spawn({
        let deaf = deaf.clone();
        async move { lead(&deaf, "c").await }
    });
    let claimed = async {
        while server.holder() != "c" {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(60), claimed).await.expect("it claims the lease within a minute");
    deaf.faults.lock().deaf = false;
    let c = claiming.await.unwrap();
    assert!(!c.succeeds_itself);
    c.renewing.abort();
}
