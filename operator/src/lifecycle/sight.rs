//! What a time-out counts from.
//!
//! An instant in an object was written by somebody's clock, which may be off by hours. Nothing is seen before it happens, so this
//! process's own first sight of a fact is the later of the two wherever clocks are right, and the safe one wherever they are not:
//! a clock that is behind lets nothing time out early, one that is ahead lets nothing wait longer.
//!
//! Sights are kept by the caller between steps, on the monotonic clock. A restart of the operator forgets them: time-outs then
//! begin anew. `maxRunTime` alone counts from the status, so that a restart does not extend a run: what the operator writes
//! there is in the API server's time, whatever its own machine says.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::Phase;
use andreas_api::training_job::Allocation;
use jiff::Timestamp;

use super::member::{Member, Members};
use super::observed::Observed;

/// A fact whose beginning matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// All pods of an attempt are bound.
    Bound {
        /// The attempt.
        attempt: i64,
    },
    /// An attempt runs.
    Running {
        /// The attempt.
        attempt: i64,
    },
    /// A member of an attempt has ended.
    FirstEnd {
        /// The attempt.
        attempt: i64,
    },
    /// A member of an attempt that runs was never seen by this process, there or gone.
    Missing {
        /// The attempt.
        attempt: i64,
        /// The member.
        index: usize,
    },
    /// A node's condition `Ready` is as it is.
    Readiness {
        /// The node.
        node: String,
        /// When it last changed, by whoever wrote it: another instant is another change.
        changed: Option<Timestamp>,
    },
}

/// Facts that hold, with the instant at which this process first saw them.
pub type Sights = BTreeMap<Sight, Timestamp>;

/// The facts that hold.
pub(super) fn holding(o: &Observed<'_>) -> BTreeSet<Sight> {
    let readiness =
        |(node, fact): (&String, &_)| Sight::Readiness { node: node.clone(), changed: changed(fact) };
    let mut holding: BTreeSet<Sight> = o.nodes.iter().map(readiness).collect();
    let Some(status) = &o.job.status else { return holding };
    let Some(allocation) = &status.allocation else { return holding };
    let members = Members::of(o, Some(allocation));
    let attempt = allocation.attempt;
    let container = o.training_container();
    if !members.gang.is_empty() && members.gang.iter().all(Member::bound) {
        holding.insert(Sight::Bound { attempt });
    }
    if status.phase == Phase::Running {
        holding.insert(Sight::Running { attempt });
        let missing = members.gang.iter().filter(|member| member.pod().is_none());
        holding.extend(missing.map(|member| Sight::Missing { attempt, index: member.index }));
    }
    if members.gang.iter().any(|member| member.ending(container).is_some()) {
        holding.insert(Sight::FirstEnd { attempt });
    }
    holding
}

fn changed(fact: &super::observed::NodeFact) -> Option<Timestamp> {
    fact.ready_changed
}

impl Observed<'_> {
    /// Since when a node's `Ready` is as it is: its stamp, but not later than it was seen.
    pub(super) fn ready_changed(&self, node: &str) -> Option<Timestamp> {
        let stamp = self.nodes.get(node)?.ready_changed?;
        Some(stamp.min(self.readiness_seen(node)))
    }

    /// When a node's `Ready` changed during an attempt. A stamp later than our first sight is of a clock that is ahead: then the
    /// change counts only if it was first seen after all pods were bound; what was seen before is older than the run.
    pub(super) fn ready_changed_during(&self, node: &str, allocation: &Allocation) -> Option<Timestamp> {
        let stamp = self.nodes.get(node)?.ready_changed?;
        let seen = self.readiness_seen(node);
        if stamp <= seen {
            return Some(stamp).filter(|at| *at >= allocation.since.0);
        }
        let bound = self.sights.get(&Sight::Bound { attempt: allocation.attempt })?;
        Some(seen).filter(|at| at > bound)
    }

    /// When this process first saw a node's `Ready` as it is.
    pub(super) fn readiness_seen(&self, node: &str) -> Timestamp {
        let changed = self.nodes.get(node).and_then(changed);
        let sight = Sight::Readiness { node: node.to_owned(), changed };
        self.sights.get(&sight).copied().unwrap_or(self.now)
    }
}
