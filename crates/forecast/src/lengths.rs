//! Random lengths of runs: a standard normal number for each job and future.
//!
//! Stratified: over the futures each job gets one number of every quantile range, in an order of its own. So a
//! few futures cover the whole spread of each job.

use andreas_model::normal::quantile;
use andreas_model::stable_hash;
use andreas_planner::Job;
use andreas_planner::policy::Random;

/// Standard normal numbers by job and future.
pub(crate) struct Lengths {
    futures: usize,
    normals: Vec<f64>,
}

impl Lengths {
    /// Draws for all jobs, in their order. A job's draws depend on its name and the seed alone.
    pub fn new(jobs: &[Job], futures: usize, seed: u64) -> Self {
        let mut normals = Vec::with_capacity(futures * jobs.len());
        let mut order: Vec<usize> = Vec::with_capacity(futures);
        for job in jobs {
            let mut random = Random::new(seed ^ stable_hash(job.id.as_str()));
            order.clear();
            order.extend(0..futures);
            for i in (1..futures).rev() {
                order.swap(i, random.below(i + 1));
            }
            let within = |range: usize, random: &mut Random| {
                (range as f64 + random.unit_interval().clamp(0.001, 0.999)) / futures as f64
            };
            normals.extend(order.iter().map(|range| quantile(within(*range, &mut random))));
        }
        Self { futures, normals }
    }

    /// Standard normal draw of a job, by its index, in a future.
    pub fn normal(&self, job: usize, future: usize) -> f64 {
        self.normals[job * self.futures + future]
    }
}
