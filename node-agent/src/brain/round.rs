//! One round: look, decide, set, and say what is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::{GpuCondition, GpuState};
use andreas_podresources::Kubelet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;

use super::decide::{Decision, Holder, Memory, Observed, Seen, decide};
use super::energy::{Meter, Use};
use super::eyes::{Eye, Eyes};
use super::holders::{Held, Uids, held};
use super::link::Link;
use super::metrics::{Metrics, OfGpu};
use super::shares::{Look, Shares};
use super::status::{Report, Verdict, whole_seconds};
use super::world::World;
use crate::gpu::GpuError;
use crate::setting::{Outcome, Setting, Uuid, Wanted};

/// The kubelet may be silent for so long before the node is not ready.
const KUBELET_PATIENCE: Duration = Duration::from_secs(10);
/// The setter may be away for so long before the node is not ready: time for a restart.
const SETTER_PATIENCE: Duration = Duration::from_secs(30);
/// After this time without a setter what it had set has ended, unless the node is lost altogether.
const SETTER_GONE: Duration = Duration::from_secs(60);

/// Everything that one round hands to the next.
pub struct Rounds {
    /// The GPUs.
    pub eyes: Eyes,
    /// The kubelet.
    pub kubelet: Kubelet,
    /// The setter; `None` in an agent that only observes.
    pub link: Option<Link>,
    /// UIDs of pods.
    pub uids: Uids,
    /// For UIDs.
    pub client: kube::Client,
    /// The API server's objects.
    pub world: Arc<Mutex<World>>,
    /// What is counted.
    pub metrics: Metrics,
    /// How long the leader Lease may stand still.
    pub lease_ttl: Duration,
    /// Whether GPUs with a parked context of no pod rest.
    pub rest_parked: bool,
    /// Since when all this runs.
    pub started: Instant,
    memory: Memory,
    held: Held,
    kubelet_failing: Option<Instant>,
    outcomes: BTreeMap<Uuid, Outcome>,
    meters: BTreeMap<Uuid, Meter>,
    shares: Shares,
    resumed: bool,
    raised: Option<(i64, Instant)>,
}

/// What rounds need.
pub struct Parts {
    /// See [`Rounds`].
    pub eyes: Eyes,
    /// See [`Rounds`].
    pub kubelet: Kubelet,
    /// See [`Rounds`].
    pub link: Option<Link>,
    /// See [`Rounds`].
    pub client: kube::Client,
    /// See [`Rounds`].
    pub world: Arc<Mutex<World>>,
    /// See [`Rounds`].
    pub metrics: Metrics,
    /// See [`Rounds`].
    pub lease_ttl: Duration,
    /// See [`Rounds`].
    pub rest_parked: bool,
}

