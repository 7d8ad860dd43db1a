//! State that a policy carries between decisions: service received, and since when jobs wait.
//!
//! A [`Scheduler`](crate::Scheduler) keeps it. The caller may save it and go on in another process.

use std::collections::BTreeMap;

use andreas_model::{GpuType, JobId, NamespaceName, Seconds, Time};
use serde::{Deserialize, Serialize};

/// Service up to an instant, and holdings since then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The instant.
    pub now: Time,
    /// End of the current round, for policies with rounds.
    #[serde(default)]
    pub round_ends: Option<Time>,
    /// The jobs at that instant.
    #[serde(default)]
    pub jobs: BTreeMap<JobId, JobMemory>,
    /// GPU-seconds per ticket received by a namespace, by GPU type.
    #[serde(default)]
    pub namespaces: BTreeMap<NamespaceName, BTreeMap<GpuType, Seconds>>,
}

/// State of one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobMemory {
    /// GPUs it holds.
    #[serde(default)]
    pub gpus: u32,
    /// Their type; `None` if it waits.
    #[serde(default)]
    pub gpu_type: Option<GpuType>,
    /// Its namespace; `None` counts as no namespace.
    #[serde(default)]
    pub namespace: Option<NamespaceName>,
    /// GPU-seconds received since the job last counted as new.
    #[serde(default)]
    pub service: Seconds,
    /// Seconds run since then.
    #[serde(default)]
    pub ran: Seconds,
    /// Start of its waiting time.
    #[serde(default)]
    pub waits_since: Option<Time>,
    /// Whether its deadline was accepted; `None` if not yet decided.
    #[serde(default)]
    pub admitted: Option<bool>,
    /// Seconds run, by GPU type.
    #[serde(default)]
    pub received: BTreeMap<GpuType, Seconds>,
}
