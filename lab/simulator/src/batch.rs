//! Runs many replays in parallel, each perturbed a few times.

use andreas_baselines::{Method, Options, Scheduler};
use andreas_model::Seconds;
use rayon::prelude::*;

use crate::engine::{Conditions, Knowledge, PredictionError, ProductPolicy, SimulationError, Sleep, replay};
use crate::outcome::{DecisionTimes, Outcome};
use crate::scenario::Scenario;

/// Perturbed runs have restarts, first starts and stops that are at most this much shorter or longer, and at most by half:
/// enough to decorrelate their decisions, also of methods that never restart a job. What is free stays free, and restarts that
/// cost something do not become free: those have no wear and no limit by the day.
const PERTURBATION: Seconds = Seconds(3.0);

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
    /// Rules that bind a planner which learns.
    pub policy: ProductPolicy,
    /// Whether nodes without a job sleep.
    pub sleep: Sleep,
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

/// Runs all replays, each `runs` times (>= 1), as many in parallel as there are cores. Results are in the order of the
/// setups. With more than one run, each has other times of restarts, first starts and stops, and another seed of prediction errors.
///
/// # Errors
/// The first [`SimulationError`], with its method.
pub fn run_all(
    scenario: &Scenario,
    setups: &[Setup],
    runs: usize,
    watch: &dyn Watch,
) -> Result<Vec<Outcome>, (Method, SimulationError)> {
    let runs = runs.max(1);
    let perturbed: Vec<Scenario> = (0..runs).map(|run| perturb(scenario, run, runs)).collect();
    let all: Vec<(usize, usize)> =
        (0..setups.len()).flat_map(|setup| (0..runs).map(move |run| (setup, run))).collect();
    let outcomes: Vec<Outcome> = all
        .par_iter()
        .map(|&(setup, run)| {
            let setup = &setups[setup];
            let error = PredictionError { seed: setup.error.seed + run as u64, ..setup.error };
            let outcome = one_run(&perturbed[run], &Setup { error, ..setup.clone() }, watch);
            let mut outcome = outcome.map_err(|e| (setup.method, e))?;
            if run > 0 {
                // Only the first run is drawn.
                outcome.replayed.segments = Vec::new();
                outcome.replayed.power = Vec::new();
            }
            Ok(outcome)
        })
        .collect::<Result<_, _>>()?;
    let mut grouped = Vec::with_capacity(setups.len());
    for group in outcomes.chunks(runs) {
        let summaries = group.iter().map(|outcome| outcome.replayed.summary.clone()).collect();
        if let Some(first) = group.first() {
            grouped.push(Outcome { runs: summaries, waits: mean_waits(group), ..first.clone() });
        }
    }
    Ok(grouped)
}

/// The scenario of one of several runs.
fn perturb(scenario: &Scenario, run: usize, runs: usize) -> Scenario {
    let mut scenario = scenario.clone();
    if runs > 1 {
        let part = 2.0 * run as f64 / (runs - 1) as f64 - 1.0;
        let perturbed = |seconds: f64| seconds + PERTURBATION.0.min(seconds / 2.0) * part;
        let delays = &mut scenario.delays;
        scenario.restart = Seconds(perturbed(scenario.restart.0));
        (delays.first_start_s, delays.stop_s) = (perturbed(delays.first_start_s), perturbed(delays.stop_s));
    }
    scenario
}

/// Mean time of each job from its submission to its first start, over the runs in which it starts.
fn mean_waits(runs: &[Outcome]) -> Vec<Option<Seconds>> {
    let wait = |job: usize| {
        let of_run = |run: &Outcome| run.replayed.jobs.get(job).and_then(|job| Some(job.start? - job.submit));
        let waits: Vec<Seconds> = runs.iter().filter_map(of_run).collect();
        (!waits.is_empty()).then(|| waits.iter().fold(Seconds::ZERO, |a, b| a + *b) / waits.len() as f64)
    };
    let jobs = runs.first().map_or(0, |run| run.replayed.jobs.len());
    (0..jobs).map(wait).collect()
}

fn one_run(scenario: &Scenario, setup: &Setup, watch: &dyn Watch) -> Result<Outcome, SimulationError> {
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
        policy: setup.policy,
        sleep: setup.sleep,
        memoryless: scenario.catalogue.is_some() && setup.method == Method::Andreas,
        saves_when_stopped: setup.method.in_rounds(),
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
        budget: scenario.budget.clone(),
        runs: vec![replayed.summary.clone()],
        waits: Vec::new(),
        replayed,
        decision_times: DecisionTimes::from_seconds(times),
    })
}

#[cfg(test)]
mod tests {
    use andreas_baselines::Tickets;
    use andreas_model::StepFunction;
    use andreas_planner::{DEFAULT_WEAR, Lateness};

    use super::*;
    use crate::scenario::{Delays, SleepModel};

    fn with_restart(seconds: f64) -> Scenario {
        Scenario {
            tickets: Tickets::default(),
            name: "test".into(),
            gpu_types: Vec::new(),
            nodes: Vec::new(),
            tariff: StepFunction::flat(andreas_model::EnergyPrice(1.0)),
            budget: None,
            lateness: Lateness::default(),
            restart: Seconds(seconds),
            wear: DEFAULT_WEAR,
            checkpoint: Seconds::ZERO,
            tick: None,
            catalogue: None,
            failures: Vec::new(),
            delays: Delays::default(),
            sleep: SleepModel::default(),
            window: None,
            jobs: Vec::new(),
            features: Default::default(),
            programs: Default::default(),
            unfinished: Default::default(),
        }
    }

    #[test]
    fn perturbed_restarts_are_free_in_all_runs_or_in_none() {
        for (restart, least, most) in [(0.0, 0.0, 0.0), (2.0, 1.0, 3.0), (120.0, 117.0, 123.0)] {
            let scenario = with_restart(restart);
            let of = |run: usize| perturb(&scenario, run, 8).restart;
            assert_eq!((of(0), of(7)), (Seconds(least), Seconds(most)), "{restart}");
            assert_eq!(perturb(&scenario, 0, 1).restart, scenario.restart);
        }
    }

    #[test]
    fn first_starts_and_stops_are_perturbed_too() {
        let delays = Delays { first_start_s: 60.0, stop_s: 2.0, bind_s: 5.0, ..Delays::default() };
        let scenario = Scenario { delays, ..with_restart(0.0) };
        let of = |run: usize| perturb(&scenario, run, 8).delays;
        assert_eq!(of(0), Delays { first_start_s: 57.0, stop_s: 1.0, ..delays });
        assert_eq!(of(7), Delays { first_start_s: 63.0, stop_s: 3.0, ..delays });
        assert_eq!(perturb(&with_restart(0.0), 7, 8).delays, Delays::default());
    }
}
