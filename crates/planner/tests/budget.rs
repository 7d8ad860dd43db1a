//! Scenarios: what the planner does where watts are scarce.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/budget.rs"]
mod every_method;
mod methods;
mod scenarios;

use andreas_model::{CostRate, GpuCount, Joules, Seconds, StepFunction, Time, Watts};
use andreas_planner::{
    Estimate, Job, LimitEffect, MethodName, NodePower, NodeSleep, Options, Placement, PowerBudget,
    WaitReason, plan,
};
use methods::decide;
use scenarios::{HOUR, budget, cluster, job, on, place, reason, running};

#[test]
fn a_job_costs_the_budget_its_draw_minus_the_idle_watts_it_replaces() {
    // Given 400 W of idle GPUs, a job of four GPUs adds 100 W overhead and 4 x (300 - 50) W: 1500 W.
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![job("four", 4)];
    for (watts, runs) in [(1500.0, true), (1499.0, false)] {
        snapshot.budget = budget(watts);
        let plan = decide(&snapshot, MethodName::Fifo);
        assert_eq!(place(&plan, "team/four").is_some(), runs);
        assert_eq!(plan.budgeted_power, Watts(if runs { 1500.0 } else { 400.0 }));
        if !runs {
            assert_eq!(reason(&plan, "team/four").0, WaitReason::PowerBudget);
        }
    }
    snapshot.budget = budget(399.0);
    assert_eq!(reason(&decide(&snapshot, MethodName::Fifo), "team/four").0, WaitReason::BudgetInfeasible);
}

#[test]
fn a_lower_budget_window_is_seen_ahead() {
    let mut snapshot = cluster(1);
    snapshot.budget = Some(windows(&[(0.0, 3000.0), (300.0, 1000.0)]));
    for (grace, runs) in [(600.0, false), (60.0, true)] {
        snapshot.jobs = vec![Job { grace: Seconds(grace), ..job("four", 4) }];
        let plan = decide(&snapshot, MethodName::Edf);
        assert_eq!(place(&plan, "team/four").is_some(), runs);
        if runs {
            assert_eq!(
                plan.next_event,
                Some(Time(240.0)),
                "planned again before the window by its grace period"
            );
        }
    }
}

/// A budget of these watts from these seconds on.
fn windows(list: &[(f64, f64)]) -> PowerBudget {
    let watts = StepFunction::new(list.iter().map(|(from, watts)| (Time(*from), Watts(*watts))).collect());
    PowerBudget { watts: watts.unwrap(), ..budget(0.0).unwrap() }
}

#[test]
fn the_grace_period_of_one_job_does_not_keep_others_from_the_present_window() {
    // Given a lower window in ten minutes, a job that takes an hour to stop and waits for more GPUs than there are, and one of
    // six minutes that takes one to stop,
    let mut snapshot = cluster(2);
    snapshot.budget = Some(windows(&[(0.0, 5000.0), (600.0, 1500.0), (4200.0, 5000.0)]));
    let hour = |name: &str, gpus| Job { grace: Seconds(HOUR), ..job(name, gpus) };
    let minute = |name: &str, gpus| Job { grace: Seconds(60.0), epochs_left: 0.1, ..job(name, gpus) };
    snapshot.jobs = vec![hour("large", 64), minute("four", 4)];
    for method in methods::all() {
        // then that one has the present window's watts,
        let plan = decide(&snapshot, method);
        assert!(place(&plan, "team/four").is_some(), "{method}");
    }
    // and the other starts where it fits the lower window by itself: one GPU beside 800 W of idle ones.
    for (gpus, runs) in [(1, true), (4, false)] {
        snapshot.jobs = vec![hour("long", gpus), minute("four", 4)];
        for method in methods::all() {
            let plan = decide(&snapshot, method);
            assert_eq!(place(&plan, "team/long").is_some(), runs, "{method}");
            assert!(place(&plan, "team/four").is_some(), "{method}");
        }
    }
}

