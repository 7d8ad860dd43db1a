//! What a kubelet says of a pod beside the states of its containers: a reason in the pod's status, and Events.
//!
//! A kubelet that ends a pod for the pod's own limits, or a container for its probe, sends SIGTERM first. A program that
//! saves and exits 0 then looks like one that has finished: only an Event tells. Nobody watches Events. They are read
//! live when they decide ([`super::questions`]), and the step gets the answers.
//!
//! Users may write Events about their own pods. So an Event alone turns an exit 0 into a failure, and no failure of the
//! user's into the cluster's.

use andreas_api::slim::SlimPod;
use andreas_cluster::instants::after;
use jiff::Timestamp;

use super::first_seen::TimedFact;
use super::member::Member;
use super::observed::Observed;
use super::pod_events::PodEvent;
use super::status::last_line;

/// What made a kubelet end a pod or its training container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CauseKind {
    /// The pod exceeded a limit that its user set, or asks for what kubelets do not allow.
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
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let cause = all().find_map(|event| in_event(event, all(), container?, deleted))?;
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
        "DeadlineExceeded" | "SysctlForbidden" | "AppArmor" => CauseKind::Limit,
        _ => CauseKind::Node,
    };
    Some(Cause { kind, words: format!("{}: {}", status.reason, last_line(&status.message)) })
}

/// Messages of evictions for the node's sake name it first.
fn of_eviction(message: &str) -> CauseKind {
    if message.starts_with("The node ") { CauseKind::Node } else { CauseKind::Limit }
}

/// What an Event says of the end of a container. `all`: the Events of its pod; `deleted`: somebody has deleted that.
fn in_event<'a>(
    event: &PodEvent,
    mut all: impl Iterator<Item = &'a PodEvent>,
    container: &str,
    deleted: bool,
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
        "Killing" if its_own => {
            let probe = |other: &&PodEvent| {
                let failed = ["Liveness", "Startup"].iter().any(|probe| other.message.starts_with(probe));
                other.reason == "Unhealthy" && failed && other.container == event.container
            };
            let failed = all.find(probe).map(|probe| last_line(&probe.message));
            // Where no container of the pod is to run any more, a kubelet ends the whole pod and does not say why: what was asked for
            // looks the same, and other reasons have their own Events.
            let whole_pod = event.message.starts_with("Stopping container");
            let words = match failed {
                Some(failed) if !whole_pod || !deleted => format!("{message}: {failed}"),
                None if !whole_pod => message,
                _ => return None,
            };
            (CauseKind::Probe, words)
        }
        _ => return None,
    };
    Some(Cause { kind, words: format!("{}: {words}", event.reason) })
}

/// What a kubelet could not mount or attach, in its words.
pub(super) enum Missing {
    /// A user named it and nobody has made it.
    Object(String),
    /// This node may lack it, and another one not: a folder of the host, a CSI driver.
    OnNode(String),
}

/// What is missing of a pod that does not start. `drivers`: CSI drivers that the template names.
pub(super) fn missing(reported: &[PodEvent], drivers: &[&str]) -> Option<Missing> {
    const NAMED_OBJECTS: [&str; 4] =
        ["configmap", "secret", "serviceaccount", "network-attachment-definition"];
    let find = |message: &str| {
        // Every namespace gets that one by itself, a moment after it is made.
        let named = NAMED_OBJECTS.iter().any(|kind| message.contains(kind));
        let object = named && !message.contains("kube-root-ca.crt");
        let driver = |driver: &&str| message.contains(&format!("driver name {driver} not found"));
        let words = || last_line(message);
        if message.contains("hostPath type check failed") || drivers.iter().any(driver) {
            Some(Missing::OnNode(words()))
        } else if object && (message.contains("not found") || message.contains("references non-existent")) {
            Some(Missing::Object(words()))
        } else {
            None
        }
    };
    let tried =
        |event: &&PodEvent| ["FailedMount", "FailedCreatePodSandBox"].contains(&event.reason.as_str());
    reported.iter().filter(tried).find_map(|event| find(&event.message))
}

/// The latest warning of a kubelet about a pod that does not start.
pub(super) fn last_warning(reported: &[PodEvent]) -> Option<String> {
    let warned = reported.iter().filter(|event| event.warning && event.reason != "Unhealthy");
    let event = warned.max_by_key(|event| event.first)?;
    Some(format!("{}: {}", event.reason, last_line(&event.message)))
}
