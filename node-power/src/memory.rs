//! What this process has seen of one machine over time, by its own clock. It is lost with the process, and then proofs take
//! longer.

use std::time::Duration;

use andreas_api::node_power::{PowerReading, PowerState};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::driver::{Request, Trouble};

/// After a reading for which the credentials were not accepted; doubled by each further one. BMCs lock an account after some, and
/// each further one prolongs that.
const DENIED_PAUSE: Duration = Duration::from_secs(30);
/// The longest such pause.
const MAX_DENIED_PAUSE: Duration = Duration::from_secs(600);

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
    /// Readings in a row for which the credentials were not accepted.
    pub denied: u32,
    /// Whether the switch knows, since it was last asked for `Off`, that the machine is to be on.
    pub is_off_withdrawn: bool,
    /// What the driver said to the last request, where it failed.
    pub refusal: Option<Trouble>,
}

impl Memory {
    /// Whether the last reading is older than this.
    pub fn is_stale(&self, age: Duration) -> bool {
        let Some((_, at)) = &self.reading else { return true };
        let age = if self.expired { Duration::ZERO } else { age };
        let pause = DENIED_PAUSE * ((1 << self.denied.min(6)) >> 1);
        at.elapsed() >= age.max(pause.min(MAX_DENIED_PAUSE))
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
        self.denied = match reading {
            Ok(_) => 0,
            Err(Trouble::Denied(_)) => self.denied.saturating_add(1),
            Err(_) => self.denied,
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

    /// For how long this Node was seen with our mark and cordoned.
    pub fn cordoned_for(&mut self, node: Option<&str>) -> Duration {
        match (&self.cordon, node) {
            (Some((uid, since)), Some(node)) if uid == node => since.elapsed(),
            (_, node) => {
                self.cordon = node.map(|uid| (uid.to_owned(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Since the last request for another power in this state.
    pub fn since_request(&self, state: PowerState) -> Option<Duration> {
        self.request.filter(|(of, _)| *of == state).map(|(_, at)| at.elapsed())
    }

    /// Takes in what a request came to.
    pub fn requested(&mut self, state: PowerState, request: Request, result: Result<(), Trouble>) {
        if request != Request::StayOn {
            self.request = Some((state, Instant::now()));
        }
        self.is_off_withdrawn = result.is_ok() && request != Request::Off;
        self.refusal = result.err();
        self.expire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn readings_pause_for_longer_while_the_credentials_are_not_accepted() {
        let (pace, denied) = (Duration::from_secs(5), || Err(Trouble::Denied("401".into())));
        let mut memory = Memory::default();
        for pause in [30, 60, 120, 240, 480, 600, 600] {
            memory.read(denied());
            memory.expire();
            advance(Duration::from_secs(pause - 1)).await;
            assert!(!memory.is_stale(pace), "{pause}");
            advance(Duration::from_secs(1)).await;
            assert!(memory.is_stale(pace), "{pause}");
        }
        // A time without an answer says nothing of the account; an answer does.
        memory.read(Err(Trouble::Unreachable("no answer".into())));
        advance(Duration::from_secs(300)).await;
        assert!(!memory.is_stale(pace));
        memory.read(Ok(PowerReading::On));
        advance(pace).await;
        assert!(memory.is_stale(pace) && memory.denied == 0);
        // A stray one costs half a minute.
        memory.read(denied());
        advance(Duration::from_secs(30)).await;
        assert!(memory.is_stale(pace));
    }
}
