//! Observations to predicted times and power, with intervals. Pure: no I/O, no clock, no randomness.
//!
//! **In**: what is known of the GPU types ([`GpuModel`]), of one family of runs ([`Profile`]: the table its user
//! gave and what was observed since), of all other families (the population), and how long an unknown run is
//! thought to take ([`Prior`]).
//! **Out**: for every configuration asked, seconds per epoch and watts of the whole gang, each an [`Estimate`]: median,
//! spread (log-normal) and the [`Source`] it rests on; the probability of being on time; the pace of a running job
//! from its progress reports ([`progress`]).
//!
//! How a configuration's time is found:
//!
//! * The user's table has it, nothing was observed of the family, and no table of its namespace was compared with what ran: that value
//!   ([`Source::UserGiven`]). Later tables are trusted as far as those before were right (`trust`).
//! * Else the family's curve: physics whose parameters are drawn towards what other families have, bent by the family's own
//!   rows, observed and given (`posterior`, `physics`, `population`; `populations` and `weights_by_tenant` say who is heard). One row moves the
//!   whole curve, one on another GPU type fixes the ratio of types; how types compare otherwise is a linfa elastic net over families
//!   (`ratio`).
//! * Nothing was measured: the level comes from families of the same model, or from [`Features`] by a second elastic net (`level`)
//!   ([`Source::Regression`]), else from the prior run time with a factor of 3 each way ([`Source::Prior`]).
//!
//! Power goes the same way, between idle and maximum of the type; a power limit cuts it and stretches the time. Intervals are
//! calibrated on families held out whole (`calibration`, `conformal`). [`evaluation`] measures all of it on a [`table`].
//!
//! Guards: speed-up never above the ratio of GPUs and more GPUs never slower, except where the user's table, an
//! observation or ten settings seen around say so; rows, rounds and values bounded; what cannot be true is refused and
//! counted ([`screen`]). The same input gives the same output on every machine (transcendental functions from `libm`, no hash
//! order).
//!
//! **Must never be here**: Kubernetes, clocks, files, planning. linfa lives in this room and nowhere else.

mod analytic_prior;
mod calibration;
mod communication;
mod conformal;
mod estimate;
pub mod evaluation;
mod expected;
mod guard;
mod held_out;
mod known;
mod level;
mod linear;
mod model_effect;
mod physics;
mod places;
mod pool;
mod population;
mod populations;
mod posterior;
mod predict;
pub mod progress;
mod quantity_model;
mod ranges;
mod ratio;
mod regression;
mod samples;
mod scale;
mod screen;
mod spread;
pub mod table;
mod table_trust;
mod types;
mod weight_policy;

pub use estimate::{Estimate, on_time_probability};
pub use pool::together;
pub use predict::Predictor;
pub use ranges::OutOfRange;
pub use screen::{Refusal, Refused, screen};
pub use types::{
    Check, Features, Given, GpuModel, Observation, Prediction, Prior, Profile, Query, Source, prior_run_time,
};
