//! Container states and the status patch they amount to. Pure.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::devices::Refusal;
use crate::objects::PodView;
use crate::time::whole_seconds;

/// What kind of container it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Init,
    /// Init container with `restartPolicy: Always`.
    Sidecar,
    Main,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Terminated {
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub started: Option<Timestamp>,
    pub finished: Option<Timestamp>,
    pub container_id: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Waiting { reason: String, message: String },
    Running { since: Timestamp, container_id: String },
    Terminated(Terminated),
}

impl State {
    pub fn waiting(reason: &str, message: impl Into<String>) -> Self {
        Self::Waiting { reason: reason.to_owned(), message: message.into() }
    }
}

/// One container of the pod.
#[derive(Debug, Clone)]
pub(crate) struct ContainerState {
    pub name: String,
    pub image: String,
    pub kind: Kind,
    pub state: State,
    pub last: Option<Terminated>,
    pub restarts: u32,
    pub ready: bool,
}

/// The whole status, as the worker knows it.
pub(crate) struct StatusTracker {
    pub slots: Vec<ContainerState>,
    pub started: Timestamp,
    pub pod_ip: String,
    pub host_ip: String,
    /// Reason and message of a pod that was refused.
    pub refusal: Option<Refusal>,
    /// All that may run has ended, and no more will.
    pub over: bool,
    never_restarts: bool,
    since: BTreeMap<&'static str, (bool, Timestamp)>,
}

