//! Why a replay cannot go on.

use andreas_core::{JobId, NodeName, Time};
use andreas_planner::SnapshotError;

/// Why a replay ended early. All are faults of the scenario or of the method, never of the replay's course.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// The planner refused the snapshot.
    #[error("the planner refused a snapshot at {at}: {source}")]
    Refused {
        /// When.
        at: Time,
        /// Why.
        source: SnapshotError,
    },
    /// The plan puts a job where it cannot run.
    #[error("at {at}, {job} was put on {nodes:?}, where it cannot run")]
    Impossible {
        /// When.
        at: Time,
        /// Which.
        job: JobId,
        /// Where.
        nodes: Vec<NodeName>,
    },
    /// The plan uses more GPUs than a node has.
    #[error("at {at}, {used} GPUs of {node} were given out, and it has {has}")]
    OverCapacity {
        /// When.
        at: Time,
        /// Where.
        node: NodeName,
        /// GPUs given out.
        used: u32,
        /// GPUs there.
        has: u32,
    },
    /// A failure names a node that there is not.
    #[error("failures: no node is called {0}")]
    NoSuchNode(NodeName),
}
