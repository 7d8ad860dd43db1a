//! The reconcile loop: observe, decide, set, report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::{GpuState, namespaced_pod_name};
use andreas_runtime::clock;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::attribution::EnergyAttribution;
use super::cache::ObjectCache;
use super::decide::{Decision, GpuObservation, Holder, Memory, Observed, decide, is_at_rest};
use super::energy::{EarlierCounter, Meter};
use super::health::XidErrors;
use super::holders::{GpuHolders, Processes, TerminatingHolders, holders_from_kubelet, partitions};
use super::metrics::{GpuLabels, Metrics};
use super::monitor::{GpuHandle, GpuMonitor};
use super::parked::ParkedContexts;
use super::rest::{RestKind, RestTrials};
use super::setter_client::SetterClient;
use super::shares::SharedEnergy;
use super::status::{ConditionUpdate, Report};
use crate::gpu::Sample;
use crate::podresources::Kubelet;
use crate::podresources::messages::PodResources;
use crate::setting::{Setting, SettingsRequest, Uuid};
use outcomes::SetterState;

mod outcomes;
mod report;

/// Time without a kubelet response before the node is not ready.
const KUBELET_PATIENCE: Duration = Duration::from_secs(10);
/// Time without a setter response before the node is not ready: long enough for a restart.
const SETTER_PATIENCE: Duration = Duration::from_secs(30);
/// Time without a setter after which its settings have ended, unless the whole node is lost.
const SETTER_GONE: Duration = Duration::from_secs(60);

/// Seconds by which the machine's start may be dated too late.
const BOOT_MARGIN: i64 = 5;

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
    /// Measurements of what rest saves.
    pub rest_trials: RestTrials,
    /// Xid errors.
    pub xids: XidErrors,
    /// Idle contexts.
    pub parked: ParkedContexts,
}

/// Longest and shortest interval between two questions to the kubelet.
const LIST_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(20));

/// The longest pause where the processes of some GPU are not known: nothing else shows that a pod has come or gone.
const LIST_BLIND: Duration = Duration::from_secs(5);

/// Processes of each GPU; `None` where they are not known.
type GpuProcesses = BTreeMap<Uuid, Option<Vec<u32>>>;

/// When the kubelet is asked who holds what: at once when something changed, then less and less often. Each answer makes it count its
/// devices anew, and one that comes between the end of a pod and the next one's start can give a GPU to two pods.
#[derive(Default)]
struct Listing {
    /// What is compared: processes by GPU, and the spec's generation.
    seen: Option<(GpuProcesses, Option<i64>)>,
    /// Time of the last question, and the pause after it.
    asked: Option<(Duration, Duration)>,
}

impl Listing {
    fn is_due(&mut self, processes: GpuProcesses, generation: Option<i64>, now: Duration) -> bool {
        let seen = Some((processes, generation));
        let changed = self.seen != seen;
        self.seen = seen;
        let (shortest, mut longest) = LIST_EVERY;
        let unknown = self.seen.iter().any(|(processes, _)| processes.values().any(Option::is_none));
        if unknown {
            longest = LIST_BLIND;
        }
        let pause = match self.asked {
            Some((at, pause)) if !changed => {
                if now.saturating_sub(at) < pause {
                    return false;
                }
                (pause * 2).min(longest)
            }
            _ => shortest,
        };
        self.asked = Some((now, pause));
        true
    }
}

/// Who uses the GPUs, by the kubelet.
struct HoldersState {
    listing: Listing,
    /// The kubelet's last answer.
    pods: Vec<PodResources>,
    gpus: GpuHolders,
    lingering: TerminatingHolders,
    /// The last `spec.holdersGeneration` known before the kubelet was asked.
    observed: Option<i64>,
    kubelet_failing: Option<Instant>,
}

impl Default for HoldersState {
    /// Until the kubelet has answered, any GPU may be held.
    fn default() -> Self {
        Self {
            listing: Listing::default(),
            pods: Vec::new(),
            gpus: GpuHolders { ambiguous: true, ..GpuHolders::default() },
            lingering: TerminatingHolders::default(),
            observed: None,
            kubelet_failing: None,
        }
    }
}

/// Energy by GPU, attempt and namespace.
#[derive(Default)]
struct EnergyState {
    meters: BTreeMap<Uuid, Meter>,
    attribution: EnergyAttribution,
    shared: SharedEnergy,
}

/// State carried from one reconcile to the next.
pub struct ReconcileLoop {
    deps: Dependencies,
    started: Instant,
    memory: Memory,
    holders: HoldersState,
    setter: SetterState,
    energy: EnergyState,
    resumed: bool,
    /// GPUs with metrics that name no type: it was not known yet.
    untyped: BTreeSet<Uuid>,
}

impl ReconcileLoop {
    /// Creates the loop; observes nothing yet.
    #[must_use]
    pub fn new(deps: Dependencies) -> Self {
        Self {
            deps,
            started: Instant::now(),
            memory: Memory::default(),
            holders: HoldersState { kubelet_failing: Some(Instant::now()), ..HoldersState::default() },
            setter: SetterState::default(),
            energy: EnergyState::default(),
            resumed: false,
            untyped: BTreeSet::new(),
        }
    }