impl StatusTracker {
    pub fn new(pod: &PodView, pod_ip: &str, host_ip: &str) -> Self {
        let slot = |container: &k8s_openapi::api::core::v1::Container, kind| ContainerState {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            kind,
            state: match kind {
                Kind::Main if !pod.spec.init_containers.is_empty() => State::waiting("PodInitializing", ""),
                Kind::Main => State::waiting("ContainerCreating", ""),
                _ => State::waiting("PodInitializing", ""),
            },
            last: None,
            restarts: 0,
            ready: false,
        };
        let init = pod.spec.init_containers.iter().map(|container| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            slot(container, if sidecar { Kind::Sidecar } else { Kind::Init })
        });
        Self {
            slots: init
                .chain(pod.spec.containers.iter().map(|container| slot(container, Kind::Main)))
                .collect(),
            started: Timestamp::now(),
            pod_ip: pod_ip.to_owned(),
            host_ip: host_ip.to_owned(),
            refusal: None,
            over: false,
            never_restarts: pod.spec.restart_policy == "Never",
            since: BTreeMap::new(),
        }
    }

    fn mains(&self) -> impl Iterator<Item = &ContainerState> {
        self.slots.iter().filter(|slot| slot.kind == Kind::Main)
    }

    /// Every init container has done its work and every sidecar has started.
    pub fn initialized(&self) -> bool {
        self.slots.iter().all(|slot| match (slot.kind, &slot.state) {
            (Kind::Init, State::Terminated(end)) => end.exit_code == 0,
            (Kind::Init, _) => false,
            (Kind::Sidecar, State::Waiting { .. }) => slot.last.is_some(),
            _ => true,
        })
    }

    /// An init container of a pod that does not restart has failed.
    pub fn init_failed(&self) -> bool {
        self.never_restarts
            && self.slots.iter().any(|slot| {
                slot.kind == Kind::Init && matches!(&slot.state, State::Terminated(end) if end.exit_code != 0)
            })
    }

    fn succeeded(&self) -> bool {
        let clean =
            |slot: &ContainerState| matches!(&slot.state, State::Terminated(end) if end.exit_code == 0);
        self.initialized() && self.mains().all(clean)
    }

    pub fn phase(&self) -> &'static str {
        if self.refusal.is_some() {
            return "Failed";
        }
        if self.over {
            return if self.succeeded() { "Succeeded" } else { "Failed" };
        }
        let begun =
            |slot: &ContainerState| !matches!(slot.state, State::Waiting { .. }) || slot.last.is_some();
        if self.initialized() && self.mains().all(begun) { "Running" } else { "Pending" }
    }

    /// A kubelet that has lost a container says so; what never started stays waiting while init has not finished.
    pub fn give_up_unknown(&mut self) {
        if !self.slots.iter().any(|slot| slot.kind == Kind::Init) || self.initialized() {
            for slot in self.slots.iter_mut().filter(|slot| !matches!(slot.state, State::Terminated(_))) {
                slot.ready = false;
                slot.state = State::Terminated(Terminated {
                    exit_code: 137,
                    reason: "ContainerStatusUnknown".to_owned(),
                    message: "The container could not be located when the pod was terminated".to_owned(),
                    started: None,
                    finished: None,
                    container_id: String::new(),
                });
            }
        }
    }

    /// Dates containers that went with their machine's power: once, when containerd runs again, as it does.
    pub fn date_lost(&mut self, now: Timestamp) {
        for slot in &mut self.slots {
            if let State::Terminated(end) = &mut slot.state
                && end.reason == "Unknown"
            {
                end.finished.get_or_insert(now);
            }
        }
    }

    /// The strategic merge patch of the pod's status.
    pub fn patch(&mut self, uid: &str) -> Value {
        let phase = self.phase();
        let mut status = json!({"phase": phase, "startTime": whole_seconds(self.started)});
        if let Some(refusal) = &self.refusal {
            status["reason"] = json!(refusal.reason);
            status["message"] = json!(refusal.message);
        }
        if !self.pod_ip.is_empty() {
            status["podIP"] = json!(self.pod_ip);
            status["podIPs"] = json!([{"$patch": "replace"}, {"ip": self.pod_ip}]);
            status["hostIP"] = json!(self.host_ip);
            status["hostIPs"] = json!([{"$patch": "replace"}, {"ip": self.host_ip}]);
            let (init, main): (Vec<&ContainerState>, Vec<&ContainerState>) =
                self.slots.iter().partition(|slot| slot.kind != Kind::Main);
            status["containerStatuses"] = main.into_iter().map(ContainerState::json).collect();
            if !init.is_empty() {
                status["initContainerStatuses"] = init.into_iter().map(ContainerState::json).collect();
            }
        }
        status["conditions"] = self.conditions(phase);
        json!({"metadata": {"uid": uid}, "status": status})
    }

    fn conditions(&mut self, phase: &str) -> Value {
        let over = self.over || self.refusal.is_some();
        let unready: Vec<&str> = self
            .slots
            .iter()
            .filter(|slot| slot.kind != Kind::Init && !slot.ready)
            .map(|slot| &*slot.name)
            .collect();
        let ready = unready.is_empty() && !over;
        let (reason, message) = match phase {
            "Succeeded" => ("PodCompleted", String::new()),
            "Failed" => ("PodFailed", String::new()),
            _ => ("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" "))),
        };
        let initialized = self.initialized();
        let given = [
            ("PodReadyToStartContainers", !over && !self.pod_ip.is_empty(), "", String::new()),
            (
                "Initialized",
                initialized,
                if initialized { "" } else { "ContainersNotInitialized" },
                String::new(),
            ),
            ("Ready", ready, reason, message.clone()),
            ("ContainersReady", ready, reason, message),
        ];
        let mut list = Vec::new();
        for (kind, holds, reason, message) in given {
            let since = self.since.entry(kind).or_insert((holds, Timestamp::now()));
            if since.0 != holds {
                *since = (holds, Timestamp::now());
            }
            let (reason, message) = if holds { ("", String::new()) } else { (reason, message) };
            list.push(json!({
                "type": kind, "status": if holds { "True" } else { "False" }, "lastTransitionTime": whole_seconds(since.1),
                "lastProbeTime": null,
                "reason": if reason.is_empty() { Value::Null } else { json!(reason) },
                "message": if message.is_empty() { Value::Null } else { json!(message) },
            }));
        }
        Value::Array(list)
    }
}

impl ContainerState {
    fn json(&self) -> Value {
        let container_id = match &self.state {
            State::Running { container_id, .. } => container_id.clone(),
            State::Terminated(end) => end.container_id.clone(),
            State::Waiting { .. } => {
                self.last.as_ref().map(|end| end.container_id.clone()).unwrap_or_default()
            }
        };
        let mut status = json!({
            "name": self.name, "image": self.image,
            "imageID": format!("pretend://{}", self.image),
            "restartCount": self.restarts, "ready": self.ready,
            "started": matches!(self.state, State::Running { .. }),
            "state": self.state.json(),
            "lastState": self.last.as_ref().map_or(json!({}), |end| json!({"terminated": end.json()})),
        });
        if !container_id.is_empty() {
            status["containerID"] = json!(container_id);
        }
        status
    }
}

