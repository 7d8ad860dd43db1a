//! Energy per GPU and per holder, from the GPU's energy counter. Pure.
//!
//! The energy of an interval is attributed to the holder at its start. GPUs without a counter (before Volta) use the mean
//! of the power at both ends x time.
//!
//! A counter that decreased began anew with the driver. What it shows then was drawn since; the rest of the interval is an
//! estimate by the power before. The value that the status shows goes on where it was. A counter that moved by more than the board
//! can draw in that time, or stepped back without having begun anew, says nothing of it: the interval is an estimate by the power.
//!
//! A sample without the figure that energy is counted by is passed over: the next one that has it covers the time. Without any for
//! [`MAX_GAP`] nothing is known of the energy, which is not 0.
//!
//! Energy saved by rest is an *estimate*: the lowest draw seen while unheld and awake, less the draw at rest,
//! at least 0. The lowest draw is used so that cooling down does not count as a saving. An idle GPU without a
//! context saves close to nothing.

use std::time::Duration;

use crate::gpu::Sample;

/// Longer gaps are not attributed: the holder is unknown. Two minutes.
const MAX_GAP: Duration = Duration::from_secs(120);
/// Longest interval that is partly estimated after the counter began anew. In a longer one the GPU was gone.
const ESTIMATED_GAP: Duration = Duration::from_secs(5);
/// The most that a board draws whose driver does not say it, mW.
const BOARD_MW: u32 = 2_000_000;
/// Time by which a reading of a counter may be older than it seems.
const COUNTER_DELAY: Duration = Duration::from_secs(1);

/// State of a GPU for energy attribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuUse {
    /// Held by a pod of this namespace.
    Held(String),
    /// Unheld and awake.
    Free,
    /// At rest.
    Resting,
    /// Unknown.
    Unknown,
}

/// What an earlier agent reported of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierCounter {
    /// `joules` of the status, J.
    pub joules: i64,
    /// `counterBase` of the status, J.
    pub base: i64,
}

/// Energy and savings of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Energy, J; `None` if it cannot be told.
    pub joules: Option<f64>,
    /// Namespace of the pod that held the GPU.
    pub namespace: Option<String>,
    /// Estimate of what rest saved, J.
    pub saved_joules: f64,
    /// The counter began anew within it: the driver was loaded again, or the GPU reset.
    pub reset: bool,
    /// What resuming added to [`Meter::joules`], J: earlier readings of this agent are lower by it.
    pub resumed_joules: i64,
    /// Energy was drawn that no agent has seen: the counter began anew between two agents, or there is none.
    pub unseen: bool,
    /// A part of it is an estimate.
    pub estimated: bool,
    /// Whether [`Meter::joules`] is that of the interval's end.
    pub counted: bool,
    /// Energy was drawn in it that [`Meter::joules`] lacks.
    pub lost: bool,
}

/// The last sample by which energy was counted.
#[derive(Clone, Debug)]
struct Reading {
    at: Duration,
    power_mw: Option<u32>,
    counter_mj: Option<u64>,
    in_use: GpuUse,
}

/// Energy meter of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<Reading>,
    /// Lowest draw while unheld and awake since a pod last held it, mW.
    awake_mw: Option<u32>,
    /// What [`joules`](Self::joules) shows, mJ.
    total_mj: f64,
    /// Nothing tells its energy any more.
    stale: bool,
    /// What an earlier agent reported, until the first sample after it is known.
    earlier: Option<EarlierCounter>,
}

impl Meter {
    /// Continues where an earlier agent ended. Takes effect with the next sample.
    pub fn resume(&mut self, earlier: EarlierCounter) {
        self.earlier = Some(earlier);
    }

