//! What every method returns: the decision by indices, without the forecasts that a plan has besides.

use crate::instance::Assignment;
use crate::memory::Memory;
use crate::snapshot::Prices;

/// A decision by indices.
pub(crate) struct Outcome {
    pub assignments: Vec<Option<Assignment>>,
    /// The minimised objective, if the method has one.
    pub objective: Option<f64>,
    pub trials: u64,
    /// The job with a reservation.
    pub reserved_for: Option<usize>,
    /// Jobs stopped to meet the power budget.
    pub stopped: Vec<usize>,
    /// Proven lower bound of the objective.
    pub bound: Option<f64>,
    /// Shadow prices for the next decision.
    pub prices: Option<Prices>,
    /// Memory for the next decision, of policies with history.
    pub memory: Option<Memory>,
    /// Seconds until the method needs another decision.
    pub wake: Option<f64>,
}
