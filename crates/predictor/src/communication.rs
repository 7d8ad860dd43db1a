//! Slope of synchronisation over communication intensity (parameters per second of a step), fitted
//! over one tenant's profiles. Not fitted between tenants: a single outlying model would decide the
//! slope.

use crate::ratio::Sizes;
use crate::regression::weighted_median;
use crate::weight_policy::{TenantWeight, WeightPolicy, capped, huber_weights};

/// Prior mean and standard deviation of the slope: physics says 1, unknown samples per epoch make
/// it 0.
const BEFORE: (f64, f64) = (0.5, 0.5);
const STEEPEST: f64 = 1.2;
/// Least total weight of profiles for a fit beyond an earlier slope.
const FEWEST: f64 = 6.0;
const ROUNDS: usize = 24;

/// Slope and its range (logs).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CommunicationIntensity {
    slope: f64,
    among: Sizes,
}

/// One profile's evidence.
pub(crate) struct FamilyEvidence {
    pub tenant_weight: TenantWeight,
    /// Log of parameters over the time of a step.
    pub intensity: f64,
    /// Log of synchronisation, and the variance of that value at this intensity.
    pub synchronisation: f64,
    pub variance: f64,
}

impl Default for CommunicationIntensity {
    fn default() -> Self {
        Self { slope: BEFORE.0, among: Sizes::default() }
    }
}

impl CommunicationIntensity {
    /// Prior of a profile's synchronisation (log).
    pub fn of(self, intensity: Option<f64>) -> f64 {
        intensity.map_or(0.0, |x| self.slope * self.among.off(x))
    }

    /// Weighted least squares with Huber weights; `self` is the prior.
    pub fn fit(self, informed: &[FamilyEvidence], policy: WeightPolicy) -> Self {
        let informed: Vec<&FamilyEvidence> =
            informed.iter().filter(|t| t.tenant_weight.weight > 0.0).collect();
        let sizes = informed.iter().map(|t| (t.intensity, t.tenant_weight.weight)).collect();
        let fewest = if self == Self::default() { 0.0 } else { FEWEST };
        let Some(among) = Sizes::of(sizes, fewest) else { return self };
        let weight = |t: &FamilyEvidence| t.tenant_weight.weight / t.variance.max(1e-9);
        let x = |t: &FamilyEvidence| among.off(t.intensity);
        let (start, sure) = (self.slope, 1.0 / (BEFORE.1 * BEFORE.1));
        let said: Vec<(TenantWeight, f64)> =
            informed.iter().map(|t| (t.tenant_weight, weight(t) * x(t) * x(t))).collect();
        let capped = capped(&said, sure, policy);
        let mut slope = start;
        for _ in 0..ROUNDS {
            // Residual at the median intensity. A median is used, since outliers would tilt the
            // line.
            let rests = informed.iter().map(|t| (t.synchronisation - slope * x(t), weight(t))).collect();
            let origin = weighted_median(rests).unwrap_or(0.0);
            let (mut sum, mut square) = (start * sure, sure);
            let off =
                |t: &&FamilyEvidence| (t.tenant_weight, weight(t), t.synchronisation - origin - slope * x(t));
            let huber_weights = huber_weights(&informed.iter().map(off).collect::<Vec<_>>(), policy);
            for ((t, capped), huber_weights) in informed.iter().zip(&capped).zip(huber_weights) {
                let (x, y) = (x(t), t.synchronisation - origin);
                let weight = capped * weight(t) * huber_weights;
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

    fn informed(namespace: usize, intensity: f64, synchronisation: f64) -> FamilyEvidence {
        FamilyEvidence {
            tenant_weight: TenantWeight { of: namespace, weight: 1.0 },
            intensity,
            synchronisation,
            variance: 0.1,
        }
    }

    #[test]
    fn the_slope_is_what_the_families_show_and_a_liar_far_out_is_no_trend() {
        let honest =
            || (0..20).map(|i| informed(i, 0.1 * i as f64, 0.9 * 0.1 * i as f64)).collect::<Vec<_>>();
        let fit = |informed: &[FamilyEvidence]| {
            CommunicationIntensity::default().fit(informed, WeightPolicy::within_tenant(21))
        };
        let slope = |informed: &[FamilyEvidence]| fit(informed).of(Some(1.5)) - fit(informed).of(Some(0.5));
        let before = slope(&honest());
        assert!((0.75..0.95).contains(&before), "{before}");
        let mut all = honest();
        let lie = || FamilyEvidence {
            tenant_weight: TenantWeight { of: 20, weight: 1.0 / 30.0 },
            ..informed(20, -50.0, 40.0)
        };
        all.extend((0..30).map(|_| lie()));
        assert!((slope(&all) - before).abs() < 0.05, "{} {before}", slope(&all));
    }
}
