//! Whether rest lowers the draw of a GPU, by measurement. Pure.
//!
//! What low clocks save depends on the board, its driver and on whether a process keeps a context open. So the draw is
//! compared before and after each rest. Where it saves nothing, GPUs of that type stay awake: rest would only delay the next
//! pod. After [`REPEAT`] it is tried again. The memory is the agent's alone: another agent measures anew.
//!
//! A GPU that still cools down draws less after a while whether it rests or not. It rests a minute after its pod has gone at
//! the earliest (the policy's `rest.after`), which is most of that; the rest counts as saved and is found out by the next
//! measurement.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::energy::GpuUse;
use crate::setting::Uuid;

/// Time after which a measurement that showed no saving is repeated.
const REPEAT: Duration = Duration::from_secs(6 * 3600);
/// Smallest saving that counts: 1 W, and this part of the draw awake. Below that it is noise.
const LEAST: (f64, f64) = (1_000.0, 0.02);
/// Fewest readings of a mean.
const READINGS: usize = 3;
/// Most readings that are kept.
const MAX_READINGS: usize = 1_024;

/// What a result holds for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RestKind {
    /// Product of the GPU.
    pub product: String,
    /// Whether a process has a context on it.
    pub context: bool,
}

/// What rest changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestEffect {
    /// Mean draw awake less mean draw at rest, mW.
    pub saved_mw: f64,
    /// Whether that is worth resting for.
    pub worth: bool,
    /// When it was measured.
    at: Duration,
}

#[derive(Clone, Debug, Default)]
struct Trial {
    kind: Option<RestKind>,
    /// Readings awake, the last ones.
    awake: VecDeque<(Duration, u32)>,
    /// When the rest began, with the mean draw before it.
    resting: Option<(Duration, f64)>,
    at_rest: Vec<u32>,
    done: bool,
}

/// Effects by kind, and the measurements under way.
#[derive(Clone, Debug)]
pub struct RestTrials {
    /// How long is measured, awake and at rest; zero: GPUs rest unmeasured.
    time: Duration,
    effects: BTreeMap<RestKind, RestEffect>,
    gpus: BTreeMap<Uuid, Trial>,
}

impl RestTrials {
    /// Measures for `time` before a rest, and in the second half of `time` after its begin. Zero measures nothing.
    #[must_use]
    pub fn new(time: Duration) -> Self {
        Self { time, effects: BTreeMap::new(), gpus: BTreeMap::new() }
    }

    /// Adds a reading of a GPU, mW. `now`: a monotonic clock. Returns an effect that was just found.
    pub fn add(
        &mut self,
        uuid: &str,
        kind: &RestKind,
        state: &GpuUse,
        power_mw: u32,
        now: Duration,
    ) -> Option<RestEffect> {
        if self.time.is_zero() {
            return None;
        }
        let trial = self.gpus.entry(uuid.to_owned()).or_default();
        let known = matches!(state, GpuUse::Free | GpuUse::Resting);
        if !known || trial.kind.as_ref() != Some(kind) {
            *trial = Trial { kind: Some(kind.clone()), ..Trial::default() };
        }
        match state {
            GpuUse::Free => {
                (trial.resting, trial.done) = (None, false);
                trial.awake.push_back((now, power_mw));
                let old = |(at, _): &(Duration, u32)| now.saturating_sub(*at) > self.time;
                while trial.awake.len() > MAX_READINGS || trial.awake.front().is_some_and(old) {
                    trial.awake.pop_front();
                }
                None
            }
            GpuUse::Resting if !trial.done => {
                if trial.resting.is_none() {
                    let awake = mean(trial.awake.iter().map(|(_, power)| *power));
                    trial.at_rest.clear();
                    trial.resting = awake.map(|awake| (now, awake));
                    trial.done = awake.is_none();
                    trial.awake.clear();
                }
                let (since, awake) = trial.resting?;
                let passed = now.saturating_sub(since);
                if passed >= self.time / 2 && trial.at_rest.len() < MAX_READINGS {
                    trial.at_rest.push(power_mw);
                }
                if passed < self.time {
                    return None;
                }
                let at_rest = mean(trial.at_rest.iter().copied())?;
                trial.done = true;
                let saved_mw = awake - at_rest;
                let effect =
                    RestEffect { saved_mw, worth: saved_mw >= LEAST.0.max(awake * LEAST.1), at: now };
                self.effects.insert(kind.clone(), effect);
                Some(effect)
            }
            _ => None,
        }
    }

