//! Energy per GPU and per holder, from the GPU's energy counter. Pure.
//!
//! The energy of an interval is attributed to the holder at its start. GPUs without a counter (before Volta) use the mean
//! of the power at both ends x time.
//!
//! A counter that decreased began anew with the driver. What it shows then was drawn since; the rest of the interval is an
//! estimate by the power before. The value that the status shows goes on where it was.
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
    /// Energy, J.
    pub joules: f64,
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
}

/// Energy meter of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<(Duration, Sample, GpuUse)>,
    /// Lowest draw while unheld and awake since a pod last held it, mW.
    awake_mw: Option<u32>,
    /// Energy since the start of the agent, J, for GPUs without a counter.
    own_joules: f64,
    /// Energy from before the counter last began anew, mJ.
    base_mj: u64,
    /// What an earlier agent reported, until the first sample after it is known.
    earlier: Option<EarlierCounter>,
}

impl Meter {
    /// Continues where an earlier agent ended. Takes effect with the next sample.
    pub fn resume(&mut self, earlier: EarlierCounter) {
        self.earlier = Some(earlier);
    }

    /// Adds a sample taken at `now` (a monotonic clock). `state` is the state of the GPU from then on.
    pub fn add(&mut self, now: Duration, sample: &Sample, state: GpuUse) -> Interval {
        let mut interval = Interval::default();
        if let Some((since, last, previous)) = self.last.take() {
            let gap = now.saturating_sub(since);
            let mean_watts = (f64::from(last.power_mw) + f64::from(sample.power_mw)) / 2000.0;
            let counted = match (last.energy_mj, sample.energy_mj) {
                (Some(before), Some(after)) if after >= before => Some((after - before) as f64 / 1000.0),
                (Some(before), Some(after)) => {
                    let by_power = if gap <= ESTIMATED_GAP { mean_watts * gap.as_secs_f64() } else { 0.0 };
                    let joules = by_power.max(after as f64 / 1000.0);
                    let unseen_mj = (joules * 1000.0) as u64;
                    self.base_mj = self.base_mj.saturating_add(before + unseen_mj.saturating_sub(after));
                    (interval.reset, interval.estimated) = (true, true);
                    Some(joules)
                }
                (None, None) => {
                    interval.estimated = true;
                    Some(mean_watts * gap.as_secs_f64())
                }
                _ => None,
            };
            if let Some(joules) = counted.filter(|_| gap <= MAX_GAP) {
                self.own_joules += joules;
                interval.joules = joules;
                match previous {
                    GpuUse::Held(namespace) => interval.namespace = Some(namespace),
                    GpuUse::Resting => {
                        let awake = f64::from(self.awake_mw.unwrap_or(0)) / 1000.0 * gap.as_secs_f64();
                        interval.saved_joules = (awake - joules).max(0.0);
                    }
                    GpuUse::Free | GpuUse::Unknown => {}
                }
            }
        }
        match &state {
            GpuUse::Held(_) | GpuUse::Unknown => self.awake_mw = None,
            GpuUse::Free => {
                self.awake_mw = Some(self.awake_mw.map_or(sample.power_mw, |low| low.min(sample.power_mw)));
            }
            GpuUse::Resting => {}
        }
        self.last = Some((now, sample.clone(), state));
        self.continue_earlier(&mut interval);
        interval
    }

    /// Puts what an earlier agent reported below the counter.
    fn continue_earlier(&mut self, interval: &mut Interval) {
        let Some(earlier) = self.earlier.take() else { return };
        let before = self.joules();
        if self.counter_mj().is_none() {
            // What was drawn between the last report and this agent's start is unknown.
            self.own_joules += earlier.joules.max(0) as f64;
            interval.unseen = true;
        } else {
            let mj = |joules: i64| u64::try_from(joules).unwrap_or(0).saturating_mul(1000);
            self.base_mj = self.base_mj.saturating_add(mj(earlier.base));
            if self.joules() < earlier.joules {
                self.base_mj = self.base_mj.saturating_add(mj(earlier.joules - earlier.base));
                (interval.reset, interval.unseen) = (true, true);
            }
        }
        interval.resumed_joules = self.joules() - before;
    }

    fn counter_mj(&self) -> Option<u64> {
        self.last.as_ref().and_then(|(_, sample, _)| sample.energy_mj)
    }

    /// Counter value for the status, J. It never decreases: until the GPU answers, it is what an earlier agent reported.
    #[must_use]
    pub fn joules(&self) -> i64 {
        if let Some(earlier) = self.earlier {
            return earlier.joules;
        }
        let joules = |mj: u64| i64::try_from(mj / 1000).unwrap_or(i64::MAX);
        self.counter_mj().map_or(self.own_joules as i64, |mj| joules(self.base_mj.saturating_add(mj)))
    }

    /// The part of [`joules`](Self::joules) from before the counter last began anew, J.
    #[must_use]
    pub fn base_joules(&self) -> i64 {
        let own = || i64::try_from(self.base_mj / 1000).unwrap_or(i64::MAX);
        self.earlier.map_or_else(own, |earlier| earlier.base)
    }
}

#[cfg(test)]
mod tests;
