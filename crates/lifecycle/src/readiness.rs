//! Nodes of an attempt that are not ready: whether its job restarts elsewhere or waits.

use andreas_api::phase::condition;
use andreas_api::training_job::Allocation;
use andreas_api::{Outcome, Phase, Reason};
use andreas_cluster::instants::{self, after};
use jiff::Timestamp;

use super::draft::Draft;
use super::judge::Judgement;
use super::member::{Members, is_over, may_restart, proof_of_death};
use super::status::{ConditionValue, allocation_text};

/// The result of checking for nodes that are not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// None has been not ready for long enough.
    AllReady,
    /// Set in the status; waiting for proof of death.
    Waits,
    /// The attempt is given up.
    GivenUp,
}

/// A node of the allocation that has not been ready for `nodeLoss.after`, and the text for people. Requeues the job for that instant.
pub(super) fn unready_node(d: &mut Draft<'_>, allocation: &Allocation) -> Option<(String, String)> {
    for node in &allocation.nodes {
        let Some(fact) = d.o.nodes.get(node).filter(|fact| !fact.ready) else { continue };
        let seen = d.o.readiness_seen(node);
        let due = after(seen, d.o.policy.node_loss_after);
        if due <= d.o.now {
            let since = fact.ready_changed.unwrap_or(seen);
            return Some((node.clone(), not_ready_text(node, since)));
        }
        d.requeue_at(due);
    }
    None
}

fn not_ready_text(node: &str, since: Timestamp) -> String {
    format!("node {node} has not been ready since {}", instants::time(since).0)
}

/// Checks the nodes of members that can still run. If one is not ready, the job restarts elsewhere if the
/// policy and its checkpoint allow it. Otherwise the status says so and the job waits for proof of death.
pub(super) fn check(d: &mut Draft<'_>, allocation: &Allocation, members: &Members<'_>) -> Readiness {
    let mut not_ready: Vec<(String, Timestamp)> = Vec::new();
    for member in &members.gang {
        let alive = member.live.is_some_and(|p| {
            p.spec.node_name.is_some() && !is_over(p) && proof_of_death(p, d.o.nodes).is_none()
        });
        let Some(since) =
            d.o.nodes.get(member.node).filter(|f| alive && !f.ready).and_then(|f| f.ready_changed)
        else {
            continue;
        };
        let due = after(d.o.readiness_seen(member.node), d.o.policy.node_loss_after);
        if d.o.now < due { d.requeue_at(due) } else { not_ready.push((member.node.to_owned(), since)) }
    }
    if not_ready.is_empty() {
        if d.status.phase == Phase::Running && d.reason() == Some(Reason::NodeNotReady) {
            let text = format!("all workers run: {}", allocation_text(allocation));
            d.status.reason = None;
            d.set_condition(condition::RUNNING, ConditionValue::True, Reason::Running, &text);
            d.event(false, Reason::Running, "the nodes are ready again");
        }
        return Readiness::AllReady;
    }
    let texts: Vec<String> = not_ready.iter().map(|(node, since)| not_ready_text(node, *since)).collect();
    let text = texts.join(", ");
    if may_restart(d.o) && d.status.phase != Phase::Stopping {
        let mut judgement =
            Judgement::new(Outcome::ClusterFailure, Reason::NodeNotReady, text).explained(true);
        judgement.exclude = not_ready.into_iter().map(|(node, _)| node).collect();
        d.stop_judged(&judgement);
        return Readiness::GivenUp;
    }
    if d.reason() != Some(Reason::NodeNotReady) {
        d.event(true, Reason::NodeNotReady, format!("{text}; waits for proof that it is dead"));
    }
    d.status.reason = Some(Reason::NodeNotReady.as_str().into());
    d.set_condition(condition::RUNNING, ConditionValue::Unknown, Reason::NodeNotReady, &text);
    Readiness::Waits
}
