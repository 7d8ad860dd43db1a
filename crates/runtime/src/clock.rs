//! The API server's time, independent of this machine's clock.
//!
//! Objects carry timestamps of the API server. A process with a wall clock an hour off would compare them
//! with its own time and end healthy runs. So the `Date` header of every answer is measured. From the first
//! answer on, [`now`] is that time plus the elapsed monotonic time. [`now`] never reads the wall clock again,
//! so a step of it has no effect. The metric `andreas_clock_skew_seconds` reports the difference.
//!
//! A server behind a load balancer may be wrong itself. The time is therefore reset only when several answers
//! in a row, over [`PERSISTS`], contradict it.
//!
//! Use [`std::time::Instant`] for durations between two events in this process.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::DATE;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

/// Slower answers are too imprecise, and count only until the first quick one.
const SLOWEST: Duration = Duration::from_secs(2);
/// Smaller contradictions are rounding and drift.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(2);
/// Consecutive contradicting answers before the time is reset; they must span [`PERSISTS`].
const CONTRADICTIONS: u32 = 3;
/// See [`CONTRADICTIONS`].
const PERSISTS: Duration = Duration::from_secs(10);

static CLOCK: LazyLock<Mutex<Clock>> =
    LazyLock::new(|| Mutex::new(Clock::new(Timestamp::now(), Instant::now())));
static SKEW: LazyLock<Gauge<f64, AtomicU64>> = LazyLock::new(Gauge::default);

/// The API server's time; before the first answer, the machine's time.
#[must_use]
pub fn now() -> Timestamp {
    CLOCK.lock().now(Instant::now())
}

/// Processes the `Date` of an answer to a request sent at `sent`.
pub fn observe(headers: &HeaderMap, sent: Instant) {
    let date = headers.get(DATE).and_then(|value| value.to_str().ok());
    let Some(date) = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok()) else { return };
    let received = Instant::now();
    let sample = Sample { date: date.timestamp(), round_trip: received.duration_since(sent) };
    if sample.is_quick() {
        SKEW.set(sample.deviation(Timestamp::now()).as_secs_f64());
    }
    CLOCK.lock().learn(sample, received);
}

/// Seconds by which the wall clock of this machine is ahead of the API server's, by its last answer.
pub(crate) fn skew() -> Gauge<f64, AtomicU64> {
    SKEW.clone()
}

/// One answer of the API server.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Its `Date`: the second in which the answer was sent.
    date: Timestamp,
    round_trip: Duration,
}

impl Sample {
    fn is_quick(&self) -> bool {
        self.round_trip <= SLOWEST
    }

    /// Distance of a receipt time from the interval that the answer allows; zero inside.
    fn deviation(&self, at: Timestamp) -> SignedDuration {
        let latest = SignedDuration::from_secs(1)
            .saturating_add(SignedDuration::try_from(self.round_trip).unwrap_or(SignedDuration::ZERO));
        let ahead = at.duration_since(self.date);
        if ahead.is_negative() { ahead } else { ahead.saturating_sub(latest).max(SignedDuration::ZERO) }
    }
}

/// A time base: an API server time and its monotonic instant.
#[derive(Debug)]
struct Clock {
    base: Timestamp,
    at: Instant,
    /// A quick answer was seen.
    learned: bool,
    /// Start and number of consecutive contradicting answers.
    contradicted: Option<(Instant, u32)>,
}

impl Clock {
    fn new(wall: Timestamp, at: Instant) -> Self {
        Self { base: wall, at, learned: false, contradicted: None }
    }

    fn now(&self, at: Instant) -> Timestamp {
        let passed = SignedDuration::try_from(at.saturating_duration_since(self.at));
        passed.ok().and_then(|passed| self.base.checked_add(passed).ok()).unwrap_or(Timestamp::MAX)
    }