impl State {
    fn json(&self) -> Value {
        match self {
            Self::Waiting { reason, message } if message.is_empty() => json!({"waiting": {"reason": reason}}),
            Self::Waiting { reason, message } => json!({"waiting": {"reason": reason, "message": message}}),
            Self::Running { since, .. } => json!({"running": {"startedAt": whole_seconds(*since)}}),
            Self::Terminated(end) => json!({"terminated": end.json()}),
        }
    }
}

impl Terminated {
    fn json(&self) -> Value {
        let mut json = json!({"exitCode": self.exit_code, "reason": self.reason});
        if !self.message.is_empty() {
            json["message"] = json!(self.message);
        }
        if let Some(started) = self.started {
            json["startedAt"] = json!(whole_seconds(started));
        }
        if let Some(finished) = self.finished {
            json["finishedAt"] = json!(whole_seconds(finished));
        }
        if !self.container_id.is_empty() {
            json["containerID"] = json!(self.container_id);
        }
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker(spec: Value) -> StatusTracker {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec});
        StatusTracker::new(&serde_json::from_value(pod).unwrap(), "10.244.0.2", "10.243.0.1")
    }

    fn ended(exit_code: i32) -> State {
        State::Terminated(Terminated {
            exit_code,
            reason: "x".into(),
            message: String::new(),
            started: None,
            finished: None,
            container_id: String::new(),
        })
    }

    #[test]
    fn phases_follow_the_containers() {
        let mut tracker = tracker(json!({
            "restartPolicy": "Never",
            "initContainers": [{"name": "log", "restartPolicy": "Always"}, {"name": "fetch"}],
            "containers": [{"name": "train"}],
        }));
        let running = || State::Running { since: Timestamp::now(), container_id: "c".into() };
        assert_eq!(tracker.phase(), "Pending");
        tracker.slots[0].state = running();
        tracker.slots[1].state = ended(0);
        assert_eq!(tracker.phase(), "Pending");
        tracker.slots[2].state = running();
        assert_eq!(tracker.phase(), "Running");
        tracker.slots[2].state = ended(0);
        tracker.slots[0].state = ended(143);
        tracker.over = true;
        assert_eq!(tracker.phase(), "Succeeded", "how a sidecar ends does not count");
        tracker.slots[2].state = ended(1);
        assert_eq!(tracker.phase(), "Failed");
    }

    #[test]
    fn a_pod_that_ends_before_it_began_has_failed_with_unknown_containers() {
        let mut tracker = tracker(json!({"restartPolicy": "Never", "containers": [{"name": "train"}]}));
        tracker.give_up_unknown();
        tracker.over = true;
        let patch = tracker.patch("u");
        assert_eq!(patch["status"]["phase"], "Failed");
        let end = &patch["status"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!((&end["reason"], &end["exitCode"]), (&json!("ContainerStatusUnknown"), &json!(137)));
    }

    #[test]
    fn what_went_with_its_machines_power_is_dated_once_when_it_is_found() {
        let mut tracker = tracker(json!({"restartPolicy": "Never", "containers": [{"name": "train"}]}));
        let second = |second| Timestamp::from_second(second).unwrap();
        for (reason, finished, dated) in [
            ("Unknown", None, Some(100)),
            ("Unknown", Some(40), Some(40)),
            ("ContainerStatusUnknown", None, None),
        ] {
            tracker.slots[0].state = State::Terminated(Terminated {
                exit_code: 255,
                reason: reason.to_owned(),
                message: String::new(),
                started: None,
                finished: finished.map(second),
                container_id: String::new(),
            });
            tracker.date_lost(second(100));
            let State::Terminated(end) = &tracker.slots[0].state else { panic!("it has ended") };
            assert_eq!(end.finished, dated.map(second), "{reason} at {finished:?}");
        }
    }

    #[test]
    fn refusals_carry_no_container_states() {
        let mut tracker = tracker(json!({"restartPolicy": "Never", "containers": [{"name": "train"}]}));
        tracker.pod_ip.clear();
        tracker.refusal = Some(Refusal { reason: "OutOfcpu".into(), message: "m".into() });
        let patch = tracker.patch("u");
        assert_eq!(patch["status"]["reason"], "OutOfcpu");
        assert!(patch["status"]["containerStatuses"].is_null());
    }
}
