//! What a run came to: the figures of the demo's last lines, computed from the objects it leaves behind.

use andreas_api::phase::Phase;
use andreas_api::slim::SlimTrainingJob;
use jiff::Timestamp;
use serde::Serialize;

/// Figures of a run.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Summary {
    /// TrainingJobs applied.
    pub jobs: usize,
    /// Those that succeeded.
    pub finished: usize,
    /// Those done after their deadline, or not done.
    pub late: usize,
    /// Sum of weight x seconds late.
    pub weighted_tardiness: f64,
    /// Mean time from creation to completion, s.
    pub mean_turnaround_s: f64,
    /// Energy of all attempts, kWh.
    pub energy_kwh: f64,
    /// Price of energy, lateness and turnaround, in the policy's currency.
    pub cost: f64,
    /// GPU hours in low power; 0 as long as no node agent rests GPUs.
    pub gpu_hours_at_rest: f64,
    /// Times that a run was stopped and went on later.
    pub restarts: i64,
    /// Instants seen at which the cluster's budgeted power was above its budget.
    pub budget_violations: u64,
    /// Pods of TrainingJobs bound by our extender.
    pub pods_bound_by_extender: usize,
    /// Pods of TrainingJobs bound at all.
    pub pods_bound: usize,
    /// From the first apply to the last end, s.
    pub wall_s: f64,
}

impl Summary {
    /// The figures that follow from the objects; what must be watched or audited is left at zero.
    pub fn of(jobs: &[SlimTrainingJob]) -> Self {
        let mut summary = Summary { jobs: jobs.len(), ..Summary::default() };
        let mut turnaround = 0.0;
        for job in jobs {
            let Some(status) = &job.status else {
                summary.late += 1;
                continue;
            };
            let consumption = status.consumption.clone().unwrap_or_default();
            summary.energy_kwh += consumption.joules as f64 / 3.6e6;
            summary.cost += (consumption.energy_micros + consumption.lateness_micros) as f64 / 1e6;
            summary.restarts += i64::from(status.restarts);
            let completed = status.completion_time.as_ref().filter(|_| status.phase == Phase::Succeeded);
            let Some(completed) = completed else {
                summary.late += 1;
                continue;
            };
            summary.finished += 1;
            if let Some(created) = &job.metadata.creation_timestamp {
                turnaround += seconds(completed.0, created.0);
            }
            if let Some(deadline) = &status.deadline {
                let late = seconds(completed.0, deadline.0);
                if late > 0.0 {
                    summary.late += 1;
                    summary.weighted_tardiness += late * f64::from(job.spec.weight);
                }
            }
        }
        if summary.finished > 0 {
            summary.mean_turnaround_s = turnaround / summary.finished as f64;
        }
        summary
    }

    /// The figures as lines for people.
    pub fn lines(&self) -> Vec<String> {
        vec![
            format!("jobs finished         {} of {}", self.finished, self.jobs),
            format!("late                  {}", self.late),
            format!("weighted tardiness    {:.0} s", self.weighted_tardiness),
            format!("mean turnaround       {:.1} s", self.mean_turnaround_s),
            format!("energy                {:.3} kWh", self.energy_kwh),
            format!("cost                  {:.4}", self.cost),
            format!("restarts              {}", self.restarts),
            format!("budget violations     {}", self.budget_violations),
            format!(
                "pods bound            {} of {} by the extender",
                self.pods_bound_by_extender, self.pods_bound
            ),
            format!("GPU hours at rest     {:.2}", self.gpu_hours_at_rest),
            format!("wall time             {:.1} s", self.wall_s),
        ]
    }
}

fn seconds(later: Timestamp, earlier: Timestamp) -> f64 {
    later.duration_since(earlier).as_secs_f64()
}
