//! Given snapshots of known lengths; when their futures are sampled; then starts, ends and probabilities are those
//! that follow.

use andreas_model::{JobId, Time, Watts};
use andreas_planner::{Options, Snapshot, plan};
use serde_json::{Value, json};

use super::*;

#[derive(Clone)]
struct Asked {
    name: &'static str,
    gpus: u32,
    epochs: f64,
    deadline: Option<f64>,
    rel_std: f64,
    state: Value,
}

fn job(name: &'static str, gpus: u32, epochs: f64) -> Asked {
    Asked { name, gpus, epochs, deadline: None, rel_std: 0.0, state: json!("Waiting") }
}

fn runs(gpus: u32) -> Value {
    json!({"Running": {"placement": {"gpu_type": "A", "nodes": ["n"], "gpus_per_node": gpus}, "since": 0.0}})
}

/// A node with four GPUs at instant 100; an epoch takes 10 s.
fn snapshot(jobs: &[Asked]) -> Snapshot {
    let jobs: Vec<Value> = jobs
        .iter()
        .map(|job| {
            json!({"id": format!("team/{}", job.name), "namespace": "team", "submit": 0.0, "deadline": job.deadline,
                "weight": 0.001, "epochs_left": job.epochs, "state": job.state, "preemption": "Never",
                "estimates": [{"gpu_type": "A", "gpus": job.gpus, "epoch": 10.0, "power": 300.0, "rel_std": job.rel_std}]})
        })
        .collect();
    serde_json::from_value(json!({
        "now": 100.0, "tariff": [[0.0, 1e-7]], "gpu_types": [{"name": "A", "idle": 50.0, "max": 400.0}],
        "lateness": {"turnaround_share": 0.1}, "restart": 30.0,
        "nodes": [{"name": "n", "gpu_type": "A", "gpus": 4, "free_gpus": 4}], "jobs": jobs,
    }))
    .expect("a snapshot")
}

fn forecast(snapshot: &Snapshot, plans: usize) -> Forecast {
    let options = Options { trials: 20, ..Options::default() };
    let first = plan(snapshot, &options).expect("a plan");
    let settings = Settings { futures: 32, plans, ..Settings::within(0, 1, 1) };
    sample(snapshot, &first, &options, &settings).expect("a forecast")
}

fn of<'a>(forecast: &'a Forecast, name: &str) -> &'a JobForecast {
    forecast.job(&JobId::new(format!("team/{name}"))).expect("a job")
}

#[test]
fn exact_lengths_give_exact_ends_with_and_without_plans() {
    let runs = Asked { state: runs(4), ..job("runs", 4, 30.0) };
    let sooner = Asked { deadline: Some(510.0), ..job("sooner", 4, 10.0) };
    let snapshot = snapshot(&[runs, sooner, job("later", 4, 5.0)]);
    for plans in [0, 50] {
        let forecast = forecast(&snapshot, plans);
        let end = |name: &str| of(&forecast, name).finish;
        assert_eq!((end("runs").p10, end("runs").p90), (Time(400.0), Time(400.0)), "{plans}");
        let sooner = of(&forecast, "sooner");
        assert_eq!((sooner.start.p50, sooner.finish.p50), (Time(400.0), Time(500.0)), "{plans}");
        assert_eq!(sooner.on_time, 1.0);
        let later = of(&forecast, "later");
        assert_eq!((later.start.p50, later.finish.p50), (Time(500.0), Time(550.0)), "{plans}");
        // 300 W for 50 s at 1e-7 a joule.
        assert!((later.energy_cost.0 - 300.0 * 50.0 * 1e-7).abs() < 1e-9, "{later:?}");
        assert!((later.turnaround_cost.0 - 0.001 * 0.1 * 450.0).abs() < 1e-9, "{later:?}");
    }
}

