//! Workers' specs of a plan's jobs, kept until the next: many jobs have equal workers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use andreas_api::slim::SlimTrainingJob;
use andreas_lifecycle::pods::{self, WorkerDigest};

use super::worker::WorkerSpecs;

/// Specs of jobs' workers.
#[derive(Default)]
pub struct Workers {
    /// By the job's UID: its maximum GPUs, its specs, and whether this plan has asked for them.
    by_job: HashMap<String, (i32, Arc<WorkerSpecs>, bool)>,
    /// The same by content.
    alike: HashMap<WorkerDigest, Weak<WorkerSpecs>>,
}

impl Workers {
    /// The specs of a job's worker.
    pub fn specs_of(&mut self, job: &SlimTrainingJob) -> Arc<WorkerSpecs> {
        let (uid, most) = (job.metadata.uid.clone().unwrap_or_default(), job.spec.gpus.max_total());
        // The template never changes; the range of GPUs may.
        if let Some((of, specs, asked)) = self.by_job.get_mut(&uid)
            && *of == most
        {
            *asked = true;
            return Arc::clone(specs);
        }
        let digest = pods::worker_digest(&job.spec, most);
        let known = digest.and_then(|digest| self.alike.get(&digest)?.upgrade());
        let specs = known.unwrap_or_else(|| Arc::new(WorkerSpecs::from_job(job)));
        if let Some(digest) = digest {
            self.alike.insert(digest, Arc::downgrade(&specs));
        }
        self.by_job.insert(uid, (most, Arc::clone(&specs), true));
        specs
    }

    /// The plan has all its jobs: the specs of others are forgotten.
    pub fn end(&mut self) {
        self.by_job.retain(|_, (_, _, asked)| std::mem::take(asked));
        self.alike.retain(|_, specs| specs.strong_count() > 0);
    }
}
