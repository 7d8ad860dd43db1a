//! Output types: a prediction, and leave-one-out errors of a profile's own rows.

use andreas_model::{Configuration, Seconds, Watts};
use serde::{Deserialize, Serialize};

use crate::estimate::LogNormal;

/// Prediction for a profile on one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The configuration of the query.
    pub configuration: Configuration,
    /// Time of one epoch, seconds.
    pub epoch: LogNormal,
    /// Draw of all its GPUs together, watts.
    pub power: LogNormal,
    /// Maximum draw of these boards together, if the type is known.
    pub board_max: Option<Watts>,
}

/// Relative leave-one-out errors of a profile's own rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaveOneOutErrors {
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

    /// Mean draw of the whole gang: at most what its boards can draw, unless more was measured. A log-normal with
    /// a wide spread knows no such bound, and its mean would price a stop far above any run.
    pub fn mean_power(&self) -> Watts {
        let mean = self.power.mean();
        Watts(self.board_max.map_or(mean, |most| mean.min(most.0.max(self.power.median))))
    }
}

#[cfg(test)]
mod tests {
    use andreas_model::GpuCount;

    use super::*;
    use crate::Source;

    #[test]
    fn boards_draw_no_more_than_they_can_however_little_is_known() {
        let prediction = |median, board_max: Option<f64>| Prediction {
            configuration: Configuration {
                gpu_type: "A100".into(),
                nodes: 1,
                gpus_per_node: GpuCount(4),
                limit: None,
            },
            epoch: LogNormal::prior(1.0),
            power: LogNormal { median, sigma: 1.5, source: Source::Regression },
            board_max: board_max.map(Watts),
        };
        assert_eq!(prediction(1_200.0, Some(1_600.0)).mean_power(), Watts(1_600.0));
        assert_eq!(prediction(1_650.0, Some(1_600.0)).mean_power(), Watts(1_650.0), "as it was measured");
        assert!((prediction(100.0, Some(1_600.0)).mean_power().0 - 308.0).abs() < 0.1, "the mean, below it");
        assert!(prediction(1_200.0, None).mean_power().0 > 3_600.0, "an unknown board has no bound");
    }
}
