//! Metrics of the agent. Labels: GPU by UUID and type, namespace of the holder; never a pod's name.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use andreas_api::gpu_node::GpuProblem;
use andreas_runtime::metrics::{Labels, register_process};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::energy::Interval;
use super::health::PROBLEMS;
use crate::gpu::Sample;

mod list;

pub use list::all;
use list::{
    CLOCK, ENERGY, HELD, KUBELET_LISTS, LEASE_AGE, LIMIT, MEMORY_ERRORS, NVML_CALLS, NVML_ERRORS, PARKED,
    POWER, PROBLEM, RECONCILE, REST, REST_EFFECT, SAVED, SETTER_REFUSALS, SETTER_UP, SHARED, STATE,
    TEMPERATURE, UTILIZATION, WAKE, WRITES, XIDS,
};

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
struct ErrorLabels {
    uuid: String,
    gpu_type: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RestLabels {
    gpu_type: String,
    context: &'static str,
}

/// Values of the state label.
pub const STATES: [&str; 4] = ["held", "free", "resting", "unhealthy"];

/// Values of the setter's reason label: those of [`GpuError`](crate::gpu::GpuError), and the setter's own.
const REASONS: [&str; 15] = [
    "hung",
    "gpu_lost",
    "reset_required",
    "no_permission",
    "not_supported",
    "invalid_value",
    "not_found",
    "no_driver",
    "unreachable",
    "driver_error",
    "record",
    "out_of_range",
    "above_ceiling",
    "braked",
    "overridden",
];

/// Readings of each GPU: removed when it does not respond.
#[derive(Clone, Debug)]
pub struct ReadingMetrics {
    power: Family<GpuLabels, Float>,
    limit: Family<GpuLabels, Float>,
    clock: Family<GpuLabels, Float>,
    util: Family<GpuLabels, Float>,
    parked: Family<GpuLabels, Gauge>,
    temperature: Family<GpuLabels, Gauge>,
    memory_errors: Family<GpuLabels, Gauge>,
}

/// Energy of GPUs, and what rest saves.
#[derive(Clone, Debug)]
pub struct EnergyMetrics {
    energy: Family<GpuLabels, Sum>,
    rest: Family<GpuLabels, Sum>,
    saved: Family<GpuLabels, Sum>,
    held: Family<NamespaceLabels, Sum>,
    shared: Family<NamespaceLabels, Sum>,
    rest_effect: Family<RestLabels, Float>,
}

/// State and problems of each GPU.
#[derive(Clone, Debug)]
pub struct HealthMetrics {
    state: Family<StateLabels, Gauge>,
    problem: Family<ErrorLabels, Gauge>,
    xids: Family<GpuLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
}

/// The setter, and what it waits for.
#[derive(Clone, Debug)]
pub struct SetterMetrics {
    refusals: Family<Labels<1>, Counter>,
    /// 1 while the setter responds.
    pub up: Gauge,
    /// Seconds since the leader Lease was last seen renewed; infinite if never.
    pub lease_age: Float,
    /// Seconds from a raised wake to its acknowledgement.
    pub wake: Histogram,
}

/// Reconciles and their calls of the driver, the kubelet and the API server.
#[derive(Clone, Debug)]
pub struct RunMetrics {
    /// Duration of a reconcile, s.
    pub seconds: Histogram,
    nvml_calls: Counter,
    writes: Family<Labels<1>, Counter>,
    kubelet_lists: Family<Labels<1>, Counter>,
}

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Readings of each GPU: removed when it does not respond.
    pub readings: ReadingMetrics,
    /// Energy of GPUs, and what rest saves.
    pub energy: EnergyMetrics,
    /// State and problems of each GPU.
    pub health: HealthMetrics,
    /// The setter, and what it waits for.
    pub setter: SetterMetrics,
    /// Reconciles and their calls of the driver, the kubelet and the API server.
    pub runs: RunMetrics,
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`. `observes`: there is no setter, so none is down.
    pub fn register(registry: &mut Registry, observes: bool) -> Self {
        let this = Self {
            readings: ReadingMetrics {
                power: POWER.create(registry),
                limit: LIMIT.create(registry),
                clock: CLOCK.create(registry),
                util: UTILIZATION.create(registry),
                parked: PARKED.create(registry),
                temperature: TEMPERATURE.create(registry),
                memory_errors: MEMORY_ERRORS.create(registry),
            },
            energy: EnergyMetrics {
                energy: ENERGY.create(registry),
                rest: REST.create(registry),
                saved: SAVED.create(registry),
                held: HELD.create(registry),
                shared: SHARED.create(registry),
                rest_effect: REST_EFFECT.create(registry),
            },
            health: HealthMetrics {
                state: STATE.create(registry),
                problem: PROBLEM.create(registry),
                xids: XIDS.create(registry),
                errors: NVML_ERRORS.create(registry),
            },
            setter: SetterMetrics {
                refusals: SETTER_REFUSALS.create(registry),
                up: if observes { Gauge::default() } else { SETTER_UP.create(registry) },
                lease_age: LEASE_AGE.create(registry),
                wake: WAKE
                    .register(registry, Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])),
            },
            runs: RunMetrics {
                seconds: RECONCILE.register(
                    registry,
                    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0]),
                ),
                nvml_calls: NVML_CALLS.create(registry),
                writes: WRITES.create(registry),
                kubelet_lists: KUBELET_LISTS.create(registry),
            },
        };
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// Records a sample of a GPU.
    pub fn sampled(&self, gpu: &GpuLabels, sample: &Sample, interval: &Interval, parked: u32) {
        if sample.power_mw > 0 {
            self.readings.power.get_or_create(gpu).set(f64::from(sample.power_mw) / 1000.0);
        }
        self.readings.limit.get_or_create(gpu).set(f64::from(sample.limit_mw) / 1000.0);
        self.readings.clock.get_or_create(gpu).set(f64::from(sample.clock_mhz) * 1e6);
        if let Some(percent) = sample.util_percent {
            self.readings.util.get_or_create(gpu).set(f64::from(percent) / 100.0);
        }
        self.readings.parked.get_or_create(gpu).set(i64::from(parked));
        self.energy.energy.get_or_create(gpu).inc_by(interval.joules);
        if let Some(degrees) = sample.temperature {
            self.readings.temperature.get_or_create(gpu).set(degrees.into());
        }
        if let Some(errors) = sample.memory.uncorrected {
            self.readings.memory_errors.get_or_create(gpu).set(i64::try_from(errors).unwrap_or(i64::MAX));
        }
        self.energy.rest.get_or_create(gpu).inc_by(interval.rest_seconds);
        self.energy.saved.get_or_create(gpu).inc_by(interval.saved_joules);
        if let Some(namespace) = &interval.namespace {
            let of = NamespaceLabels { job_namespace: namespace.clone(), gpu_type: gpu.gpu_type.clone() };
            self.energy.held.get_or_create(&of).inc_by(interval.joules);
        }
    }

    /// Removes the readings of a GPU that did not respond: stale values would pass for current ones.
    pub fn remove_readings(&self, gpu: &GpuLabels) {
        for family in [&self.readings.power, &self.readings.limit, &self.readings.clock, &self.readings.util]
        {
            family.remove(gpu);
        }
        for family in [&self.readings.parked, &self.readings.temperature, &self.readings.memory_errors] {
            family.remove(gpu);
        }
    }

    /// Adds an estimate of the energy that a namespace's pods used of a shared GPU, J.
    pub fn shared(&self, gpu: &GpuLabels, namespace: &str, joules: f64) {
        let of = NamespaceLabels { job_namespace: namespace.to_owned(), gpu_type: gpu.gpu_type.clone() };
        self.energy.shared.get_or_create(&of).inc_by(joules);
    }

    /// Sets the problems of a GPU, in place of those before. Reasons are a closed set.
    pub fn set_problems(&self, gpu: &GpuLabels, problems: &[GpuProblem]) {
        for reason in PROBLEMS {
            let of = ErrorLabels { uuid: gpu.uuid.clone(), gpu_type: gpu.gpu_type.clone(), reason };
            if problems.iter().any(|problem| problem.reason == reason) {
                self.health.problem.get_or_create(&of).set(1);
            } else {
                self.health.problem.remove(&of);
            }
        }
    }

    /// Counts an Xid error.
    pub fn xid(&self, gpu: &GpuLabels) {
        self.health.xids.get_or_create(gpu).inc();
    }

    /// Sets what rest was measured to save on GPUs of a type, W.
    pub fn set_rest_effect(&self, gpu_type: &str, context: bool, watts: f64) {
        let context = if context { "true" } else { "false" };
        self.energy
            .rest_effect
            .get_or_create(&RestLabels { gpu_type: gpu_type.to_owned(), context })
            .set(watts);
    }

    /// Sets the number of calls of the driver's library so far. It only rises.
    pub fn set_nvml_calls(&self, calls: u64) {
        self.runs.nvml_calls.inc_by(calls.saturating_sub(self.runs.nvml_calls.get()));
    }

    /// Counts a failed GPU read, with a reason from a closed set.
    pub fn failed(&self, gpu: &GpuLabels, reason: &'static str) {
        let of = ErrorLabels { uuid: gpu.uuid.clone(), gpu_type: gpu.gpu_type.clone(), reason };
        self.health.errors.get_or_create(&of).inc();
    }

    /// Counts a setting that the setter could not apply, with the setter's reason.
    pub fn setter_refused(&self, reason: &str) {
        let reason = REASONS.into_iter().find(|known| *known == reason).unwrap_or("other");
        self.setter.refusals.get_or_create(&[("reason", reason)]).inc();
    }

    /// Sets the state of a GPU.
    pub fn set_state(&self, gpu: &GpuLabels, state: &'static str) {
        for each in STATES {
            let of = StateLabels { uuid: gpu.uuid.clone(), gpu_type: gpu.gpu_type.clone(), state: each };
            self.health.state.get_or_create(&of).set(i64::from(each == state));
        }
    }

    /// Removes what was said of a GPU before its type was known: it would stay as it was last for ever.
    pub fn forget_untyped(&self, uuid: &str) {
        let (uuid, gpu_type) = (uuid.to_owned(), String::new());
        for state in STATES {
            self.health.state.remove(&StateLabels { uuid: uuid.clone(), gpu_type: String::new(), state });
        }
        for reason in PROBLEMS.into_iter().chain(REASONS) {
            let of = ErrorLabels { uuid: uuid.clone(), gpu_type: String::new(), reason };
            self.health.problem.remove(&of);
            self.health.errors.remove(&of);
        }
        self.health.xids.remove(&GpuLabels { uuid, gpu_type });
    }

    /// Counts a write of the status.
    pub fn status_written(&self, result: &'static str) {
        self.runs.writes.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a request to the kubelet.
    pub fn kubelet_listed(&self, succeeded: bool) {
        self.runs.kubelet_lists.get_or_create(&[("result", if succeeded { "ok" } else { "failed" })]).inc();
    }

    /// Sets the time since the last renewal of the Lease.
    pub fn set_lease_age(&self, age: Option<Duration>) {
        self.setter.lease_age.set(age.map_or(f64::INFINITY, |age| age.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GpuError, MemoryErrors};
    use andreas_runtime::testing::classic;
    use andreas_runtime::testing::{deviations, ill_named};
    use andreas_runtime::watch::WATCHES;

    #[test]
    fn the_list_holds_what_is_exposed_and_nothing_else() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, false);
        let gpu = GpuLabels { uuid: "GPU-1".into(), gpu_type: "A".into() };
        let interval = Interval { namespace: Some("team".into()), ..Interval::default() };
        let memory = MemoryErrors { uncorrected: Some(0), ..MemoryErrors::default() };
        let sample =
            Sample { power_mw: 1, util_percent: Some(1), temperature: Some(40), memory, ..Sample::default() };
        metrics.sampled(&gpu, &sample, &interval, 0);
        metrics.shared(&gpu, "team", 1.0);
        metrics.set_problems(&gpu, &crate::agent::health::problems(Some(&GpuError::Lost), None, None));
        metrics.xid(&gpu);
        metrics.set_rest_effect("A", true, 20.0);
        metrics.set_nvml_calls(7);
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