#[test]
fn a_job_on_a_node_that_is_off_starts_when_it_is_on() {
    let mut snapshot = snapshot(&[job("first", 4, 5.0)]);
    let start = |snapshot: &Snapshot| of(&forecast(snapshot, 50), "first").start.p50;
    assert_eq!(start(&snapshot), Time(100.0));
    for (state, on) in
        [(json!("Asleep"), 160.0), (json!({"Waking": {"until": 130.0}}), 130.0), (json!("On"), 100.0)]
    {
        let sleep = json!({"state": state, "wake": 60.0});
        snapshot.nodes[0].sleep = Some(serde_json::from_value(sleep).expect("a state"));
        assert_eq!(start(&snapshot), Time(on), "{state}");
    }
}

#[test]
fn jobs_cost_their_share_of_their_hosts_with_and_without_plans() {
    let runs = Asked { state: runs(3), ..job("runs", 3, 30.0) };
    let mut snapshot = snapshot(&[runs, job("later", 4, 5.0)]);
    (snapshot.nodes[0].host_idle, snapshot.nodes[0].host_busy) = (Watts(500.0), Watts(800.0));
    for plans in [0, 50] {
        let forecast = forecast(&snapshot, plans);
        // 300 W and three quarters of 800 W for 300 s; then 300 W and all of it for 50 s, at 1e-7 a joule.
        for (name, joules) in [("runs", 900.0 * 300.0), ("later", 1_100.0 * 50.0)] {
            let cost = of(&forecast, name).energy_cost.0;
            assert!((cost - joules * 1e-7).abs() < 1e-9, "{name}, {plans} plans: {cost}");
        }
    }
}

#[test]
fn the_spread_of_a_run_is_that_of_its_estimate_and_passes_on_to_the_job_behind_it() {
    let runs = Asked { rel_std: 0.3, state: runs(4), ..job("runs", 4, 100.0) };
    let behind = Asked { deadline: Some(1_300.0), ..job("behind", 4, 10.0) };
    let snapshot = snapshot(&[runs, behind]);
    let forecast = forecast(&snapshot, 50);
    let run = of(&forecast, "runs");
    // Log-normal with mean 1,000 s: the median is 956 s, the 10 % quantile 651 s, the 90 % quantile 1,404 s.
    let seconds = |at: Time| at.0 - 100.0;
    for (got, expected) in [(run.finish.p10, 651.0), (run.finish.p50, 956.0), (run.finish.p90, 1_404.0)] {
        assert!((seconds(got) / expected - 1.0).abs() < 0.06, "{got:?} {expected}");
    }
    let behind = of(&forecast, "behind");
    assert_eq!((behind.start.p10, behind.start.p90), (run.finish.p10, run.finish.p90));
    // It is on time if the run takes at most 1,100 s: 68 of 100.
    assert!((behind.on_time - 0.68).abs() < 0.06, "{}", behind.on_time);
    assert!((behind.on_time_by(Time(1e9)) - 1.0).abs() < 1e-12 && behind.on_time_by(Time(100.0)) == 0.0);
}

#[test]
fn another_job_leaves_the_draws_of_all_others_as_they_are() {
    let jobs = || {
        vec![
            Asked { rel_std: 0.5, state: runs(1), ..job("a", 1, 50.0) },
            Asked { rel_std: 0.5, ..job("b", 2, 70.0) },
        ]
    };
    let mut more = jobs();
    more.push(Asked { rel_std: 0.5, ..job("c", 1, 5.0) });
    let (few, many) = (forecast(&snapshot(&jobs()), 0), forecast(&snapshot(&more), 0));
    assert_eq!(of(&few, "a"), of(&many, "a"));
    assert_eq!(of(&few, "b").finish, of(&many, "b").finish);
}

#[test]
fn a_job_that_no_node_can_run_has_no_end_and_misses_its_deadline() {
    let never = Asked { deadline: Some(900.0), ..job("never", 8, 1.0) };
    let forecast = forecast(&snapshot(&[never, job("runs", 1, 1.0)]), 10);
    let never = of(&forecast, "never");
    assert!(!never.start.p10.is_finite() && never.on_time == 0.0 && never.configuration().is_none());
    assert!(of(&forecast, "runs").finish.p90.is_finite());
}

