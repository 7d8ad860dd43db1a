//! The reconcile loop: observe, decide, set, report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::{GpuCondition, GpuState, pod_name};
use andreas_podresources::Kubelet;
use andreas_runtime::clock;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;

use super::decide::{Decision, Holder, Memory, Observed, Seen, decide};
use super::energy::{Meter, Use};
use super::holders::{Held, Lingering, held};
use super::metrics::{Metrics, OfGpu};
use super::monitor::{GpuHandle, GpuMonitor};
use super::setter_client::SetterClient;
use super::shares::{EnergyShares, Look};
use super::status::{Report, Verdict, whole_seconds};
use super::world::World;
use crate::gpu::GpuError;
use crate::setting::{Outcome, Setting, Uuid, Wanted};

/// Time without a kubelet response before the node is not ready.
const KUBELET_PATIENCE: Duration = Duration::from_secs(10);
/// Time without a setter response before the node is not ready: long enough for a restart.
const SETTER_PATIENCE: Duration = Duration::from_secs(30);
/// Time without a setter after which its settings have ended, unless the whole node is lost.
const SETTER_GONE: Duration = Duration::from_secs(60);

/// State carried from one reconcile to the next.
pub struct ReconcileLoop {
    /// The GPU monitor.
    pub eyes: GpuMonitor,
    /// The kubelet client.
    pub kubelet: Kubelet,
    /// The setter client; `None` in observe-only mode.
    pub link: Option<SetterClient>,
    /// Objects watched at the API server.
    pub world: Arc<Mutex<World>>,
    /// Metrics.
    pub metrics: Metrics,
    /// Longest time without a renewal of the leader Lease.
    pub lease_ttl: Duration,
    /// Whether GPUs with a parked context of a process outside any pod rest.
    pub rest_parked: bool,
    /// Start time.
    pub started: Instant,
    memory: Memory,
    held: Held,
    lingering: Lingering,
    /// The last `spec.look` known before the kubelet was asked.
    looked: Option<i64>,
    kubelet_failing: Option<Instant>,
    outcomes: BTreeMap<Uuid, Outcome>,
    /// The lowest power limit that the setter accepts, mW; `None` before its first response.
    floor_mw: Option<u32>,
    /// GPUs on which the setter permanently refused to set a power limit.
    unlimitable: BTreeSet<Uuid>,
    /// The setter lacks permission and has set nothing since.
    denied: bool,
    meters: BTreeMap<Uuid, Meter>,
    shares: EnergyShares,
    resumed: bool,
    raised: Option<(i64, Instant)>,
}

/// Dependencies of the reconcile loop.
pub struct Parts {
    /// See [`ReconcileLoop`].
    pub eyes: GpuMonitor,
    /// See [`ReconcileLoop`].
    pub kubelet: Kubelet,
    /// See [`ReconcileLoop`].
    pub link: Option<SetterClient>,
    /// See [`ReconcileLoop`].
    pub world: Arc<Mutex<World>>,
    /// See [`ReconcileLoop`].
    pub metrics: Metrics,
    /// See [`ReconcileLoop`].
    pub lease_ttl: Duration,
    /// See [`ReconcileLoop`].
    pub rest_parked: bool,
}

