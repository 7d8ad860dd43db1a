//! A pod that has a worker, as everybody else sees it: the ways to tell its worker something, and what is known of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::objects::PodView;

/// What the API server shows of the pod.
#[derive(Debug)]
pub(crate) enum Order {
    Update(Arc<PodView>),
    /// The object is no more; its last form says with which grace.
    Gone(Arc<PodView>),
}

/// A pod that has a worker.
pub(crate) struct PodHandle {
    pub pod: Mutex<Arc<PodView>>,
    pub orders: mpsc::UnboundedSender<Order>,
    /// Its containers are lost with their machine.
    pub lose: mpsc::UnboundedSender<()>,
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
