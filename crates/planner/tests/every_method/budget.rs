//! Scenarios that every method must pass: what it does where watts are scarce.

use andreas_model::{CostRate, GpuCount, Time, Watts};
use andreas_planner::{
    Estimate, Job, JobState, LimitEffect, LimitsCount, Placement, Plan, Preemption, WaitReason,
};

use crate::methods::{self, Method, decide};
use crate::scenarios::{HOUR, budget, cluster, job, on, place, reason, running};

#[test]
fn nobody_is_stopped_for_the_watts_of_room_that_is_kept() {
    // Given a job that may not be stopped, one that may not be moved, and a fully aged one that needs all GPUs and, with
    // the 1500 W of the others, more watts than there are,
    let mut snapshot = cluster(1);
    snapshot.now = Time(1000.0 * HOUR);
    let since = Time(999.0 * HOUR);
    let there =
        |job: Job, gpus| Job { state: JobState::Running { placement: on(&["n0"], gpus), since }, ..job };
    snapshot.jobs = vec![
        there(Job { preemption: Preemption::Never, ..job("never", 2) }, 2),
        there(Job { movable: false, ..job("fixed", 2) }, 2),
        Job { deadline: Some(Time(0.0)), ..job("large", 8) },
    ];
    snapshot.budget = budget(2500.0);
    for method in methods::all() {
        // then both go on, and it waits until they are done.
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/never"), Some(&on(&["n0"], 2)), "{method}");
        assert_eq!(place(&plan, "team/fixed"), Some(&on(&["n0"], 2)), "{method}");
        assert_eq!(reason(&plan, "team/large").0, WaitReason::WaitingForCapacity);
    }
}

#[test]
fn a_lower_budget_first_lowers_limits_then_stops_the_cheapest_and_never_last() {
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.05, power_factor: 0.7 };
    let mut snapshot = cluster(3);
    snapshot.jobs = vec![
        running(Job { limits: vec![limit], ..job("limited", 8) }, &["n0"], 8),
        running(Job { weight: CostRate(1e-6), preemption: Preemption::Never, ..job("never", 8) }, &["n1"], 8),
        running(Job { weight: CostRate(1e-3), ..job("dear", 8) }, &["n2"], 8),
    ];
    // Given three nodes at 2500 W each,
    for method in methods::all() {
        // a little less is reached by a limit alone,
        snapshot.budget = budget(7000.0);
        let plan = decide(&snapshot, method);
        assert_eq!(place(&plan, "team/limited").unwrap().limit, Some(Watts(200.0)), "{method}");
        assert!(["team/never", "team/dear"].iter().all(|j| place(&plan, j).is_some()));
        // much less by stops, of jobs that may be stopped first,
        snapshot.budget = budget(3500.0);
        let plan = decide(&snapshot, method);
        let runs: Vec<_> =
            plan.jobs.iter().filter(|j| j.1.decision.placement().is_some()).map(|j| j.0.as_str()).collect();
        assert_eq!(runs, ["team/never"], "{method}");
        assert_eq!(reason(&plan, "team/dear").0, WaitReason::PowerBudget);
        // and nothing at all by stopping everything.
        snapshot.budget = budget(1300.0);
        let plan = decide(&snapshot, method);
        assert!(plan.jobs.values().all(|j| j.decision.placement().is_none()), "{method}");
    }
}

#[test]
fn while_some_leave_for_a_lower_budget_nobody_is_stopped_in_their_place() {
    let mut snapshot = cluster(4);
    let leaving = |name: &str, node: &str| Job {
        state: JobState::Stopping {
            holds: Placement {
                gpu_type: "A100".into(),
                nodes: vec![node.into()],
                gpus_per_node: GpuCount(8),
                limit: None,
            },
            target: None,
            gone_by: Time(60.0),
        },
        ..job(name, 8)
    };
    // Given four nodes (400 W idle, 2500 W each with a job): two run, one leaves, one waits, 8300 W are held now
    snapshot.jobs = vec![
        running(job("dear", 8), &["n0"], 8),
        running(Job { weight: CostRate(1e-6), ..job("cheap", 8) }, &["n1"], 8),
        leaving("leaves", "n2"),
        job("waits", 8),
    ];
    let runs = |plan: &Plan| -> Vec<String> {
        let placed = plan.jobs.iter().filter(|j| j.1.decision.placement().is_some());
        placed.map(|j| j.0.as_str().to_owned()).collect()
    };
    for method in methods::all() {
        // and a budget that is met as soon as that one has left: it stays at that, and nothing starts meanwhile.
        snapshot.budget = budget(5_800.0);
        let plan = decide(&snapshot, method);
        assert_eq!(runs(&plan), ["team/cheap", "team/dear"], "{method}");
        assert_eq!(plan.allowed_power, Some(Watts(5_800.0)), "the budget is said as it is");
        // One that asks for another stop gets that one.
        snapshot.budget = budget(3_700.0);
        assert_eq!(runs(&decide(&snapshot, method)), ["team/dear"], "{method}");
        // What leaves for other reasons under a budget that is kept frees nothing before it is gone.
        snapshot.budget = budget(8_299.0);
        assert_eq!(runs(&decide(&snapshot, method)), ["team/cheap", "team/dear"], "{method}");
    }
}

