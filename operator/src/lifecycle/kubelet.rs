//! What a kubelet says of a pod beside the states of its containers: a reason in the pod's status, and Events.
//!
//! A kubelet that ends a pod for the pod's own limits, or a container for its probe, sends SIGTERM first. A program that
//! saves and exits 0 then looks like one that has finished: only an Event tells. Nobody watches Events. They are read
//! live when they decide ([`questions`]), and the step gets the answers.
//!
//! Users may write Events about their own pods. So an Event alone turns an exit 0 into a failure, and no failure of the
//! user's into the cluster's.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::slim::SlimPod;
use andreas_api::training_job::Progress;
use andreas_api::{Outcome, Phase, Reason};
use jiff::Timestamp;

use super::first_seen::TimedFact;
use super::judge::{Case, Judgement, NEARLY_DONE};
use super::late::first_minute;
use super::member::{Member, Members};
use super::observed::Observed;
use super::status::{last_line, percent_text};
use crate::instants::after;

/// Seconds for which an Event may come later than the end that it explains.
const LATE_EVENTS: i64 = 5;
/// Seconds for which Events that cannot be read are asked for.
const UNREAD_EVENTS: i64 = 30;

/// An Event of a kubelet about a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodEvent {
    /// In a word: `Evicted`, `Killing`, `Unhealthy`, `FailedMount`...
    pub reason: String,
    /// For people.
    pub message: String,
    /// The container that it is about; `None`: the whole pod.
    pub container: Option<String>,
    /// A `Warning`.
    pub warning: bool,
    /// When it happened first, by the node's clock.
    pub first: Option<Timestamp>,
}

/// Why a pod's Events could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsUnread {
    /// For people.
    pub message: String,
    /// To ask again is of no use.
    pub lasting: bool,
}

/// Events of pods by their UID; absent: not asked.
pub type KubeletEvents = BTreeMap<String, Result<Vec<PodEvent>, EventsUnread>>;

/// What made a kubelet end a pod or its training container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CauseKind {
    /// The pod exceeded a limit that its user set.
    Limit,
    /// A probe or a hook of the training container failed.
    Probe,
    /// The node: pressure, shutdown, preemption.
    Node,
}

/// Why a kubelet ended a pod or its training container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub kind: CauseKind,
    /// The kubelet's words.
    pub words: String,
}

/// UIDs of the pods whose Events decide the next step and are not known.
pub fn questions(o: &Observed<'_>) -> BTreeSet<String> {
    let Some(status) = o.job.status.as_ref().filter(|_| o.job.metadata.deletion_timestamp.is_none()) else {
        return BTreeSet::new();
    };
    let Some(allocation) = &status.allocation else { return BTreeSet::new() };
    let members = Members::new(o, Some(allocation));
    let case = Case { o, allocation, members: &members, stop: status.stop.as_ref(), known_bound: true };
    let mut asked = if o.job.spec.adopts.is_some() { Vec::new() } else { case.ends_to_explain() };
    if status.phase == Phase::Starting && first_minute(o, allocation.attempt).is_some_and(|at| at <= o.now) {
        let container = o.training_container();
        asked.extend(members.gang.iter().filter(|member| member.started_at(container).is_none()));
    }
    let uids = asked.into_iter().filter_map(|member| member.pod()?.metadata.uid.clone());
    uids.filter(|uid| !o.kubelet_events.contains_key(uid)).collect()
}

impl<'a> Case<'a> {
    /// Why its kubelet ended a member that was not done.
    pub(super) fn cause(&self, member: &Member<'_>) -> Option<Cause> {
        let clean = || member.ending(self.container()).is_some_and(|ending| ending.exit_code == 0);
        cause(self.o, member, self.container()).filter(|_| !(self.is_at(NEARLY_DONE) && clean()))
    }

