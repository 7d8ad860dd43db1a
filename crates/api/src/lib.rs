//! The objects of `andreas.dev/v1alpha1`, and the names that other programs hold on to.
//!
//! What is here: the custom resources as Rust types ([`TrainingJob`], [`TrainingProfile`], [`EnergyPolicy`],
//! [`GpuNode`], [`NodePower`]), the closed sets of phases and reasons, the names of labels, annotations and environment variables
//! ([`names`]), slim views of objects for watches ([`slim`]), the questions and answers of the query API ([`query`]), and
//! the generator of the CustomResourceDefinitions ([`crd`]). What flows in and out: JSON of the API server and of the
//! operator. What must never be here: behaviour, clients, clocks.
//!
//! Integers instead of floats, every string, list and map bounded, units in the names of the fields.

pub mod crd;
pub mod decimal;
pub mod duration;
pub mod energy_policy;
mod gpu_memory;
pub mod gpu_node;
mod key;
mod known;
pub mod names;
pub mod node_power;
pub mod phase;
pub mod pod_owner;
pub mod quantity;
pub mod query;
pub mod shared_template;
pub mod slim;
pub mod training_job;
pub mod training_profile;

pub use decimal::Decimal;
pub use duration::DurationText;
pub use energy_policy::{EnergyPolicy, EnergyPolicySpec, EnergyPolicyStatus};
pub use gpu_node::{GpuNode, GpuNodeSpec, GpuNodeStatus};
pub use key::key_of;
pub use node_power::{NodePower, NodePowerSpec, NodePowerStatus};
pub use phase::{Outcome, Phase, Reason};
pub use training_job::{Allocation, TrainingJob, TrainingJobSpec, TrainingJobStatus};
pub use training_profile::{TrainingProfile, TrainingProfileSpec, TrainingProfileStatus};