/// The job, counted at `watts` for each GPU against the budget whatever its table says.
fn counted(job: Job, watts: f64) -> Job {
    let rows = job
        .estimates
        .iter()
        .map(|row| Estimate { draw: Some(Watts(watts * f64::from(row.gpus.0))), ..row.clone() });
    Job { estimates: rows.collect(), ..job }
}

#[test]
fn the_budget_counts_the_draw_and_the_cost_counts_the_power_of_the_table() {
    // Given jobs whose table says 1 W for each GPU, which draw up to 400 W each,
    let cheap = |name: &str| {
        let job = job(name, 8);
        let rows = job.estimates.iter().map(|row| Estimate { power: Watts(8.0), ..row.clone() });
        Job { estimates: rows.collect(), ..job }
    };
    let mut snapshot = cluster(4);
    let names = ["a", "b", "c", "d"];
    snapshot.jobs = names.map(|name| counted(cheap(name), 400.0)).into();
    // and a budget for two of them: 100 W overhead and 3200 W each, 800 W of idle GPUs,
    snapshot.budget = budget(7_400.0);
    for method in methods::all() {
        // then two run, and their energy is the table's.
        let plan = decide(&snapshot, method);
        let run: Vec<_> = plan.jobs.values().filter(|j| j.decision.placement().is_some()).collect();
        assert_eq!(run.len(), 2, "{method}");
        assert_eq!(plan.budgeted_power, Watts(7_400.0), "{method}");
        assert!((run[0].energy.0 - 8.0 * HOUR).abs() < 1.0, "{method}: {:?}", run[0].energy);
    }
    // A limit bounds what is counted.
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.0, power_factor: 0.7 };
    for job in &mut snapshot.jobs {
        job.limits = vec![limit.clone()];
    }
    let plan = decide(&snapshot, Method::Fifo);
    assert!(plan.budgeted_power.0 <= 7_400.0);
    let limited = |name: &str| place(&plan, &format!("team/{name}")).and_then(|place| place.limit);
    assert!(names.iter().filter(|name| limited(name) == Some(Watts(200.0))).count() >= 2, "{plan:?}");
}

#[test]
fn nothing_starts_on_watts_that_a_limit_has_not_saved_yet() {
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.05, power_factor: 0.6 };
    let limited = |job: Job, count| Job { limits: vec![limit.clone()], limits_count: count, ..job };
    let mut snapshot = cluster(2);
    // Given a job that runs under a limit (100 + 8 x 180 W), one that waits (2500 W without), and a budget for both:
    let with_limit = |count| {
        let job = running(limited(job("runs", 8), count), &["n0"], 8);
        let JobState::Running { mut placement, since } = job.state.clone() else { unreachable!() };
        placement.limit = Some(Watts(200.0));
        Job { preemption: Preemption::Never, state: JobState::Running { placement, since }, ..job }
    };
    snapshot.budget = budget(1_540.0 + 2_500.0);
    for method in methods::all() {
        // while the limit is not in force the other one waits, and the first is neither stopped nor let go,
        snapshot.jobs =
            vec![with_limit(LimitsCount::NotYetSet), limited(job("waits", 8), LimitsCount::WhenSet)];
        let plan = decide(&snapshot, method);
        assert_eq!(
            reason(&plan, "team/waits"),
            (WaitReason::PowerBudget, vec!["team/runs".into()]),
            "{method}"
        );
        assert_eq!(place(&plan, "team/runs").and_then(|place| place.limit), Some(Watts(200.0)), "{method}");
        // and once it is, the other one starts.
        snapshot.jobs =
            vec![with_limit(LimitsCount::WhenSet), limited(job("waits", 8), LimitsCount::WhenSet)];
        let plan = decide(&snapshot, method);
        assert!(place(&plan, "team/waits").is_some(), "{method}");
    }
    // A start counts without its limit: with less than 2500 W for it there is none.
    snapshot.budget = budget(1_540.0 + 2_499.0);
    for method in methods::all() {
        assert!(place(&decide(&snapshot, method), "team/waits").is_none(), "{method}");
    }
}

#[test]
fn a_lower_budget_lowers_limits_and_starts_nothing_on_them_in_the_same_plan() {
    let limit =
        LimitEffect { gpu_type: "A100".into(), limit: Watts(200.0), time_factor: 1.05, power_factor: 0.6 };
    let limited = |job: Job| Job { limits: vec![limit.clone()], limits_count: LimitsCount::WhenSet, ..job };
    let mut snapshot = cluster(2);
    snapshot.jobs = vec![
        running(Job { preemption: Preemption::Never, ..limited(job("runs", 8)) }, &["n0"], 8),
        limited(Job { estimates: job("small", 1).estimates, ..job("small", 1) }),
    ];
    // 2500 W run, 400 W are idle; under a limit 1540 W, and with the small one 350 W more.
    snapshot.budget = budget(2_600.0);
    for method in methods::all() {
        let plan = decide(&snapshot, method);
        assert!(place(&plan, "team/runs").is_some_and(|place| place.limit == Some(Watts(200.0))), "{method}");
        assert!(place(&plan, "team/small").is_none(), "{method}");
    }
}
