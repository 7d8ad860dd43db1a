//! What a replay counts, against sums done by hand.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use andreas_baselines::{Method, Tickets};
use andreas_model::{CostRate, EnergyPrice, GpuCount, Joules, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, Lateness, MethodName, Node, Options, Snapshot, plan,
};
use andreas_predictor::mean_over_median;
use andreas_simulator::{
    Conditions, DecisionTimes, Delays, Failure, Knowledge, Outcome, PredictionError, ProductPolicy, Replayed,
    Scenario, Sleep, SleepModel, replay,
};

fn job(id: &str, submit: f64, deadline: Option<f64>, epochs: f64) -> Job {
    Job {
        deadline: deadline.map(Time),
        ..Job::new(
            id.into(),
            "trace".into(),
            Time(submit),
            CostRate(0.01),
            epochs,
            [Estimate::new("T4".into(), GpuCount(2), Seconds(100.0), Watts(140.0))].into(),
        )
    }
}

/// One node of four T4s at 10 W idle, 100 W overhead; a joule costs 1.
fn scenario(jobs: Vec<Job>) -> Scenario {
    Scenario {
        tickets: Tickets::default(),
        name: "test".into(),
        gpu_types: vec![GpuTypeInfo { name: "T4".into(), idle: Watts(10.0), max: Watts(70.0) }],
        nodes: vec![Node { host_busy: Watts(100.0), ..Node::new("n1".into(), "T4".into(), GpuCount(4)) }],
        tariff: StepFunction::flat(EnergyPrice(1.0)),
        budget: None,
        lateness: Lateness::default(),
        restart: Seconds(50.0),
        wear: DEFAULT_WEAR,
        checkpoint: Seconds::ZERO,
        tick: None,
        catalogue: None,
        failures: vec![],
        delays: Delays::default(),
        sleep: SleepModel::default(),
        window: None,
        programs: Default::default(),
        unfinished: Default::default(),
        jobs,
        features: Default::default(),
    }
}

fn run(scenario: &Scenario, conditions: Conditions) -> Replayed {
    seen(scenario, conditions, |_| {})
}

/// The same; `look` is given every snapshot that is planned.
fn seen(scenario: &Scenario, conditions: Conditions, mut look: impl FnMut(&Snapshot)) -> Replayed {
    let options = Options { method: MethodName::Fifo, ..Options::default() };
    let mut decide = |snapshot: &Snapshot| {
        look(snapshot);
        plan(snapshot, &options)
    };
    replay(scenario, &conditions, &mut decide, &mut |_| {}).unwrap()
}

#[test]
fn energy_idle_and_lateness_are_counted_apart() {
    // Given two jobs of 1,000 s on 2 GPUs each, the second 500 s after the first and 300 s too late,
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0), job("b", 500.0, Some(1200.0), 10.0)]);
    scenario.lateness = Lateness { turnaround_share: 0.1, late_fixed: Seconds(60.0), aging: None };

    let sum = run(&scenario, Conditions::all_known()).summary;

    assert_eq!(sum.makespan, Seconds(1500.0));
    assert_eq!(sum.job_energy, Joules(140.0 * 2000.0));
    assert_eq!(sum.host_energy, Joules(100.0 * 1500.0));
    // Two GPUs idle for the first 500 s. The last 500 s come after the last submission.
    assert_eq!(sum.idle_energy, Joules(20.0 * 500.0));
    assert_eq!(sum.energy_cost.0, 280_000.0 + 150_000.0);
    assert_eq!((sum.late_jobs, sum.with_deadline), (1, 2));
    assert!((sum.tardiness_cost.0 - 3.0).abs() < 1e-9);
    assert!((sum.miss_cost.0 - 0.6).abs() < 1e-9);
    assert!((sum.turnaround_cost.0 - 2.0).abs() < 1e-9);
    assert!((sum.total.0 - 430_005.6).abs() < 1e-6);
    assert!((sum.total_with_idle.0 - 440_005.6).abs() < 1e-6);
    assert_eq!((sum.mean_turnaround, sum.p95_turnaround), (Seconds(1000.0), Seconds(1000.0)));
}

#[test]
fn the_price_of_the_hour_counts() {
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    // All is counted.
    scenario.window = Some((Time(0.0), Time(1e6)));
    let price = |p| EnergyPrice(p);
    scenario.tariff = StepFunction::new(vec![(Time(0.0), price(1.0)), (Time(400.0), price(3.0))]).unwrap();
    let sum = run(&scenario, Conditions::all_known()).summary;
    assert_eq!(sum.energy_cost.0, 240.0 * (400.0 + 3.0 * 600.0));
    assert_eq!(sum.idle_cost.0, 20.0 * (400.0 + 3.0 * 600.0));
}

