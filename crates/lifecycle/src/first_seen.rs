//! The base of time-outs.
//!
//! An instant in an object comes from another clock, which may be off by hours. An event is never seen before
//! it happens. So the time when this process first saw a fact is the later of the two if clocks agree, and the safe
//! one if not. A clock that is behind causes no early time-out, and one that is ahead causes no longer wait.
//!
//! The caller keeps these times between steps, on the monotonic clock. After an operator restart, time-outs begin
//! anew. Only `maxRunTime` counts from the status, so a restart does not extend a run. The operator writes
//! that status field in the API server's time.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// A fact with a start that matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimedFact {
    /// All pods of an attempt are bound.
    Bound {
        /// The attempt.
        attempt: i64,
    },
    /// All pods of an attempt that another controller makes are there.
    Made {
        /// The attempt.
        attempt: i64,
    },
    /// GPUs of an attempt are in use by others, so its pods cannot be made.
    InUse {
        /// The attempt.
        attempt: i64,
    },
    /// Earlier pods of the job have not ended, so the pods of an attempt cannot be made.
    EarlierPods {
        /// The attempt.
        attempt: i64,
    },
    /// The agent of a node was asked to wake its GPUs for an attempt.
    Waking {
        /// The attempt.
        attempt: i64,
        /// The node.
        node: String,
        /// The request: `GpuNode.spec.wakeGeneration`.
        request: i64,
    },
    /// The scheduler says that no node can take a member of an attempt.
    Unschedulable {
        /// The attempt.
        attempt: i64,
        /// The member.
        index: usize,
    },
    /// An attempt runs.
    Running {
        /// The attempt.
        attempt: i64,
    },
    /// The training container of a member has ended.
    Ended {
        /// The attempt.
        attempt: i64,
        /// The member.
        index: usize,
    },
    /// The workload for which a running attempt stands has fewer pods than it should.
    Incomplete {
        /// The attempt.
        attempt: i64,
        /// All are bound, and some have not started; else some are not there or not bound.
        bound: bool,
    },
    /// The workload of an attempt is suspended, and pods of it that nobody has deleted run on.
    NotStopped {
        /// The attempt.
        attempt: i64,
        /// For so long that it was told of.
        told: bool,
    },
    /// The workload for which a running attempt stands has ended.
    WorkloadEnded {
        /// The attempt.
        attempt: i64,
    },
    /// All containers of a member have ended.
    ContainersEnded {
        /// The attempt.
        attempt: i64,
        /// The member.
        index: usize,
    },
    /// A member of a running attempt was never seen by this process, existing or deleted.
    Missing {
        /// The attempt.
        attempt: i64,
        /// The member.
        index: usize,
    },
    /// A node of an attempt gives no sign, or gave none before its present boot.
    NotReady {
        /// The node.
        node: String,
        /// Since when.
        since: Timestamp,
    },
    /// A node's condition `Ready` has its current value.
    Readiness {
        /// The node.
        node: String,
        /// Its transition time; another value is another change.
        changed: Option<Timestamp>,
    },
}

/// Facts that hold, with the instant at which this process first saw them.
pub type FirstSeen = BTreeMap<TimedFact, Timestamp>;
