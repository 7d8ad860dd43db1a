//! What the agent counts. Labels: GPU by UUID and type, namespace of the holder; never a pod's name.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::energy::Interval;
use crate::gpu::Sample;

/// A gauge of floats.
pub type Float = Gauge<f64, AtomicU64>;
type Sum = Counter<f64, AtomicU64>;

/// One GPU.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OfGpu {
    /// UUID.
    pub uuid: String,
    /// Type: the product, as the node's label writes it.
    pub r#type: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfState {
    uuid: String,
    r#type: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfNamespace {
    namespace: String,
    r#type: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfResult {
    result: &'static str,
}

/// States of a GPU, as labels.
pub const STATES: [&str; 4] = ["held", "free", "resting", "unhealthy"];

/// All metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    power: Family<OfGpu, Float>,
    limit: Family<OfGpu, Float>,
    clock: Family<OfGpu, Float>,
    util: Family<OfGpu, Float>,
    parked: Family<OfGpu, Gauge>,
    energy: Family<OfGpu, Sum>,
    rest: Family<OfGpu, Sum>,
    saved: Family<OfGpu, Sum>,
    state: Family<OfState, Gauge>,
    held: Family<OfNamespace, Sum>,
    writes: Family<OfResult, Counter>,
    looks: Family<OfResult, Counter>,
    /// 1 while the setter answers.
    pub setter_up: Gauge,
    /// Seconds since the leader Lease was seen to move; infinite when never.
    pub lease_age: Float,
    /// Seconds that one round took.
    pub round: Histogram,
    /// Seconds from a raised wake to its acknowledgement.
    pub wake: Histogram,
}

impl Metrics {
    /// Makes the metrics and adds them to `registry`.
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
            writes: Family::default(),
            looks: Family::default(),
            setter_up: Gauge::default(),
            lease_age: Float::default(),
            round: Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0]),
            wake: Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
        };
        let hertz = || Unit::Other("hertz".into());
        let watts = || Unit::Other("watts".into());
        registry.register_with_unit("andreas_gpu_power", "Draw, by GPU", watts(), this.power.clone());
        registry.register_with_unit(
            "andreas_gpu_power_limit",
            "Enforced power limit, by GPU",
            watts(),
            this.limit.clone(),
        );
        registry.register_with_unit("andreas_gpu_sm_clock", "SM clock, by GPU", hertz(), this.clock.clone());
        registry.register_with_unit(
            "andreas_gpu_utilization",
            "Part of the last moments in which a kernel ran, by GPU",
            Unit::Other("ratio".into()),
            this.util.clone(),
        );
        registry.register(
            "andreas_gpu_parked_contexts",
            "Processes with a context on a GPU that no pod holds, by GPU",
            this.parked.clone(),
        );
        registry.register_with_unit(
            "andreas_gpu_energy",
            "Energy drawn while the agent watched, by GPU",
            Unit::Joules,
            this.energy.clone(),
        );
        registry.register_with_unit(
            "andreas_gpu_rest",
            "Time at rest, by GPU",
            Unit::Seconds,
            this.rest.clone(),
        );
        registry.register_with_unit(
            "andreas_gpu_rest_saved",
            "Estimate of the energy that rest saved: lowest draw seen awake and unheld, less the draw at rest",
            Unit::Joules,
            this.saved.clone(),
        );
        registry.register("andreas_gpu_state", "1 for the state a GPU is in", this.state.clone());
        registry.register_with_unit(
            "andreas_gpu_held_energy",
            "Energy drawn while a pod of the namespace held the GPU",
            Unit::Joules,
            this.held.clone(),
        );
        registry.register(
            "andreas_agent_status_writes",
            "Writes of the GpuNode's status, by result",
            this.writes.clone(),
        );
        registry.register(
            "andreas_agent_podresources_lists",
            "Questions to the kubelet which pod holds what, by result",
            this.looks.clone(),
        );
        registry.register("andreas_agent_setter_up", "1 while the setter answers", this.setter_up.clone());
        registry.register_with_unit(
            "andreas_agent_lease_age",
            "Time since the operator's leader Lease was seen to move",
            Unit::Seconds,
            this.lease_age.clone(),
        );
        registry.register_with_unit(
            "andreas_agent_round_duration",
            "Time of one round: look, decide, set",
            Unit::Seconds,
            this.round.clone(),
        );
        registry.register_with_unit(
            "andreas_agent_wake_duration",
            "Time from a raised wake to its acknowledgement",
            Unit::Seconds,
            this.wake.clone(),
        );
        this
    }

    /// One look at a GPU.
    pub fn looked(&self, gpu: &OfGpu, sample: &Sample, interval: &Interval, parked: u32) {
        self.power.get_or_create(gpu).set(f64::from(sample.power_mw) / 1000.0);
        self.limit.get_or_create(gpu).set(f64::from(sample.limit_mw) / 1000.0);
        self.clock.get_or_create(gpu).set(f64::from(sample.clock_mhz) * 1e6);
        self.util.get_or_create(gpu).set(f64::from(sample.util_percent) / 100.0);
        self.parked.get_or_create(gpu).set(i64::from(parked));
        self.energy.get_or_create(gpu).inc_by(interval.joules);
        self.rest.get_or_create(gpu).inc_by(interval.rest_seconds);
        self.saved.get_or_create(gpu).inc_by(interval.saved_joules);
        if let Some(namespace) = &interval.namespace {
            let of = OfNamespace { namespace: namespace.clone(), r#type: gpu.r#type.clone() };
            self.held.get_or_create(&of).inc_by(interval.joules);
        }
    }

    /// A GPU gave no answer: old figures would pass for new ones.
    pub fn unseen(&self, gpu: &OfGpu) {
        for family in [&self.power, &self.limit, &self.clock, &self.util] {
            family.remove(gpu);
        }
        self.parked.remove(gpu);
    }

    /// The state a GPU is in.
    pub fn state(&self, gpu: &OfGpu, state: &'static str) {
        for each in STATES {
            let of = OfState { uuid: gpu.uuid.clone(), r#type: gpu.r#type.clone(), state: each };
            self.state.get_or_create(&of).set(i64::from(each == state));
        }
    }

    /// A write of the status.
    pub fn wrote(&self, result: &'static str) {
        self.writes.get_or_create(&OfResult { result }).inc();
    }

    /// A question to the kubelet.
    pub fn asked(&self, answered: bool) {
        self.looks.get_or_create(&OfResult { result: if answered { "ok" } else { "failed" } }).inc();
    }

    /// Since when the Lease stands still.
    pub fn lease(&self, age: Option<Duration>) {
        self.lease_age.set(age.map_or(f64::INFINITY, |age| age.as_secs_f64()));
    }
}