    /// Whether GPUs of a kind stay awake because rest was measured to save nothing.
    #[must_use]
    pub fn is_useless(&self, kind: &RestKind, now: Duration) -> bool {
        let effect = self.effects.get(kind).filter(|effect| !effect.worth);
        effect.is_some_and(|effect| now.saturating_sub(effect.at) < REPEAT)
    }

    /// Forgets GPUs that are no longer there.
    pub fn retain(&mut self, present: &BTreeSet<Uuid>) {
        self.gpus.retain(|uuid, _| present.contains(uuid));
    }
}

fn mean(readings: impl ExactSizeIterator<Item = u32>) -> Option<f64> {
    let count = readings.len();
    (count >= READINGS).then(|| readings.map(f64::from).sum::<f64>() / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    fn kind(product: &str, context: bool) -> RestKind {
        RestKind { product: product.into(), context }
    }

    /// Twenty seconds awake at one draw, then at rest at another, from `begin` on.
    fn run(
        trials: &mut RestTrials,
        kind: &RestKind,
        awake: u32,
        at_rest: u32,
        begin: u64,
    ) -> Vec<RestEffect> {
        let mut found = Vec::new();
        for second in 0..60 {
            let rests = second >= 20;
            let state = if rests { GpuUse::Resting } else { GpuUse::Free };
            // It takes the board a while to come down.
            let power = if second < 23 { awake } else { at_rest };
            let now = Duration::from_secs(begin + second);
            found.extend(trials.add("GPU-a", kind, &state, power, now));
        }
        found
    }

    #[test]
    fn what_saves_is_kept_and_what_does_not_is_tried_again_after_hours() {
        let mut trials = RestTrials::new(TIME);
        let (parked, bare) = (kind("A100", true), kind("A100", false));
        let found = run(&mut trials, &parked, 80_000, 54_000, 0);
        assert_eq!(found.len(), 1, "each rest is measured once");
        assert!(found[0].worth && found[0].saved_mw == 26_000.0);
        let found = run(&mut trials, &bare, 54_000, 53_800, 100);
        assert!(!found[0].worth, "200 mW are noise");
        let at = |seconds: u64| Duration::from_secs(seconds);
        assert!(!trials.is_useless(&parked, at(200)) && trials.is_useless(&bare, at(200)));
        assert!(!trials.is_useless(&kind("H100", false), at(200)), "another board is another matter");
        assert!(!trials.is_useless(&bare, at(130) + REPEAT), "boards and drivers change");
    }

    #[test]
    fn a_measurement_that_was_disturbed_says_nothing() {
        let mut trials = RestTrials::new(TIME);
        let bare = kind("A100", false);
        let at = Duration::from_secs;
        // No reading awake: an agent that was started while the GPU rested.
        assert!((0..30).all(|s| trials.add("GPU-a", &bare, &GpuUse::Resting, 1, at(s)).is_none()));
        // Taken in the middle.
        let states = |s: u64| if s < 40 { GpuUse::Free } else { GpuUse::Resting };
        assert!((30..46).all(|s| trials.add("GPU-a", &bare, &states(s), 1, at(s)).is_none()));
        assert!(trials.add("GPU-a", &bare, &GpuUse::Held("team".into()), 300_000, at(46)).is_none());
        assert!((47..70).all(|s| trials.add("GPU-a", &bare, &GpuUse::Resting, 1, at(s)).is_none()));
        let mut off = RestTrials::new(Duration::ZERO);
        assert!(run(&mut off, &bare, 2, 2, 0).is_empty() && !off.is_useless(&bare, at(100)));
    }
}