    /// The GPUs as they were last read.
    #[must_use]
    pub fn monitor(&self) -> &GpuMonitor {
        &self.deps.monitor
    }

    /// Whether the driver listed the node's GPUs at the last search.
    #[must_use]
    pub fn gpus_listed(&self) -> bool {
        self.deps.monitor.list_result().is_ok()
    }

    /// Whether the kubelet answered the last request.
    #[must_use]
    pub fn kubelet_answers(&self) -> bool {
        self.holders.kubelet_failing.is_none()
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
        // Read before asking the kubelet: its response is at least as new.
        let (requested, generation) = {
            let cache = self.deps.cache.lock();
            let node = cache.node();
            (node.map(|node| node.spec.holders_generation), node.and_then(|node| node.metadata.generation))
        };
        self.resume();
        self.deps.monitor.sample().await;
        let processes = |(uuid, gpu): (&Uuid, &GpuHandle)| {
            (uuid.clone(), gpu.sample().and_then(|sample| sample.processes.clone()))
        };
        let processes = self.deps.monitor.gpus().iter().map(processes).collect();
        let due = self.holders.listing.is_due(processes, generation, self.started.elapsed());
        let due = due || self.holders.kubelet_failing.is_some();
        let answer = if due { Some(self.deps.kubelet.list().await) } else { None };
        match answer {
            None => self.update_holders().await,
            Some(Ok(pods)) => {
                self.holders.pods = pods;
                self.update_holders().await;
                self.holders.kubelet_failing = None;
                let unclear = self.holders.gpus.ambiguous || self.holders.gpus.unexplained;
                self.holders.observed = requested.filter(|_| !unclear);
            }
            Some(Err(error)) => {
                if self.holders.kubelet_failing.is_none() {
                    tracing::warn!(error = error.to_string(), "the kubelet does not answer");
                }
                self.holders.kubelet_failing.get_or_insert_with(Instant::now);
                self.holders.observed = None;
            }
        }
        for error in self.deps.monitor.take_errors() {
            self.deps.xids.add(&error, clock::now());
            if let Some(gpu) = self.deps.monitor.gpus().get(&error.uuid) {
                self.deps.metrics.xid(&labels(&error.uuid, gpu));
            }
        }
        if let Some(cleared) = self.deps.cache.lock().xids_cleared_at() {
            self.deps.xids.clear_until(cleared, clock::now());
        }
        let observed = self.observe();
        let (memory, mut decision) =
            decide(std::mem::take(&mut self.memory), &observed, self.started.elapsed());
        self.memory = memory;
        // Not wanted once, wanted again in the next reconcile: the setter sets it anew instead of holding it for set.
        for uuid in self.setter.take_renewed() {
            decision.wanted.remove(&uuid);
            decision.resting.remove(&uuid);
        }
        self.set(&decision).await;
        self.report(&observed, &decision)
    }

    /// Who holds what by the kubelet's last answer and by the processes of now.
    async fn update_holders(&mut self) {
        let pods = &self.holders.pods;
        let parents = self.deps.monitor.parents(partitions(pods).map(str::to_owned).collect()).await;
        let known: BTreeSet<Uuid> = self.deps.monitor.gpus().keys().cloned().collect();
        let files = self.deps.monitor.device_files();
        self.holders.gpus = holders_from_kubelet(pods, &known, &parents, &files);
        self.deps.rest_trials.retain(&known);
        let processes = |gpu: &GpuHandle| match gpu.sample() {
            Some(sample) if sample.unread.contains(Sample::PROCESSES) => Processes::Unread,
            Some(sample) => sample.contexts().map_or(Processes::Hidden, Processes::Number),
            None => Processes::Unread,
        };
        let processes = self.deps.monitor.gpus().iter().map(|(uuid, gpu)| (uuid.clone(), processes(gpu)));
        if self.resumed {
            self.holders.lingering.add_to(
                &mut self.holders.gpus,
                &processes.collect(),
                self.started.elapsed(),
            );
        }
    }