#[test]
fn a_failing_node_costs_the_work_since_the_checkpoint_and_a_restart() {
    // Given a checkpoint every 200 s and a failure after 550 s that lasts 1,000 s,
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    scenario.checkpoint = Seconds(200.0);
    scenario.window = Some((Time(0.0), Time(1e6)));
    scenario.failures = vec![Failure { node: "n1".into(), at: Time(550.0), duration: Seconds(1000.0) }];

    let replayed = run(&scenario, Conditions::all_known());

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
fn a_job_that_saves_when_the_plan_stops_it_repeats_nothing_but_after_a_failure() {
    // Given two jobs that save every 200 s, one of which a lower budget stops after 350 s,
    let lost = |saves_when_stopped: bool, failures: Vec<Failure>| {
        let mut scenario = scenario(vec![job("a", 0.0, None, 10.0), job("b", 0.0, None, 10.0)]);
        scenario.checkpoint = Seconds(200.0);
        scenario.failures = failures;
        let windows =
            vec![(Time(0.0), Watts(380.0)), (Time(350.0), Watts(260.0)), (Time(2000.0), Watts(380.0))];
        scenario.budget = Some(StepFunction::new(windows).unwrap());
        run(&scenario, Conditions { saves_when_stopped, ..Conditions::all_known() }).summary.lost_work
    };
    assert_eq!(lost(false, vec![]), Seconds(150.0));
    assert_eq!(lost(true, vec![]), Seconds::ZERO);
    // or its node before, which nobody announces.
    let fails = Failure { node: "n1".into(), at: Time(330.0), duration: Seconds(100.0) };
    assert_eq!(lost(true, vec![fails]), Seconds(260.0));
}

#[test]
fn a_failure_that_lasts_no_time_ends_runs_and_is_over() {
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    scenario.checkpoint = Seconds(200.0);
    scenario.failures = vec![Failure { node: "n1".into(), at: Time(550.0), duration: Seconds::ZERO }];
    let replayed = run(&scenario, Conditions::all_known());
    assert_eq!(replayed.jobs[0].finish, Some(Time(550.0 + 50.0 + 600.0)));
    assert_eq!((replayed.summary.failures, replayed.summary.unfinished), (1, 0));
}

#[test]
fn only_restarts_by_the_plan_count_towards_those_of_a_day() {
    // Restarts, and the most that a decision was shown of a job.
    let counted = |scenario: &Scenario| {
        let mut most = 0;
        let replayed = seen(scenario, Conditions::all_known(), |snapshot| {
            most = snapshot.jobs.iter().map(|job| job.restarts_last_day).fold(most, u32::max);
        });
        (replayed.summary.restarts, most)
    };
    // Given a job that restarts after a failure of its node, and a decision after that,
    let mut fails = scenario(vec![job("a", 0.0, None, 10.0), job("b", 1700.0, None, 1.0)]);
    fails.failures = vec![Failure { node: "n1".into(), at: Time(550.0), duration: Seconds(1000.0) }];
    assert_eq!(counted(&fails), (1, 0));
    // and one that a lower budget has stopped, and that restarts at 1,000 s.
    let late = job("c", 1200.0, None, 1.0);
    let mut falls = scenario(vec![job("a", 0.0, None, 10.0), job("b", 0.0, None, 10.0), late]);
    let windows = vec![(Time(0.0), Watts(380.0)), (Time(300.0), Watts(260.0)), (Time(2000.0), Watts(380.0))];
    falls.budget = Some(StepFunction::new(windows).unwrap());
    assert_eq!(counted(&falls), (1, 1));
}

#[test]
fn an_unknown_run_is_taken_for_one_that_finished_by_its_time_on_gpus_and_what_it_announces() {
    // Given a job that fails after one of the twenty epochs that it announces, and one that a failure of its node stops for
    // 1,000 s: 550 s on its GPUs, and with the restart and what is done again 650 s,
    let jobs = vec![job("fails", 0.0, None, 1.0), job("a", 0.0, None, 10.0), job("b", 5000.0, None, 10.0)];
    let mut scenario = scenario(jobs);
    scenario.checkpoint = Seconds(200.0);
    scenario.failures = vec![Failure { node: "n1".into(), at: Time(550.0), duration: Seconds(1000.0) }];
    scenario.unfinished.insert("fails".into(), 19.0);
    // when the planner is shown a job that trains ten epochs and announces as many more,
    scenario.unfinished.insert("b".into(), 10.0);
    let mut usual = None;
    let conditions = Conditions { knowledge: Knowledge::Learning, ..Conditions::default() };
    seen(&scenario, conditions, |snapshot| {
        if let Some(job) = snapshot.jobs.iter().find(|job| job.id.as_str() == "b") {
            let row = &job.estimates[0];
            usual.get_or_insert(job.epochs_left * row.epoch.0 / mean_over_median(row.rel_std));
        }
    });
    // then all that it announces takes the usual time.
    let usual: f64 = usual.unwrap();
    assert!((usual / 1200.0 - 1.0).abs() < 0.02, "{usual}");
}

#[test]
fn what_a_stop_loses_is_not_known_before_one_was_seen() {
    // Given a program that saves every 200 s, a node that fails after 550 s, and a plan a minute,
    let mut scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    (scenario.checkpoint, scenario.tick) = (Seconds(200.0), Some(Seconds(60.0)));
    scenario.failures = vec![Failure { node: "n1".into(), at: Time(550.0), duration: Seconds(100.0) }];
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let replayed = seen(&scenario, Conditions::default(), |snapshot| {
        let Some(job) = snapshot.jobs.first() else { return };
        let lost = job.usually_lost.unwrap().0 / job.estimates[0].epoch.0;
        // It trains again from 700 s on, after 50 s of restart.
        if snapshot.now < Time(701.0) { before.push(lost) } else { after.push(lost) }
    });
    // then no loss is assumed until it trains again, and from then on the epoch and a half that it lost.
    assert!((replayed.summary.lost_work.0 - 150.0).abs() < 1e-6);
    assert!(before.len() > 5 && before.iter().all(|lost| *lost == 0.0), "{before:?}");
    assert!(after.len() > 5 && after.iter().all(|lost| (lost - 1.5).abs() < 1e-9), "{after:?}");
}

#[test]
fn a_run_counts_for_its_guard_until_it_is_measured() {
    // Given a job that draws 50 W on each of two boards of 70 W, a budget, and a plan a minute,
    let mut quiet = job("a", 0.0, Some(9000.0), 10.0);
    quiet.estimates = [Estimate::new("T4".into(), GpuCount(2), Seconds(100.0), Watts(100.0))].into();
    let mut scenario = scenario(vec![quiet]);
    (scenario.budget, scenario.tick) = (Some(StepFunction::flat(Watts(400.0))), Some(Seconds(60.0)));
    let draws = |guards: bool| {
        let policy = ProductPolicy { guards, ..ProductPolicy::default() };
        let mut draws = Vec::new();
        seen(&scenario, Conditions { policy, ..Conditions::default() }, |snapshot| {
            draws.extend(snapshot.jobs.first().map(|job| job.estimates[0].draw));
        });
        draws
    };
    // then it counts for its guard at first, in steps of 5 W a board, and for its draw with a margin two minutes later;
    let guarded = draws(true);
    let of_guard = |watts: Watts| (56.0..=140.0).contains(&watts.0) && watts.0 % 10.0 == 0.0;
    let measured = |watts: Watts| (watts.0 - 110.0).abs() < 1e-9;
    assert!(guarded[0].is_some_and(of_guard), "{guarded:?}");
    assert!(guarded.last().unwrap().is_some_and(measured), "{guarded:?}");
    // without guards for what is predicted.
    assert!(draws(false).iter().all(Option::is_none));
}

#[test]
fn a_budget_that_falls_stops_jobs_and_is_never_broken() {
    // Given room for both jobs up to 300 s, and for one from then until 2,000 s,
    let mut scenario = scenario(vec![job("a", 0.0, Some(9000.0), 10.0), job("b", 0.0, Some(9000.0), 10.0)]);
    let windows = vec![(Time(0.0), Watts(380.0)), (Time(300.0), Watts(260.0)), (Time(2000.0), Watts(380.0))];
    scenario.budget = Some(StepFunction::new(windows).unwrap());

    let replayed = run(&scenario, Conditions::all_known());

    let sum = &replayed.summary;
    assert_eq!((sum.planned_violations, sum.violation_time), (0, Seconds(0.0)));
    assert_eq!((sum.unfinished, sum.restarts), (0, 1));
    let most = replayed.power.iter().filter(|p| p.at.0 >= 300.0 && p.at.0 < 1000.0);
    assert!(most.map(|p| p.jobs.0 + p.hosts.0 + p.idle.0).fold(0.0, f64::max) <= 260.0);
}

#[test]
fn a_job_that_fits_nowhere_ends_the_replay_and_is_said() {
    let mut large = job("large", 0.0, None, 1.0);
    large.estimates = [Estimate { gpus: GpuCount(8), ..large.estimates[0].clone() }].into();
    let replayed = run(&scenario(vec![large, job("a", 10.0, None, 1.0)]), Conditions::all_known());
    assert_eq!((replayed.summary.unfinished, replayed.jobs[0].finish), (1, None));
    assert_eq!(replayed.jobs[1].finish, Some(Time(110.0)));
}

#[test]
fn wrong_predictions_change_decisions_and_not_the_truth() {
    let error = PredictionError { mape: 0.4, corrected: true, stated: true, seed: 7 };
    let scenario = scenario(vec![job("a", 0.0, Some(5000.0), 10.0)]);
    let replayed = run(&scenario, Conditions { error, ..Conditions::all_known() });
    assert_eq!(replayed.jobs[0].finish, Some(Time(1000.0)));
    // One decision at the submission, one when the first epoch has been measured.
    assert_eq!(replayed.summary.decisions, 2);
    assert_eq!(replayed, run(&scenario, Conditions { error, ..Conditions::all_known() }));
}

#[test]
fn hosts_that_are_on_draw_and_idle_draw_ends_with_the_last_submission() {
    // Given a host of 40 W, 100 W with a job, and jobs from 0 to 1,000 s and from 3,000 to 4,000 s,
    let mut scenario = scenario(vec![job("a", 0.0, None, 10.0), job("b", 3000.0, None, 10.0)]);
    scenario.nodes[0].host_idle = Watts(40.0);

    let sum = run(&scenario, Conditions::all_known()).summary;

    assert_eq!(sum.host_energy, Joules(100.0 * 2000.0));
    assert_eq!(sum.empty_host_energy, Joules(40.0 * 2000.0));
    // Two GPUs beside the first job, four until the second; none beside the second.
    assert_eq!(sum.idle_energy, Joules(20.0 * 1000.0 + 40.0 * 2000.0));
    assert_eq!(sum.energy(), Joules(280_000.0 + 200_000.0 + 80_000.0 + 100_000.0));
}

#[test]
fn a_sleeping_node_draws_nothing_and_its_next_job_waits() {
    // Given the same, a wake-up of 100 s at the draw of a busy host and 500 J besides, and sleep after 500 s,
    let mut scenario = scenario(vec![job("a", 0.0, None, 10.0), job("b", 3000.0, None, 10.0)]);
    scenario.nodes[0].host_idle = Watts(40.0);
    scenario.sleep.wake_s = 100.0;
    scenario.sleep.wake_j = 500.0;
    scenario.sleep.wake_fails = 0.0;
    scenario.sleep.rule.idle_s = 500.0;
    scenario.sleep.rule.horizon_s = 100.0;
    let sleeping = |sleep| run(&scenario, Conditions { sleep, ..Conditions::all_known() });

    let replayed = sleeping(Sleep::Rule);

    assert_eq!(replayed.jobs[1].finish, Some(Time(4100.0)));
    let sum = &replayed.summary;
    assert_eq!((sum.sleeps, sum.asleep), (1, Seconds(1500.0)));
    assert_eq!(sum.empty_host_energy, Joules(40.0 * 500.0));
    assert_eq!(sum.wake_energy, Joules(100.0 * 100.0 + 500.0));
    assert_eq!(sum.idle_energy, Joules(20.0 * 1000.0 + 40.0 * 500.0));
    assert_eq!(sum.host_energy, Joules(100.0 * 2000.0));
    assert_eq!(sum.job_energy, Joules(140.0 * 2000.0));
    // A joule costs 1.
    assert_eq!(sum.energy_cost.0, 10_500.0 + 200_000.0 + 280_000.0);

    // An oracle sleeps from the first second to the last that leaves time to wake; nobody waits.
    let oracle = sleeping(Sleep::Oracle);
    assert_eq!(oracle.jobs[1].finish, Some(Time(4000.0)));
    let sum = &oracle.summary;
    assert_eq!((sum.sleeps, sum.asleep), (1, Seconds(1900.0)));
    assert!(sum.empty_host_energy.0.abs() < 1e-6);
    assert_eq!(sum.wake_energy, Joules(100.0 * 100.0 + 500.0));
    assert_eq!(sum.idle_energy, Joules(20.0 * 1000.0 + 40.0 * 100.0));
    assert!(sum.energy() < replayed.summary.energy());
}

#[test]
fn a_wake_up_that_fails_takes_as_long_again() {
    let mut scenario = scenario(vec![job("a", 0.0, None, 10.0), job("b", 3000.0, None, 10.0)]);
    scenario.sleep = SleepModel { wake_s: 100.0, wake_fails: 1.0, ..SleepModel::default() };
    scenario.sleep.rule.idle_s = 500.0;
    scenario.sleep.rule.horizon_s = 100.0;
    let replayed = run(&scenario, Conditions { sleep: Sleep::Rule, ..Conditions::all_known() });
    assert_eq!(replayed.jobs[1].finish, Some(Time(4400.0)), "three failures, then it is on");
}

#[test]
fn starts_and_decisions_take_the_time_that_was_measured() {
    let mut scenario = scenario(vec![job("a", 0.0, None, 10.0), job("b", 500.0, None, 10.0)]);
    scenario.delays = Delays { debounce_s: 10.0, bind_s: 5.0, first_start_s: 60.0, stop_s: 0.0 };
    let replayed = run(&scenario, Conditions::all_known());
    // The first decision is made at once.
    assert_eq!(replayed.jobs[0].finish, Some(Time(1065.0)));
    assert_eq!(replayed.jobs[1].start, Some(Time(510.0)));
    assert_eq!(replayed.jobs[1].finish, Some(Time(1575.0)));
    // GPUs draw from the binding on.
    assert_eq!(replayed.jobs[1].energy, Joules(140.0 * 1060.0));
}

#[test]
fn a_job_that_fails_announced_more_than_it_does() {
    let mut scenario = scenario(vec![job("a", 0.0, None, 10.0)]);
    scenario.unfinished.insert("a".into(), 5.0);
    let mut announced = Vec::new();
    let mut decide = |snapshot: &Snapshot| {
        announced.push(snapshot.jobs[0].epochs_left);
        plan(snapshot, &Options::default())
    };
    let replayed = replay(&scenario, &Conditions::all_known(), &mut decide, &mut |_| {}).unwrap();
    assert_eq!((announced[0], replayed.jobs[0].finish), (15.0, Some(Time(1000.0))));
}

#[test]
fn of_a_looped_trace_one_round_is_counted() {
    // Given a job every 1,000 s, and a window with the second,
    let jobs = (0..3).map(|i| job(&format!("j{i}"), f64::from(i) * 1000.0, None, 5.0)).collect();
    let mut scenario = scenario(jobs);
    scenario.window = Some((Time(1000.0), Time(2000.0)));
    let replayed = run(&scenario, Conditions::all_known());
    let sum = &replayed.summary;
    assert_eq!((sum.jobs, sum.unfinished), (1, 0));
    assert_eq!(sum.job_energy, Joules(140.0 * 500.0));
    assert_eq!(sum.idle_energy, Joules(20.0 * 500.0 + 40.0 * 500.0));
    assert_eq!(sum.mean_turnaround, Seconds(500.0));
}

#[test]
fn the_error_of_a_looped_trace_is_that_of_its_round() {
    // Given four jobs that fill 4,000 s, of which a method has the third draw half as much,
    let round = |n: u32, part: f64| {
        let jobs = [2.0, 5.0, 8.0, 10.0].into_iter().zip(0..4);
        let jobs = jobs.map(move |(epochs, i)| {
            let submit = 4000.0 * f64::from(n) + 1000.0 * f64::from(i);
            let mut job = job(&format!("j{n}-{i}"), submit, None, epochs);
            if i == 2 {
                let row = &job.estimates[0];
                job.estimates = [Estimate { power: row.power * part, ..row.clone() }].into();
            }
            job
        });
        jobs.collect::<Vec<_>>()
    };
    let outcome = |rounds: u32, part: f64, from: f64| {
        let mut scenario = scenario((0..rounds).flat_map(|n| round(n, part)).collect());
        scenario.window = Some((Time(from), Time(from + 4000.0)));
        let replayed = run(&scenario, Conditions::all_known());
        Outcome {
            method: Method::Fifo,
            label: String::new(),
            seed: 0,
            budget: None,
            runs: vec![replayed.summary.clone()],
            waits: Vec::new(),
            replayed,
            decision_times: DecisionTimes::default(),
        }
    };
    let error = |rounds, from| outcome(rounds, 0.5, from).relative_cost(&outcome(rounds, 1.0, from)).1;
    // then how much single jobs decide of the share is the same for one round, and for the second of three.
    let (single, looped) = (error(1, 0.0), error(3, 4000.0));
    assert!(single > 0.0 && (looped / single - 1.0).abs() < 1e-6, "{looped} {single}");
}
