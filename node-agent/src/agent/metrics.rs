//! Metrics of the agent. Labels: GPU by UUID and type, namespace of the holder; never a pod's name.

use std::sync::atomic::AtomicU64;

use andreas_api::gpu_node::GpuProblem;
use andreas_runtime::metrics::{Labels, register_process};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::energy::Interval;
use super::health::PROBLEMS;
use crate::gpu::Sample;

mod list;

pub use list::all;
use list::{
    ENERGY, HELD, LIMIT, NVML_ERRORS, POWER, PROBLEM, REST_EFFECT, SAVED, SETTER_REFUSALS, SETTER_UP, STATE,
    UTILIZATION, XIDS,
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
    util: Family<GpuLabels, Float>,
}

/// Energy of GPUs, and what rest saves.
#[derive(Clone, Debug)]
pub struct EnergyMetrics {
    energy: Family<GpuLabels, Sum>,
    saved: Family<GpuLabels, Sum>,
    held: Family<NamespaceLabels, Sum>,
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

/// The setter.
#[derive(Clone, Debug)]
pub struct SetterMetrics {
    refusals: Family<Labels<1>, Counter>,
    /// 1 while the setter responds.
    pub up: Gauge,
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
    /// The setter.
    pub setter: SetterMetrics,
}

impl Metrics {
    /// Creates the metrics and adds them to `registry`. `observes`: there is no setter, so none is down.
    pub fn register(registry: &mut Registry, observes: bool) -> Self {
        let this = Self {
            readings: ReadingMetrics {
                power: POWER.create(registry),
                limit: LIMIT.create(registry),
                util: UTILIZATION.create(registry),
            },
            energy: EnergyMetrics {
                energy: ENERGY.create(registry),
                saved: SAVED.create(registry),
                held: HELD.create(registry),
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
            },
        };
        register_process(registry, env!("CARGO_PKG_VERSION"));
        this
    }

    /// Records a sample of a GPU.
    pub fn sampled(&self, gpu: &GpuLabels, sample: &Sample, interval: &Interval) {
        let set = |family: &Family<GpuLabels, Float>, value: Option<u32>, unit: f64| match value {
            Some(value) => drop(family.get_or_create(gpu).set(f64::from(value) / unit)),
            None => drop(family.remove(gpu)),
        };
        set(&self.readings.power, sample.power_mw, 1000.0);
        set(&self.readings.limit, sample.limit_mw, 1000.0);
        set(&self.readings.util, sample.util_percent, 100.0);
        let Some(joules) = interval.joules else { return };
        self.energy.energy.get_or_create(gpu).inc_by(joules);
        self.energy.saved.get_or_create(gpu).inc_by(interval.saved_joules);
        if let Some(namespace) = &interval.namespace {
            let of = NamespaceLabels { job_namespace: namespace.clone(), gpu_type: gpu.gpu_type.clone() };
            self.energy.held.get_or_create(&of).inc_by(joules);
        }
    }

    /// Removes the readings of a GPU that did not respond: stale values would pass for current ones.
    pub fn remove_readings(&self, gpu: &GpuLabels) {
        for family in [&self.readings.power, &self.readings.limit, &self.readings.util] {
            family.remove(gpu);
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuError;
    use andreas_runtime::testing::classic;
    use andreas_runtime::testing::{deviations, ill_named};
    use andreas_runtime::watch::WATCHES;

    #[test]
    fn the_list_holds_what_is_exposed_and_nothing_else() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, false);
        let gpu = GpuLabels { uuid: "GPU-1".into(), gpu_type: "A".into() };
        let interval = Interval { namespace: Some("team".into()), joules: Some(1.0), ..Interval::default() };
        let sample =
            Sample { power_mw: Some(1), limit_mw: Some(1), util_percent: Some(1), ..Sample::default() };
        metrics.sampled(&gpu, &sample, &interval);
        metrics.set_problems(
            &gpu,
            &crate::agent::health::problems(crate::agent::health::Findings {
                error: Some(&GpuError::Lost),
                ..Default::default()
            }),
        );
        metrics.xid(&gpu);
        metrics.set_rest_effect("A", true, 20.0);
        metrics.set_state(&gpu, "held");
        metrics.failed(&gpu, GpuError::Hung.reason());
        metrics.setter_refused(GpuError::NoPermission.reason());
        metrics.setter_refused("a reason outside the set");
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
