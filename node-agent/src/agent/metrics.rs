//! Metrics of the agent. Labels: GPU by UUID and type, namespace of the holder; never a pod's name.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use andreas_runtime::metrics::{Metric, PROCESS, register_process};
use andreas_runtime::watch::WATCHES;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::energy::Interval;
use crate::gpu::Sample;

/// A float gauge.
pub type Float = Gauge<f64, AtomicU64>;
type Sum = Counter<f64, AtomicU64>;

/// Labels of one GPU.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct GpuLabels {
    /// UUID.
    pub uuid: String,
    /// GPU type: the product name, as in the node's label.
    pub gpu_type: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    uuid: String,
    gpu_type: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NamespaceLabels {
    job_namespace: String,
    gpu_type: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    uuid: String,
    gpu_type: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

const POWER: Metric = Metric::gauge("andreas_gpu_power_watts", GPU, "Draw, by GPU");
const LIMIT: Metric = Metric::gauge("andreas_gpu_power_limit_watts", GPU, "Enforced power limit, by GPU");
const CLOCK: Metric = Metric::gauge("andreas_gpu_sm_clock_hertz", GPU, "SM clock, by GPU");
const UTILIZATION: Metric = Metric::gauge(
    "andreas_gpu_utilization_ratio",
    GPU,
    "Part of the last moments in which a kernel ran, by GPU",
);
const PARKED: Metric = Metric::gauge(
    "andreas_gpu_parked_contexts",
    GPU,
    "Processes with a context on a GPU that no pod holds, by GPU",
);
const ENERGY: Metric =
    Metric::counter("andreas_gpu_energy_joules_total", GPU, "Energy drawn while the agent watched, by GPU");
const REST: Metric = Metric::counter("andreas_gpu_rest_seconds_total", GPU, "Time at rest, by GPU");
const SAVED: Metric = Metric::counter(
    "andreas_gpu_rest_saved_joules_total",
    GPU,
    "Estimate of the energy that rest saved: lowest draw seen awake and unheld, less the draw at rest",
);
const STATE: Metric = Metric::gauge(
    "andreas_gpu_state",
    &["uuid", "gpu_type", "state"],
    "1 for the state a GPU is in: held, free, resting, unhealthy",
);
const HELD: Metric = Metric::counter(
    "andreas_gpu_held_energy_joules_total",
    &["job_namespace", "gpu_type"],
    "Energy drawn while a pod of the namespace held the GPU",
);
const NVML_ERRORS: Metric = Metric::counter(
    "andreas_agent_nvml_errors_total",
    &["uuid", "gpu_type", "reason"],
    "Failed reads of a GPU, by GPU and reason; hung: the driver did not answer in time",
);
const SETTER_REFUSALS: Metric = Metric::counter(
    "andreas_agent_setter_refusals_total",
    &["reason"],
    "Settings that the setter could not apply, by reason, counted once per reconcile",
);
const WRITES: Metric = Metric::counter(
    "andreas_agent_status_writes_total",
    &["result"],
    "Writes of the GpuNode's status, by result",
);
const KUBELET_LISTS: Metric = Metric::counter(
    "andreas_agent_podresources_lists_total",
    &["result"],
    "Requests to the kubelet for the GPUs of each pod, by result",
);
const SETTER_UP: Metric = Metric::gauge("andreas_agent_setter_up", &[], "1 while the setter answers");
const LEASE_AGE: Metric = Metric::gauge(
    "andreas_agent_lease_age_seconds",
    &[],
    "Time since the operator's leader Lease was last seen renewed",
);
const RECONCILE: Metric = Metric::histogram(
    "andreas_agent_reconcile_duration_seconds",
    &[],
    "Time of one reconcile: observe, decide, set",
);
const WAKE: Metric = Metric::histogram(
    "andreas_agent_wake_duration_seconds",
    &[],
    "Time from a raised wake to its acknowledgement",
);

/// Labels of one GPU.
const GPU: &[&str] = &["uuid", "gpu_type"];

/// All metrics of the agent.
#[must_use]
pub fn all() -> Vec<Metric> {
    let own: &[Metric] = &[
        POWER,
        LIMIT,
        CLOCK,
        UTILIZATION,
        PARKED,
        ENERGY,
        REST,
        SAVED,
        STATE,
        HELD,
        NVML_ERRORS,
        SETTER_REFUSALS,
        WRITES,
        KUBELET_LISTS,
        SETTER_UP,
        LEASE_AGE,
        RECONCILE,
        WAKE,
    ];
    [own, WATCHES, PROCESS].concat()
}

/// Values of the state label.
pub const STATES: [&str; 4] = ["held", "free", "resting", "unhealthy"];

/// Values of the setter's reason label: those of [`GpuError`](crate::gpu::GpuError).
const REASONS: [&str; 9] = [
    "hung",
    "gpu_lost",
    "reset_required",
    "no_permission",
    "not_supported",
    "invalid_value",
    "not_found",
    "no_driver",
    "driver_error",
];

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    power: Family<GpuLabels, Float>,
    limit: Family<GpuLabels, Float>,
    clock: Family<GpuLabels, Float>,
    util: Family<GpuLabels, Float>,
    parked: Family<GpuLabels, Gauge>,
    energy: Family<GpuLabels, Sum>,
    rest: Family<GpuLabels, Sum>,
    saved: Family<GpuLabels, Sum>,
    state: Family<StateLabels, Gauge>,
    held: Family<NamespaceLabels, Sum>,
    errors: Family<ErrorLabels, Counter>,
    refusals: Family<ReasonLabel, Counter>,
    writes: Family<ResultLabel, Counter>,
    kubelet_lists: Family<ResultLabel, Counter>,
    /// 1 while the setter responds.
    pub setter_up: Gauge,
    /// Seconds since the leader Lease was last seen renewed; infinite if never.
    pub lease_age: Float,
    /// Duration of a reconcile, s.
    pub reconcile: Histogram,
    /// Seconds from a raised wake to its acknowledgement.
    pub wake: Histogram,
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            power: Family::default(),
            limit: Family::default(),
            clock: Family::default(),
            util: Family::default(),
            parked: Family::default(),
            energy: Family::default(),
            rest: Family::default(),
            saved: Family::default(),
            state: Family::default(),
            held: Family::default(),
            errors: Family::default(),
            refusals: Family::default(),
            writes: Family::default(),
            kubelet_lists: Family::default(),
            setter_up: Gauge::default(),
            lease_age: Float::default(),
            reconcile: Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0]),
            wake: Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
        };
        POWER.register(registry, this.power.clone());
        LIMIT.register(registry, this.limit.clone());
        CLOCK.register(registry, this.clock.clone());
        UTILIZATION.register(registry, this.util.clone());
        PARKED.register(registry, this.parked.clone());
        ENERGY.register(registry, this.energy.clone());
        REST.register(registry, this.rest.clone());
        SAVED.register(registry, this.saved.clone());
        STATE.register(registry, this.state.clone());
        HELD.register(registry, this.held.clone());
        NVML_ERRORS.register(registry, this.errors.clone());
        SETTER_REFUSALS.register(registry, this.refusals.clone());
        WRITES.register(registry, this.writes.clone());
        KUBELET_LISTS.register(registry, this.kubelet_lists.clone());
        SETTER_UP.register(registry, this.setter_up.clone());
        LEASE_AGE.register(registry, this.lease_age.clone());
        RECONCILE.register(registry, this.reconcile.clone());
        WAKE.register(registry, this.wake.clone());
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// Records a sample of a GPU.
    pub fn sampled(&self, gpu: &GpuLabels, sample: &Sample, interval: &Interval, parked: u32) {
        self.power.get_or_create(gpu).set(f64::from(sample.power_mw) / 1000.0);
        self.limit.get_or_create(gpu).set(f64::from(sample.limit_mw) / 1000.0);
        self.clock.get_or_create(gpu).set(f64::from(sample.clock_mhz) * 1e6);
        self.util.get_or_create(gpu).set(f64::from(sample.util_percent) / 100.0);
        self.parked.get_or_create(gpu).set(i64::from(parked));
        self.energy.get_or_create(gpu).inc_by(interval.joules);
        self.rest.get_or_create(gpu).inc_by(interval.rest_seconds);
        self.saved.get_or_create(gpu).inc_by(interval.saved_joules);
        if let Some(namespace) = &interval.namespace {
            let of = NamespaceLabels { job_namespace: namespace.clone(), gpu_type: gpu.gpu_type.clone() };
            self.held.get_or_create(&of).inc_by(interval.joules);
        }
    }

    /// Removes the readings of a GPU that did not respond: stale values would pass for current ones.
    pub fn remove_readings(&self, gpu: &GpuLabels) {
        for family in [&self.power, &self.limit, &self.clock, &self.util] {
            family.remove(gpu);
        }
        self.parked.remove(gpu);
    }

    /// Counts a failed GPU read, with a reason from a closed set.
    pub fn failed(&self, gpu: &GpuLabels, reason: &'static str) {
        let of = ErrorLabels { uuid: gpu.uuid.clone(), gpu_type: gpu.gpu_type.clone(), reason };
        self.errors.get_or_create(&of).inc();
    }

    /// Counts a setting that the setter could not apply, with the setter's reason.
    pub fn setter_refused(&self, reason: &str) {
        let reason = REASONS.into_iter().find(|known| *known == reason).unwrap_or("other");
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Sets the state of a GPU.
    pub fn set_state(&self, gpu: &GpuLabels, state: &'static str) {
        for each in STATES {
            let of = StateLabels { uuid: gpu.uuid.clone(), gpu_type: gpu.gpu_type.clone(), state: each };
            self.state.get_or_create(&of).set(i64::from(each == state));
        }
    }

    /// Counts a write of the status.
    pub fn status_written(&self, result: &'static str) {
        self.writes.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a request to the kubelet.
    pub fn kubelet_listed(&self, succeeded: bool) {
        self.kubelet_lists
            .get_or_create(&ResultLabel { result: if succeeded { "ok" } else { "failed" } })
            .inc();
    }

    /// Sets the time since the last renewal of the Lease.
    pub fn set_lease_age(&self, age: Option<Duration>) {
        self.lease_age.set(age.map_or(f64::INFINITY, |age| age.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuError;
    use andreas_runtime::metrics::{classic, deviations, ill_named};

    #[test]
    fn the_list_holds_what_is_exposed_and_nothing_else() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let gpu = GpuLabels { uuid: "GPU-1".into(), gpu_type: "A".into() };
        let interval = Interval { namespace: Some("team".into()), ..Interval::default() };
        metrics.sampled(&gpu, &Sample::default(), &interval, 0);
        metrics.set_state(&gpu, "held");
        metrics.failed(&gpu, GpuError::Hung.reason());
        metrics.setter_refused(GpuError::NoPermission.reason());
        metrics.setter_refused("a reason outside the set");
        metrics.status_written("ok");
        metrics.kubelet_listed(true);
        metrics.set_lease_age(None);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let text = classic(&text);
        let own: Vec<_> = all().into_iter().filter(|metric| !WATCHES.contains(metric)).collect();
        assert_eq!(deviations(&text, &own), Vec::<String>::new());
        assert_eq!(ill_named(&all()), Vec::<String>::new());
        assert!(
            text.contains(r#"reason="no_permission"} 1"#) && text.contains(r#"reason="other"} 1"#),
            "{text}"
        );
    }
}
