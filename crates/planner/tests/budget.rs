//! Scenarios: what the planner does where watts are scarce.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/budget.rs"]
mod every_method;
mod methods;
mod scenarios;

use andreas_core::{CostRate, GpuCount, Joules, Seconds, StepFunction, Time, Watts};
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
    snapshot.jobs = vec![job("four", 4)];
    let windows = vec![(Time(0.0), Watts(3000.0)), (Time(300.0), Watts(1000.0))];
    for (look_ahead, runs) in [(600.0, false), (60.0, true)] {
        snapshot.budget = Some(PowerBudget {
            watts: StepFunction::new(windows.clone()).unwrap(),
            look_ahead: Seconds(look_ahead),
            ..budget(0.0).unwrap()
        });
        let plan = decide(&snapshot, MethodName::Edf);
        assert_eq!(place(&plan, "team/four").is_some(), runs);
        if runs {
            assert_eq!(
                plan.next_event,
                Some(Time(240.0)),
                "planned again before the window by the look-ahead"
            );
        }
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
    // Given a budget that allows eight GPUs for half an hour every two hours and one GPU else, seen an hour ahead,
    let windows = (0..72).flat_map(|i| {
        let from = 2.0 * HOUR * f64::from(i);
        [(Time(from), Watts(3000.0)), (Time(from + 0.5 * HOUR), Watts(800.0))]
    });
    let ahead = |look_ahead: f64| {
        let watts = StepFunction::new(windows.clone().collect()).unwrap();
        PowerBudget { watts, look_ahead: Seconds(look_ahead), ..budget(0.0).unwrap() }
    };
    let row = |gpus: u32, hours: f64| {
        Estimate::new("A100".into(), GpuCount(gpus), Seconds(hours * HOUR), Watts(300.0 * f64::from(gpus)))
    };
    let urgent = Job {
        estimates: [row(1, 50.0), row(8, 6.0)].into(),
        epochs_left: 1.0,
        deadline: Some(Time(30.0 * HOUR)),
        weight: CostRate(0.02),
        ..job("urgent", 8)
    };
    for method in [MethodName::RandomizedGreedy, MethodName::Exact] {
        let mut snapshot = cluster(1);
        snapshot.jobs = vec![urgent.clone()];
        snapshot.budget = Some(ahead(HOUR));
        // when this is decided again and again,
        let starts = (0..24).any(|step| {
            snapshot.now = Time(1800.0 * f64::from(step));
            let options = Options { method, ..Options::default() };
            let decided = plan(&snapshot, &options).unwrap();
            let starts = place(&decided, "team/urgent").is_some();
            (snapshot.prices, snapshot.intended) = (decided.prices, decided.intended);
            starts
        });
        // then it does not wait for a window in which it may not start.
        assert!(starts, "{method}");
    }
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
