//! The base of time-outs.
//!
//! An instant in an object comes from another clock, which may be off by hours. An event is never seen before
//! it happens. So the time when this process first saw a fact is the later of the two if clocks agree, and the safe
//! one if not. A clock that is behind causes no early time-out, and one that is ahead causes no longer wait.
//!
//! The caller keeps these times between steps, on the monotonic clock. After an operator restart, time-outs begin
//! anew. Only `maxRunTime` counts from the status, so a restart does not extend a run. The operator writes
//! that status field in the API server's time.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::Phase;
use andreas_api::training_job::Allocation;
use jiff::Timestamp;

use super::member::{Member, Members};
use super::observed::Observed;

/// A fact with a start that matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimedFact {
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
    /// A member of a running attempt was never seen by this process, existing or deleted.
    Missing {
        /// The attempt.
        attempt: i64,
        /// The member.
        index: usize,
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

/// The facts that hold.
pub(super) fn current_facts(o: &Observed<'_>) -> BTreeSet<TimedFact> {
    let readiness =
        |(node, fact): (&String, &_)| TimedFact::Readiness { node: node.clone(), changed: changed(fact) };
    let mut facts: BTreeSet<TimedFact> = o.nodes.iter().map(readiness).collect();
    let Some(status) = &o.job.status else { return facts };
    let Some(allocation) = &status.allocation else { return facts };
    let members = Members::of(o, Some(allocation));
    let attempt = allocation.attempt;
    let container = o.training_container();
    if !members.gang.is_empty() && members.gang.iter().all(Member::bound) {
        facts.insert(TimedFact::Bound { attempt });
    }
    if status.phase == Phase::Running {
        facts.insert(TimedFact::Running { attempt });
        let missing = members.gang.iter().filter(|member| member.pod().is_none());
        facts.extend(missing.map(|member| TimedFact::Missing { attempt, index: member.index }));
    }
    if members.gang.iter().any(|member| member.ending(container).is_some()) {
        facts.insert(TimedFact::FirstEnd { attempt });
    }
    facts
}

fn changed(fact: &super::observed::NodeFact) -> Option<Timestamp> {
    fact.ready_changed
}

impl Observed<'_> {
    /// Start of a node's current `Ready` value: its transition time, but not later than first seen.
    pub(super) fn ready_changed(&self, node: &str) -> Option<Timestamp> {
        let stamp = self.nodes.get(node)?.ready_changed?;
        Some(stamp.min(self.readiness_seen(node)))
    }

    /// When a node's `Ready` changed during an attempt. A transition time after we first saw it comes from a
    /// clock that is ahead. Such a change counts only if first seen after all pods were bound.
    pub(super) fn ready_changed_during(&self, node: &str, allocation: &Allocation) -> Option<Timestamp> {
        let stamp = self.nodes.get(node)?.ready_changed?;
        let seen = self.readiness_seen(node);
        if stamp <= seen {
            return Some(stamp).filter(|at| *at >= allocation.since.0);
        }
        let bound = self.first_seen.get(&TimedFact::Bound { attempt: allocation.attempt })?;
        Some(seen).filter(|at| at > bound)
    }

    /// When this process first saw a node's current `Ready` value.
    pub(super) fn readiness_seen(&self, node: &str) -> Timestamp {
        let changed = self.nodes.get(node).and_then(changed);
        let fact = TimedFact::Readiness { node: node.to_owned(), changed };
        self.first_seen.get(&fact).copied().unwrap_or(self.now)
    }
}
