//! A run: what a job has on its GPUs.

use andreas_model::{Seconds, Time};
use andreas_planner::Placement;

/// A job on its GPUs.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub place: Placement,
    /// Indices of its nodes in the scenario.
    pub nodes: Vec<usize>,
    /// Time at which it got these GPUs.
    pub since: Time,
    /// Time from which it draws: its nodes are up, its GPUs free, its pods bound.
    pub draws_from: Time,
    /// Time at which it trains: after its start or restart.
    pub ready: Time,
    /// What its restart takes, with the stop before it, until that was observed; `None` unless a stop by the plan was before it.
    pub restart: Option<Seconds>,
    /// It was measured, and the budget had room for what it draws.
    pub guard_lifted: bool,
    /// True seconds per epoch.
    pub pace: f64,
    /// True watts.
    pub watts: f64,
    /// Epochs trained there, and number of whole ones observed.
    pub epochs: f64,
    pub observed: u32,
}
