//! A quantity's model with the calibration of its intervals.

use crate::calibration::Calibration;
use crate::conformal::{EvidenceBucket, Factors, OWN_ROWS};
use crate::expected::Expected;
use crate::held_out::in_turns;
use crate::physics::{LEVEL, Quantity};
use crate::quantity_model::{Curve, Family, QuantityModel};

/// A fitted model and how wide its intervals must be.
#[derive(Clone, Debug)]
pub(crate) struct CalibratedModel {
    pub model: QuantityModel,
    calibration: Calibration,
}

impl CalibratedModel {
    /// From all profiles, ordered by name.
    pub fn fit(quantity: Quantity, families: &[Family]) -> Self {
        let model = QuantityModel::fit(quantity, families);
        let calibration = Calibration::fit(&model, families);
        Self { model, calibration }
    }

    /// Calibration factors of the profile.
    pub fn factors(&self, family: &Family) -> Factors {
        self.calibration.of(&family.name, self.model.has_siblings(family))
    }

    /// If the profile has a table: shrinks the prior variance of type ratios by the cross-validated
    /// factor, at most 1. A factor on the interval alone comes too late to weigh the table. Returns
    /// the factor.
    pub fn proven(&self, expected: &mut Expected, family: &Family) -> f64 {
        if family.spots.iter().all(|spot| spot.table.is_none()) {
            return 1.0;
        }
        let factor = self.factors(family).of(EvidenceBucket::New).min(1.0);
        expected.prior.within[LEVEL] *= factor * factor;
        factor
    }

    /// k-fold errors of a profile's rows, if there are enough.
    pub fn turns(&self, family: &Family, curve: &Curve) -> Vec<f64> {
        if family.spots.iter().filter(|spot| spot.table.is_none()).count() < OWN_ROWS {
            return Vec::new();
        }
        in_turns(&self.model, &family.spots, &curve.expected, curve.posterior.kernel)
    }
}
