//! One machine after the other: read what counts, decide, write the status, act.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::key_of;
use andreas_api::node_power::{NodePowerStatus, PowerMode, PowerReading, PowerState, WantedPower};
use andreas_runtime::clock;
use andreas_runtime::health::Heartbeat;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::{Cluster, ClusterError};
use crate::conditions;
use crate::driver::{Driver, PowerSwitch as _, Request, Trouble};
use crate::memory::{Memory, SeenLease};
use crate::metrics::Metrics;
use crate::node::LiveNode;
use crate::obstacles;
use crate::secrets::Secrets;
use crate::transition::{Act, Seen, Settings, decide};
use crate::world::{Task, World};

/// After a request to the API server that failed.
const RETRY: Duration = Duration::from_secs(2);
/// The time of a reading is written at most so often.
const READ_TIME: Duration = Duration::from_secs(300);
/// Namespace of the kubelets' Leases.
const KUBELETS: &str = "kube-node-lease";
/// How often the operator's Lease is read.
const OPERATOR: Duration = Duration::from_secs(5);

/// How many machines may be on their way at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Going off.
    pub going_off: usize,
    /// Starting.
    pub starting: usize,
}

/// The operator's Lease: namespace and name.
pub type OperatorLease = Option<(String, String)>;

/// Works on all machines.
pub struct Reconciler {
    cluster: Cluster,
    secrets: Secrets,
    settings: Settings,
    limits: Limits,
    operator: OperatorLease,
    operator_seen: tokio::sync::Mutex<(SeenLease, Option<Instant>)>,
    began: Instant,
    metrics: Metrics,
    world: Arc<Mutex<World>>,
}

impl Reconciler {
    /// A reconciler of what watches put into `world`.
    pub fn new(
        cluster: Cluster,
        secrets: Secrets,
        (settings, limits): (Settings, Limits),
        operator: OperatorLease,
        metrics: Metrics,
        world: Arc<Mutex<World>>,
    ) -> Self {
        let (operator_seen, began) = (tokio::sync::Mutex::default(), Instant::now());
        Self { cluster, secrets, settings, limits, operator, operator_seen, began, metrics, world }
    }

