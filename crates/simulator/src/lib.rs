//! Replays of workloads on described clusters, under any method of the planner.
//!
//! **Holds** the [`Scenario`] (cluster, rules, jobs as they truly are), the discrete-event [`replay`] of it, the accounting,
//! the [`readers`] of traces and tables, and the [`report`]s.
//!
//! **Flows**: files in, scenarios; at every event a `Snapshot` to the planner's door, the same type and door as the operator's, and its
//! plan carried out; [`Outcome`]s out, as table, JSON or a page of HTML.
//!
//! **Must never be here**: a policy, Kubernetes, the network, a clock. Time is the trace's; who wants to know how long decisions
//! take measures around its own call of the planner.

mod batch;
mod engine;
mod outcome;
pub mod readers;
pub mod report;
mod scenario;

pub use batch::{Setup, Watch, run_all};
pub use engine::{Conditions, Decider, Knowledge, PredictionError, SimulationError, replay};
pub use outcome::{DecisionTimes, JobOutcome, Outcome, PowerPoint, Replayed, Segment, Summary};
pub use scenario::{Failure, Scenario};
