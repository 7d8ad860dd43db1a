//! The lifecycle of a TrainingJob: one pure function from observed to desired state.
//!
//! ```text
//!              suspend                      spec.suspend = false
//!   Pending <------------------------------------------------------ Suspended
//!      | plan says Run: allocation written (intent first)               ^
//!      v                                                                |
//!   Starting --- all members run ---> Running                           |
//!      |                                 |                              |
//!      | placement or start time-out,    | plan stops or moves it, suspend, edit of gpus,
//!      | refusal, plan takes it back     | a member fails or vanishes, time-outs, unreachable node
//!      v                                 v                              |
//!   Stopping  (pods asked to save and leave; GPUs in use until all have ended)
//!      |          |           |                                         |
//!      |          |           +-- goes on later: Pending, or held: -----+
//!      |          +-- finished ------------------------> Succeeded
//!      +-- retries used, maxRunTime -------------------> Failed
//! ```
//!
//! One step passes through every phase that has no pods to wait for. A single pod that exits 0 goes from
//! Running to Succeeded in one status write.
//!
//! **In**: [`Observed`]: the job, its pods, node facts, the plan's decision, results of earlier actions and
//! the current instant. **Out**: [`Step`]: the whole new status, [`Action`]s, events, the requeue time and
//! the job's [`Claim`] on GPUs for the planner.
//!
//! Never here: I/O, a clock, randomness, async, memory between steps. A restarted operator continues from
//! `status` and pods alone. Three rules make that hold:
//!
//! 1. *The status is written before any action of the same step.* So the operator deleted no pod without a
//!    stop in the status, and the verdict is in `status.stop` before the pods go.
//! 2. *No step on stale state.* The caller steps a job only once its caches include its own last write of
//!    that job. Pods are created only for the attempt in `status.allocation`. No pod of an earlier attempt,
//!    or of an older object of the same name, may still be able to run.
//! 3. *Unchanged input changes nothing.* A step from its own result writes nothing and does nothing new; no
//!    timestamp moves by itself.
//!
//! Where to look:
//!
//! * `template`: whether the template can become a pod.
//! * `start`: Pending to Starting to Running; `late`: start time-outs.
//! * `run`: what ends a running attempt; `readiness`: nodes that are not ready; `stop`: until the pods have ended.
//! * `adopted`: a job that stands for one of another kind, whose pods its own controller makes; `workload`: what that one says.
//! * `cancel`: a job that is being deleted.
//! * [`judge`]: the outcome of an attempt; [`kubelet`]: what a kubelet says of a pod; `words`: what programs and runtimes say; `end`: what follows from it; `ends`: when its members stopped.
//! * [`notices`]: events about predictions and waits.
//! * [`pods`]: manifests; [`first_seen`]: the base of time-outs; [`status`]: conditions and texts.
//!
//! Progress reports are validated beside the progress server.

pub mod action;
mod adopted;
mod cancel;
mod choices;
mod devices;
mod draft;
mod end;
mod ends;
pub mod first_seen;
pub mod judge;
pub mod kubelet;
mod late;
mod member;
pub mod notices;
pub mod observed;
mod phase_conditions;
mod pod_events;
pub mod pods;
mod readiness;
mod run;
mod slurm;
mod start;
pub mod status;
mod step;
mod stop;
mod template;
#[cfg(test)]
mod tests;
mod unexplained;
mod words;
mod workload;

pub use action::{Action, Claim, DeleteReason, EventNote, ProfileUpdate, Step, stops_for_good};
pub use end::ENDS;
pub use ends::{AttemptEnds, attempt_ends};
pub use first_seen::{FirstSeen, TimedFact};
pub use member::pod_in_use;
pub use notices::{Announced, is_delayed};
pub use observed::{
    Admitted, AgentFact, Backoff, Creation, CreationOutcome, DecisionFor, DeletedPodView, DryRunResult,
    EnergyView, Guard, NodeFact, Observed, Planned, PolicyView, ProgressEndpoint, Settings,
};
pub use pod_events::{EventsUnread, KubeletEvents, PodEvent};
pub use step::step;
pub use template::{largest_admitted, problem as template_problem};
pub use unexplained::questions;