    fn learn(&mut self, sample: Sample, received: Instant) {
        let quick = sample.is_quick();
        if !quick && self.learned {
            return;
        }
        if sample.deviation(self.now(received)).abs() <= TOLERANCE {
            (self.learned, self.contradicted) = (quick, None);
            return;
        }
        let (since, times) = self.contradicted.get_or_insert((received, 0));
        *times += 1;
        let persists = *times >= CONTRADICTIONS && received.saturating_duration_since(*since) >= PERSISTS;
        if self.learned && !persists {
            return;
        }
        let off_seconds = sample.deviation(self.now(received)).as_secs();
        tracing::warn!(off_seconds, "the API server's clock differs; its time is taken");
        let middle = SignedDuration::from_millis(500);
        (self.base, self.at) = (sample.date.checked_add(middle).unwrap_or(sample.date), received);
        (self.learned, self.contradicted) = (quick, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sample(date: i64) -> Sample {
        Sample { date: second(date), round_trip: Duration::from_millis(20) }
    }

    #[test]
    fn a_machine_that_is_an_hour_off_takes_the_servers_time_with_the_first_answer() {
        for wall in [1_000_000 - 3_600, 1_000_000 + 3_600] {
            let start = Instant::now();
            let mut clock = Clock::new(second(wall), start);
            clock.learn(sample(1_000_000), start);
            let off = clock.now(start + Duration::from_secs(7)).duration_since(second(1_000_007));
            assert!(off.abs() <= SignedDuration::from_secs(1), "{off:?}");
        }
    }

    #[test]
    fn slow_answers_are_better_than_a_wrong_wall_clock_and_worse_than_a_quick_answer() {
        let start = Instant::now();
        let mut clock = Clock::new(second(1_000_000 + 3_600), start);
        let slow = |date| Sample { date: second(date), round_trip: Duration::from_secs(20) };
        clock.learn(slow(1_000_000), start);
        assert_eq!(clock.now(start).as_second(), 1_000_000);
        clock.learn(sample(1_000_015), start);
        assert_eq!(clock.now(start).as_second(), 1_000_015);
        clock.learn(slow(1_000_100), start);
        assert_eq!(clock.now(start).as_second(), 1_000_015);
    }

    #[test]
    fn a_right_clock_is_left_alone_and_one_wrong_server_of_several_moves_nothing() {
        let start = Instant::now();
        let mut clock = Clock::new(second(1_000_000), start);
        clock.learn(sample(1_000_000), start);
        assert_eq!(clock.now(start), second(1_000_000));
        // Some answers come from a server that is an hour ahead.
        for tick in 1..60 {
            let at = start + Duration::from_secs(tick);
            let ahead = if tick % 2 == 0 { 3_600 } else { 0 };
            clock.learn(sample(1_000_000 + i64::try_from(tick).unwrap() + ahead), at);
        }
        assert_eq!(clock.now(start + Duration::from_secs(60)), second(1_000_060));
    }

    #[test]
    fn a_server_whose_clock_was_set_is_followed_after_a_while() {
        let start = Instant::now();
        let mut clock = Clock::new(second(1_000_000), start);
        clock.learn(sample(1_000_000), start);
        let set = |clock: &mut Clock, tick: u64| {
            let at = start + Duration::from_secs(tick);
            clock.learn(sample(1_003_600 + i64::try_from(tick).unwrap()), at);
            clock.now(at).as_second()
        };
        assert_eq!([1, 5, 10].map(|tick| set(&mut clock, tick)), [1_000_001, 1_000_005, 1_000_010]);
        assert_eq!(set(&mut clock, 11), 1_003_611);
    }

    #[test]
    fn the_skew_says_by_how_much_the_wall_clock_is_ahead() {
        let sample = sample(1_000_000);
        assert_eq!(sample.deviation(second(1_003_600)).as_secs(), 3_598);
        assert_eq!(sample.deviation(second(996_400)).as_secs(), -3_600);
        assert_eq!(sample.deviation(second(1_000_001)), SignedDuration::ZERO);
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Sun, 22 Nov 2026 21:12:00 GMT".parse().unwrap());
        let date = headers[DATE].to_str().ok().and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
        assert_eq!(date.unwrap().timestamp().to_string(), "2026-11-22T21:12:00Z");
    }
}
