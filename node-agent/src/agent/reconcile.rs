//! The reconcile loop: observe, decide, set, report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::{GpuCondition, GpuState, namespaced_pod_name};
use andreas_podresources::Kubelet;
use andreas_runtime::clock;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;

use super::attribution::{EnergyAttribution, GpuReading};
use super::cache::ObjectCache;
use super::decide::{Decision, GpuObservation, Holder, Memory, Observed, decide};
use super::energy::{GpuUse, Meter};
use super::holders::{GpuHolders, TerminatingHolders, holders_from_kubelet};
use super::metrics::{GpuLabels, Metrics};
use super::monitor::{GpuHandle, GpuMonitor};
use super::setter_client::SetterClient;
use super::status::{ConditionUpdate, Report, whole_seconds};
use crate::gpu::GpuError;
use crate::setting::{Outcome, Setting, SettingsRequest, Uuid};

/// Time without a kubelet response before the node is not ready.
const KUBELET_PATIENCE: Duration = Duration::from_secs(10);
/// Time without a setter response before the node is not ready: long enough for a restart.
const SETTER_PATIENCE: Duration = Duration::from_secs(30);
/// Time without a setter after which its settings have ended, unless the whole node is lost.
const SETTER_GONE: Duration = Duration::from_secs(60);

/// What the reconcile loop works with.
pub struct Dependencies {
    /// The GPU monitor.
    pub monitor: GpuMonitor,
    /// The kubelet client.
    pub kubelet: Kubelet,
    /// The setter client; `None` in observe-only mode.
    pub setter: Option<SetterClient>,
    /// Objects watched at the API server.
    pub cache: Arc<Mutex<ObjectCache>>,
    /// Metrics.
    pub metrics: Metrics,
    /// Longest time without a renewal of the leader Lease.
    pub lease_ttl: Duration,
    /// Whether GPUs with a parked context of a process outside any pod rest.
    pub rest_parked: bool,
}

/// State carried from one reconcile to the next.
pub struct ReconcileLoop {
    deps: Dependencies,
    started: Instant,
    memory: Memory,
    holders: GpuHolders,
    lingering: TerminatingHolders,
    /// The last `spec.holdersRequested` known before the kubelet was asked.
    holders_observed: Option<i64>,
    kubelet_failing: Option<Instant>,
    outcomes: BTreeMap<Uuid, Outcome>,
    /// The lowest power limit that the setter accepts, mW; `None` before its first response.
    floor_mw: Option<u32>,
    /// GPUs on which the setter permanently refused to set a power limit.
    unlimitable: BTreeSet<Uuid>,
    /// The setter lacks permission and has set nothing since.
    denied: bool,
    meters: BTreeMap<Uuid, Meter>,
    attribution: EnergyAttribution,
    resumed: bool,
    /// The last `spec.wake` seen, and when.
    wake_requested: Option<(i64, Instant)>,
}

impl ReconcileLoop {
    /// Creates the loop; observes nothing yet.
    #[must_use]
    pub fn new(deps: Dependencies) -> Self {
        Self {
            deps,
            started: Instant::now(),
            memory: Memory::default(),
            holders: GpuHolders::default(),
            lingering: TerminatingHolders::default(),
            holders_observed: None,
            kubelet_failing: Some(Instant::now()),
            outcomes: BTreeMap::new(),
            floor_mw: None,
            unlimitable: BTreeSet::new(),
            denied: false,
            meters: BTreeMap::new(),
            attribution: EnergyAttribution::default(),
            resumed: false,
            wake_requested: None,
        }
    }

    /// Whether the driver listed the node's GPUs at the last search.
    #[must_use]
    pub fn gpus_listed(&self) -> bool {
        self.deps.monitor.list_result().is_ok()
    }

    /// Whether the kubelet answered the last request.
    #[must_use]
    pub fn kubelet_answers(&self) -> bool {
        self.kubelet_failing.is_none()
    }

    /// Whether the status of an earlier run has been read.
    #[must_use]
    pub fn has_resumed(&self) -> bool {
        self.resumed
    }