    fn observe(&self) -> Observed {
        let cache = self.deps.cache.lock();
        let age = cache.lease_age();
        let observation = |(uuid, gpu): (&Uuid, &GpuHandle)| {
            let holder = match self.holders.gpus.gpus.get(uuid) {
                // Also while the kubelet does not answer: the budget counts on the limit of the pod that was seen last. The
                // operator takes it back when that pod ends.
                Some((namespace, name)) => Holder::Pod(namespaced_pod_name(namespace, name)),
                None if self.holders.kubelet_failing.is_some() => Holder::Unknown,
                None if self.holders.gpus.ambiguous || self.holders.gpus.shared.contains_key(uuid) => {
                    Holder::Unknown
                }
                None => Holder::Nobody,
            };
            let kind = rest_kind(gpu);
            let facts = gpu.facts().cloned().map(|facts| self.setter.settable(uuid, facts));
            let at_rest = facts.as_ref().zip(gpu.sample()).is_none_or(|(facts, s)| is_at_rest(facts, s));
            let observation = GpuObservation {
                facts,
                holder,
                at_rest,
                processes: gpu.sample().and_then(Sample::contexts),
                rest_useless: self.deps.rest_trials.is_useless(&kind, self.started.elapsed()),
                healthy: gpu.sample().is_some() && self.deps.xids.fatal_error(uuid).is_none(),
            };
            (uuid.clone(), observation)
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
        let all = self.deps.monitor.gpus().keys();
        let wanted = |uuid: &Uuid| decision.wanted.get(uuid).copied().unwrap_or_default();
        let settings = all.map(|uuid| (uuid.clone(), wanted(uuid))).collect();
        let response = setter.request(&SettingsRequest { settings }).await;
        self.deps.metrics.setter.up.set(i64::from(response.is_some()));
        let Some(response) = response else { return self.setter.unanswered(decision) };
        self.setter.update(decision, response);
        let refusals = self.setter.refusals();
        refusals.for_each(|reason| self.deps.metrics.setter_refused(reason));
    }

    /// The setting in force on a GPU; `None` if unknown.
    fn actual(&self, uuid: &str) -> Option<Setting> {
        let Some(setter) = &self.deps.setter else { return Some(Setting::default()) };
        let known = self.setter.outcome(uuid).map(|outcome| outcome.setting);
        let down = setter.down_for();
        match known {
            _ if down > SETTER_GONE => Some(Setting::default()),
            Some(setting) => setting,
            // The setter responds and never got a request for this GPU.
            None => down.is_zero().then(Setting::default),
        }
    }

    /// Resumes from the status of an earlier run, once the API server has returned it.
    fn resume(&mut self) {
        if self.resumed {
            return;
        }
        let Some(node) = self.deps.cache.lock().node().cloned() else { return };
        let status = node.status.unwrap_or_default();
        self.energy.attribution.resume(&status);
        self.deps.xids.resume(&status.gpus, booted());
        for gpu in &status.gpus {
            let Some(joules) = gpu.joules else { continue };
            let earlier = EarlierCounter { joules, base: gpu.counter_base.unwrap_or(0) };
            self.energy.meters.entry(gpu.uuid.clone()).or_default().resume(earlier);
        }
        let holder = |gpu: &GpuState| {
            let (namespace, name) = gpu.holder.as_ref()?.split_once('/')?;
            Some((gpu.uuid.clone(), (namespace.to_owned(), name.to_owned())))
        };
        self.holders.lingering.resume(status.gpus.iter().filter_map(holder), self.started.elapsed());
        self.resumed = true;
    }

    /// The lowest power limit of a setter that can set limits, mW; `None` if there is no such setter.
    fn settable_floor(&self) -> Option<u32> {
        let setter = self.deps.setter.as_ref()?;
        self.setter.settable_floor().filter(|_| setter.down_for() < SETTER_PATIENCE)
    }

    fn ready(&self) -> ConditionUpdate {
        let down = self.deps.setter.as_ref().map_or(Duration::ZERO, SetterClient::down_for);
        let denied = self.setter.refusals().any(|reason| reason == "no_permission");
        let kubelet_down =
            self.holders.kubelet_failing.is_some_and(|since| since.elapsed() >= KUBELET_PATIENCE);
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
}

/// When this machine was started, by the API server's clock, or shortly before.
fn booted() -> Timestamp {
    let uptime = clock_gettime(ClockId::Boottime).tv_sec.saturating_add(BOOT_MARGIN);
    clock::now().checked_sub(SignedDuration::from_secs(uptime)).unwrap_or(Timestamp::MIN)
}

/// Labels of a GPU in metrics: also those of one that is lost have its type.
fn labels(uuid: &str, gpu: &GpuHandle) -> GpuLabels {
    let product = gpu.product().map_or_else(String::new, |product| product.replace(' ', "-"));
    GpuLabels { uuid: uuid.to_owned(), gpu_type: product }
}

fn rest_kind(gpu: &GpuHandle) -> RestKind {
    RestKind {
        product: gpu.facts().map(|facts| facts.product.clone()).unwrap_or_default(),
        context: gpu.sample().and_then(Sample::contexts).is_some_and(|contexts| contexts > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_is_asked_when_something_changed_and_less_and_less_often_else() {
        let mut listing = Listing::default();
        let mut asked = |seconds: std::ops::Range<u64>, process: u32, generation| -> Vec<u64> {
            let processes = || BTreeMap::from([("GPU-a".to_owned(), Some(vec![process]))]);
            let due = |second: &u64| listing.is_due(processes(), generation, Duration::from_secs(*second));
            seconds.filter(due).collect()
        };
        assert_eq!(asked(0..100, 1, Some(1)), [0, 1, 3, 7, 15, 31, 51, 71, 91]);
        assert_eq!(asked(100..103, 2, Some(1)), [100, 101], "a process began");
        assert_eq!(asked(103..106, 2, Some(2)), [103, 104], "the operator wants something");
    }
}
