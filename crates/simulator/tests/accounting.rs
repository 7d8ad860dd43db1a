//! What a replay counts, against sums done by hand.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use andreas_baselines::Tickets;
use andreas_core::{CostRate, EnergyPrice, GpuCount, Joules, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    Estimate, GpuTypeInfo, Job, JobState, Lateness, LimitsCount, MethodName, Node, Options, Preemption,
    Resources, Snapshot, Worker, plan,
};
use andreas_simulator::{Conditions, Failure, PredictionError, Replayed, Scenario, replay};

fn job(id: &str, submit: f64, deadline: Option<f64>, epochs: f64) -> Job {
    Job {
        id: id.into(),
        namespace: "trace".into(),
        submit: Time(submit),
        deadline: deadline.map(Time),
        weight: CostRate(0.01),
        epochs_left: epochs,
        estimates: [Estimate {
            gpu_type: "T4".into(),
            gpus: GpuCount(2),
            epoch: Seconds(100.0),
            power: Watts(140.0),
            draw: None,
            rel_std: 0.0,
        }]
        .into(),
        spread: vec![],
        limits: vec![],
        limits_count: LimitsCount::AtOnce,
        requested_gpus: None,
        worker: Worker::default(),
        candidates: None,
        forbidden: vec![],
        preemption: Preemption::Allowed,
        movable: true,
        min_run: Seconds::ZERO,
        lost: Seconds::ZERO,
        state: JobState::Waiting,
    }
}

/// One node of four T4s at 10 W idle, 100 W overhead; a joule costs 1.
fn scenario(jobs: Vec<Job>) -> Scenario {
    Scenario {
        tickets: Tickets::default(),
        name: "test".into(),
        gpu_types: vec![GpuTypeInfo { name: "T4".into(), idle: Watts(10.0), max: Watts(70.0) }],
        nodes: vec![Node {
            name: "n1".into(),
            gpu_type: "T4".into(),
            gpus: GpuCount(4),
            free_gpus: GpuCount(4),
            overhead: Watts(100.0),
            foreign_power: None,
            free: Resources::default(),
        }],
        tariff: StepFunction::flat(EnergyPrice(1.0)),
        budget: None,
        lateness: Lateness::default(),
        restart: Seconds(50.0),
        checkpoint: Seconds::ZERO,
        tick: None,
        catalogue: None,
        failures: vec![],
        jobs,
        features: Default::default(),
    }
}

fn run(scenario: &Scenario, conditions: Conditions) -> Replayed {
    let options = Options { method: MethodName::Fifo, ..Options::default() };
    let mut decide = |snapshot: &Snapshot| plan(snapshot, &options);
    replay(scenario, &conditions, &mut decide, &mut |_| {}).unwrap()
}

#[test]
fn energy_idle_and_lateness_are_counted_apart() {
    // Given two jobs of 1,000 s on 2 GPUs each, the second 500 s after the first and 300 s too late,
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0), job("b", 500.0, Some(1200.0), 10.0)]);
    scenario.lateness = Lateness { turnaround_share: 0.1, late_fixed: Seconds(60.0), aging: None };

    let sum = run(&scenario, Conditions::default()).summary;

    assert_eq!(sum.makespan, Seconds(1500.0));
    assert_eq!(sum.job_energy, Joules(140.0 * 2000.0));
    assert_eq!(sum.overhead_energy, Joules(100.0 * 1500.0));
    // Two GPUs idle for the first and the last 500 s.
    assert_eq!(sum.idle_energy, Joules(20.0 * 1000.0));
    assert_eq!(sum.energy_cost.0, 280_000.0 + 150_000.0);
    assert_eq!((sum.late_jobs, sum.with_deadline), (1, 2));
    assert!((sum.tardiness_cost.0 - 3.0).abs() < 1e-9);
    assert!((sum.miss_cost.0 - 0.6).abs() < 1e-9);
    assert!((sum.turnaround_cost.0 - 2.0).abs() < 1e-9);
    assert!((sum.total.0 - 430_005.6).abs() < 1e-6);
    assert!((sum.total_with_idle.0 - 450_005.6).abs() < 1e-6);
    assert_eq!((sum.mean_turnaround, sum.p95_turnaround), (Seconds(1000.0), Seconds(1000.0)));
}