    /// Asks the setter to restore all GPUs.
    pub async fn restore_all(&mut self) {
        if let Some(setter) = &mut self.deps.setter {
            setter.request(&SettingsRequest::default()).await;
        }
    }

    /// Runs one reconcile.
    pub async fn reconcile(&mut self) -> Report {
        let began = Instant::now();
        // Read before asking the kubelet: its response is at least as new.
        let requested = self.deps.cache.lock().node().map(|node| node.spec.holders_requested);
        self.resume();
        let ((), pods) = tokio::join!(self.deps.monitor.sample(), self.deps.kubelet.list());
        self.deps.metrics.kubelet_listed(pods.is_ok());
        match pods {
            Ok(pods) => {
                let known: BTreeSet<Uuid> = self.deps.monitor.gpus().keys().cloned().collect();
                self.holders = holders_from_kubelet(&pods, &known);
                let gpus = self.deps.monitor.gpus().iter();
                let processes =
                    gpus.filter_map(|(uuid, gpu)| Some((uuid.clone(), gpu.sample.as_ref()?.processes)));
                if self.resumed {
                    self.lingering.add_to(&mut self.holders, &processes.collect(), self.started.elapsed());
                }
                self.kubelet_failing = None;
                self.holders_observed = requested.filter(|_| !self.holders.ambiguous);
            }
            Err(error) => {
                if self.kubelet_failing.is_none() {
                    tracing::warn!(error = error.to_string(), "the kubelet does not answer");
                }
                self.kubelet_failing.get_or_insert_with(Instant::now);
                self.holders_observed = None;
            }
        }
        let observed = self.observe();
        let (memory, decision) = decide(std::mem::take(&mut self.memory), &observed, self.started.elapsed());
        self.memory = memory;
        self.set(&decision).await;
        let report = self.report(&observed, &decision);
        self.deps.metrics.reconcile.observe(began.elapsed().as_secs_f64());
        report
    }

    fn observe(&self) -> Observed {
        let cache = self.deps.cache.lock();
        let age = cache.lease_age();
        self.deps.metrics.set_lease_age(age);
        let observation = |(uuid, gpu): (&Uuid, &GpuHandle)| {
            let holder = match self.holders.gpus.get(uuid) {
                _ if self.kubelet_failing.is_some() => Holder::Unknown,
                Some((namespace, name)) => Holder::Pod(namespaced_pod_name(namespace, name)),
                None if self.holders.ambiguous => Holder::Unknown,
                None => Holder::Nobody,
            };
            let processes = gpu.sample.as_ref().map_or(0, |sample| sample.processes);
            let healthy = gpu.sample.is_some();
            (uuid.clone(), GpuObservation { facts: gpu.facts.clone(), holder, processes, healthy })
        };
        Observed {
            gpus: self.deps.monitor.gpus().iter().map(observation).collect(),
            desired: cache.desired_settings(),
            policy: cache.policy(self.deps.rest_parked),
            leader_alive: age.is_some_and(|age| age <= self.deps.lease_ttl),
        }
    }

