//! Output types: a prediction, and the check of a profile's own rows.

use andreas_core::{Configuration, Seconds, Watts};
use serde::{Deserialize, Serialize};

use crate::estimate::Estimate;
use crate::ranges::OutOfRange;

/// Prediction for a profile on one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The configuration of the query.
    pub configuration: Configuration,
    /// Time of one epoch, seconds.
    pub epoch: Estimate,
    /// Draw of all its GPUs together, watts.
    pub power: Estimate,
    /// Which properties lie outside the observed range.
    pub out_of_range: OutOfRange,
}

/// Relative leave-one-out errors of a profile's own rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Check {
    /// Errors of times.
    pub epoch: Vec<f64>,
    /// Errors of draws.
    pub power: Vec<f64>,
}

impl Prediction {
    /// Mean time of one epoch: costs and energy are expected values.
    pub fn mean_epoch(&self) -> Seconds {
        Seconds(self.epoch.mean())
    }

    /// Mean draw of the whole gang.
    pub fn mean_power(&self) -> Watts {
        Watts(self.power.mean())
    }
}
