//! The life of a TrainingJob: one pure function from what is seen to what is to be.
//!
//! ```text
//!              suspend                      spec.suspend = false
//!   Pending <------------------------------------------------------ Suspended
//!      | plan says Run: allocation written (intent first)               ^
//!      v                                                                |
//!   Starting --- all members run ---> Running                           |
//!      |                                 |                              |
//!      | placement or start time-out,    | plan stops or moves it, suspend, edit of gpus,
//!      | refusal, plan takes it back     | a member fails or vanishes, time-outs, silent node
//!      v                                 v                              |
//!   Stopping  (pods asked to save and leave; GPUs in use until all have ended)
//!      |          |           |                                         |
//!      |          |           +-- goes on later: Pending, or held: -----+
//!      |          +-- finished ------------------------> Succeeded
//!      +-- retries used, maxRunTime -------------------> Failed
//! ```
//!
//! A phase without pods to wait for is passed through within one step: a single pod that exits 0 goes from Running
//! to Succeeded in one status write.
//!
//! **In**: [`Observed`] - the job, its pods, facts of nodes, the plan's word on this job, outcomes of what the executor
//! tried, the instant. **Out**: [`Step`] - the whole new status, [`Action`]s, events, when to look again, and the
//! job's [`Claim`] on GPUs for the planner.
//!
//! What must never be here: I/O, a clock, randomness, async, memory between steps. A restart of the operator at any
//! point goes on from `status` and pods: nothing is remembered, everything is derived. Three rules make that hold:
//!
//! 1. *The status is written before any action of the same step is carried out.* So a pod without our stop in the
//!    status was not deleted by us, and an attempt's verdict is in `status.stop` before its pods go.
//! 2. *Never on less than the truth.* The caller steps a job only with caches that have caught up with its own last
//!    write of that job. Pods are made only for the attempt in `status.allocation`, and only when no pod of an earlier
//!    attempt, or of an older object of the same name, can still run.
//! 3. *An unchanged world changes nothing.* A step from its own result writes nothing and does nothing new: no
//!    timestamp moves by itself.
//!
//! Where to look: `template` whether it can become a pod; `start` Pending to Starting to Running, `late` a
//! start that takes too long; `run` what ends a running attempt; `stop` until the
//! pods have ended; `cancel` a job that is being deleted; [`judge`] what an attempt came to; `end` what follows from that; [`pods`] the manifests;
//! [`sight`] what time-outs count from; [`status`] conditions and texts. What a report of progress is worth is judged beside the progress server.

pub mod action;
mod cancel;
mod draft;
mod end;
pub mod judge;
mod late;
mod member;
pub mod observed;
pub mod pods;
mod quantity;
mod run;
pub mod sight;
mod start;
pub mod status;
mod step;
mod stop;
mod template;
#[cfg(test)]
mod tests;

pub use action::{Action, Claim, DeleteReason, EventNote, ProfileUpdate, Step};
pub use member::{containers_seen_ended, is_member, pod_in_use};
pub use observed::{
    Admitted, AgentFact, Backoff, Creation, CreationOutcome, DecisionFor, DeletedPodView, EnergyView,
    LateEnergy, NodeFact, Observed, Planned, PolicyView, ProgressEndpoint, Settings, Verdict,
};
pub use sight::{Sight, Sights};
pub use step::step;