    /// Works until `end`.
    pub async fn run(self: Arc<Self>, heartbeat: Heartbeat, end: CancellationToken) {
        let tasks = TaskTracker::new();
        let changed = Arc::clone(&self.world.lock().changed);
        while !end.is_cancelled() {
            heartbeat.beat();
            let next = self.world.lock().take_due();
            match next {
                Ok(task) => drop(tasks.spawn(Arc::clone(&self).work(task))),
                Err(wait) => tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = changed.notified() => {}
                    () = end.cancelled() => {}
                },
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn work(self: Arc<Self>, mut task: Task) {
        let name = key_of(&task.object).name;
        let after = match self.reconcile(&name, &mut task).await {
            Ok(after) => after,
            Err(error) => {
                tracing::warn!(node = name, %error, "not now");
                RETRY
            }
        };
        let mut world = self.world.lock();
        world.done(&name, task, after);
        self.metrics.states(&world);
    }

    async fn reconcile(&self, name: &str, task: &mut Task) -> Result<Duration, ClusterError> {
        let before = task.object.status.clone().unwrap_or_default();
        let (mode, wanted) = (task.object.spec.mode, task.object.spec.wanted);
        let wishes_off = mode == PowerMode::Off || mode == PowerMode::Auto && wanted == WantedPower::Off;
        // One that did not go off in time may do so late.
        let watched = wishes_off || before.asked.is_some();
        if task.memory.is_stale(pace(before.state, watched || task.memory.power() == PowerReading::Off).0) {
            task.memory.read(self.read_power(name, task).await);
        }
        let node = self.cluster.node(name).await?;
        let mut seen = self.see(name, task, &before, node.as_ref(), wishes_off).await?;

        let now = clock::now();
        let (mut next, act) = {
            let mut world = self.world.lock();
            if world.others_in(name, PowerState::GoingOff) >= self.limits.going_off {
                seen.no_further_off = Some("Limit");
            } else if world.is_broken() {
                seen.no_further_off = Some("Breaker");
            }
            seen.may_start = world.others_in(name, PowerState::Starting) < self.limits.starting;
            let (next, act) = decide(&before, &seen, &self.settings, now);
            world.expect(name, &next);
            (next, act)
        };
        self.note_reading(&mut next, &task.memory, now);
        if next != before || task.object.status.is_none() {
            let written = self.cluster.write_status(&task.object, &next).await;
            let object = written.as_ref().unwrap_or(&task.object).clone();
            self.world.lock().settle(name, &task.object, object);
            task.object = written?;
            if next.state != before.state {
                task.memory.expire();
                tracing::info!(node = name, from = ?before.state, to = ?next.state, kept_on_by = next.kept_on_by, "state");
            }
        }
        if let Some(act) = act {
            self.act(name, task, node.as_ref(), &next, act).await?;
            return Ok(Duration::from_millis(200));
        }
        let (_, again) = pace(before.state, watched || task.memory.power() == PowerReading::Off);
        Ok(if next.state == before.state { again } else { Duration::ZERO })
    }

    async fn read_power(&self, name: &str, task: &Task) -> Result<PowerReading, Trouble> {
        if let Some(other) = &task.double {
            return Err(Trouble::Misconfigured(format!("spec: NodePower {other} names the same machine")));
        }
        let client = &self.cluster.client;
        Driver::open(name, &task.object.spec, &self.secrets, client).await?.read().await
    }

    async fn see(
        &self,
        name: &str,
        task: &mut Task,
        before: &NodePowerStatus,
        node: Option<&LiveNode>,
        wishes_off: bool,
    ) -> Result<Seen, ClusterError> {
        let uid = task.object.metadata.uid.clone().unwrap_or_default();
        let memory = &mut task.memory;
        if before.asked.is_some() || before.state == PowerState::GoingOff {
            memory.lease.read(self.cluster.renewal(KUBELETS, name).await?);
        }
        let may_go_off = wishes_off && matches!(before.state, PowerState::On | PowerState::GoingOff);
        let (mut obstacle, mut requests) = (None, BTreeMap::new());
        if may_go_off && node.is_some() {
            let pods = self.cluster.pods(name).await?;
            obstacle = self.cluster.obstacle(name, &pods).await?;
            requests = obstacles::requests_of_node(&pods);
        }
        let node = node.map(|node| node.seen(before.machine.as_ref(), requests));
        let marked = node.as_ref().filter(|node| node.cordoned && node.going_off.as_ref() == Some(&uid));
        Ok(Seen {
            mode: task.object.spec.mode,
            wanted: task.object.spec.wanted,
            power: memory.power(),
            off_for: memory.off_for(),
            lease_still: memory.lease.still_for(),
            cordoned_for: memory.cordoned_for(marked.map(|node| node.uid.as_str())),
            since_request: memory.since_request(before.state),
            is_off_withdrawn: memory.is_off_withdrawn,
            denied: memory.denied > 0,
            obstacle,
            no_further_off: None,
            may_start: false,
            operator_still: self.operator_still().await?,
            node,
            uid,
        })
    }

    async fn operator_still(&self) -> Result<Option<Duration>, ClusterError> {
        let Some((namespace, name)) = &self.operator else { return Ok(None) };
        let mut seen = self.operator_seen.lock().await;
        if seen.1.is_none_or(|at| at.elapsed() >= OPERATOR) {
            let renewal = self.cluster.renewal(namespace, name).await?;
            seen.0.read(renewal);
            seen.1 = Some(Instant::now());
        }
        Ok(Some(seen.0.silent_for(self.began)))
    }

    /// Reading and `Reachable` into the status, so that a mere repetition changes nothing.
    fn note_reading(&self, status: &mut NodePowerStatus, memory: &Memory, now: jiff::Timestamp) {
        let Some((reading, _)) = &memory.reading else { return };
        let power = memory.power();
        let old = |time: &Time| now.duration_since(time.0).unsigned_abs() >= READ_TIME;
        if status.power != power || status.read_time.as_ref().is_none_or(old) {
            status.read_time = Some(Time(now));
        }
        status.power = power;
        let trouble = reading.as_ref().err().or(memory.refusal.as_ref());
        let reason = trouble.map_or("Answers", Trouble::reason);
        let message = trouble.map(ToString::to_string).unwrap_or_default();
        let all = &mut status.conditions;
        conditions::set(all, conditions::REACHABLE, reading.is_ok(), reason, &message, now);
    }

    async fn act(
        &self,
        name: &str,
        task: &mut Task,
        node: Option<&LiveNode>,
        status: &NodePowerStatus,
        act: Act,
    ) -> Result<(), ClusterError> {
        tracing::info!(node = name, ?act, "acts");
        let uid = task.object.metadata.uid.as_deref().unwrap_or_default();
        match (act, node) {
            (Act::Ask(request), _) => {
                let result = self.ask(name, task, request).await;
                task.memory.requested(status.state, request, result.clone());
                Ok(result?)
            }
            (Act::Cordon, Some(node)) => self.cluster.patch_node(name, &node.cordon(uid)).await,
            (Act::Uncordon, Some(node)) => self.cluster.patch_node(name, &node.uncordon()).await,
            (Act::Restore, Some(node)) => match status.machine.as_ref().and_then(|it| node.missing(it)) {
                Some(patch) => self.cluster.patch_node(name, &patch).await,
                None => Ok(()),
            },
            (Act::DeleteNode, Some(node)) => self.cluster.delete_node(name, node).await,
            (_, None) => Ok(()),
        }
    }

    async fn ask(&self, name: &str, task: &Task, request: Request) -> Result<(), Trouble> {
        // The others keep no wish, and need not be reached.
        if request == Request::StayOn && task.object.spec.bare_metal_host.is_none() {
            return Ok(());
        }
        let driver = Driver::open(name, &task.object.spec, &self.secrets, &self.cluster.client).await?;
        if !self.cluster.leads() {
            return Err(Trouble::Unreachable("another replica leads".into()));
        }
        driver.ask(request).await
    }
}

/// How often a machine is looked at: a reading older than the first time is made anew, and the second is the time until the next
/// look.
fn pace(state: PowerState, watched: bool) -> (Duration, Duration) {
    let (readings, again) = match state {
        PowerState::On if watched => (30, 30),
        PowerState::On => (300, 300),
        PowerState::GoingOff => (5, 2),
        // A Node that appears wakes it, too.
        PowerState::Starting => (10, 2),
        PowerState::Off | PowerState::Quarantined => (60, 60),
    };
    (Duration::from_secs(readings), Duration::from_secs(again))
}