    /// Members that ended, and whose kubelet may say why.
    pub(super) fn ends_to_explain(&self) -> Vec<&'a Member<'a>> {
        if self.stop.is_some_and(|stop| stop.outcome.is_some() || !self.ended_before(stop)) {
            return Vec::new();
        }
        let gang = &self.members.gang;
        let code = |m: &Member<'_>| m.ending(self.container()).map(|ending| ending.exit_code);
        let all_ended = gang.iter().all(|m| code(m).is_some());
        let open = |m: &&'a Member<'a>| match code(m) {
            None => false,
            Some(0) if self.is_at(NEARLY_DONE) => false,
            Some(0) => all_ended || self.o.now < after(self.end_seen(m), LATE_EVENTS),
            Some(_) => true,
        };
        gang.iter().filter(open).collect()
    }

    fn end_seen(&self, member: &Member<'_>) -> Timestamp {
        end_seen(self.o, self.allocation.attempt, member)
    }

    /// Until when the judgement of a clean end waits for the Events of its pods; `None`: it does not.
    pub(super) fn events_until(&self) -> Option<Timestamp> {
        self.all_zero().filter(|_| !self.is_at(NEARLY_DONE))?;
        let answers = self.answers();
        let patience = if answers.iter().any(|answer| answer.is_none_or(|a| a.is_err_and(|why| !why.lasting)))
        {
            UNREAD_EVENTS
        } else if self.counted_below_its_end().is_some() && answers.iter().flatten().all(Result::is_ok) {
            LATE_EVENTS
        } else {
            return None;
        };
        let seen = self.members.gang.iter().map(|m| self.end_seen(m)).max()?;
        Some(after(seen, patience)).filter(|until| *until > self.o.now)
    }

    /// What was said to the questions for the Events of each member's pod.
    fn answers(&self) -> Vec<Option<Result<&'a [PodEvent], &'a EventsUnread>>> {
        let answer = |m: &Member<'_>| {
            let answer = self.o.kubelet_events.get(m.pod()?.metadata.uid.as_ref()?)?;
            Some(answer.as_ref().map(Vec::as_slice))
        };
        self.members.gang.iter().map(answer).collect()
    }

    /// Progress by counted steps that are not those of a whole run.
    fn counted_below_its_end(&self) -> Option<&'a Progress> {
        self.progress().filter(|p| p.stepwise && p.milli_percent < NEARLY_DONE)
    }

    /// All exited 0 with steps left, and nobody can say whether their kubelets made them. Such a run is tried again once: to go on
    /// is cheap, and a run that is wrongly taken as finished is lost.
    pub(super) fn unexplained_end(&self) -> Option<Judgement> {
        self.all_zero()?;
        let progress = self.counted_below_its_end()?;
        let unread = self.answers().into_iter().find_map(|answer| answer?.err())?;
        if self.o.job.status.as_ref().is_some_and(|status| status.unexplained_failures > 0) {
            return None;
        }
        let message = format!(
            "all workers exited 0 at {} of the run, and the events of their pods could not be read: {}",
            percent_text(progress.milli_percent),
            unread.message
        );
        Some(Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message))
    }
}

/// The Events of a member's pod, if they are known.
pub(super) fn events<'a>(o: &Observed<'a>, member: &Member<'_>) -> &'a [PodEvent] {
    let answer = member.pod().and_then(|pod| o.kubelet_events.get(pod.metadata.uid.as_ref()?));
    answer.and_then(|answer| answer.as_ref().ok()).map_or(&[], Vec::as_slice)
}

/// When this process first saw that a member's training container has ended.
pub(super) fn end_seen(o: &Observed<'_>, attempt: i64, member: &Member<'_>) -> Timestamp {
    o.first_seen.get(&TimedFact::Ended { attempt, index: member.index }).copied().unwrap_or(o.now)
}

