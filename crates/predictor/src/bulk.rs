//! How synchronisation grows with what a model has to send for each second it computes: a slope, found over an owner's families.
//! Strangers tell nothing of it: whoever's model lies far out would be the slope.

use crate::ratio::Sizes;
use crate::regression::weighted_median;
use crate::voices::{Hearing, Voice, believed, heard};

/// Slope before anything was seen and its standard deviation: physics says 1, samples of an epoch that nobody tells make it 0.
const BEFORE: (f64, f64) = (0.5, 0.5);
const STEEPEST: f64 = 1.2;
/// Fewer families, by weight, tell no slope from chance where one was known before.
const FEWEST: f64 = 6.0;
const ROUNDS: usize = 24;

/// Slope and origin (logs).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bulk {
    slope: f64,
    among: Sizes,
}

/// What a family tells of it.
pub(crate) struct Told {
    pub voice: Voice,
    /// Log of its parameters over the time of a step.
    pub bulk: f64,
    /// Log of its synchronisation, and the variance of what it may be for a family of this bulk.
    pub synchronisation: f64,
    pub variance: f64,
}

impl Default for Bulk {
    fn default() -> Self {
        Self { slope: BEFORE.0, among: Sizes::default() }
    }
}

impl Bulk {
    /// What is known before of a family's synchronisation.
    pub fn of(self, bulk: Option<f64>) -> f64 {
        bulk.map_or(0.0, |x| self.slope * self.among.off(x))
    }

    /// By weighted least squares, rows far off pulled in; `self` is what was thought before.
    pub fn fit(self, told: &[Told], hearing: Hearing) -> Self {
        let told: Vec<&Told> = told.iter().filter(|t| t.voice.weight > 0.0 && !hearing.strangers).collect();
        let sizes = told.iter().map(|t| (t.bulk, t.voice.weight)).collect();
        let fewest = if self == Self::default() { 0.0 } else { FEWEST };
        let Some(among) = Sizes::of(sizes, fewest) else { return self };
        let weight = |t: &Told| t.voice.weight / t.variance.max(1e-9);
        let x = |t: &Told| among.off(t.bulk);
        let (start, sure) = (self.slope, 1.0 / (BEFORE.1 * BEFORE.1));
        let said: Vec<(Voice, f64)> = told.iter().map(|t| (t.voice, weight(t) * x(t) * x(t))).collect();
        let heard = heard(&said, sure, hearing);
        let mut slope = start;
        for _ in 0..ROUNDS {
            // What is left where the bulk is the middle one: a middle one too, or who is far out would tilt the line.
            let rests = told.iter().map(|t| (t.synchronisation - slope * x(t), weight(t))).collect();
            let origin = weighted_median(rests).unwrap_or(0.0);
            let (mut sum, mut square) = (start * sure, sure);
            let off = |t: &&Told| (t.voice, weight(t), t.synchronisation - origin - slope * x(t));
            let believed = believed(&told.iter().map(off).collect::<Vec<_>>(), hearing);
            for ((t, heard), believed) in told.iter().zip(&heard).zip(believed) {
                let (x, y) = (x(t), t.synchronisation - origin);
                let weight = heard * weight(t) * believed;
                (sum, square) = (sum + weight * x * y, square + weight * x * x);
            }
            slope = (sum / square).clamp(0.0, STEEPEST);
        }
        Self { slope, among }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(namespace: usize, bulk: f64, synchronisation: f64) -> Told {
        Told { voice: Voice { of: namespace, weight: 1.0 }, bulk, synchronisation, variance: 0.1 }
    }

    #[test]
    fn the_slope_is_what_the_families_show_and_a_liar_far_out_is_no_trend() {
        let honest = || (0..20).map(|i| told(i, 0.1 * i as f64, 0.9 * 0.1 * i as f64)).collect::<Vec<_>>();
        let fit = |told: &[Told]| Bulk::default().fit(told, Hearing::at_home(21, false));
        let slope = |told: &[Told]| fit(told).of(Some(1.5)) - fit(told).of(Some(0.5));
        let before = slope(&honest());
        assert!((0.75..0.95).contains(&before), "{before}");
        let mut all = honest();
        let lie = || Told { voice: Voice { of: 20, weight: 1.0 / 30.0 }, ..told(20, -50.0, 40.0) };
        all.extend((0..30).map(|_| lie()));
        assert!((slope(&all) - before).abs() < 0.05, "{} {before}", slope(&all));
    }
}
