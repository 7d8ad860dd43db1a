//! Observations to predicted times and power, with intervals. Pure: no I/O, no clock, no randomness.
//!
//! **In**: what is known of the GPU types ([`GpuModel`]), of one family of runs ([`Profile`]: the table its user
//! gave and what was observed since), of all other families (the population), and how long an unknown run is
//! thought to take ([`Prior`]).
//! **Out**: for every configuration asked, seconds per epoch and watts of the whole gang, each an [`Estimate`]: median,
//! spread (log-normal) and the [`Source`] it rests on; the probability of being on time; the pace of a running job
//! from its progress reports ([`progress`]).
//!
//! How a configuration's time is found, in this order:
//!
//! 1. The user's table has it: that value ([`Source::UserGiven`]). Observations of *exactly* that configuration
//!    correct it, by `tau^2 / (tau^2 + sigma^2 / k)` of the difference after `k` epochs; then it is
//!    [`Source::Observed`]. Entries that were not observed stay as given, but their interval widens by as much as the
//!    observed ones were off.
//! 2. It was observed: the median of its observations.
//! 3. The family is known on other configurations: interpolated on the same GPU type, else carried over from other
//!    types. Shape and ratio of types come from the analytic law ([`law`]) plus what a linfa elastic net found
//!    the population to deviate from it ([`Source::Regression`]).
//! 4. Nothing was measured, but [`Features`] describe the family, samples of an epoch among them: a second elastic net,
//!    over the families that share these features, gives the time per sample ([`Source::Regression`]).
//! 5. Nothing is known: the prior run time, with an interval of a factor 3 each way ([`Source::Prior`]).
//!
//! Power goes the same way, between idle and maximum of the type; there the population's mean level is known to all.
//!
//! Guards: speed-up never above the ratio of GPUs and more GPUs never slower, except where the user's table or
//! an observation says so itself; features clamped to their observed range; rows, iterations and values bounded;
//! whatever is not finite or not positive is left out. The same input gives the same output on every machine
//! (transcendental functions from `libm`, no hash order).
//!
//! **Must never be here**: Kubernetes, clocks, files, planning. linfa lives in this room and nowhere else.

mod cells;
mod conformal;
mod estimate;
pub mod evaluation;
mod guard;
mod law;
mod level;
mod linear;
mod physics;
mod population;
mod posterior;
mod predict;
pub mod progress;
mod ranges;
mod ratio;
mod regression;
mod scale;
mod screen;
mod stage;
pub mod table;
mod types;

pub use estimate::{Estimate, on_time_probability};
pub use predict::Predictor;
pub use ranges::OutOfRange;
pub use screen::{Refusal, Refused, screen};
pub use types::{
    Check, Features, Given, GpuModel, Observation, Prediction, Prior, Profile, Query, Source, prior_run_time,
};