    /// Adds a sample taken at `now` (a monotonic clock). `state` is the state of the GPU from then on; `most_mw`: the most that its
    /// board draws, where the driver says it.
    pub fn add(&mut self, now: Duration, sample: &Sample, state: GpuUse, most_mw: Option<u32>) -> Interval {
        let mut interval = Interval::default();
        let (power_mw, counter_mj) = (sample.power_mw, sample.energy_mj);
        let next = Reading { at: now, power_mw, counter_mj, in_use: state.clone() };
        let is_some = power_mw.is_some() || counter_mj.is_some();
        self.stale = false;
        match self.last.take() {
            None => {
                self.total_mj = counter_mj.unwrap_or(0) as f64;
                interval.counted = is_some;
                self.last = Some(next).filter(|_| is_some);
            }
            Some(mut last) if !next.continues(&last) => {
                let late = now.saturating_sub(last.at) > MAX_GAP;
                interval.lost = late && is_some;
                interval.counted = interval.lost;
                // The figure that it is counted by may come back.
                self.stale = late && !is_some;
                if last.in_use != state {
                    last.in_use = GpuUse::Unknown;
                }
                self.last = Some(if interval.lost { next } else { last });
            }
            Some(last) => {
                let gap = now.saturating_sub(last.at);
                let joules = last.joules_until(&next, gap, most_mw.unwrap_or(BOARD_MW), &mut interval);
                self.total_mj += joules * 1000.0;
                interval.counted = true;
                if gap <= MAX_GAP {
                    interval.joules = Some(joules).filter(|_| !interval.lost);
                    match last.in_use {
                        GpuUse::Held(namespace) => interval.namespace = Some(namespace),
                        GpuUse::Resting => {
                            let awake = f64::from(self.awake_mw.unwrap_or(0)) / 1000.0 * gap.as_secs_f64();
                            interval.saved_joules = (awake - joules).max(0.0);
                        }
                        GpuUse::Free | GpuUse::Unknown => {}
                    }
                }
                self.last = Some(next);
            }
        }
        match (&state, power_mw) {
            (GpuUse::Held(_) | GpuUse::Unknown, _) => self.awake_mw = None,
            (GpuUse::Free, Some(power)) => {
                self.awake_mw = Some(self.awake_mw.map_or(power, |low| low.min(power)));
            }
            (GpuUse::Free | GpuUse::Resting, _) => {}
        }
        if interval.counted {
            self.continue_earlier(&mut interval);
        }
        interval
    }

    /// Puts what an earlier agent reported below the counter.
    fn continue_earlier(&mut self, interval: &mut Interval) {
        let Some(earlier) = self.earlier.take() else { return };
        let before = self.total_mj;
        let mj = |joules: i64| joules as f64 * 1000.0;
        if self.counter_mj().is_none() {
            // What was drawn between the last report and this agent's start is unknown.
            self.total_mj += mj(earlier.joules);
            interval.unseen = true;
        } else {
            self.total_mj += mj(earlier.base);
            if self.total_mj < mj(earlier.joules) {
                self.total_mj += mj(earlier.joules - earlier.base);
                (interval.reset, interval.unseen) = (true, true);
            }
        }
        interval.resumed_joules = ((self.total_mj - before) / 1000.0) as i64;
    }

    fn counter_mj(&self) -> Option<u64> {
        self.last.as_ref().and_then(|last| last.counter_mj)
    }

    /// Counter value for the status, J; `None` if there is nothing to count by. It never decreases: until the GPU answers, it is what an
    /// earlier agent reported.
    #[must_use]
    pub fn joules(&self) -> Option<i64> {
        let own = || self.last.as_ref().filter(|_| !self.stale).map(|_| (self.total_mj / 1000.0) as i64);
        self.earlier.map(|earlier| earlier.joules).or_else(own)
    }

    /// What [`joules`](Self::joules) is above the driver's counter, J: what it counted before it began anew, and estimates in place of
    /// what it said. Below 0 where it said too much.
    #[must_use]
    pub fn base_joules(&self) -> i64 {
        let own = || {
            self.counter_mj().map_or(0.0, |counter| (self.total_mj - counter as f64) / 1000.0).round() as i64
        };
        self.earlier.map_or_else(own, |earlier| earlier.base)
    }
}

impl Reading {
    /// Whether it tells the energy since an earlier one.
    fn continues(&self, last: &Self) -> bool {
        if last.counter_mj.is_some() { self.counter_mj.is_some() } else { self.power_mw.is_some() }
    }

    /// Energy until a later one, J, at most what the board draws in that time.
    fn joules_until(&self, next: &Self, gap: Duration, most_mw: u32, interval: &mut Interval) -> f64 {
        let most = |time: Duration| f64::from(most_mw) / 1000.0 * time.as_secs_f64();
        let possible = most(gap + COUNTER_DELAY);
        let milliwatts = match (self.power_mw, next.power_mw) {
            (Some(before), Some(after)) => Some(f64::midpoint(before.into(), after.into())),
            (before, after) => before.or(after).map(f64::from),
        };
        let by_power = |longest: Duration| {
            milliwatts.filter(|_| gap <= longest).map(|mean| mean / 1000.0 * gap.as_secs_f64())
        };
        let joules = |mj: u64| mj as f64 / 1000.0;
        let estimate = match self.counter_mj.zip(next.counter_mj) {
            Some((before, after)) if after >= before && joules(after - before) <= possible => {
                return joules(after - before);
            }
            Some((before, after)) if after < before && joules(after) <= possible => {
                interval.reset = true;
                Some(by_power(ESTIMATED_GAP).unwrap_or(0.0).max(joules(after)))
            }
            // A counter that jumped or stepped back, and none.
            _ => by_power(MAX_GAP),
        };
        interval.estimated = true;
        interval.lost = estimate.is_none();
        estimate.unwrap_or(0.0).min(most(gap))
    }
}

#[cfg(test)]
mod tests;
