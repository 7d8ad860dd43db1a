//! A run's arrivals in the simulator, with the run's delays and the operator's knowledge.

use std::collections::BTreeMap;

use andreas_baselines::{Method, Options, Scheduler};
use andreas_demo::nodes::Nodes;
use andreas_e2e::workload::WorkloadJob;
use andreas_model::{Seconds, Time};
use andreas_planner::{Estimate, MethodName};
use andreas_simulator::{Conditions, PredictionError, ProductPolicy, Scenario, replay as simulate};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::measured::Delays;
use super::{Figures, scenario};

/// The operator plans at least so often (`--plan-every`).
const PLAN_EVERY: Seconds = Seconds(30.0);
/// Users' tables are exact here; a table is part of a replay only where it may be wrong.
const EXACT: f64 = 1e-9;

/// What a replay leaves out of what it knows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftOut {
    /// Nothing.
    Nothing,
    /// Starts, stops and decisions take no time; a restart takes what the policy says.
    Delays,
    /// Predictions: the true times are known.
    Predictions,
    /// Both.
    DelaysAndPredictions,
    /// That unmeasured runs count in the power budget for more than is predicted.
    BudgetedWatts,
}

impl LeftOut {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Nothing, Self::Delays, Self::Predictions, Self::DelaysAndPredictions, Self::BudgetedWatts];

    /// For the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "with all of it",
            Self::Delays => "without delays",
            Self::Predictions => "with the true times",
            Self::DelaysAndPredictions => "with the true times, without delays",
            Self::BudgetedWatts => "with runs budgeted at their predicted watts",
        }
    }

    fn delays(self) -> bool {
        matches!(self, Self::Delays | Self::DelaysAndPredictions)
    }

    fn predictions(self) -> bool {
        matches!(self, Self::Predictions | Self::DelaysAndPredictions)
    }
}

/// Replays jobs that were submitted at these seconds. Also returns when each ended.
///
/// # Errors
/// When the workload cannot be replayed.
pub fn replay(
    jobs: &[WorkloadJob],
    nodes: &Nodes,
    method: MethodName,
    submits: &BTreeMap<String, f64>,
    delays: &Delays,
    left_out: LeftOut,
) -> Result<(Figures, BTreeMap<String, f64>)> {
    let scenario = with_delays(jobs, nodes, submits, Some(delays).filter(|_| !left_out.delays()), left_out)?;
    // As the operator: the user's table, what all runs of a profile showed, the rule for unknown jobs.
    let error = PredictionError { mape: EXACT, ..PredictionError::default() };
    let conditions = match left_out.predictions() {
        true => Conditions::all_known(),
        // The demo's jobs have their own shortest run.
        false => Conditions {
            error,
            policy: ProductPolicy { min_run: Seconds::ZERO, ..ProductPolicy::default() },
            ..Conditions::default()
        },
    };
    let method: Method = method.as_str().parse().map_err(anyhow::Error::msg)?;
    let options = Options { method, accounting: scenario.accounting(), ..Options::default() };
    let mut scheduler = Scheduler::new(options);
    let replayed = simulate(&scenario, &conditions, &mut |snapshot| scheduler.plan(snapshot), &mut |_| {})
        .with_context(|| format!("replaying under {method}"))?;
    let ends = replayed.jobs.iter().filter_map(|job| Some((name(job.id.as_str()), job.finish?.0)));
    Ok((scenario::figures(&replayed, jobs), ends.collect()))
}

fn with_delays(
    jobs: &[WorkloadJob],
    nodes: &Nodes,
    submits: &BTreeMap<String, f64>,
    delays: Option<&Delays>,
    left_out: LeftOut,
) -> Result<Scenario> {
    let mut scenario = scenario::scenario(jobs, nodes)?;
    for job in &mut scenario.jobs {
        let at = submits.get(&name(job.id.as_str())).context("a job that was not seen")?;
        let later = Seconds(at - job.submit.0);
        job.submit = Time(*at);
        job.deadline = job.deadline.map(|deadline| deadline + later);
        if left_out == LeftOut::BudgetedWatts {
            job.estimates = job.estimates.iter().map(|row| Estimate { draw: None, ..row.clone() }).collect();
        }
    }
    scenario = scenario.sorted();
    scenario.tick = Some(PLAN_EVERY);
    if let Some(delays) = delays {
        // The planner goes by the policy, the run by what it takes. Until its containers run, a job draws nothing.
        let planned = scenario.restart;
        scenario.jobs.iter_mut().for_each(|job| job.restart = Some(planned));
        scenario.restart = Seconds((delays.restart - delays.first_start).max(0.0));
        scenario.delays = andreas_simulator::Delays {
            debounce_s: delays.decision,
            bind_s: delays.first_start,
            first_start_s: 0.0,
            stop_s: delays.stop,
        };
    }
    let profile = |job: &WorkloadJob| (format!("demo/{}", job.name).into(), format!("demo/{}", job.profile));
    scenario.programs = jobs.iter().map(profile).collect();
    Ok(scenario)
}

fn name(id: &str) -> String {
    id.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::Workload;

    #[test]
    fn delays_cost_time_and_every_job_ends() {
        let jobs = Workload::First20.jobs(false).unwrap();
        let submits = jobs.iter().map(|job| (job.name.clone(), job.submit_offset_s)).collect();
        let of = |delays: &Delays, left_out| {
            replay(&jobs, &Nodes::pretend(), MethodName::Fifo, &submits, delays, left_out).unwrap()
        };
        let slow = Delays { decision: 0.5, first_start: 2.0, restart: 3.0, stop: 1.0 };
        let (at_once, _) = of(&slow, LeftOut::Delays);
        let (delayed, ends) = of(&slow, LeftOut::Nothing);
        assert_eq!((at_once.finished, delayed.finished, ends.len()), (jobs.len(), jobs.len(), jobs.len()));
        assert!(delayed.mean_turnaround_s > at_once.mean_turnaround_s + 2.0, "{at_once:?} {delayed:?}");
    }
}
