//! Runs many replays in parallel.

use andreas_baselines::{Method, Options, Scheduler};
use rayon::prelude::*;

use crate::engine::{Conditions, Knowledge, PredictionError, SimulationError, replay};
use crate::outcome::{DecisionTimes, Outcome};
use crate::scenario::Scenario;

/// One replay to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The method.
    pub method: Method,
    /// Its seed.
    pub seed: u64,
    /// Its trials.
    pub trials: u64,
    /// Prediction errors.
    pub error: PredictionError,
    /// What the planner knows of times and watts.
    pub knowledge: Knowledge,
    /// Distinguishes variants of the same method; may be empty.
    pub label: String,
}

/// Callbacks of a batch: a clock and progress.
pub trait Watch: Sync {
    /// Seconds since any fixed instant, to time decisions.
    fn seconds(&self) -> f64;
    /// Reports that this many more jobs have ended in one of the replays.
    fn ended(&self, jobs: usize);
}

/// Runs all replays, as many in parallel as there are cores. Results are in the order of the setups.
///
/// # Errors
/// The first [`SimulationError`], with its method.
pub fn run_all(
    scenario: &Scenario,
    setups: &[Setup],
    watch: &dyn Watch,
) -> Result<Vec<Outcome>, (Method, SimulationError)> {
    setups.par_iter().map(|setup| run(scenario, setup, watch).map_err(|e| (setup.method, e))).collect()
}

fn run(scenario: &Scenario, setup: &Setup, watch: &dyn Watch) -> Result<Outcome, SimulationError> {
    let options = Options {
        method: setup.method,
        seed: setup.seed,
        trials: setup.trials,
        accounting: scenario.accounting(),
        ..Options::default()
    };
    let conditions = Conditions {
        error: setup.error,
        knowledge: setup.knowledge,
        memoryless: scenario.catalogue.is_some() && setup.method == Method::Andreas,
    };
    let mut scheduler = Scheduler { tickets: scenario.tickets.clone(), ..Scheduler::new(options) };
    let mut times = Vec::new();
    let mut decide = |snapshot: &_| {
        let begin = watch.seconds();
        let plan = scheduler.plan(snapshot);
        times.push(watch.seconds() - begin);
        plan
    };
    let mut ended = 0;
    let mut progress = |done: usize| {
        watch.ended(done - ended);
        ended = done;
    };
    let replayed = replay(scenario, &conditions, &mut decide, &mut progress)?;
    Ok(Outcome {
        method: setup.method,
        label: setup.label.clone(),
        seed: setup.seed,
        replayed,
        decision_times: DecisionTimes::of(times),
    })
}
