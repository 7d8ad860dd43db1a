//! Scenarios: what the planner does where watts are scarce.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/budget.rs"]
mod every_method;
mod methods;
mod scenarios;

use andreas_core::{Seconds, StepFunction, Time, Watts};
use andreas_planner::{MethodName, PowerBudget, WaitReason};
use methods::decide;
use scenarios::{budget, cluster, job, place, reason};

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
