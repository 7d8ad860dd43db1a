//! Errors of a replay.

use andreas_model::{JobId, NodeName, Time};
use andreas_planner::SnapshotError;

/// The reason why a replay ended early: always a fault of the scenario or of the method.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// The planner rejected the snapshot.
    #[error("the planner refused a snapshot at {at}: {source}")]
    Refused {
        /// Time of the decision.
        at: Time,
        /// The planner's error.
        source: SnapshotError,
    },
    /// The plan puts a job where it cannot run.
    #[error("at {at}, {job} was put on {nodes:?}, where it cannot run")]
    Impossible {
        /// Time of the decision.
        at: Time,
        /// The job.
        job: JobId,
        /// The planned nodes.
        nodes: Vec<NodeName>,
    },
    /// The plan uses more GPUs than a node has.
    #[error("at {at}, {used} GPUs of {node} were given out, and it has {has}")]
    OverCapacity {
        /// Time of the decision.
        at: Time,
        /// The node.
        node: NodeName,
        /// GPUs used by the plan.
        used: u32,
        /// GPUs of the node.
        has: u32,
    },
    /// A failure names an unknown node.
    #[error("failures: no node is called {0}")]
    NoSuchNode(NodeName),
}
