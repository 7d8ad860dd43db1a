//! When the members of an attempt stopped, as far as anybody knows: what is billed, and what is learned as run time.
//!
//! A node without power says nothing, and its pods end when it is proven dead: days later perhaps. Their last sign is when
//! the node fell silent. That is kept as a fact while the node's condition shows it, and over its next boot. An operator
//! that was away finds it in the pod: the node controller sets `Ready` to false, and leaves `ContainersReady` as it was.

use andreas_api::slim::{SlimPod, SlimPodCondition};
use andreas_api::training_job::Allocation;
use andreas_cluster::instants::{CLOCK_SKEW, after};
use jiff::Timestamp;

use super::first_seen::TimedFact;
use super::judge::NEARLY_DONE;
use super::member::{Member, Members, is_over, proof_of_death};
use super::observed::Observed;
use super::words::lost_by_runtime;

/// When an attempt stopped. All instants are within its time up to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptEnds {
    /// Of each member, its end or its last sign; now where it may still run.
    pub members: Vec<Timestamp>,
    /// When the attempt stopped to train: with the first member that was lost, else with the last that ended.
    pub at: Timestamp,
    /// It does not become later: all members ended by themselves, or it was done and no member runs.
    pub lasts: bool,
}

/// How a member stopped.
enum Stop {
    /// By itself.
    Ended(Timestamp),
    /// Nobody saw its end; its last sign.
    Lost(Timestamp),
    /// It may still run.
    Runs,
}

/// When the present attempt stopped; `None` without one.
pub fn attempt_ends(o: &Observed<'_>) -> Option<AttemptEnds> {
    let allocation = o.job.status.as_ref()?.allocation.as_ref()?;
    Some(ends(o, allocation, &Members::new(o, Some(allocation))))
}

pub(super) fn ends(o: &Observed<'_>, allocation: &Allocation, members: &Members<'_>) -> AttemptEnds {
    let from = allocation.running_time.as_ref().unwrap_or(&allocation.since).0;
    let until = o.now.max(from);
    let stops: Vec<Stop> = members.gang.iter().map(|member| stop(o, allocation, member)).collect();
    let within = |at: Timestamp| at.clamp(from, until);
    let ended = stops.iter().map(|stop| match stop {
        Stop::Ended(at) => Some(*at),
        _ => None,
    });
    let ended = ended.collect::<Option<Vec<Timestamp>>>().filter(|all| !all.is_empty());
    // By a clock that cannot be right, nothing is known.
    let wrong = ended.as_ref().is_some_and(|all| all.iter().all(|at| *at < from));
    let each = |stop: &Stop| match stop {
        Stop::Ended(at) | Stop::Lost(at) if !wrong => within(*at),
        _ => until,
    };
    let lost = stops.iter().filter_map(|stop| match stop {
        Stop::Lost(at) => Some(within(*at)),
        _ => None,
    });
    let last = match &ended {
        Some(all) => all.iter().max().map_or(until, |at| within(*at)),
        None => until,
    };
    let progress = o.job.status.as_ref().and_then(|status| status.progress.as_ref());
    let progress = progress.filter(|p| p.attempt == allocation.attempt);
    let done = progress.is_some_and(|p| p.ended || p.milli_percent >= NEARLY_DONE);
    let over = stops.iter().all(|stop| !matches!(stop, Stop::Runs));
    AttemptEnds {
        members: stops.iter().map(each).collect(),
        at: lost.min().unwrap_or(last),
        lasts: (ended.is_some() && !wrong) || (done && over && !stops.is_empty()),
    }
}

