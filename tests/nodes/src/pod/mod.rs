//! A pod on a pretend node, from binding to its end.
//!
//! *What it holds.* `worker`: one task per pod, the only writer of its status; `task`: one task per container;
//! `status`: states to status patches (pure); `env` and `volumes`: what a container sees;
//! `probe`: whether it is ready.
//!
//! *What flows in and out.* Orders from the watch (update, gone) and from the machine (faults, reboot) in; status
//! patches, the last deletion, and processes out.
//!
//! *What must never be here.* Decisions that are not a kubelet's: nothing here knows TrainingJobs.

pub(crate) mod env;
mod probe;
mod run;
pub(crate) mod status;
mod task;
pub(crate) mod volumes;
pub(crate) mod worker;
