//! Energy per GPU and per holder, from the GPU's energy counter. Pure.
//!
//! The energy of an interval is attributed to the holder at its start. GPUs without a counter (before Volta)
//! use power x time.
//!
//! Energy saved by rest is an *estimate*: the lowest draw seen while unheld and awake, less the draw at rest,
//! at least 0. The lowest draw is used so that cooling down does not count as a saving. An idle GPU without a
//! context saves close to nothing.

use std::time::Duration;

use crate::gpu::Sample;

/// Longer gaps are not attributed: the holder is unknown. Two minutes.
const MAX_GAP: Duration = Duration::from_secs(120);

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

/// Energy and savings of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Energy, J.
    pub joules: f64,
    /// Namespace of the pod that held the GPU.
    pub namespace: Option<String>,
    /// Seconds at rest.
    pub rest_seconds: f64,
    /// Estimate of what rest saved, J.
    pub saved_joules: f64,
}

/// Energy meter of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<(Duration, Sample, GpuUse)>,
    /// Lowest draw while unheld and awake since a pod last held it, mW.
    awake_mw: Option<u32>,
    /// Energy since the start of the agent, J, for GPUs without a counter.
    own_joules: f64,
}

impl Meter {
    /// Adds a sample taken at `now` (a monotonic clock). `state` is the state of the GPU from then on.
    pub fn add(&mut self, now: Duration, sample: &Sample, state: GpuUse) -> Interval {
        let mut interval = Interval::default();
        if let Some((since, last, previous)) = self.last.take() {
            let gap = now.saturating_sub(since);
            let counted = match (last.energy_mj, sample.energy_mj) {
                // A counter that decreased was reset with the driver.
                (Some(before), Some(after)) if after >= before => Some((after - before) as f64 / 1000.0),
                (None, None) => Some(f64::from(last.power_mw) / 1000.0 * gap.as_secs_f64()),
                _ => None,
            };
            if let Some(joules) = counted.filter(|_| gap <= MAX_GAP) {
                self.own_joules += joules;
                interval.joules = joules;
                match previous {
                    GpuUse::Held(namespace) => interval.namespace = Some(namespace),
                    GpuUse::Resting => {
                        interval.rest_seconds = gap.as_secs_f64();
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
        interval
    }

    /// Counter value for the status, J.
    #[must_use]
    pub fn joules(&self) -> i64 {
        let counter = self.last.as_ref().and_then(|(_, sample, _)| sample.energy_mj);
        counter.map_or(self.own_joules as i64, |mj| i64::try_from(mj / 1000).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(watts: u32, joules: u64) -> Sample {
        Sample { power_mw: watts * 1000, energy_mj: Some(joules * 1000), ..Sample::default() }
    }

    #[test]
    fn joules_go_to_whoever_held_the_gpu_and_rest_saves_only_what_a_meter_shows() {
        let at = Duration::from_secs;
        let mut meter = Meter::default();
        let team = || GpuUse::Held("team".into());
        assert_eq!(meter.add(at(0), &sample(300, 1000), team()), Interval::default());
        let held = meter.add(at(10), &sample(80, 4000), GpuUse::Free);
        assert_eq!((held.joules, held.namespace.as_deref()), (3000.0, Some("team")));
        let free = meter.add(at(20), &sample(54, 4600), GpuUse::Resting);
        assert_eq!((free.joules, free.namespace, free.saved_joules), (600.0, None, 0.0));
        // 80 W awake, 54 W at rest.
        let rest = meter.add(at(30), &sample(54, 5140), GpuUse::Resting);
        assert_eq!((rest.rest_seconds, rest.saved_joules), (10.0, 260.0));
        assert_eq!(meter.joules(), 5140);
        // A reloaded driver counts from 0; a long gap is not attributed.
        assert_eq!(meter.add(at(40), &sample(54, 3), team()).joules, 0.0);
        assert_eq!(meter.add(at(400), &sample(54, 9000), team()), Interval::default());
    }
}