impl ReconcileLoop {
    /// Creates the loop; observes nothing yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            eyes: parts.eyes,
            kubelet: parts.kubelet,
            link: parts.link,
            world: parts.world,
            metrics: parts.metrics,
            lease_ttl: parts.lease_ttl,
            rest_parked: parts.rest_parked,
            started: Instant::now(),
            memory: Memory::default(),
            held: Held::default(),
            lingering: Lingering::default(),
            looked: None,
            kubelet_failing: Some(Instant::now()),
            outcomes: BTreeMap::new(),
            floor_mw: None,
            unlimitable: BTreeSet::new(),
            denied: false,
            meters: BTreeMap::new(),
            shares: EnergyShares::default(),
            resumed: false,
            raised: None,
        }
    }

    /// Whether the kubelet answered the last request.
    #[must_use]
    pub fn kubelet_answers(&self) -> bool {
        self.kubelet_failing.is_none()
    }

    /// Whether the status of an earlier run has been read.
    #[must_use]
    pub fn knows_the_past(&self) -> bool {
        self.resumed
    }

    /// Runs one reconcile.
    pub async fn round(&mut self) -> Report {
        let began = Instant::now();
        // Read before asking the kubelet: its response is at least as new.
        let look = self.world.lock().node().map(|node| node.spec.look);
        self.resume();
        let ((), pods) = tokio::join!(self.eyes.look(), self.kubelet.list());
        self.metrics.asked(pods.is_ok());
        match pods {
            Ok(pods) => {
                let known: BTreeSet<Uuid> = self.eyes.gpus().keys().cloned().collect();
                self.held = held(&pods, &known);
                let processes = self.eyes.gpus().iter();
                let processes =
                    processes.filter_map(|(uuid, eye)| Some((uuid.clone(), eye.sample.as_ref()?.processes)));
                if self.resumed {
                    self.lingering.add_to(&mut self.held, &processes.collect(), self.started.elapsed());
                }
                self.kubelet_failing = None;
                self.looked = look.filter(|_| !self.held.unclear);
            }
            Err(error) => {
                if self.kubelet_failing.is_none() {
                    tracing::warn!(error = error.to_string(), "the kubelet cannot be asked");
                }
                self.kubelet_failing.get_or_insert_with(Instant::now);
                self.looked = None;
            }
        }
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
        let seen = |(uuid, eye): (&Uuid, &GpuHandle)| {
            let holder = match self.held.gpus.get(uuid) {
                _ if self.kubelet_failing.is_some() => Holder::Unknown,
                Some((namespace, name)) => Holder::Pod(pod_name(namespace, name)),
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

    /// Sends the desired settings to the setter. The request is also the heartbeat.
    async fn set(&mut self, decision: &Decision) {
        let Some(link) = &mut self.link else { return };
        let done = link.ask(&Wanted { settings: decision.wanted.clone() }).await;
        self.metrics.setter_up.set(i64::from(done.is_some()));
        if let Some(done) = done {
            self.floor_mw = Some(done.floor_limit_mw);
            let sets = |outcome: &Outcome| outcome.setting.is_some_and(|setting| !setting.is_default());
            let denied = |outcome: &Outcome| outcome.refused.as_deref() == Some("no_permission");
            self.denied = done.gpus.values().any(denied) || self.denied && !done.gpus.values().any(sets);
            for (uuid, outcome) in &done.gpus {
                let asked = decision.wanted.get(uuid).is_some_and(|wanted| wanted.limit_mw.is_some());
                match &outcome.refused {
                    Some(reason) if asked && is_final(reason) => {
                        self.unlimitable.insert(uuid.clone());
                    }
                    None if asked => {
                        self.unlimitable.remove(uuid);
                    }
                    _ => {}
                }
            }
            self.outcomes = done.gpus;
            let refusals = self.outcomes.values().filter_map(|outcome| outcome.refused.as_deref());
            refusals.for_each(|reason| self.metrics.setter_refused(reason));
        }
    }

    /// The setting in force on a GPU; `None` if unknown.
    fn actual(&self, uuid: &str) -> Option<Setting> {
        let Some(link) = &self.link else { return Some(Setting::default()) };
        let known = self.outcomes.get(uuid).map(|outcome| outcome.setting);
        let away = link.down_for();
        match known {
            _ if away > SETTER_GONE => Some(Setting::default()),
            Some(setting) => setting,
            // The setter responds and never got a request for this GPU.
            None => away.is_zero().then(Setting::default),
        }
    }

    fn report(&mut self, observed: &Observed, decision: &Decision) -> Report {
        let (mut woken, mut carried_out) = (true, true);
        let setter = self.setter();
        let mut gpus = Vec::with_capacity(observed.gpus.len());
        let mut unhealthy: Vec<(&Uuid, &GpuError)> = Vec::new();
        let mut looks = BTreeMap::new();
        for (uuid, seen) in &observed.gpus {
            let Some(eye) = self.eyes.gpus().get(uuid) else { continue };
            let actual = self.actual(uuid);
            let wanted = decision.wanted.get(uuid).copied().unwrap_or_default();
            let refused = self.outcomes.get(uuid).and_then(|outcome| outcome.refused.as_deref());
            let for_good = refused.is_some_and(is_final);
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
                    looks.insert(uuid.clone(), Look { holder: holder.cloned(), joules: meter.joules() });
                }
            } else {
                self.metrics.unseen(&label);
                if let Some(error) = eye.failing() {
                    self.metrics.failed(&label, error.reason());
                }
            }
            self.metrics.state(&label, word(state));
            let driver = eye.facts.as_ref().and_then(|facts| facts.limit_mw);
            let range = limits(driver, setter, self.unlimitable.contains(uuid));
            gpus.push(GpuState {
                uuid: uuid.clone(),
                state,
                holder: holder.map(|(namespace, name)| pod_name(namespace, name)),
                watts: eye
                    .sample
                    .as_ref()
                    .map_or(0, |s| i32::try_from(s.power_mw / 1000).unwrap_or(i32::MAX)),
                joules: meter.joules(),
                held_from: None,
                held_since: None,
                // Rounded up, so that the value is never below the real limit.
                board_watts: driver.and_then(|(_, highest)| {
                    i32::try_from(highest.saturating_add(999) / 1000).ok().filter(|watts| *watts >= 1)
                }),
                min_limit_watts: range.map(|(lowest, _)| lowest),
                max_limit_watts: range.map(|(_, highest)| highest),
            });
        }
        let unhealthy = unhealthy_verdict(&unhealthy);
        self.share_out(&looks, &mut gpus);
        let sees = self.kubelet_failing.is_none() && self.eyes.found().is_ok();
        let orders = decision.orders.filter(|_| self.eyes.found().is_ok());
        let report = Report {
            generation: orders.filter(|_| carried_out).map(|orders| orders.0),
            awake: orders.filter(|_| woken).map(|orders| orders.1),
            looked: self.looked,
            empty: sees.then_some(self.held.gpus.is_empty() && !self.held.unclear),
            verdicts: vec![self.ready(), unhealthy],
            released: self.resumed.then(|| self.shares.released().to_vec()),
            gpus,
        };
        self.time_wake(decision, &report);
        report
    }

    /// Resumes from the status of an earlier run, once the API server has returned it.
    fn resume(&mut self) {
        if self.resumed {
            return;
        }
        let Some(node) = self.world.lock().node().cloned() else { return };
        let status = node.status.unwrap_or_default();
        self.shares.resume(&status);
        let holder = |gpu: &GpuState| {
            let (namespace, name) = gpu.holder.as_ref()?.split_once('/')?;
            Some((gpu.uuid.clone(), (namespace.to_owned(), name.to_owned())))
        };
        self.lingering.resume(status.gpus.iter().filter_map(holder), self.started.elapsed());
        self.resumed = true;
    }

    /// Energy used by each pod, and where the open shares began.
    fn share_out(&mut self, looks: &BTreeMap<Uuid, Look>, gpus: &mut [GpuState]) {
        self.shares.look(looks, whole_seconds(clock::now()));
        for gpu in gpus.iter_mut().filter(|gpu| gpu.holder.is_some()) {
            if let Some(begin) = self.shares.begin(&gpu.uuid) {
                (gpu.held_from, gpu.held_since) = (Some(begin.joules), Some(Time(begin.at)));
            }
        }
    }

    /// The lowest power limit of a setter that can set limits, mW; `None` if there is no such setter.
    fn setter(&self) -> Option<u32> {
        let link = self.link.as_ref()?;
        self.floor_mw.filter(|_| link.down_for() < SETTER_PATIENCE && !self.denied)
    }

    fn ready(&self) -> Verdict {
        let away = self.link.as_ref().map_or(Duration::ZERO, SetterClient::down_for);
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

/// Whether the setter will refuse every retry too.
fn is_final(refusal: &str) -> bool {
    !matches!(refusal, "hung" | "driver_error" | "no_driver" | "record")
}

/// Power limits that a GPU accepts, W: the driver's range (mW), raised to the administrator's floor as
/// reported by the `setter`. `None` if the driver or the setter cannot set limits, or one was `refused`
/// permanently.
fn limits(driver: Option<(u32, u32)>, setter: Option<u32>, refused: bool) -> Option<(i32, i32)> {
    let ((lowest, highest), floor) = driver.zip(setter.filter(|_| !refused))?;
    let watts = |milliwatts: u32| i32::try_from(milliwatts / 1000).ok().filter(|watts| *watts >= 1);
    // Rounded inwards, so that both ends can be set.
    let range = (watts(lowest.max(floor).max(1).saturating_add(999))?, watts(highest)?);
    (range.0 <= range.1).then_some(range)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_limits_is_reported_only_where_a_setter_may_set_them_and_from_the_floor_on() {
        let driver = Some((99_500, 400_200));
        assert_eq!(limits(driver, Some(0), false), Some((100, 400)));
        assert_eq!(limits(driver, Some(150_000), false), Some((150, 400)));
        assert_eq!(limits(driver, Some(500_000), false), None, "the floor leaves nothing");
        assert_eq!(limits(driver, None, false), None, "nobody may set one");
        assert_eq!(limits(driver, Some(0), true), None, "one was refused for good");
        assert_eq!(limits(None, Some(0), false), None, "the driver takes none");
    }

    #[test]
    fn a_refusal_that_may_pass_is_not_final() {
        for passing in ["hung", "driver_error", "no_driver", "record"] {
            assert!(!is_final(passing));
        }
        assert!(["no_permission", "not_supported", "out_of_range"].iter().all(|reason| is_final(reason)));
    }
}