#[test]
fn settings_divide_the_work() {
    assert_eq!(Settings::within(16_000, 16, 100), Settings { futures: 16, plans: 10, seed: 0 });
    assert_eq!(Settings::within(16_000, 16, 10_000).plans, 0);
    assert_eq!(Settings::within(0, 1_000, 0).futures, MAX_FUTURES);
}

#[test]
fn a_later_snapshot_counts_from_its_instant_and_its_runs_end_when_they_did_before() {
    let runs = Asked { state: runs(2), ..job("runs", 2, 30.0) };
    let snapshot = snapshot(&[runs, job("starts", 2, 20.0), job("waits", 4, 5.0)]);
    let options = Options { trials: 20, ..Options::default() };
    let first = plan(&snapshot, &options).expect("a plan");
    let settings = Settings::within(8 * 3 * 10, 8, 3);
    let before = sample(&snapshot, &first, &options, &settings).expect("a forecast");
    let moved = advanced_to(&snapshot, &first, Time(250.0));
    let now = sample(&moved, &first, &options, &settings).expect("a forecast");
    assert_eq!((before.now, now.now), (Time(100.0), Time(250.0)));
    // 30 epochs of 10 s from 100 on: half of them are done at 250.
    assert_eq!((of(&before, "runs").finish.p50, of(&now, "runs").finish.p50), (Time(400.0), Time(400.0)));
    // The plan started it at 100, and it has not been seen to train: all of its 200 s are to come.
    let starts = of(&now, "starts");
    assert_eq!((starts.start.p50, starts.finish.p50), (Time(250.0), Time(450.0)));
    assert_eq!(of(&now, "waits").start.p50, Time(450.0));
    // Past its expected end a run ends from one moment to the next, but not in the past.
    let late = advanced_to(&snapshot, &first, Time(1_000.0));
    let late = sample(&late, &first, &options, &settings).expect("a forecast");
    let end = of(&late, "runs").finish.p50;
    assert!(end >= Time(1_000.0) && end <= Time(1_001.0), "{end:?}");
    assert!(of(&late, "waits").start.p50 >= Time(1_000.0));
    assert_eq!(advanced_to(&snapshot, &first, Time(0.0)), snapshot);
}

#[test]
fn ends_less_than_a_second_apart_are_where_they_were() {
    let ends = |name, epochs| Asked { state: runs(1), ..job(name, 1, epochs) };
    let snapshot = snapshot(&[ends("a", 30.0), ends("b", 30.05), job("waits", 4, 10.0)]);
    let forecast = forecast(&snapshot, 50);
    let end = |name: &str| of(&forecast, name).finish.p50.0;
    assert!((end("a") - 400.0).abs() < 1e-6 && (end("b") - 400.5).abs() < 1e-6, "{} {}", end("a"), end("b"));
}

#[test]
fn a_job_that_no_window_of_the_tariff_lets_below_the_budget_has_no_end() {
    // given a power budget below what the job draws, and prices that change each night
    let mut alone = snapshot(&[job("large", 4, 30.0)]);
    let nights = (0..60).map(|n| json!([f64::from(n) * 43_200.0, 1e-7 * f64::from(1 + n % 2)]));
    alone.tariff = serde_json::from_value(Value::Array(nights.collect())).expect("a tariff");
    let end = |watts: f64, plans| {
        let budget = json!({"watts": [[0.0, watts]]});
        let limited = Snapshot { budget: serde_json::from_value(budget).expect("a budget"), ..alone.clone() };
        of(&forecast(&limited, plans), "large").finish.p50
    };
    for plans in [10, 50] {
        assert_eq!(end(2_000.0, plans), Time(400.0), "it fits");
        assert!(!end(250.0, plans).is_finite(), "{plans}");
    }
}
