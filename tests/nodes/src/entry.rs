//! A pod that has a worker, as everybody else sees it: the ways to tell its worker something, and what is known of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::objects::PodView;

/// What can be done to the containers of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Killed by the kernel for its memory: exit 137, `OOMKilled`.
    Oom,
    /// Ends with this exit code.
    Fail(i32),
    /// Stands still, and hears no SIGTERM.
    Hang,
    /// Goes on after a hang.
    Resume,
    /// SIGTERM is not passed on; it must be killed.
    Deaf,
    /// Lost with its machine: exit 255, `Unknown`.
    Lost,
}

impl Fault {
    /// `oom`, `fail`, `fail:3`, `hang`, `deaf`: the value of the annotation `testbed.andreas.dev/fault`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':').unwrap_or((text, "1")) {
            ("oom", _) => Self::Oom,
            ("fail", code) => Self::Fail(code.parse().ok()?),
            ("hang", _) => Self::Hang,
            ("deaf", _) => Self::Deaf,
            _ => return None,
        })
    }
}

/// What the API server shows of the pod.
#[derive(Debug)]
pub(crate) enum Order {
    Update(Arc<PodView>),
    /// The object is no more; its last form says with which grace.
    Gone(Arc<PodView>),
}

/// What the machine or the tester does.
#[derive(Debug)]
pub(crate) enum Machine {
    /// To every container that runs.
    Fault(Fault),
    /// The kubelet ends the pod under pressure: phase Failed with this reason.
    Evict { reason: String, message: String, grace: Duration },
}

/// A pod that has a worker.
pub(crate) struct PodHandle {
    pub pod: Mutex<Arc<PodView>>,
    pub orders: mpsc::UnboundedSender<Order>,
    pub machine: mpsc::UnboundedSender<Machine>,
    pub facts: Mutex<Facts>,
}

/// What the control socket tells of a pod.
#[derive(Debug, Default, Clone)]
pub(crate) struct Facts {
    pub ip: String,
    pub gpus: Vec<String>,
    /// Process ids by container, of those that run.
    pub pids: BTreeMap<String, i32>,
    pub ended: bool,
}

impl PodHandle {
    pub fn admitted(&self, ip: &str, gpus: &[String]) {
        let mut facts = self.facts.lock();
        ip.clone_into(&mut facts.ip);
        facts.gpus = gpus.to_vec();
    }
    pub fn set_pid(&self, container: &str, pid: Option<i32>) {
        let mut facts = self.facts.lock();
        match pid {
            Some(pid) => facts.pids.insert(container.to_owned(), pid),
            None => facts.pids.remove(container),
        };
    }
    pub fn ended(&self) {
        self.facts.lock().ended = true;
    }
}