fn stop(o: &Observed<'_>, allocation: &Allocation, member: &Member<'_>) -> Stop {
    let ending = member.ending(o.training_container());
    let unknown = ending.and_then(|ending| ending.terminated);
    let unknown = unknown.is_some_and(|t| t.reason == "ContainerStatusUnknown" || lost_by_runtime(t));
    let at = ending.and_then(|ending| ending.at);
    if let Some(at) = at.filter(|_| !unknown) {
        return Stop::Ended(at);
    }
    // What was adopted ends with its workload, also where its pods are gone.
    if let Some(at) = o.workload.and_then(|workload| workload.end.as_ref()?.at.as_ref()) {
        return Stop::Ended(at.0);
    }
    let progress = o.job.status.as_ref().and_then(|status| status.progress.as_ref());
    let reported = progress.filter(|p| p.attempt == allocation.attempt).map(|p| p.at.0);
    let Some(sign) = last_sign(o, member, unknown) else {
        // It was deleted, or its runtime lost it, on a node that said so.
        let gone = member.deleted.map(|deleted| deleted.at).or(at);
        return match (gone, member.pod()) {
            (Some(at), _) if ending.is_none() || unknown => Stop::Lost(at),
            (_, None) if reported.is_some() => Stop::Lost(reported.unwrap_or(o.now)),
            _ => Stop::Runs,
        };
    };
    Stop::Lost(reported.map_or(sign, |reported| reported.max(sign)))
}

/// The last sign of a member whose node fell silent. `None`: its node did not.
fn last_sign(o: &Observed<'_>, member: &Member<'_>, unknown: bool) -> Option<Timestamp> {
    let not_ready = not_ready_since(o, member.node);
    let pod = match member.pod() {
        None => return not_ready,
        Some(pod) => pod,
    };
    let dead = unknown || is_over(pod) || proof_of_death(pod, o.nodes).is_some();
    let ready = o.nodes.get(member.node).is_some_and(|fact| fact.ready);
    if ready && !dead && member.live.is_some() {
        return None;
    }
    not_ready.into_iter().chain(marked_not_ready(pod).filter(|_| dead)).min()
}

/// When the node controller wrote that a pod's node had fallen silent.
fn marked_not_ready(pod: &SlimPod) -> Option<Timestamp> {
    let find = |kind: &str| pod.status.conditions.iter().find(|c| c.type_ == kind);
    let since = |c: &SlimPodCondition| c.last_transition_time.as_ref().map(|at| at.0);
    let (ready, containers) = (find("Ready")?, find("ContainersReady")?);
    let at = since(ready).filter(|_| ready.status == "False")?;
    // A kubelet changes both at once.
    let kept = containers.status == "True" || since(containers).is_some_and(|c| c > after(at, CLOCK_SKEW));
    kept.then_some(at)
}

/// Since when a node gives no sign, or gave none before its present boot or its deletion.
pub(super) fn not_ready_since(o: &Observed<'_>, node: &str) -> Option<Timestamp> {
    let before = o.first_seen.keys().filter_map(|fact| match fact {
        TimedFact::NotReady { node: other, since } if other == node => Some(*since),
        _ => None,
    });
    let fact = o.nodes.get(node).filter(|fact| !fact.ready);
    let now = fact.map(|_| o.ready_changed(node).unwrap_or_else(|| o.readiness_seen(node)));
    before.chain(now).min()
}

/// The facts of an attempt's nodes that fell silent. A node that is ready again, with its pods alive, gave signs all the time.
pub(super) fn not_ready_facts(o: &Observed<'_>, members: &Members<'_>) -> Vec<TimedFact> {
    let lives = |node: &str| {
        let ready = o.nodes.get(node).is_some_and(|fact| fact.ready);
        let on = members.gang.iter().filter(|m| m.node == node).filter_map(|m| m.live);
        ready
            && on.clone().next().is_some()
            && on.clone().all(|pod| proof_of_death(pod, o.nodes).is_none() && !is_over(pod))
    };
    let mut nodes: Vec<&str> = members.gang.iter().map(|member| member.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.retain(|node| !lives(node));
    let fact =
        |node: &str| Some(TimedFact::NotReady { node: node.to_owned(), since: not_ready_since(o, node)? });
    nodes.into_iter().filter_map(fact).collect()
}
