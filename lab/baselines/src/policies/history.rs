//! Brings the memory up to date: at the start of a decision and after it.

use std::collections::BTreeMap;

use andreas_model::Seconds;
use andreas_planner::policy::{Assignment, Instance};

use crate::memory::{JobMemory, Memory};
use crate::tickets::Tickets;

impl Memory {
    /// The memory at this instant: that of the last decision, with the service received since.
    pub(super) fn updated(instance: &Instance<'_>, tickets: &Tickets, last: Option<&Self>) -> Self {
        let mut memory = last.cloned().unwrap_or_default();
        let now = instance.snapshot.now;
        let passed = Seconds((now - memory.now).0.max(0.0));
        memory.now = now;
        for job in memory.jobs.values_mut() {
            let Some(kind) = &job.gpu_type else { continue };
            let had = passed * f64::from(job.gpus);
            job.service = (job.service + had).min(MAX_COUNTER);
            job.ran = (job.ran + passed).min(MAX_COUNTER);
            add(job.received.entry(kind.clone()).or_default(), passed);
            let Some(namespace) = &job.namespace else { continue };
            let share = had / tickets.for_namespace(namespace);
            add(
                memory.namespaces.entry(namespace.clone()).or_default().entry(kind.clone()).or_default(),
                share,
            );
        }
        memory
    }

    /// State of one job.
    pub(super) fn job(&self, instance: &Instance<'_>, job: usize) -> Option<&JobMemory> {
        self.jobs.get(&instance.jobs[job].job.id)
    }

    /// The memory after a decision, without finished jobs and without namespaces that have no jobs.
    pub(super) fn after(mut self, instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> Self {
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

/// Maximum of a counter, the largest valid value of a snapshot.
const MAX_COUNTER: Seconds = Seconds(1e15);

fn add(counter: &mut Seconds, more: Seconds) {
    *counter = (*counter + more).min(MAX_COUNTER);
}
