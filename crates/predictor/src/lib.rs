//! Predicts epoch time and power, with intervals, from observations. Pure: no I/O, no clock, no
//! randomness.
//!
//! **In**: the GPU types ([`GpuModel`]); one profile ([`Profile`]: the user's table and the
//! observations since); all other profiles, only the tenant's own count; the run time assumed of an unknown job
//! ([`Prior`]).
//! **Out**: for every configuration, seconds per epoch and watts of the whole gang. Each is an
//! [`LogNormal`]: log-normal median, spread and [`Source`]. Also the probability of being on time,
//! and the pace of a running job from its progress reports ([`progress`]).
//!
//! How the time of a configuration is found, in this order:
//!
//! * **The user's table** ([`Source::UserGiven`]), if it has the row, the profile has no
//!   observations, and no table of the namespace was compared with measurements. Later tables are
//!   trusted as far as earlier ones were right (`table_trust`).
//! * **The profile's curve**: a physics model whose parameters have a prior learned from other
//!   profiles (`population`). Observed and given rows condition it (`physics`,
//!   `posterior`). One row moves the whole curve; one row on another GPU type fixes the ratio of
//!   types. Other ratios of types come from a linfa elastic net over profiles (`ratio`).
//! * **Without measurements**: the intercept comes from profiles of the same model, or from
//!   [`Features`] by a second elastic net (`intercept`) ([`Source::Regression`]). Otherwise it comes
//!   from the prior run time, with a factor of 3 each way ([`Source::Prior`]).
//!
//! Power is predicted the same way, between idle and maximum watts of the type. A power limit cuts
//! power and stretches time. Intervals are calibrated on held-out profiles
//! (`calibration`).
//!
//! Guards: speed-up never exceeds the ratio of GPUs, and more GPUs are never slower. Exceptions are
//! the user's table, an observation, or ten samples seen around that count. Rows, rounds and values
//! are bounded. Impossible rows are refused and counted ([`screen`]). The same input gives the same
//! output on every machine: transcendental functions come from `libm`, and no result depends on
//! hash order.
//!
//! What the planner counts with is made of predictions in [`estimates`], which also says what makes two runs one program.
//!
//! **Not in this crate**: Kubernetes, clocks, files, planning. No other crate depends on linfa.

mod analytic_prior;
mod calibration;
mod curve_prior;
mod curves;
mod estimate;
pub mod estimates;
mod expected;
pub mod first_runs;
mod guard;
mod input;
mod intercept;
mod known;
mod linear;
mod physics;
mod pool;
mod population;
mod posterior;
mod predict;
mod prediction;
pub mod progress;
mod quantity_model;
mod ratio;
mod regression;
mod runs;
mod samples;
mod scale;
pub mod screen;
mod spread;
mod table_trust;
mod tenant;

pub use estimate::{LogNormal, Source, WIDEST, mean_over_median, on_time_probability};
pub use input::{
    Features, GpuModel, Observation, Prior, Profile, Query, TableRow, prior_run_time, restart_time,
};
pub use linear::Cholesky;
pub use predict::Predictor;
pub use prediction::{LeaveOneOutErrors, Prediction};
pub use screen::{Refusal, Refused, screen};
