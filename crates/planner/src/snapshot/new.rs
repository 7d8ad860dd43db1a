//! The defaults of a snapshot's parts, as its JSON has them.

use std::sync::Arc;

use andreas_model::{CostRate, GpuCount, GpuType, JobId, NamespaceName, NodeName, Seconds, Time, Watts};

use super::{Estimate, Job, JobState, LimitsCount, Node, Preemption, Resources, Worker};

impl Job {
    /// A waiting job that may be moved, without deadline, limits or needs besides GPUs.
    pub fn new(
        id: JobId,
        namespace: NamespaceName,
        submit: Time,
        weight: CostRate,
        epochs_left: f64,
        estimates: Arc<[Estimate]>,
    ) -> Self {
        Self {
            id,
            namespace,
            submit,
            deadline: None,
            weight,
            epochs_left,
            estimates,
            spread: Vec::new(),
            limits: Vec::new(),
            limits_count: LimitsCount::default(),
            requested_gpus: None,
            worker: Worker::default(),
            candidates: None,
            forbidden: Vec::new(),
            refused_workers: Vec::new(),
            preemption: Preemption::default(),
            movable: true,
            grace: Seconds::ZERO,
            min_run: Seconds::ZERO,
            lost: Seconds::ZERO,
            usually_lost: None,
            unknown: None,
            restart: None,
            restarts_last_day: 0,
            promised: false,
            state: JobState::Waiting,
        }
    }
}

impl Node {
    /// A node whose GPUs are all free, and that draws nothing besides them.
    pub fn new(name: NodeName, gpu_type: GpuType, gpus: GpuCount) -> Self {
        Self {
            name,
            gpu_type,
            gpus,
            boards: GpuCount(0),
            free_gpus: gpus,
            host_idle: Watts::ZERO,
            host_busy: Watts::ZERO,
            sleep: None,
            foreign_power: None,
            gang_class: 0,
            free: Resources::default(),
        }
    }
}

impl Estimate {
    /// Certain times, and the same watts for cost and budget.
    pub fn new(gpu_type: GpuType, gpus: GpuCount, epoch: Seconds, power: Watts) -> Self {
        Self { gpu_type, gpus, epoch, power, draw: None, rel_std: 0.0 }
    }
}
