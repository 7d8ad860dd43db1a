//! What a policy must know of the past: who had how much, and since when somebody waits.
//!
//! Nothing here is asked of the caller but to give a plan's memory back with the next snapshot, as with prices.

use std::collections::BTreeMap;

use andreas_core::{GpuType, JobId, NamespaceName, Seconds, Time};
use serde::{Deserialize, Serialize};

use crate::instance::{Assignment, Instance};

/// What has been given until an instant, and what is held since.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// The instant.
    pub now: Time,
    /// When the round ends, of a policy that works in rounds.
    #[serde(default)]
    pub round_ends: Option<Time>,
    /// Jobs that were there.
    #[serde(default)]
    pub jobs: BTreeMap<JobId, JobMemory>,
    /// GPU-seconds per ticket that a namespace has had, by GPU type.
    #[serde(default)]
    pub namespaces: BTreeMap<NamespaceName, BTreeMap<GpuType, Seconds>>,
}

/// What is remembered of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobMemory {
    /// GPUs it holds.
    #[serde(default)]
    pub gpus: u32,
    /// Of which type; none: it waits.
    #[serde(default)]
    pub gpu_type: Option<GpuType>,
    /// Its namespace; none: as if it had none.
    #[serde(default)]
    pub namespace: Option<NamespaceName>,
    /// GPU-seconds it has had (since it was last taken as new).
    #[serde(default)]
    pub service: Seconds,
    /// Seconds it has run (since then).
    #[serde(default)]
    pub ran: Seconds,
    /// Since when it waits.
    #[serde(default)]
    pub waits_since: Option<Time>,
    /// Whether its deadline was promised; none: nobody asked.
    #[serde(default)]
    pub admitted: Option<bool>,
    /// Seconds it has run, by GPU type.
    #[serde(default)]
    pub received: BTreeMap<GpuType, Seconds>,
}

impl Memory {
    /// What is remembered now: what was held in between has been had.
    pub(crate) fn of(instance: &Instance<'_>) -> Self {
        let mut memory = instance.snapshot.memory.clone().unwrap_or_default();
        let now = instance.snapshot.now;
        let passed = Seconds((now - memory.now).0.max(0.0));
        memory.now = now;
        for job in memory.jobs.values_mut() {
            let Some(kind) = &job.gpu_type else { continue };
            let had = passed * f64::from(job.gpus);
            job.service = (job.service + had).min(MOST);
            job.ran = (job.ran + passed).min(MOST);
            add(job.received.entry(kind.clone()).or_default(), passed);
            let Some(namespace) = &job.namespace else { continue };
            let share = had / tickets(instance, namespace);
            add(
                memory.namespaces.entry(namespace.clone()).or_default().entry(kind.clone()).or_default(),
                share,
            );
        }
        memory
    }

    /// What is remembered of a job.
    pub(crate) fn job(&self, instance: &Instance<'_>, job: usize) -> Option<&JobMemory> {
        self.jobs.get(&instance.jobs[job].job.id)
    }

    /// What is to be remembered after a decision: jobs that are gone are forgotten, and namespaces without jobs.
    pub(crate) fn after(mut self, instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> Self {
        let mut jobs = BTreeMap::new();
        let mut namespaces = BTreeMap::new();
        for (data, assignment) in instance.jobs.iter().zip(assignments) {
            let mut memory = self.jobs.remove(&data.job.id).unwrap_or_default();
            let config = assignment.as_ref().map(|assignment| &data.configs[assignment.config]);
            memory.gpus = config.map_or(0, |c| u32::try_from(c.total_gpus()).unwrap_or(u32::MAX));
            memory.gpu_type = config.map(|c| instance.types[c.kind].name.clone());
            memory.namespace = Some(data.job.namespace.clone());
            memory.waits_since = match config {
                Some(_) => None,
                None => memory.waits_since.or(Some(self.now)),
            };
            jobs.insert(data.job.id.clone(), memory);
            if let Some(had) = self.namespaces.remove(&data.job.namespace) {
                namespaces.insert(data.job.namespace.clone(), had);
            }
        }
        Self { jobs, namespaces, ..self }
    }
}

/// Counters stop at what a snapshot may say.
const MOST: Seconds = Seconds(1e15);

fn add(counter: &mut Seconds, more: Seconds) {
    *counter = (*counter + more).min(MOST);
}

/// Tickets of a namespace: one, unless the snapshot says otherwise.
pub(crate) fn tickets(instance: &Instance<'_>, namespace: &NamespaceName) -> f64 {
    instance.snapshot.namespaces.iter().find(|n| n.name == *namespace).map_or(1.0, |n| n.tickets)
}
