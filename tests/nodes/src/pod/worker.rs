//! One task per pod: admits it, starts its containers in order, writes its status, ends it.

pub(crate) mod write;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::env::Place;
use super::run::PodContext;
use super::status::{Kind, State, StatusTracker};
use super::task::{self, ContainerUpdate, Handle};
use super::volumes::{self, MountProblem, Volumes};
use crate::devices::{Demand, Refusal, gpus_of_container};
use crate::entry::{Order, PodHandle};
use crate::node::Node;
use crate::objects::PodView;
use crate::shared::Shared;

type Preparation = Pin<Box<dyn Future<Output = Result<Volumes, MountProblem>> + Send>>;

/// Runs a pod until its object is gone and its containers have ended.
pub(crate) async fn run(
    shared: Arc<Shared>,
    node: Arc<Node>,
    pod: Arc<PodView>,
    entry: Arc<PodHandle>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut lost: mpsc::UnboundedReceiver<()>,
) {
    let mut online = node.online();
    let _ = online.wait_for(|online| *online).await;
    let mut worker = Worker::admit(shared, node, pod, entry).await;
    let (news, mut received) = mpsc::unbounded_channel();
    let mut preparing: Option<Preparation> = worker.prepare();
    let mut renew_at: Option<Instant> = None;
    loop {
        worker.advance(&news);
        worker.write().await;
        if worker.finished() {
            break;
        }
        let writable = worker.retry_at;
        let at = |when: Option<Instant>| async move {
            match when {
                Some(when) => tokio::time::sleep_until(when).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(one) = received.recv() => {
                worker.hear(one);
                while let Ok(more) = received.try_recv() { worker.hear(more); }
            }
            Some(()) = lost.recv() => worker.lose(),
            Some(order) = orders.recv(), if worker.node.is_online() => worker.obey(order),
            Ok(()) = online.changed() => {}
            outcome = prepared(&mut preparing) => {
                preparing = None;
                renew_at = worker.mounted(outcome);
                if !worker.mounted && !worker.ending() {
                    preparing = worker.prepare();
                }
            }
            () = at(renew_at) => {
                renew_at = None;
                preparing = worker.prepare();
            }
            () = at(writable) => {}
        }
    }
    worker.leave(&mut orders).await;
}

async fn prepared(preparing: &mut Option<Preparation>) -> Result<Volumes, MountProblem> {
    match preparing {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

struct Worker {
    shared: Arc<Shared>,
    node: Arc<Node>,
    pod: Arc<PodView>,
    entry: Arc<PodHandle>,
    ctx: Arc<PodContext>,
    tracker: StatusTracker,
    tasks: BTreeMap<usize, Handle>,
    /// Containers that will not start (again).
    over: Vec<bool>,
    mounted: bool,
    mount_error: String,
    /// When everything must be dead.
    deadline: Option<Instant>,
    /// The object is no more.
    gone: bool,
    released: bool,
    written: Value,
    retry_at: Option<Instant>,
    /// Writes that failed in a row.
    failures: u32,
}

impl Worker {
    async fn admit(shared: Arc<Shared>, node: Arc<Node>, pod: Arc<PodView>, entry: Arc<PodHandle>) -> Self {
        let refused = |refusal: Refusal| (Vec::new(), String::new(), Some(refusal));
        let (gpus, ip, refusal) = match affinity_refusal(&node, &pod) {
            Some(refusal) => refused(refusal),
            None => match node.devices.lock().admit(pod.uid(), &Demand::of(&pod)) {
                Ok(gpus) => {
                    let mut addresses = shared.addresses.lock();
                    let ip = addresses.keep(&pod.status.pod_ip).unwrap_or_else(|| addresses.take());
                    (gpus, ip, None)
                }
                Err(refusal) => refused(refusal),
            },
        };
        let mut tracker = StatusTracker::new(&pod, &ip, &node.address);
        if shared.sandbox.is_some()
            && !pod.status.phase.is_empty()
            && pod.status.start_time.is_some()
            && refusal.is_none()
        {
            // It ran under an earlier kubelet process, and its containers died with that.
            tracker.give_up_unknown();
        }
        if let Some(refusal) = &refusal {
            shared.event(&pod, "Warning", &refusal.reason, &refusal.message);
        }
        tracker.over = refusal.is_some();
        tracker.refusal = refusal;
        entry.admitted(&ip, &gpus);
        let place = Place { pod_ip: ip, host_ip: node.address.clone() };
        let dir = shared.data_dir.join("pods").join(pod.uid());
        let over: Vec<bool> =
            tracker.slots.iter().map(|slot| matches!(slot.state, State::Terminated(_))).collect();
        let ctx = Arc::new(PodContext {
            shared: Arc::clone(&shared),
            node: Arc::clone(&node),
            pod: Arc::clone(&pod),
            place,
            gpus,
            dir,
            volumes: parking_lot::Mutex::default(),
        });
        let mut worker = Self {
            shared,
            node,
            pod: Arc::clone(&pod),
            entry,
            ctx,
            tracker,
            tasks: BTreeMap::new(),
            over,
            mounted: false,
            mount_error: String::new(),
            deadline: None,
            gone: false,
            released: false,
            written: Value::Null,
            retry_at: None,
            failures: 0,
        };
        worker.obey(Order::Update(pod));
        worker
    }

    fn ending(&self) -> bool {
        self.deadline.is_some() || self.tracker.over
    }

    /// What must be there before the first container: volumes, or in a simulation only time.
    fn prepare(&self) -> Option<Preparation> {
        if self.ending() || self.over.iter().all(|over| *over) {
            return None;
        }
        let ctx = Arc::clone(&self.ctx);
        if self.shared.sandbox.is_none() {
            let delay = Duration::from_secs_f64(self.shared.config.simulated_start_seconds.clamp(0.0, 1e6));
            return Some(Box::pin(async move {
                tokio::time::sleep(delay).await;
                Ok(Volumes::default())
            }));
        }
        let again = !self.mount_error.is_empty();
        Some(Box::pin(async move {
            if again {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            let problem =
                |error: std::io::Error| MountProblem { volume: "etc".to_owned(), message: error.to_string() };
            if let (Some(sandbox), Ok(ip)) = (&ctx.shared.sandbox, ctx.place.pod_ip.parse()) {
                sandbox.add_pod(ip).await.map_err(|error| problem(std::io::Error::other(error)))?;
            }
            ctx.shared.write_hosts(&ctx.pod, &ctx.place.pod_ip, &ctx.dir).map_err(problem)?;
            volumes::prepare(&ctx.shared, &ctx.pod, &ctx.place, &ctx.dir.join("volumes")).await
        }))
    }

    /// Takes the outcome of a preparation; when to do it again for fresh tokens.
    fn mounted(&mut self, outcome: Result<Volumes, MountProblem>) -> Option<Instant> {
        match outcome {
            Ok(volumes) => {
                let renew = volumes.renew_after.map(|after| Instant::now() + after);
                *self.ctx.volumes.lock() = volumes;
                self.mounted = true;
                renew
            }
            Err(problem) => {
                let text = problem.to_string();
                if self.mount_error != text {
                    self.shared.event(&self.pod, "Warning", "FailedMount", &text);
                    self.mount_error = text;
                }
                // Running containers keep the token they have until the next try.
                self.mounted.then(|| Instant::now() + Duration::from_secs(10))
            }
        }
    }

    /// Starts what may start now, stops what has no more reason to run, and sees whether all is over.
    fn advance(&mut self, news: &mpsc::UnboundedSender<ContainerUpdate>) {
        if self.mounted && !self.ending() && !self.tracker.init_failed() {
            for index in 0..self.tracker.slots.len() {
                let slot = &self.tracker.slots[index];
                let (kind, running) = (slot.kind, matches!(slot.state, State::Running { .. }));
                if !self.tasks.contains_key(&index) && !self.over[index] {
                    let handle =
                        task::start(Arc::clone(&self.ctx), self.container(index), index, kind, news.clone());
                    self.tasks.insert(index, handle);
                }
                let wait = match kind {
                    Kind::Init => !self.over[index],
                    Kind::Sidecar => !running,
                    Kind::Main => false,
                };
                if wait {
                    break;
                }
            }
        }
        let mains_over =
            (0..self.over.len()).all(|i| self.tracker.slots[i].kind != Kind::Main || self.over[i]);
        let no_more = self.ending() || self.tracker.init_failed();
        if mains_over || no_more {
            // Sidecars outlive the containers they serve.
            let deadline = self.deadline.unwrap_or_else(|| Instant::now() + self.grace());
            let live_main =
                self.tasks.keys().any(|i| self.tracker.slots[*i].kind != Kind::Sidecar && !self.over[*i]);
            for (index, handle) in &self.tasks {
                let serves = self.tracker.slots[*index].kind == Kind::Sidecar && live_main;
                let earlier =
                    handle.stop.borrow().is_none_or(|set| deadline < set && self.deadline.is_some());
                if !self.over[*index] && !serves && earlier {
                    handle.stop.send_replace(Some(deadline));
                }
            }
            if self.tasks.keys().all(|index| self.over[*index])
                && (mains_over || no_more)
                && !self.tracker.over
            {
                if self.deadline.is_some() {
                    self.tracker.give_up_unknown();
                }
                self.tracker.over = true;
            }
        }
        if self.tracker.over && !self.released && self.tasks.keys().all(|index| self.over[*index]) {
            self.release();
        }
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(self.pod.grace_seconds().unsigned_abs())
    }

    fn container(&self, index: usize) -> Container {
        let spec = &self.pod.spec;
        let found = spec.init_containers.iter().chain(&spec.containers).nth(index);
        found.cloned().unwrap_or_default()
    }

    /// The pod has ended: its GPUs, address and share of the node are free before anybody is told.
    fn release(&mut self) {
        self.released = true;
        self.node.devices.lock().release(self.pod.uid());
        self.shared.addresses.lock().give_back(&self.ctx.place.pod_ip);
        if let (Some(sandbox), Ok(ip)) = (self.shared.sandbox.clone(), self.ctx.place.pod_ip.parse()) {
            tokio::spawn(async move { sandbox.remove_pod(ip).await });
        }
        self.entry.ended();
    }

    fn hear(&mut self, news: ContainerUpdate) {
        let slot = &mut self.tracker.slots[news.index];
        slot.ready = news.ready;
        if slot.kind == Kind::Init && matches!(&news.state, State::Terminated(end) if end.exit_code == 0) {
            slot.ready = true;
        }
        slot.state = news.state;
        slot.last = news.last;
        slot.restarts = news.restarts;
        self.over[news.index] = news.over;
        self.entry.set_pid(&slot.name, news.pid);
        if let Some(hardware) = self.node.hardware.get() {
            let gpus = gpus_of_container(&self.pod, &self.ctx.gpus, &self.container(news.index));
            hardware.runs(&gpus, news.pid, &self.pod);
        }
    }

    fn obey(&mut self, order: Order) {
        let (pod, gone) = match order {
            Order::Update(pod) => (pod, false),
            Order::Gone(pod) => (pod, true),
        };
        self.gone |= gone;
        if gone || pod.is_deleting() {
            // Of a pod that was removed without being asked first the kubelet knows what it saw last: the grace of its spec.
            let grace = if gone { self.pod.grace_seconds() } else { pod.grace_seconds() };
            let deadline = Instant::now() + Duration::from_secs(grace.unsigned_abs());
            self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        }
        self.pod = pod;
    }

    fn lose(&mut self) {
        for handle in self.tasks.values() {
            let _ = handle.lose.send(());
        }
    }

    /// Nothing runs any more and nothing is left to say; the object may still have to be deleted.
    fn finished(&self) -> bool {
        self.tracker.over
            && self.released
            && (self.gone
                || (self.deadline.is_some()
                    && self.retry_at.is_none()
                    && self.node.is_online()
                    && self.pod.is_deleting()))
    }
}

/// A pod bound past the scheduler to a node it does not select.
fn affinity_refusal(node: &Node, pod: &PodView) -> Option<Refusal> {
    let labels = node.labels();
    let fits = pod.spec.node_selector.iter().all(|(name, value)| labels.get(name) == Some(value));
    (!fits).then(|| Refusal {
        reason: "NodeAffinity".to_owned(),
        message: "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
            .to_owned(),
    })
}
