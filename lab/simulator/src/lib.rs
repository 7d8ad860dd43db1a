//! Replays workloads on described clusters, with any planning method.
//!
//! **Contains** the [`Scenario`] (cluster, policy settings, true jobs), its discrete-event [`replay`], the
//! accounting, the [`readers`] of traces and tables, and the [`report`]s.
//!
//! **Data flow**: files become scenarios. At every event the planner gets a `Snapshot`, through the
//! operator's API and type, and its plan is carried out. [`Outcome`]s become a table or JSON.
//!
//! **Not allowed**: policies, Kubernetes, the network, a clock. Time is the trace's; callers measure decision
//! times around their call of the planner.

mod batch;
mod engine;
mod outcome;
pub mod readers;
pub mod report;
mod scenario;

pub use batch::{Setup, Watch, run_all};
pub use engine::{
    Conditions, Decider, Knowledge, PredictionError, ProductPolicy, SimulationError, Sleep, replay,
};
pub use outcome::{DecisionTimes, JobOutcome, Outcome, PowerPoint, Replayed, Segment, Spread, Summary};
pub use scenario::{Delays, Failure, Scenario, SleepModel};
