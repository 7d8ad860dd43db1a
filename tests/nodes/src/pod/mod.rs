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

use serde::{Deserialize, Serialize};

/// Prefix of the annotations that tell pretend kubelets what shall happen to a pod.
pub const ANNOTATIONS: &str = "testbed.andreas.dev";

/// What can be done to the containers of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Killed by the kernel for its memory: exit 137, `OOMKilled`.
    Oom,
    /// Ends with this exit code.
    Fail(i32),
    /// Stands still, and hears no SIGTERM.
    Hang,
    /// Goes on after a hang.
    Resume,
    /// SIGTERM is not passed on; it must be killed.
    Deaf,
    /// Lost with its machine: exit 255, `Unknown`.
    Lost,
}

impl Fault {
    /// `oom`, `fail`, `fail:3`, `hang`, `deaf`: the value of the annotation `testbed.andreas.dev/fault`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':').unwrap_or((text, "1")) {
            ("oom", _) => Self::Oom,
            ("fail", code) => Self::Fail(code.parse().ok()?),
            ("hang", _) => Self::Hang,
            ("deaf", _) => Self::Deaf,
            _ => return None,
        })
    }
}
