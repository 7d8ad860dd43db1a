//! What this process has seen of one machine over time, by its own clock. It is lost with the process, and then proofs take
//! longer.

use std::time::Duration;

use andreas_api::node_power::{PowerReading, PowerState};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::driver::Trouble;

/// Since when a renewal is the same.
#[derive(Clone, Debug)]
struct Still {
    renewal: Timestamp,
    first: Instant,
    last: Instant,
}

/// A Lease as it was seen: it moves, or stands still.
#[derive(Clone, Debug, Default)]
pub struct SeenLease {
    still: Option<Still>,
    moved: bool,
}

impl SeenLease {
    /// Takes in a renewal that was read now; `None` where there is no Lease.
    pub fn read(&mut self, renewal: Option<Timestamp>) {
        let now = Instant::now();
        match (&mut self.still, renewal) {
            (Some(still), Some(renewal)) if still.renewal == renewal => still.last = now,
            (before, Some(renewal)) => {
                self.moved |= before.is_some();
                *before = Some(Still { renewal, first: now, last: now });
            }
            (before, None) => *before = None,
        }
    }

    /// For how long it is known to stand still; zero without a Lease.
    pub fn still_for(&self) -> Duration {
        self.still.as_ref().map_or(Duration::ZERO, |still| still.last - still.first)
    }

    /// The same for a holder that must be alive: one that was never seen to move is not.
    pub fn silent_for(&self, began: Instant) -> Duration {
        match &self.still {
            Some(still) if self.moved => still.first.elapsed(),
            _ => began.elapsed().max(Duration::from_secs(61)),
        }
    }
}

/// One machine.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The last reading and its time.
    pub reading: Option<(Result<PowerReading, Trouble>, Instant)>,
    /// Whether something has happened since that reading.
    expired: bool,
    off_since: Option<Instant>,
    /// The kubelet's Lease.
    pub lease: SeenLease,
    cordon: Option<(String, Instant)>,
    request: Option<(PowerState, Instant)>,
    /// What the driver said to the last request, where it failed.
    pub refusal: Option<Trouble>,
}

impl Memory {
    /// Whether the last reading is older than this.
    pub fn is_stale(&self, age: Duration) -> bool {
        self.expired || self.reading.as_ref().is_none_or(|(_, at)| at.elapsed() >= age)
    }

    /// Something happened that may have changed the power.
    pub fn expire(&mut self) {
        self.expired = true;
    }

    /// Takes in a reading.
    pub fn read(&mut self, reading: Result<PowerReading, Trouble>) {
        let now = Instant::now();
        self.off_since = match reading {
            Ok(PowerReading::Off) => self.off_since.or(Some(now)),
            _ => None,
        };
        self.reading = Some((reading, now));
        self.expired = false;
    }

    /// The last reading; a failed one is unknown.
    pub fn power(&self) -> PowerReading {
        self.reading.as_ref().and_then(|(reading, _)| reading.as_ref().ok().copied()).unwrap_or_default()
    }

    /// From the first to the last of the readings of `Off` in a row.
    pub fn off_for(&self) -> Duration {
        let last = self.reading.as_ref().map(|(_, at)| *at);
        self.off_since.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// For how long the mark of this Node was seen.
    pub fn cordoned_for(&mut self, node: Option<&str>) -> Duration {
        match (&self.cordon, node) {
            (Some((uid, since)), Some(node)) if uid == node => since.elapsed(),
            (_, node) => {
                self.cordon = node.map(|uid| (uid.to_owned(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Since the last request to the driver in this state.
    pub fn since_request(&self, state: PowerState) -> Option<Duration> {
        self.request.filter(|(of, _)| *of == state).map(|(_, at)| at.elapsed())
    }

    /// Takes in what a request came to.
    pub fn requested(&mut self, state: PowerState, result: Result<(), Trouble>) {
        self.request = Some((state, Instant::now()));
        self.refusal = result.err();
        self.expire();
    }
}