#[test]
fn the_price_of_the_hour_counts() {
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    let price = |p| EnergyPrice(p);
    scenario.tariff = StepFunction::new(vec![(Time(0.0), price(1.0)), (Time(400.0), price(3.0))]).unwrap();
    let sum = run(&scenario, Conditions::default()).summary;
    assert_eq!(sum.energy_cost.0, 240.0 * (400.0 + 3.0 * 600.0));
    assert_eq!(sum.idle_cost.0, 20.0 * (400.0 + 3.0 * 600.0));
}

#[test]
fn a_failing_node_costs_the_work_since_the_checkpoint_and_a_restart() {
    // Given a checkpoint every 200 s and a failure after 550 s that lasts 1,000 s,
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    scenario.checkpoint = Seconds(200.0);
    scenario.failures = vec![Failure { node: "n1".into(), at: Time(550.0), duration: Seconds(1000.0) }];

    let replayed = run(&scenario, Conditions::default());

    // then 150 s are done again, after 50 s of restart: 400 s are saved, 600 s are left.
    assert_eq!(replayed.jobs[0].finish, Some(Time(1550.0 + 50.0 + 600.0)));
    let sum = replayed.summary;
    assert_eq!((sum.failures, sum.restarts, sum.lost_work), (1, 1, Seconds(150.0)));
    assert_eq!(sum.job_energy, Joules(140.0 * (550.0 + 650.0)));
    // A node that is down draws nothing.
    assert_eq!(sum.idle_energy, Joules(20.0 * (550.0 + 650.0)));
    assert_eq!(replayed.segments.len(), 2);
}

#[test]
fn a_budget_that_falls_stops_jobs_and_is_never_broken() {
    // Given room for both jobs up to 300 s, and for one from then until 2,000 s,
    let mut scenario = scenario(vec![job("a", 0.0, Some(9000.0), 10.0), job("b", 0.0, Some(9000.0), 10.0)]);
    let windows = vec![(Time(0.0), Watts(380.0)), (Time(300.0), Watts(260.0)), (Time(2000.0), Watts(380.0))];
    scenario.budget = Some(StepFunction::new(windows).unwrap());

    let replayed = run(&scenario, Conditions::default());

    let sum = &replayed.summary;
    assert_eq!((sum.planned_violations, sum.violation_time), (0, Seconds(0.0)));
    assert_eq!((sum.unfinished, sum.restarts), (0, 1));
    let most = replayed.power.iter().filter(|p| p.at.0 >= 300.0 && p.at.0 < 1000.0);
    assert!(most.map(|p| p.jobs.0 + p.overhead.0 + p.idle.0).fold(0.0, f64::max) <= 260.0);
}

#[test]
fn a_job_that_fits_nowhere_ends_the_replay_and_is_said() {
    let mut large = job("large", 0.0, None, 1.0);
    large.estimates = [Estimate { gpus: GpuCount(8), ..large.estimates[0].clone() }].into();
    let replayed = run(&scenario(vec![large, job("a", 10.0, None, 1.0)]), Conditions::default());
    assert_eq!((replayed.summary.unfinished, replayed.jobs[0].finish), (1, None));
    assert_eq!(replayed.jobs[1].finish, Some(Time(110.0)));
}

#[test]
fn wrong_predictions_change_decisions_and_not_the_truth() {
    let error = PredictionError { mape: 0.4, corrected: true, stated: true, seed: 7 };
    let scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    let replayed = run(&scenario, Conditions { error, ..Conditions::default() });
    assert_eq!(replayed.jobs[0].finish, Some(Time(1000.0)));
    // One decision at the submission, one when the first epoch has been measured.
    assert_eq!(replayed.summary.decisions, 2);
    assert_eq!(replayed, run(&scenario, Conditions { error, ..Conditions::default() }));
}
