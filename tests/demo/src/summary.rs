//! What a run came to: the figures of the demo's last lines, computed from the objects it leaves behind.

use std::collections::BTreeMap;

use andreas_api::phase::Phase;
use andreas_api::slim::SlimTrainingJob;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Prices that hold where the policy names none: currency per kWh, and the PUE.
pub(crate) const PRICE_PER_KWH: f64 = 0.2;
pub(crate) const PUE: f64 = 1.3;

/// Figures of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// TrainingJobs applied.
    pub jobs: usize,
    /// Those that succeeded.
    pub finished: usize,
    /// Nodes with a kubelet and containers; 0: the nodes were pretend ones.
    pub real_nodes: usize,
    /// Those done after their deadline, or not done.
    pub late: usize,
    /// Sum of weight x seconds late.
    pub weighted_tardiness: f64,
    /// Mean time from creation to completion, s.
    pub mean_turnaround_s: f64,
    /// Energy of the GPUs of all attempts, kWh.
    pub energy_kwh: f64,
    /// Energy of nodes beside their GPUs while they had a job, kWh.
    pub host_kwh: f64,
    /// What jobs are billed for of it, kWh: each for the GPUs that it held, while all its members ran.
    #[serde(default)]
    pub billed_host_kwh: f64,
    /// Price of both energies, lateness and turnaround, in the policy's currency.
    pub cost: f64,
    /// GPU hours in low power, by the nodes' drivers.
    pub gpu_hours_at_rest: f64,
    /// What rest saved by the node agents' own estimate, J. Nothing lowers the draw of a GPU without a context.
    pub joules_saved_by_rest: f64,
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
    /// Time in the system of each job that succeeded, s, by its name.
    #[serde(skip)]
    pub turnarounds: BTreeMap<String, f64>,
    /// The same arrivals under other methods, replayed through the planner without a cluster.
    pub baselines: BTreeMap<String, Baseline>,
}

/// Figures of a replay, named as those of the run.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Baseline {
    /// Whether no pod ran.
    pub replayed: bool,
    /// Jobs that ended.
    pub finished: usize,
    /// Those that ended after their deadline.
    pub late: usize,
    /// Sum of weight x seconds late.
    pub weighted_tardiness: f64,
    /// Mean time from submission to end, s.
    pub mean_turnaround_s: f64,
    /// Energy of the jobs' GPUs, kWh.
    pub energy_kwh: f64,
    /// Energy of nodes beside their GPUs while they had a job, kWh.
    pub host_kwh: f64,
    /// Price of both energies, lateness and turnaround.
    pub cost: f64,
    /// Starts after the first.
    pub restarts: usize,
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
            summary.billed_host_kwh += consumption.host_joules as f64 / 3.6e6;
            summary.cost += (consumption.energy_micros + consumption.lateness_micros) as f64 / 1e6;
            summary.restarts += i64::from(status.restarts);
            let completed = status.completion_time.as_ref().filter(|_| status.phase == Phase::Succeeded);
            let Some(completed) = completed else {
                summary.late += 1;
                continue;
            };
            summary.finished += 1;
            if let Some(created) = &job.metadata.creation_timestamp {
                let time = seconds(completed.0, created.0);
                summary.turnarounds.insert(job.metadata.name.clone().unwrap_or_default(), time);
                turnaround += time;
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

    /// With this energy of busy hosts. The run is set beside replays, which count a host with a job whole; jobs are billed for the
    /// part of it whose GPUs they hold.
    #[must_use]
    pub fn with_busy_hosts(self, host_kwh: f64) -> Self {
        Self { host_kwh, cost: self.cost + host_kwh * PRICE_PER_KWH * PUE, ..self }
    }

    /// What is wrong if jobs are billed for more than their hosts drew. Instants in objects are whole seconds: a tenth may be that.
    pub fn billed_too_much(&self) -> Option<String> {
        let (billed, drawn) = (self.billed_host_kwh, self.host_kwh);
        (billed > 1.1 * drawn)
            .then(|| format!("jobs are billed for {billed:.4} kWh of hosts that drew {drawn:.4}"))
    }

    /// The figures as lines for people.
    pub fn lines(&self) -> Vec<String> {
        vec![
            format!("jobs finished         {} of {}", self.finished, self.jobs),
            format!("real nodes            {}", self.real_nodes),
            format!("late                  {}", self.late),
            format!("weighted tardiness    {:.0} s", self.weighted_tardiness),
            format!("mean turnaround       {:.1} s", self.mean_turnaround_s),
            format!("energy of GPUs        {:.3} kWh", self.energy_kwh),
            format!(
                "energy of busy hosts  {:.3} kWh, {:.3} of it billed to jobs",
                self.host_kwh, self.billed_host_kwh
            ),
            format!("cost                  {:.4}", self.cost),
            format!("restarts              {}", self.restarts),
            format!("budget violations     {}", self.budget_violations),
            format!(
                "pods bound            {} of {} by the extender",
                self.pods_bound_by_extender, self.pods_bound
            ),
            format!("GPU hours at rest     {:.2}", self.gpu_hours_at_rest),
            format!("saved by rest         {:.0} J, estimated", self.joules_saved_by_rest),
            format!("wall time             {:.1} s", self.wall_s),
        ]
    }
}

