//! What one GPU of a type counts for against the power budget.

/// Margin on agents' reports: a draw changes in the minute between two of them.
pub const REPORT_MARGIN: f64 = 1.1;

/// Draw of one GPU of a type for the budget, W.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeDraw {
    /// Without a job: the lower bound.
    pub idle: f64,
    /// At its default power limit: the upper bound.
    pub max: f64,
    /// Minimum in an unmeasured run.
    pub unmeasured: f64,
    /// Lowest and highest guard; `None`: unmeasured runs have none.
    pub guards: Option<(f64, f64)>,
}

/// Lowest power limit that is used, as a part of the highest. Below it GPUs are very slow and too few data exist (Zeus, NSDI
/// 2023, measured V100 at 40 to 100 %).
pub const LOWEST_LIMIT: f64 = 0.4;
/// Step of guards, W.
const GUARD_STEP: f64 = 5.0;

impl TypeDraw {
    /// The guard of a GPU that is predicted to draw `likely` watts and hardly more than `highest`: no more than any measured run draws,
    /// unless that is likely. `None`: it has none, and may draw the board's maximum.
    pub fn guard(&self, likely: f64, highest: f64) -> Option<f64> {
        let (low, high) = self.guards?;
        let watts = highest.min(self.unmeasured).max(likely).max(low);
        Some((watts / GUARD_STEP).ceil() * GUARD_STEP).filter(|watts| *watts < high)
    }

    /// Budget draw of `gpus` GPUs that start: that of their guards, if all are likely to draw `likely` watts and hardly more than
    /// `highest`; without guards by the `predicted` watts.
    pub fn of_start(&self, likely: f64, highest: f64, predicted: f64, gpus: u32) -> f64 {
        let each = |watts: f64| watts / f64::from(gpus.max(1));
        match self.guards {
            None => self.of_predicted(predicted, gpus),
            Some(_) => self.guard(each(likely), each(highest)).unwrap_or(self.max) * f64::from(gpus),
        }
    }

    /// Draw of `gpus` GPUs for the budget, if `predicted` watts are predicted for all of them.
    pub fn of_predicted(&self, predicted: f64, gpus: u32) -> f64 {
        self.bounded(predicted.max(self.unmeasured * f64::from(gpus)), gpus)
    }

    /// Budget draw in watts of `gpus` GPUs that were measured at `watts_per_gpu` each, with
    /// [`REPORT_MARGIN`].
    pub fn of_measured(&self, watts_per_gpu: f64, gpus: u32) -> f64 {
        self.bounded(watts_per_gpu * REPORT_MARGIN * f64::from(gpus), gpus)
    }

    fn bounded(&self, watts: f64, gpus: u32) -> f64 {
        let all = |each: f64| each * f64::from(gpus);
        watts.clamp(all(self.idle), all(self.max.max(self.idle)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_near_the_prediction_and_no_lower_than_the_agents_can_set() {
        let draw = TypeDraw { idle: 50.0, max: 400.0, unmeasured: 300.0, guards: Some((160.0, 400.0)) };
        assert_eq!(draw.guard(200.0, 231.0), Some(235.0), "what it hardly exceeds, in steps of 5 W");
        assert_eq!(draw.guard(200.0, 900.0), Some(300.0), "no more than measured runs draw");
        assert_eq!(draw.guard(320.0, 900.0), Some(320.0), "unless it is likely");
        assert_eq!(draw.guard(1.0, 2.0), Some(160.0));
        assert_eq!(draw.guard(396.0, 900.0), None, "the board's maximum");
        assert_eq!(draw.of_start(400.0, 462.0, 410.0, 2), 470.0);
        assert_eq!(draw.of_start(792.0, 900.0, 792.0, 2), 800.0);
        let without = TypeDraw { guards: None, ..draw };
        assert_eq!((without.guard(200.0, 231.0), without.of_start(400.0, 462.0, 410.0, 2)), (None, 600.0));
    }
}