impl Rounds {
    /// Nothing has been looked at yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            eyes: parts.eyes,
            kubelet: parts.kubelet,
            link: parts.link,
            uids: Uids::default(),
            client: parts.client,
            world: parts.world,
            metrics: parts.metrics,
            lease_ttl: parts.lease_ttl,
            rest_parked: parts.rest_parked,
            started: Instant::now(),
            memory: Memory::default(),
            held: Held::default(),
            kubelet_failing: Some(Instant::now()),
            outcomes: BTreeMap::new(),
            meters: BTreeMap::new(),
            shares: Shares::default(),
            resumed: false,
            raised: None,
        }
    }

    /// Whether the kubelet answered the last question.
    #[must_use]
    pub fn kubelet_answers(&self) -> bool {
        self.kubelet_failing.is_none()
    }

    /// One round.
    pub async fn round(&mut self) -> Report {
        let began = Instant::now();
        let ((), pods) = tokio::join!(self.eyes.look(), self.kubelet.list());
        self.metrics.asked(pods.is_ok());
        match pods {
            Ok(pods) => {
                let known: BTreeSet<Uuid> = self.eyes.gpus().keys().cloned().collect();
                self.held = held(&pods, &known);
                self.kubelet_failing = None;
            }
            Err(error) => {
                if self.kubelet_failing.is_none() {
                    tracing::warn!(error = error.to_string(), "the kubelet cannot be asked");
                }
                self.kubelet_failing.get_or_insert_with(Instant::now);
            }
        }
        self.uids.refresh(&self.held, &self.client);
        let observed = self.observe();
        let (memory, decision) = decide(std::mem::take(&mut self.memory), &observed, self.started.elapsed());
        self.memory = memory;
        self.set(&decision).await;
        let report = self.report(&observed, &decision);
        self.metrics.round.observe(began.elapsed().as_secs_f64());
        report
    }

    fn observe(&self) -> Observed {
        let world = self.world.lock();
        let age = world.lease_age();
        self.metrics.lease(age);
        let seen = |(uuid, eye): (&Uuid, &Eye)| {
            let holder = match self.held.gpus.get(uuid) {
                _ if self.kubelet_failing.is_some() => Holder::Unknown,
                Some(key) => Holder::Pod(self.uids.get(key)),
                None if self.held.unclear => Holder::Unknown,
                None => Holder::Nobody,
            };
            let processes = eye.sample.as_ref().map_or(0, |sample| sample.processes);
            let seen = Seen { facts: eye.facts.clone(), holder, processes, healthy: eye.sample.is_some() };
            (uuid.clone(), seen)
        };
        Observed {
            gpus: self.eyes.gpus().iter().map(seen).collect(),
            orders: world.orders(),
            policy: world.policy(self.rest_parked),
            leader_moves: age.is_some_and(|age| age <= self.lease_ttl),
        }
    }

    /// Tells the setter what is wanted, which is also our sign of life.
    async fn set(&mut self, decision: &Decision) {
        let Some(link) = &mut self.link else { return };
        let done = link.ask(&Wanted { settings: decision.wanted.clone() }).await;
        self.metrics.setter_up.set(i64::from(done.is_some()));
        if let Some(done) = done {
            self.outcomes = done.gpus;
            let refusals = self.outcomes.values().filter_map(|outcome| outcome.refused.as_deref());
            refusals.for_each(|reason| self.metrics.setter_refused(reason));
        }
    }

    /// What is set on a GPU as far as is known: `None` is not known.
    fn actual(&self, uuid: &str) -> Option<Setting> {
        let Some(link) = &self.link else { return Some(Setting::default()) };
        let known = self.outcomes.get(uuid).map(|outcome| outcome.setting);
        let away = link.down_for();
        match known {
            _ if away > SETTER_GONE => Some(Setting::default()),
            Some(setting) => setting,
            // The setter answers and was never asked for anything here.
            None => away.is_zero().then(Setting::default),
        }
    }

    fn report(&mut self, observed: &Observed, decision: &Decision) -> Report {
        let (mut woken, mut carried_out) = (true, true);
        let mut gpus = Vec::with_capacity(observed.gpus.len());
        let mut unhealthy: Vec<(&Uuid, &GpuError)> = Vec::new();
        let mut looks = BTreeMap::new();
        for (uuid, seen) in &observed.gpus {
            let Some(eye) = self.eyes.gpus().get(uuid) else { continue };
            let actual = self.actual(uuid);
            let wanted = decision.wanted.get(uuid).copied().unwrap_or_default();
            let refused = self.outcomes.get(uuid).and_then(|outcome| outcome.refused.as_deref());
            let for_good =
                refused.is_some_and(|reason| !matches!(reason, "hung" | "driver_error" | "no_driver"));
            let holder = self.held.gpus.get(uuid);
            let state = match eye.broken() {
                Some(error) => {
                    unhealthy.push((uuid, error));
                    GpuCondition::Unhealthy
                }
                None => {
                    carried_out &= actual == Some(wanted) || for_good;
                    match holder {
                        Some(_) => GpuCondition::Held,
                        None if self.held.unclear => GpuCondition::Held,
                        None if actual == Some(Setting::default()) => GpuCondition::Free,
                        None => {
                            woken = false;
                            GpuCondition::Resting
                        }
                    }
                }
            };
            let label = OfGpu {
                uuid: uuid.clone(),
                gpu_type: eye
                    .facts
                    .as_ref()
                    .map_or_else(String::new, |facts| facts.product.replace(' ', "-")),
            };
            let meter = self.meters.entry(uuid.clone()).or_default();
            if let Some(sample) = &eye.sample {
                let doing = match (&state, holder) {
                    (GpuCondition::Held, Some((namespace, _))) => Use::Held(namespace.clone()),
                    (GpuCondition::Free, _) if seen.holder == Holder::Nobody => Use::Free,
                    (GpuCondition::Resting, _) => Use::Resting,
                    _ => Use::Unknown,
                };
                let interval = meter.look(self.started.elapsed(), sample, doing);
                let parked = if holder.is_none() { sample.processes } else { 0 };
                self.metrics.looked(&label, sample, &interval, parked);
                if seen.holder != Holder::Unknown {
                    let holder = holder.map(|key| (key.clone(), self.uids.get(key)));
                    looks.insert(uuid.clone(), Look { holder, joules: meter.joules() });
                }
            } else {
                self.metrics.unseen(&label);
                if let Some(error) = eye.failing() {
                    self.metrics.failed(&label, error.reason());
                }
            }
            self.metrics.state(&label, word(state));
            let range = eye.facts.as_ref().and_then(|facts| facts.limit_mw);
            let watts = |milliwatts: u32| i32::try_from(milliwatts / 1000).ok().filter(|watts| *watts >= 1);
            gpus.push(GpuState {
                uuid: uuid.clone(),
                state,
                holder: holder.and_then(|key| self.uids.get(key)),
                watts: eye
                    .sample
                    .as_ref()
                    .map_or(0, |s| i32::try_from(s.power_mw / 1000).unwrap_or(i32::MAX)),
                joules: meter.joules(),
                held_from: None,
                held_since: None,
                // Rounded into the range, so that both can be set.
                min_limit_watts: range.and_then(|(lowest, _)| watts(lowest.saturating_add(999))),
                max_limit_watts: range.and_then(|(_, highest)| watts(highest)),
            });
        }
        let unhealthy = unhealthy_verdict(&unhealthy);
        self.share_out(&looks, &mut gpus);
        let sees = self.kubelet_failing.is_none() && self.eyes.found().is_ok();
        let orders = decision.orders.filter(|_| self.eyes.found().is_ok());
        let report = Report {
            generation: orders.filter(|_| carried_out).map(|orders| orders.0),
            awake: orders.filter(|_| woken).map(|orders| orders.1),
            empty: sees.then_some(self.held.gpus.is_empty() && !self.held.unclear),
            verdicts: vec![self.ready(), unhealthy],
            released: self.resumed.then(|| self.shares.released().to_vec()),
            gpus,
        };
        self.time_wake(decision, &report);
        report
    }

    /// What each pod has used, and where the shares that go on began.
    fn share_out(&mut self, looks: &BTreeMap<Uuid, Look>, gpus: &mut [GpuState]) {
        if !self.resumed {
            let world = self.world.lock();
            if let Some(node) = world.node() {
                self.shares.resume(&node.status.clone().unwrap_or_default());
                self.resumed = true;
            }
        }
        self.shares.look(looks, whole_seconds(Timestamp::now()));
        for gpu in gpus.iter_mut().filter(|gpu| gpu.holder.is_some()) {
            if let Some(begin) = self.shares.begin(&gpu.uuid) {
                (gpu.held_from, gpu.held_since) = (Some(begin.joules), Some(Time(begin.at)));
            }
        }
    }

    fn ready(&self) -> Verdict {
        let away = self.link.as_ref().map_or(Duration::ZERO, Link::down_for);
        let denied =
            self.outcomes.values().any(|outcome| outcome.refused.as_deref() == Some("no_permission"));
        let silent = self.kubelet_failing.is_some_and(|since| since.elapsed() >= KUBELET_PATIENCE);
        let (reason, message) = match self.eyes.found() {
            Err(error) => ("NoDriver", error.to_string()),
            Ok(()) if silent => ("KubeletSilent", "the PodResources socket does not answer".to_owned()),
            Ok(()) if away >= SETTER_PATIENCE => ("SetterSilent", "the setter does not answer".to_owned()),
            Ok(()) if denied => ("NoPermission", "the setter lacks CAP_SYS_ADMIN".to_owned()),
            Ok(()) => ("Working", String::new()),
        };
        Verdict { kind: "Ready", holds: reason == "Working", reason, message }
    }

    fn time_wake(&mut self, decision: &Decision, report: &Report) {
        let Some((_, wake)) = decision.orders else { return };
        match self.raised {
            Some((seen, since)) if seen == wake => {
                if report.awake == Some(wake) && since > self.started {
                    self.metrics.wake.observe(since.elapsed().as_secs_f64());
                    self.raised = Some((wake, self.started));
                }
            }
            _ => {
                self.raised = Some((wake, if self.raised.is_some() { Instant::now() } else { self.started }))
            }
        }
    }
}

fn word(state: GpuCondition) -> &'static str {
    match state {
        GpuCondition::Held => "held",
        GpuCondition::Free => "free",
        GpuCondition::Resting => "resting",
        GpuCondition::Unhealthy => "unhealthy",
    }
}

fn unhealthy_verdict(gpus: &[(&Uuid, &GpuError)]) -> Verdict {
    let reason = match gpus.first().map(|(_, error)| *error) {
        None => "AllHealthy",
        Some(GpuError::Lost) => "GpuLost",
        Some(GpuError::ResetRequired) => "ResetRequired",
        Some(GpuError::Hung) => "DriverHangs",
        Some(_) => "DriverError",
    };
    let said: Vec<String> = gpus.iter().map(|(uuid, error)| format!("{uuid}: {error}")).collect();
    Verdict { kind: "Unhealthy", holds: !gpus.is_empty(), reason, message: said.join("; ") }
}
