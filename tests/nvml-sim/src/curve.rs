//! Power over time, replayed by a GPU in place of the law of [`power`](crate::power). Pure.
//!
//! A curve has a power for each step, and repeats. Its energy over any interval is exact, so a meter's error can be told
//! from it.

use std::path::Path;

use crate::SimError;

/// Most steps of a curve.
pub const MAX_STEPS: usize = 4096;
/// Step of the curves that are read from a file, ms.
const STEP_MS: u32 = 50;
/// Draw between two windows of a file, mW: an idle A40 or V100.
const IDLE_MW: f64 = 33_000.0;
/// Swing around a window's mean, as a part of it, and its period, s.
const SWING: (f64, f64) = (0.25, 0.37);

/// A repeating curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Length of a step, ms; at least 1.
    pub step_ms: u32,
    /// Draw in each step, mW; at least one step.
    pub milliwatts: Vec<u32>,
}

/// Draw at a time since the begin of a curve, mW. A curve without steps draws nothing.
#[must_use]
pub fn power_at(milliwatts: &[u32], step_ms: u32, nanoseconds: u64) -> u32 {
    let step = nanoseconds / (u64::from(step_ms.max(1)) * 1_000_000);
    if milliwatts.is_empty() { 0 } else { milliwatts[(step % milliwatts.len() as u64) as usize] }
}

/// Energy between two times since the begin of a curve, nJ.
#[must_use]
pub fn energy_between(milliwatts: &[u32], step_ms: u32, from: u64, to: u64) -> u64 {
    let until = |time: u64| -> u128 {
        if milliwatts.is_empty() {
            return 0;
        }
        let step = u64::from(step_ms.max(1)) * 1_000_000;
        let (whole, length) = (time / step, milliwatts.len() as u64);
        let sum = |steps: &[u32]| steps.iter().map(|power| u128::from(*power)).sum::<u128>();
        let begun = (whole % length) as usize;
        let full = u128::from(whole / length) * sum(milliwatts) + sum(&milliwatts[..begun]);
        full * u128::from(step) + u128::from(milliwatts[begun]) * u128::from(time % step)
    };
    // mW x ns are picojoules.
    (until(to).saturating_sub(until(from)) / 1000) as u64
}

impl Curve {
    /// Draw at a time since its begin, mW.
    #[must_use]
    pub fn power_at(&self, nanoseconds: u64) -> u32 {
        power_at(&self.milliwatts, self.step_ms, nanoseconds)
    }

    /// Energy between two times since its begin, nJ.
    #[must_use]
    pub fn energy_between(&self, from: u64, to: u64) -> u64 {
        energy_between(&self.milliwatts, self.step_ms, from, to)
    }

    /// Reads a table of windows with the columns `start_time` (s), a name, `elapsed_time` (s) and the energy of one GPU (J).
    /// `curves/PROVENANCE.md` says what is made of it.
    ///
    /// # Errors
    /// When the file cannot be read or is no such table.
    pub fn read_windows(path: &Path) -> Result<Self, SimError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| SimError::Io { path: path.to_owned(), source })?;
        let mut windows = Vec::new();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok());
            let (Some(start), Some(elapsed), Some(joules)) = (number(0), number(2), number(3)) else {
                return Err(SimError::Spec(format!("no window: {line}")));
            };
            if !(elapsed > 0.0 && (0.0..1e6).contains(&joules)) {
                return Err(SimError::Spec(format!("wrong figures: {line}")));
            }
            windows.push((start, elapsed, joules));
        }
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else {
            return Err(SimError::Spec("no window".into()));
        };
        let (begin, end) = (first.0, last.0 + last.1);
        let steps = ((end - begin) * 1000.0 / f64::from(STEP_MS)).ceil();
        if steps.is_nan() || steps < 1.0 {
            return Err(SimError::Spec("windows out of order".into()));
        }
        let power = |step: usize| {
            let time = step as f64 * f64::from(STEP_MS) / 1000.0;
            let of = windows
                .iter()
                .find(|(start, elapsed, _)| (start - begin..start - begin + elapsed).contains(&time));
            let swing = 1.0 + SWING.0 * (std::f64::consts::TAU * time / SWING.1).sin();
            of.map_or(IDLE_MW, |(_, elapsed, joules)| 1000.0 * joules / elapsed * swing).round() as u32
        };
        let steps = (steps as usize).min(MAX_STEPS);
        Ok(Self { step_ms: STEP_MS, milliwatts: (0..steps).map(power).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_energy_of_an_interval_is_exact_also_over_the_end_of_the_curve() {
        let curve = Curve { step_ms: 10, milliwatts: vec![100_000, 200_000] };
        let ms = 1_000_000;
        // 100 W for 10 ms is a joule.
        assert_eq!(curve.energy_between(0, 10 * ms), 1_000_000_000);
        assert_eq!(curve.energy_between(5 * ms, 15 * ms), 1_500_000_000);
        assert_eq!(curve.energy_between(15 * ms, 25 * ms), 1_500_000_000);
        assert_eq!(curve.energy_between(0, 1_000 * 20 * ms), 3_000_000_000_000);
        assert_eq!([0, 9, 10, 20].map(|time| curve.power_at(time * ms) / 1000), [100, 100, 200, 100]);
    }

    #[test]
    fn measured_windows_keep_their_energy() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("curves/zeus-a40-bert.csv");
        let curve = Curve::read_windows(&path).unwrap();
        // The first window: 2,924 J in 10.55 s.
        let joules = curve.energy_between(0, 10_554_417_284) as f64 / 1e9;
        assert!((joules - 2_924.5).abs() < 0.02 * 2_924.5, "{joules} J");
        assert_eq!(curve.power_at(12_000_000_000), 33_000, "between two windows");
    }
}
