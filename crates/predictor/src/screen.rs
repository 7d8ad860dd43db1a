//! Validates observations. Refused rows are counted by reason, never dropped silently.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Observation;

/// Longest epoch, seconds: a year.
pub const MAX_EPOCH: f64 = 31_536_000.0;
/// Shortest epoch, seconds: a microsecond, below the clocks' resolution.
pub const MIN_EPOCH: f64 = 1e-6;
/// Highest draw of a board, watts.
pub const MAX_WATTS: f64 = 10_000.0;
/// Most GPUs of a gang.
pub const MAX_GPUS: u32 = 65_536;

andreas_model::names! {
    /// Why an observation was refused.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum Refusal {
        /// A time, draw, weight or instant that is not a finite number.
        NotANumber,
        /// A time, draw or weight that is zero or negative.
        NotPositive,
        /// An epoch above a year or below a microsecond; a board or limit above 10 kW; a gang above
        /// 65,536 GPUs, or with more nodes than GPUs.
        OutOfBounds,
        /// No GPUs, or no nodes.
        NoGpus,
        /// Neither a time nor a draw.
        Empty,
        /// More rows of one namespace than a pooled fit takes; the newest are kept.
        TooMany,
    }
}

/// Refused rows by reason.
pub type Refused = BTreeMap<Refusal, u64>;

/// Checks that an observation is possible.
///
/// # Errors
/// The reason if it is not.
pub fn screen(row: &Observation) -> Result<(), Refusal> {
    let c = &row.configuration;
    let gpus = row.gpus.unwrap_or(c.total_gpus()).0;
    if gpus == 0 || c.nodes == 0 {
        return Err(Refusal::NoGpus);
    }
    let (epoch, watts) = (row.epoch.map(|s| s.0), row.watts_per_gpu.map(|w| w.0));
    if epoch.is_none() && watts.is_none() {
        return Err(Refusal::Empty);
    }
    let values = [epoch, watts, Some(row.epochs), c.limit.map(|w| w.0), row.batch];
    if values.iter().flatten().any(|v| !v.is_finite()) || !row.at.is_finite() {
        return Err(Refusal::NotANumber);
    }
    if values.iter().flatten().any(|v| *v <= 0.0) {
        return Err(Refusal::NotPositive);
    }
    let outside = |value: Option<f64>, low: f64, high: f64| value.is_some_and(|v| v < low || v > high);
    let limit = c.limit.map(|w| w.0);
    if outside(epoch, MIN_EPOCH, MAX_EPOCH)
        || outside(watts, 0.1, MAX_WATTS)
        || outside(limit, 0.1, MAX_WATTS)
    {
        return Err(Refusal::OutOfBounds);
    }
    if gpus > MAX_GPUS || c.nodes > gpus {
        return Err(Refusal::OutOfBounds);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use andreas_model::{Configuration, GpuCount, Seconds, Time, Watts};

    use super::*;

    fn row(gpus: u32, nodes: u32, limit: Option<f64>) -> Observation {
        Observation {
            configuration: Configuration {
                gpu_type: "A".into(),
                nodes,
                gpus_per_node: GpuCount(1),
                limit: limit.map(Watts),
            },
            epoch: Some(Seconds(1.0)),
            watts_per_gpu: None,
            epochs: 1.0,
            at: Time(0.0),
            gpus: Some(GpuCount(gpus)),
            batch: None,
            claimed: false,
        }
    }

    #[test]
    fn impossible_gangs_and_limits_are_refused() {
        assert_eq!(screen(&row(4, 4, Some(150.0))), Ok(()));
        for odd in [row(1, 2, None), row(4, u32::MAX, None), row(70_000, 1, None), row(4, 1, Some(1e12))] {
            assert_eq!(screen(&odd), Err(Refusal::OutOfBounds), "{odd:?}");
        }
        assert_eq!(screen(&row(0, 1, None)), Err(Refusal::NoGpus));
        assert_eq!(screen(&row(4, 1, Some(-1.0))), Err(Refusal::NotPositive));
        assert_eq!(screen(&row(4, 1, Some(f64::NAN))), Err(Refusal::NotANumber));
    }
}