    /// Sends the desired settings to the setter. The request is also the heartbeat.
    async fn set(&mut self, decision: &Decision) {
        let Some(setter) = &mut self.deps.setter else { return };
        let response = setter.request(&SettingsRequest { settings: decision.wanted.clone() }).await;
        self.deps.metrics.setter_up.set(i64::from(response.is_some()));
        if let Some(response) = response {
            self.floor_mw = Some(response.floor_limit_mw);
            let sets = |outcome: &Outcome| outcome.setting.is_some_and(|setting| !setting.is_default());
            let denied = |outcome: &Outcome| outcome.refused.as_deref() == Some("no_permission");
            self.denied =
                response.gpus.values().any(denied) || self.denied && !response.gpus.values().any(sets);
            for (uuid, outcome) in &response.gpus {
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
            self.outcomes = response.gpus;
            let refusals = self.outcomes.values().filter_map(|outcome| outcome.refused.as_deref());
            refusals.for_each(|reason| self.deps.metrics.setter_refused(reason));
        }
    }

    /// The setting in force on a GPU; `None` if unknown.
    fn actual(&self, uuid: &str) -> Option<Setting> {
        let Some(setter) = &self.deps.setter else { return Some(Setting::default()) };
        let known = self.outcomes.get(uuid).map(|outcome| outcome.setting);
        let down = setter.down_for();
        match known {
            _ if down > SETTER_GONE => Some(Setting::default()),
            Some(setting) => setting,
            // The setter responds and never got a request for this GPU.
            None => down.is_zero().then(Setting::default),
        }
    }

    fn report(&mut self, observed: &Observed, decision: &Decision) -> Report {
        let (mut woken, mut carried_out) = (true, true);
        let floor = self.settable_floor();
        let mut gpus = Vec::with_capacity(observed.gpus.len());
        let mut unhealthy: Vec<(&Uuid, &GpuError)> = Vec::new();
        let mut readings = BTreeMap::new();
        for (uuid, observation) in &observed.gpus {
            let Some(gpu) = self.deps.monitor.gpus().get(uuid) else { continue };
            let actual = self.actual(uuid);
            let wanted = decision.wanted.get(uuid).copied().unwrap_or_default();
            let refused = self.outcomes.get(uuid).and_then(|outcome| outcome.refused.as_deref());
            let for_good = refused.is_some_and(is_final);
            let holder = self.holders.gpus.get(uuid);
            let state = match gpu.fault() {
                Some(error) => {
                    unhealthy.push((uuid, error));
                    GpuCondition::Unhealthy
                }
                None => {
                    carried_out &= actual == Some(wanted) || for_good;
                    match holder {
                        Some(_) => GpuCondition::Held,
                        None if self.holders.ambiguous => GpuCondition::Held,
                        None if actual == Some(Setting::default()) => GpuCondition::Free,
                        None => {
                            woken = false;
                            GpuCondition::Resting
                        }
                    }
                }
            };
            let labels = GpuLabels {
                uuid: uuid.clone(),
                gpu_type: gpu
                    .facts
                    .as_ref()
                    .map_or_else(String::new, |facts| facts.product.replace(' ', "-")),
            };
            let meter = self.meters.entry(uuid.clone()).or_default();
            if let Some(sample) = &gpu.sample {
                let in_use = match (&state, holder) {
                    (GpuCondition::Held, Some((namespace, _))) => GpuUse::Held(namespace.clone()),
                    (GpuCondition::Free, _) if observation.holder == Holder::Nobody => GpuUse::Free,
                    (GpuCondition::Resting, _) => GpuUse::Resting,
                    _ => GpuUse::Unknown,
                };
                let interval = meter.add(self.started.elapsed(), sample, in_use);
                let parked = if holder.is_none() { sample.processes } else { 0 };
                self.deps.metrics.sampled(&labels, sample, &interval, parked);
                if observation.holder != Holder::Unknown {
                    let reading = GpuReading { holder: holder.cloned(), joules: meter.joules() };
                    readings.insert(uuid.clone(), reading);
                }
            } else {
                self.deps.metrics.remove_readings(&labels);
                if let Some(error) = gpu.failing() {
                    self.deps.metrics.failed(&labels, error.reason());
                }
            }
            self.deps.metrics.set_state(&labels, state_label(state));
            let driver = gpu.facts.as_ref().and_then(|facts| facts.limit_mw);
            let range = limits(driver, floor, self.unlimitable.contains(uuid));
            gpus.push(GpuState {
                uuid: uuid.clone(),
                state,
                holder: holder.map(|(namespace, name)| namespaced_pod_name(namespace, name)),
                watts: gpu
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
        let unhealthy = unhealthy_condition(&unhealthy);
        self.attribute_energy(&readings, &mut gpus);
        let observes = self.kubelet_failing.is_none() && self.deps.monitor.list_result().is_ok();
        let carries_out = decision.carries_out.filter(|_| self.deps.monitor.list_result().is_ok());
        let report = Report {
            generation: carries_out.filter(|_| carried_out).map(|(generation, _)| generation),
            awake: carries_out.filter(|_| woken).map(|(_, wake)| wake),
            holders_observed: self.holders_observed,
            empty: observes.then_some(self.holders.gpus.is_empty() && !self.holders.ambiguous),
            conditions: vec![self.ready(), unhealthy],
            released: self.resumed.then(|| self.attribution.released().to_vec()),
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
        let Some(node) = self.deps.cache.lock().node().cloned() else { return };
        let status = node.status.unwrap_or_default();
        self.attribution.resume(&status);
        let holder = |gpu: &GpuState| {
            let (namespace, name) = gpu.holder.as_ref()?.split_once('/')?;
            Some((gpu.uuid.clone(), (namespace.to_owned(), name.to_owned())))
        };
        self.lingering.resume(status.gpus.iter().filter_map(holder), self.started.elapsed());
        self.resumed = true;
    }

    /// Energy used by each pod, and where the open shares began.
    fn attribute_energy(&mut self, readings: &BTreeMap<Uuid, GpuReading>, gpus: &mut [GpuState]) {
        self.attribution.update(readings, whole_seconds(clock::now()));
        for gpu in gpus.iter_mut().filter(|gpu| gpu.holder.is_some()) {
            if let Some(begin) = self.attribution.begin(&gpu.uuid) {
                (gpu.held_from, gpu.held_since) = (Some(begin.joules), Some(Time(begin.at)));
            }
        }
    }

    /// The lowest power limit of a setter that can set limits, mW; `None` if there is no such setter.
    fn settable_floor(&self) -> Option<u32> {
        let setter = self.deps.setter.as_ref()?;
        self.floor_mw.filter(|_| setter.down_for() < SETTER_PATIENCE && !self.denied)
    }

    fn ready(&self) -> ConditionUpdate {
        let down = self.deps.setter.as_ref().map_or(Duration::ZERO, SetterClient::down_for);
        let denied =
            self.outcomes.values().any(|outcome| outcome.refused.as_deref() == Some("no_permission"));
        let kubelet_down = self.kubelet_failing.is_some_and(|since| since.elapsed() >= KUBELET_PATIENCE);
        let (reason, message) = match self.deps.monitor.list_result() {
            Err(error) => ("NoDriver", error.to_string()),
            Ok(()) if kubelet_down => {
                ("KubeletNotResponding", "the PodResources socket does not answer".to_owned())
            }
            Ok(()) if down >= SETTER_PATIENCE => {
                ("SetterNotResponding", "the setter does not answer".to_owned())
            }
            Ok(()) if denied => ("NoPermission", "the setter lacks CAP_SYS_ADMIN".to_owned()),
            Ok(()) => ("Working", String::new()),
        };
        ConditionUpdate { kind: "Ready", status: reason == "Working", reason, message }
    }

    fn time_wake(&mut self, decision: &Decision, report: &Report) {
        let Some((_, wake)) = decision.carries_out else { return };
        match self.wake_requested {
            Some((seen, since)) if seen == wake => {
                if report.awake == Some(wake) && since > self.started {
                    self.deps.metrics.wake.observe(since.elapsed().as_secs_f64());
                    self.wake_requested = Some((wake, self.started));
                }
            }
            _ => {
                self.wake_requested =
                    Some((wake, if self.wake_requested.is_some() { Instant::now() } else { self.started }))
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

fn state_label(state: GpuCondition) -> &'static str {
    match state {
        GpuCondition::Held => "held",
        GpuCondition::Free => "free",
        GpuCondition::Resting => "resting",
        GpuCondition::Unhealthy => "unhealthy",
    }
}

fn unhealthy_condition(gpus: &[(&Uuid, &GpuError)]) -> ConditionUpdate {
    let reason = match gpus.first().map(|(_, error)| *error) {
        None => "AllHealthy",
        Some(GpuError::Lost) => "GpuLost",
        Some(GpuError::ResetRequired) => "ResetRequired",
        Some(GpuError::Hung) => "DriverHangs",
        Some(_) => "DriverError",
    };
    let messages: Vec<String> = gpus.iter().map(|(uuid, error)| format!("{uuid}: {error}")).collect();
    ConditionUpdate { kind: "Unhealthy", status: !gpus.is_empty(), reason, message: messages.join("; ") }
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
