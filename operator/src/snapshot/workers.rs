//! Cache of workers' specs between plans: many jobs have equal workers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use andreas_api::slim::SlimTrainingJob;

use super::worker::WorkerSpecs;
use crate::lifecycle::pods::{self, WorkerDigest};

/// Maximum cached specs; beyond that all are dropped.
const MAX_CACHED_SPECS: usize = 50_000;

/// Specs of jobs' workers.
#[derive(Default)]
pub struct Workers {
    /// By the job's UID and its maximum GPUs.
    by_job: HashMap<(String, i32), Arc<WorkerSpecs>>,
    /// The same by content.
    alike: HashMap<WorkerDigest, Weak<WorkerSpecs>>,
}

impl Workers {
    /// The specs of a job's worker.
    pub fn specs_of(&mut self, job: &SlimTrainingJob) -> Arc<WorkerSpecs> {
        let (uid, most) = (job.metadata.uid.clone().unwrap_or_default(), job.spec.gpus.max_total());
        if self.by_job.len() > MAX_CACHED_SPECS {
            self.by_job.clear();
            self.alike.retain(|_, specs| specs.strong_count() > 0);
        }
        // The template never changes; the range of GPUs may.
        let alike = &mut self.alike;
        let specs = self.by_job.entry((uid, most)).or_insert_with(|| {
            let Some(digest) = pods::worker_digest(&job.spec, most) else {
                return Arc::new(WorkerSpecs::from_job(job));
            };
            let known = alike.get(&digest).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let specs = Arc::new(WorkerSpecs::from_job(job));
                alike.insert(digest, Arc::downgrade(&specs));
                specs
            })
        });
        Arc::clone(specs)
    }
}
