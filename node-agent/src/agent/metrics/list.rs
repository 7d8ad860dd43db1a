//! The metrics of the agent: name, labels, help.

use andreas_runtime::metrics::{Metric, PROCESS};
use andreas_runtime::watch::WATCHES;

pub(super) const POWER: Metric = Metric::gauge("andreas_gpu_power_watts", GPU, "Draw, by GPU");
pub(super) const LIMIT: Metric =
    Metric::gauge("andreas_gpu_power_limit_watts", GPU, "Enforced power limit, by GPU");
pub(super) const CLOCK: Metric = Metric::gauge("andreas_gpu_sm_clock_hertz", GPU, "SM clock, by GPU");
pub(super) const UTILIZATION: Metric = Metric::gauge(
    "andreas_gpu_utilization_ratio",
    GPU,
    "Part of the last moments in which a kernel ran, by GPU",
);
pub(super) const PARKED: Metric = Metric::gauge(
    "andreas_gpu_parked_contexts",
    GPU,
    "Processes with a context on a GPU that no pod holds, by GPU",
);
pub(super) const ENERGY: Metric =
    Metric::counter("andreas_gpu_energy_joules_total", GPU, "Energy drawn while the agent watched, by GPU");
pub(super) const REST: Metric =
    Metric::counter("andreas_gpu_rest_seconds_total", GPU, "Time at rest, by GPU");
pub(super) const SAVED: Metric = Metric::counter(
    "andreas_gpu_rest_saved_joules_total",
    GPU,
    "Estimate of the energy that rest saved: lowest draw seen awake and unheld, less the draw at rest",
);
pub(super) const STATE: Metric = Metric::gauge(
    "andreas_gpu_state",
    &["uuid", "gpu_type", "state"],
    "1 for the state a GPU is in: held, free, resting, unhealthy",
);
pub(super) const HELD: Metric = Metric::counter(
    "andreas_gpu_held_energy_joules_total",
    &["job_namespace", "gpu_type"],
    "Energy drawn while a pod of the namespace held the GPU",
);
pub(super) const SHARED: Metric = Metric::counter(
    "andreas_gpu_shared_energy_estimate_joules_total",
    &["job_namespace", "gpu_type"],
    "Estimate of the energy that the namespace's pods used of GPUs that several pods share, by their slices",
);
pub(super) const TEMPERATURE: Metric =
    Metric::gauge("andreas_gpu_temperature_celsius", GPU, "Temperature of the die, degrees Celsius, by GPU");
pub(super) const MEMORY_ERRORS: Metric = Metric::gauge(
    "andreas_gpu_uncorrected_memory_errors",
    GPU,
    "Uncorrected ECC errors since the driver was loaded, by GPU",
);
pub(super) const PROBLEM: Metric = Metric::gauge(
    "andreas_gpu_problem",
    &["uuid", "gpu_type", "reason"],
    "1 while a GPU has this problem, as in the GpuNode's status",
);
pub(super) const XIDS: Metric = Metric::counter(
    "andreas_gpu_xid_errors_total",
    GPU,
    "Critical Xid errors that the driver reported, by GPU",
);
pub(super) const REST_EFFECT: Metric = Metric::gauge(
    "andreas_gpu_rest_effect_watts",
    &["gpu_type", "context"],
    "Draw awake less draw at rest when it was last measured, by GPU type and whether a process has a context",
);
pub(super) const HOST_POWER: Metric = Metric::gauge(
    "andreas_host_power_watts",
    &["source"],
    "Draw of the machine beside its GPUs, by what the source covers",
);
pub(super) const HOST_ENERGY: Metric = Metric::counter(
    "andreas_host_energy_joules_total",
    &["source"],
    "Energy of the machine beside its GPUs while the agent watched, by what the source covers",
);
pub(super) const NVML_CALLS: Metric =
    Metric::counter("andreas_agent_nvml_calls_total", &[], "Calls of NVIDIA's management library");
pub(super) const NVML_ERRORS: Metric = Metric::counter(
    "andreas_agent_nvml_errors_total",
    &["uuid", "gpu_type", "reason"],
    "Failed reads of a GPU, by GPU and reason; hung: the driver did not answer in time",
);
pub(super) const SETTER_REFUSALS: Metric = Metric::counter(
    "andreas_agent_setter_refusals_total",
    &["reason"],
    "Settings that the setter could not apply, by reason, counted once per reconcile",
);
pub(super) const WRITES: Metric = Metric::counter(
    "andreas_agent_status_writes_total",
    &["result"],
    "Writes of the GpuNode's status, by result",
);
pub(super) const KUBELET_LISTS: Metric = Metric::counter(
    "andreas_agent_podresources_lists_total",
    &["result"],
    "Requests to the kubelet for the GPUs of each pod, by result",
);
pub(super) const SETTER_UP: Metric = Metric::gauge(
    "andreas_agent_setter_up",
    &[],
    "1 while the setter answers; not there where an agent only observes",
);
pub(super) const LEASE_AGE: Metric = Metric::gauge(
    "andreas_agent_lease_age_seconds",
    &[],
    "Time since the operator's leader Lease was last seen renewed",
);
pub(super) const RECONCILE: Metric = Metric::histogram(
    "andreas_agent_reconcile_duration_seconds",
    &[],
    "Time of one reconcile: observe, decide, set",
);
pub(super) const WAKE: Metric = Metric::histogram(
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
        SHARED,
        TEMPERATURE,
        MEMORY_ERRORS,
        PROBLEM,
        XIDS,
        REST_EFFECT,
        HOST_POWER,
        HOST_ENERGY,
        NVML_CALLS,
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