impl Summary {
    /// The baselines as a table, the run itself first.
    pub fn comparison(&self) -> Vec<String> {
        let line = |name: &str, row: &Baseline, restarts: i64| {
            format!(
                "{name:<28} {:>5} {:>10.0} {:>10.1} {:>8.3} {:>8.3} {:>9.4} {restarts:>9}",
                row.late,
                row.weighted_tardiness,
                row.mean_turnaround_s,
                row.energy_kwh,
                row.host_kwh,
                row.cost
            )
        };
        let head = ["", "late", "tardiness", "turnaround", "GPU kWh", "host kWh", "cost", "restarts"];
        let mut lines = vec![format!(
            "{:<28} {:>5} {:>10} {:>10} {:>8} {:>8} {:>9} {:>9}",
            head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]
        )];
        lines.push(line("this run", &self.as_row(), self.restarts));
        for (name, one) in &self.baselines {
            let restarts = i64::try_from(one.restarts).unwrap_or(i64::MAX);
            lines.push(line(&format!("{name} (replayed)"), one, restarts));
        }
        if !self.baselines.is_empty() {
            lines.push(String::new());
            lines.push(
                "The operator runs randomized-greedy; andreas is the method as published in 2021.".into(),
            );
            lines.push("Replayed: pods start at once and every run's length is known. Here a job takes some seconds,".into());
            lines.push("so what its pods need to start and to stop weighs a hundred times as much as where it takes hours.".into());
        }
        lines
    }

    /// The run with the figures of a replay.
    pub fn as_row(&self) -> Baseline {
        Baseline {
            replayed: false,
            finished: self.finished,
            late: self.late,
            weighted_tardiness: self.weighted_tardiness,
            mean_turnaround_s: self.mean_turnaround_s,
            energy_kwh: self.energy_kwh,
            host_kwh: self.host_kwh,
            cost: self.cost,
            restarts: usize::try_from(self.restarts).unwrap_or_default(),
        }
    }
}

fn seconds(later: Timestamp, earlier: Timestamp) -> f64 {
    later.duration_since(earlier).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_run_counts_busy_hosts_whole_and_jobs_are_billed_for_no_more_than_that() {
        let job: SlimTrainingJob = serde_json::from_value(json!({
            "metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": []}}},
            "status": {"phase": "Failed", "consumption": {"joules": 3_600_000, "energyMicros": 260_000,
                "hostJoules": 1_800_000, "hostMicros": 130_000, "latenessMicros": 40_000}}}))
        .unwrap();
        let summary = Summary::of(&[job]).with_busy_hosts(2.0);
        assert_eq!((summary.energy_kwh, summary.billed_host_kwh, summary.host_kwh), (1.0, 0.5, 2.0));
        // 0.26 for the GPUs, 0.04 for lateness, and both kWh of the hosts.
        assert!((summary.cost - (0.3 + 2.0 * 0.26)).abs() < 1e-9, "{}", summary.cost);
        assert_eq!(summary.billed_too_much(), None);
        assert!(summary.with_busy_hosts(0.4).billed_too_much().is_some());
    }
}