/// Why its kubelet ended a member's pod or its training container, if it did. Nothing is said where somebody else disrupted
/// the pod.
pub(super) fn cause(o: &Observed<'_>, member: &Member<'_>, container: Option<&str>) -> Option<Cause> {
    let pod = member.pod()?;
    if pod.status.conditions.iter().any(|c| c.type_ == "DisruptionTarget" && c.status == "True") {
        return None;
    }
    let ending = member.ending(container);
    // Both instants are the node's; the Event's is cut to the second.
    let ended = ending.and_then(|ending| ending.terminated?.finished_at.as_ref());
    let in_time = |event: &&PodEvent| match (ended, event.first) {
        (Some(ended), Some(first)) => first <= after(ended.0, 1),
        _ => true,
    };
    let reported = events(o, member);
    let clean = ending.is_some_and(|ending| ending.exit_code == 0);
    let late = |reason: &str| reported.iter().any(|event| event.reason == reason && !in_time(&event));
    if let Some(cause) = in_status(pod).filter(|_| !(clean && late(&pod.status.reason))) {
        return Some(cause);
    }
    ending?;
    let all = || reported.iter().filter(in_time);
    let cause = all().find_map(|event| in_event(event, all(), container?))?;
    (clean || cause.kind != CauseKind::Node).then_some(cause)
}

/// What the status of a failed pod says.
fn in_status(pod: &SlimPod) -> Option<Cause> {
    let status = &pod.status;
    if status.phase != "Failed" || status.reason.is_empty() {
        return None;
    }
    let kind = match status.reason.as_str() {
        "Evicted" => of_eviction(&status.message),
        "DeadlineExceeded" => CauseKind::Limit,
        _ => CauseKind::Node,
    };
    Some(Cause { kind, words: format!("{}: {}", status.reason, last_line(&status.message)) })
}

/// Messages of evictions for the node's sake name it first.
fn of_eviction(message: &str) -> CauseKind {
    if message.starts_with("The node ") { CauseKind::Node } else { CauseKind::Limit }
}

/// What an Event says of the end of a container. `all`: the Events of its pod.
fn in_event<'a>(
    event: &PodEvent,
    mut all: impl Iterator<Item = &'a PodEvent>,
    container: &str,
) -> Option<Cause> {
    let about = event.container.as_deref();
    let message = last_line(&event.message);
    let its_own = about == Some(container)
        || about.is_none() && event.message.split_whitespace().any(|word| word == container);
    let (kind, words) = match event.reason.as_str() {
        "Evicted" => (of_eviction(&event.message), message),
        "DeadlineExceeded" => (CauseKind::Limit, message),
        "Preempting" => (CauseKind::Node, message),
        "FailedPostStartHook" if its_own => (CauseKind::Probe, message),
        // A whole pod is ended for another reason, which has its own Event or was asked for.
        "Killing" if its_own && !event.message.starts_with("Stopping container") => {
            let probe = |other: &&PodEvent| {
                let failed = ["Liveness", "Startup"].iter().any(|probe| other.message.starts_with(probe));
                other.reason == "Unhealthy" && failed && other.container == event.container
            };
            let words = all.find(probe).map(|probe| format!("{message}: {}", last_line(&probe.message)));
            (CauseKind::Probe, words.unwrap_or(message))
        }
        _ => return None,
    };
    Some(Cause { kind, words: format!("{}: {words}", event.reason) })
}

/// What a user forgot to make, by a kubelet that could not mount a volume.
pub(super) fn missing_volume(reported: &[PodEvent]) -> Option<String> {
    const KINDS: [&str; 3] = ["configmap", "secret", "serviceaccount"];
    let missing = |message: &str| {
        // Every namespace gets that one by itself, a moment after it is made.
        let named = KINDS.iter().any(|kind| message.contains(kind)) && !message.contains("kube-root-ca.crt");
        named && (message.contains("not found") || message.contains("references non-existent"))
    };
    let event = reported.iter().find(|event| event.reason == "FailedMount" && missing(&event.message))?;
    Some(last_line(&event.message))
}

/// The latest warning of a kubelet about a pod that does not start.
pub(super) fn last_warning(reported: &[PodEvent]) -> Option<String> {
    let warned = reported.iter().filter(|event| event.warning && event.reason != "Unhealthy");
    let event = warned.max_by_key(|event| event.first)?;
    Some(format!("{}: {}", event.reason, last_line(&event.message)))
}
