//! What must hold under every method on offer, on random small clusters.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use andreas_baselines::{Method, Options, Scheduler, Tickets};
use andreas_model::{CostRate, EnergyPrice, GpuCount, Seconds, StepFunction, Time, Watts};
use andreas_planner::{DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, Lateness, Node, Snapshot};
use andreas_simulator::{Conditions, Failure, PredictionError, Replayed, Scenario, replay};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn job(i: usize, rng: &mut ChaCha8Rng) -> Job {
    let submit = rng.random_range(0.0..20_000.0);
    let (length, watts) = (rng.random_range(50.0..2000.0), rng.random_range(60.0..250.0));
    let rows = [("A100", 1.0), ("T4", 3.0)].into_iter().flat_map(|(kind, slower)| {
        [1_u32, 2, 4].map(|gpus| {
            Estimate::new(
                kind.into(),
                GpuCount(gpus),
                Seconds(length * slower / f64::from(gpus).powf(0.8)),
                Watts(watts * f64::from(gpus) / slower),
            )
        })
    });
    let late = rng.random_bool(0.8).then(|| Time(submit + rng.random_range(500.0..40_000.0)));
    Job {
        deadline: late,
        requested_gpus: Some(GpuCount(rng.random_range(0..3_u32).pow(2).max(1))),
        ..Job::new(
            format!("j{i:02}").into(),
            "trace".into(),
            Time(submit),
            CostRate(rng.random_range(1e-5..1e-3)),
            f64::from(rng.random_range(1..8_u32)),
            rows.collect(),
        )
    }
}

/// Two nodes of 4 A100s, one of 4 T4s; a tariff and a budget that change; a failure.
fn scenario(seed: u64) -> Scenario {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let node = |name: &str, kind: &str, overhead: f64| Node {
        host_busy: Watts(overhead),
        ..Node::new(name.into(), kind.into(), GpuCount(4))
    };
    let kind = |name: &str, idle: f64, max: f64| GpuTypeInfo {
        name: name.into(),
        idle: Watts(idle),
        max: Watts(max),
    };
    let price = |kwh: f64| EnergyPrice::per_kwh(kwh, 1.3);
    let mut scenario = Scenario {
        tickets: Tickets::default(),
        name: format!("random {seed}"),
        gpu_types: vec![kind("A100", 50.0, 400.0), kind("T4", 10.0, 70.0)],
        nodes: vec![node("a-0", "A100", 300.0), node("a-1", "A100", 300.0), node("t-0", "T4", 150.0)],
        tariff: StepFunction::new(vec![(Time(0.0), price(0.3)), (Time(15_000.0), price(0.1))]).unwrap(),
        budget: None,
        lateness: Lateness { turnaround_share: 0.1, late_fixed: Seconds(900.0), aging: None },
        restart: Seconds(60.0),
        wear: DEFAULT_WEAR,
        checkpoint: Seconds(300.0),
        tick: Some(Seconds(900.0)),
        catalogue: None,
        failures: vec![Failure { node: "a-1".into(), at: Time(8000.0), duration: Seconds(4000.0) }],
        delays: andreas_simulator::Delays::default(),
        sleep: andreas_simulator::SleepModel::default(),
        window: None,
        programs: Default::default(),
        unfinished: Default::default(),
        jobs: (0..14).map(|i| job(i, &mut rng)).collect(),
        features: Default::default(),
    };
    // From all of it to what one large job and the idle GPUs need (1,600 + 300 + 240 W), and back.
    let windows =
        vec![(Time(0.0), Watts(5000.0)), (Time(6000.0), Watts(2200.0)), (Time(30_000.0), Watts(5000.0))];
    scenario.budget = Some(StepFunction::new(windows).unwrap());
    scenario.sorted()
}

fn run(scenario: &Scenario, method: Method, error: PredictionError) -> Replayed {
    let options = Options { method, seed: 3, trials: 20, ..Options::default() };
    let mut scheduler = Scheduler::new(options);
    let mut decide = |snapshot: &Snapshot| scheduler.plan(snapshot);
    let conditions = Conditions { error, ..Conditions::all_known() };
    replay(scenario, &conditions, &mut decide, &mut |_| {}).unwrap_or_else(|e| panic!("{method}: {e}"))
}

#[test]
fn every_job_ends_within_the_budget_and_twice_the_same_way() {
    for seed in 0..6 {
        let scenario = scenario(seed);
        for method in Method::ALL {
            let replayed = run(&scenario, method, PredictionError::default());
            let sum = &replayed.summary;
            assert_eq!(sum.unfinished, 0, "{method}, seed {seed}");
            assert_eq!((sum.planned_violations, sum.violation_time.0), (0, 0.0), "{method}, seed {seed}");
            assert!(replayed.jobs.iter().all(|j| j.finish > j.start && j.start >= Some(j.submit)));
            assert_eq!(replayed, run(&scenario, method, PredictionError::default()), "{method}, seed {seed}");
        }
    }
}

#[test]
fn wrong_predictions_leave_no_job_behind() {
    let error = PredictionError { mape: 0.4, corrected: true, stated: true, seed: 5 };
    for method in Method::ALL {
        let replayed = run(&scenario(11), method, error);
        assert_eq!(replayed.summary.unfinished, 0, "{method}");
    }
}

#[test]
fn the_sum_of_what_jobs_used_is_what_the_cluster_used() {
    for method in [Method::Edf, Method::Andreas] {
        let mut scenario = scenario(2);
        scenario.window = Some((Time(0.0), Time(1e9)));
        let replayed = run(&scenario, method, PredictionError::default());
        let of_jobs: f64 = replayed.jobs.iter().map(|j| j.energy.0).sum();
        let sum = &replayed.summary;
        assert!((of_jobs - sum.job_energy.0).abs() < 1e-6 * of_jobs);
        let lateness: f64 = replayed.jobs.iter().map(|j| j.lateness_cost.0).sum();
        let bill = sum.tardiness_cost + sum.miss_cost + sum.turnaround_cost;
        assert!((lateness - bill.0).abs() < 1e-9 * lateness.max(1.0));
        // Power over time, integrated again, is the energy.
        let ends =
            replayed.power.iter().skip(1).map(|p| p.at.0).chain([replayed.power[0].at.0 + sum.makespan.0]);
        let total: f64 = replayed
            .power
            .iter()
            .zip(ends)
            .map(|(p, end)| (p.jobs.0 + p.hosts.0 + p.idle.0) * (end - p.at.0))
            .sum();
        let counted = sum.energy().0;
        assert!((total - counted).abs() < 1e-6 * counted, "{method}: {total} {counted}");
    }
}