#[test]
fn before_a_lower_window_those_are_stopped_who_can_still_be_gone_by_then() {
    // Given two running jobs that fit the present window together, and the lower window in a minute alone: one takes an hour
    // to stop, and would be the cheaper one to stop,
    let mut snapshot = cluster(2);
    snapshot.budget = Some(windows(&[(0.0, 5000.0), (60.0, 2900.0)]));
    let long = Job { grace: Seconds(HOUR), weight: CostRate(1e-6), ..job("long", 8) };
    let short = Job { grace: Seconds(60.0), ..job("short", 8) };
    snapshot.jobs = vec![running(long, &["n0"], 8), running(short, &["n1"], 8)];
    for method in methods::all() {
        // then the other one is stopped.
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/long"), Some(&on(&["n0"], 8)), "{method}");
        assert_eq!(reason(&plan, "team/short").0, WaitReason::PowerBudget, "{method}");
    }
    // A minute earlier both run, and the next plan is made when the stop must begin.
    snapshot.budget = Some(windows(&[(0.0, 5000.0), (120.0, 2900.0)]));
    for method in methods::all() {
        let plan = decide(&snapshot, method);
        assert!(["team/long", "team/short"].iter().all(|job| place(&plan, job).is_some()), "{method}");
        assert_eq!(plan.next_event, Some(Time(60.0)), "{method}");
    }
}

#[test]
fn watts_cost_nothing_where_a_budget_has_room_for_all_on_hosts_that_may_sleep() {
    // Given jobs that fill ten hosts, and add 26 kW to what these draw already.
    let mut snapshot = cluster(10);
    for node in &mut snapshot.nodes {
        (node.host_idle, node.host_busy) = (Watts(1000.0), Watts(1600.0));
        let (wake, wake_energy) = (Seconds(600.0), Joules::ZERO);
        node.sleep = Some(NodeSleep { state: NodePower::On, wake, wake_energy });
    }
    snapshot.jobs = (0..20).map(|i| job(&format!("j{i:02}"), 4)).collect();
    let floor = 10.0 * (1000.0 + 8.0 * 50.0);
    let mut priced = |watts: f64| {
        snapshot.budget = budget(floor + watts);
        let prices = decide(&snapshot, MethodName::RandomizedGreedy).prices.unwrap();
        prices.values["watts"].iter().any(|rate| *rate > 0.0)
    };
    assert!(!priced(30_000.0) && priced(20_000.0));
}

#[test]
fn a_job_that_prefers_windows_too_short_to_start_in_starts_at_last() {
    // Given a budget that allows eight GPUs for half an hour every two hours and one GPU else, and a stop that takes an hour,
    let list: Vec<_> = (0..72)
        .flat_map(|i| {
            let from = 2.0 * HOUR * f64::from(i);
            [(from, 3000.0), (from + 0.5 * HOUR, 800.0)]
        })
        .collect();
    let row = |gpus: u32, hours: f64| {
        Estimate::new("A100".into(), GpuCount(gpus), Seconds(hours * HOUR), Watts(300.0 * f64::from(gpus)))
    };
    let urgent = Job {
        estimates: [row(1, 50.0), row(8, 6.0)].into(),
        epochs_left: 1.0,
        deadline: Some(Time(30.0 * HOUR)),
        weight: CostRate(0.02),
        grace: Seconds(HOUR),
        ..job("urgent", 8)
    };
    let mut snapshot = cluster(1);
    snapshot.jobs = vec![urgent.clone()];
    snapshot.budget = Some(windows(&list));
    // when this is decided again and again,
    let starts = (0..24).any(|step| {
        snapshot.now = Time(1800.0 * f64::from(step));
        let decided = plan(&snapshot, &Options::default()).unwrap();
        let starts = place(&decided, "team/urgent").is_some();
        (snapshot.prices, snapshot.intended) = (decided.prices, decided.intended);
        starts
    });
    // then it does not wait for a window in which it may not start.
    assert!(starts);
}

#[test]
fn a_lower_budget_limits_a_fully_aged_job_where_it_is() {
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.05, power_factor: 0.7 };
    // Given a job that runs on the second of two nodes and is served before all others by its age,
    let mut snapshot = cluster(2);
    snapshot.now = Time(1000.0 * HOUR);
    let old = Job { limits: vec![limit], submit: Time(0.0), ..job("old", 8) };
    snapshot.jobs = vec![running(old, &["n1"], 8)];
    // 2900 W run, under the limit 2180 W,
    snapshot.budget = budget(2500.0);
    for method in methods::all() {
        // then the limit is set and nothing restarts.
        let plan = decide(&snapshot, method);
        let limited = Placement { limit: Some(Watts(200.0)), ..on(&["n1"], 8) };
        assert_eq!(place(&plan, "team/old"), Some(&limited), "{method}");
    }
}
