//! Types shared by all crates of ANDREAS.
//!
//! **Contents**: units as types ([`Watts`], [`Joules`], [`Seconds`], [`Time`], [`Money`], ...), names
//! ([`JobId`], [`NodeName`], [`GpuType`], [`ObjectKey`], ...), the door between a watch and a state ([`Index`]), a job's [`Configuration`], step functions of time
//! ([`StepFunction`]): tariffs and power budgets, daily windows in a time zone ([`windows`]), the [`normal`] distribution, and enums
//! whose variants have names ([`names!`]).
//!
//! **Use**: the crate has no inputs. The planner, predictor, simulator and operator use these types
//! in their APIs. No quantity crosses a crate boundary as a bare `f64`, and a watt cannot be added to a second. Conversions
//! (kWh to joules, PUE) happen only here.
//!
//! **Not here**: planning or prediction, Kubernetes, I/O, a clock.
//!
//! ```
//! use andreas_model::{EnergyPrice, Seconds, Watts};
//! // One hour at 1 kW, at 0.20 per kWh and a PUE of 1.3, costs 0.26.
//! let price = EnergyPrice::per_kwh(0.20, 1.3);
//! let energy = Watts(1000.0) * Seconds(3600.0);
//! assert!(((price * energy).0 - 0.26).abs() < 1e-12);
//! ```

mod boards;
mod closed_set;
mod configuration;
mod draw;
mod hosts;
mod names;
mod nodes;
pub mod normal;
mod objects;
mod order;
mod stable_hash;
mod steps;
mod units;
pub mod windows;

pub use boards::board_power;
pub use closed_set::UnknownName;
pub use configuration::Configuration;
pub use draw::{LOWEST_LIMIT, REPORT_MARGIN, TypeDraw};
pub use hosts::HostPower;
pub use names::{GpuType, JobId, NamespaceName, NodeName};
pub use nodes::same_nodes;
pub use objects::{Index, ObjectKey};
pub use order::order_key;
pub use stable_hash::stable_hash;
pub use steps::{StepFunction, StepFunctionError, Tariff};
pub use units::{CostRate, EnergyPrice, GpuCount, Joules, Money, Seconds, Time, Watts};
