//! Objects that the operator maintains besides jobs, each by a loop of the leader.
//!
//! | file | what |
//! |---|---|
//! | [`capacity`] | how many nodes an autoscaler shall have ready; written by the planning loop, before its decisions |
//! | [`nodes`] | a GpuNode per GPU node, its power limits and exclusion; the policy's status; which machines are wanted on |
//! | [`profiles`] | TrainingProfiles: observations merged in, unused ones removed |
//!
//! **In**: the index, and updates of profiles from ended attempts. **Out**: writes.
//!
//! **Never here**: jobs and their pods (executor).

pub mod capacity;
mod gpu_nodes;
mod node_powers;
pub mod nodes;
mod patches;
pub mod profiles;
