//! The metrics of the agent: name, labels, help.

use andreas_runtime::metrics::{Metric, PROCESS};
use andreas_runtime::watch::WATCHES;

/// Labels of one GPU.
const GPU: &[&str] = &["uuid", "gpu_type"];

/// All metrics of the agent.
#[must_use]
pub fn all() -> Vec<Metric> {
    [OWN, WATCHES, PROCESS].concat()
}

andreas_runtime::metrics! {
    /// The agent's own.
    const OWN;

    POWER = gauge("andreas_gpu_power_watts", GPU, "Draw, by GPU");
    LIMIT = gauge("andreas_gpu_power_limit_watts", GPU, "Enforced power limit, by GPU");
    UTILIZATION = gauge("andreas_gpu_utilization_ratio", GPU,
        "Part of the last moments in which a kernel ran, by GPU");
    ENERGY = counter("andreas_gpu_energy_joules_total", GPU, "Energy drawn while the agent watched, by GPU");
    SAVED = counter("andreas_gpu_rest_saved_joules_total", GPU,
        "Estimate of the energy that rest saved: lowest draw seen awake and unheld, less the draw at rest");
    STATE = gauge("andreas_gpu_state", &["uuid", "gpu_type", "state"],
        "1 for the state a GPU is in: held, free, resting, unhealthy");
    HELD = counter("andreas_gpu_held_energy_joules_total", &["job_namespace", "gpu_type"],
        "Energy drawn while a pod of the namespace held the GPU");
    PROBLEM = gauge("andreas_gpu_problem", &["uuid", "gpu_type", "reason"],
        "1 while a GPU has this problem, as in the GpuNode's status");
    XIDS = counter("andreas_gpu_xid_errors_total", GPU,
        "Critical Xid errors that the driver reported, by GPU");
    REST_EFFECT = gauge("andreas_gpu_rest_effect_watts", &["gpu_type", "context"],
        "Draw awake less draw at rest when it was last measured, by GPU type and whether a process has a context");
    NVML_ERRORS = counter("andreas_agent_nvml_errors_total", &["uuid", "gpu_type", "reason"],
        "Failed reads of a GPU, by GPU and reason; hung: the driver did not answer in time");
    SETTER_REFUSALS = counter("andreas_agent_setter_refusals_total", &["reason"],
        "Settings that the setter could not apply, by reason, counted once per reconcile");
    SETTER_UP = gauge("andreas_agent_setter_up", &[],
        "1 while the setter answers; not there where an agent only observes");
}
