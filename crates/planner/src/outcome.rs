//! What every method returns: the decision by indices, without the forecasts that a plan has besides.

use crate::instance::Assignment;
use crate::snapshot::Prices;

/// A decision by indices. The default decides nothing for no job.
#[derive(Default)]
pub struct Outcome {
    /// By job: its assignment; `None` if it waits.
    pub assignments: Vec<Option<Assignment>>,
    /// The minimized objective, money, if the method has one.
    pub objective: Option<f64>,
    /// Number of constructions and moves tried.
    pub trials: u64,
    /// The job with a reservation.
    pub reserved_for: Option<usize>,
    /// Jobs stopped to meet the power budget.
    pub stopped: Vec<usize>,
    /// Proven lower bound of the objective, money.
    pub bound: Option<f64>,
    /// Objective with every job waiting that may wait, money; with a bound.
    pub waiting_cost: Option<f64>,
    /// Intended changes and promised starts: job, seconds from now, configuration from then on.
    pub intended: Vec<(usize, f64, usize)>,
    /// Starts meant for later on nodes that are off: job, seconds from now, configuration.
    pub deferred: Vec<(usize, f64, usize)>,
    /// Shadow prices for the next decision.
    pub prices: Option<Prices>,
    /// What jobs ask for at these prices, as a part of what is there, of the resource of which most is asked for.
    pub asked: Option<f64>,
    /// Seconds until the method needs another decision.
    pub wake: Option<f64>,
}
