//! Demand to come: what the learner expects, and what the planner does about it.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod scenarios;

use andreas_core::{Seconds, Time};
use andreas_planner::{ComingDemand, DemandLearner, DemandWindow, Job, Options, Snapshot, plan};
use scenarios::{HOUR, cluster, job};

/// Decides at each instant in hours, with a new job at those of `submitted`.
fn weeks(learner: &mut DemandLearner, hours: std::ops::Range<u32>, submitted: impl Fn(u32) -> bool) {
    for hour in hours {
        let mut snapshot = cluster(1);
        snapshot.now = Time(f64::from(hour) * HOUR + 1.0);
        if submitted(hour) {
            snapshot.jobs = vec![Job { submit: snapshot.now, deadline: None, ..job("new", 8) }];
        }
        let plan = plan(&snapshot, &Options::default()).unwrap();
        learner.observe(&snapshot, &plan);
    }
}

fn gpu_seconds(coming: &[ComingDemand]) -> f64 {
    coming.iter().flat_map(|demand| &demand.windows).map(|window| window.gpu_seconds).sum()
}

#[test]
fn demand_is_expected_in_the_hours_of_the_week_that_had_it() {
    // Given nothing seen yet, nothing is expected.
    let mut learner = DemandLearner::default();
    assert_eq!(learner.coming(Time(0.0), Seconds(24.0 * HOUR)), vec![]);
    // Given two weeks with a job every Monday at nine,
    weeks(&mut learner, 0..337, |hour| hour % 168 == 9);
    // then that hour of the third week expects it, and no other.
    let whole_week = learner.coming(Time(336.0 * HOUR), Seconds(168.0 * HOUR));
    let nine = learner.coming(Time(345.0 * HOUR), Seconds(HOUR));
    assert!(gpu_seconds(&nine) > 0.0);
    assert!((gpu_seconds(&whole_week) - gpu_seconds(&nine)).abs() < 1e-6 * gpu_seconds(&nine));
    assert!(nine[0].windows[0].price > 0.0);
    // Half of the hour expects half of it.
    let half = learner.coming(Time(345.5 * HOUR), Seconds(HOUR));
    assert!((gpu_seconds(&half) - 0.5 * gpu_seconds(&nine)).abs() < 1e-6 * gpu_seconds(&nine));
    // Weeks without it make it fade.
    weeks(&mut learner, 337..850, |_| false);
    assert!(
        gpu_seconds(&learner.coming(Time(850.0 * HOUR), Seconds(168.0 * HOUR))) < 0.5 * gpu_seconds(&nine)
    );
    // What it has learned can be stored.
    let text = serde_json::to_string(&learner).unwrap();
    assert_eq!(serde_json::from_str::<DemandLearner>(&text).unwrap(), learner);
}

#[test]
fn demand_to_come_raises_the_prices_of_its_hours_up_to_what_it_would_pay() {
    let prices = |coming: Vec<ComingDemand>| {
        let snapshot = Snapshot { jobs: vec![job("only", 8)], coming, ..cluster(2) };
        let prices = plan(&snapshot, &Options::default()).unwrap().prices.unwrap();
        prices.values.values().flatten().copied().fold(0.0, f64::max)
    };
    // Given a cluster with room, GPUs cost nothing.
    assert_eq!(prices(vec![]), 0.0);
    // Given demand for ten times its GPUs for the next day,
    let name = cluster(1).nodes[0].gpu_type.clone();
    let gpus: f64 = cluster(2).nodes.iter().map(|node| f64::from(node.gpus.0)).sum();
    let window = DemandWindow {
        from: Seconds(0.0),
        until: Seconds(24.0 * HOUR),
        gpu_seconds: 10.0 * gpus * 24.0 * HOUR,
        price: 1e-5,
    };
    let dearest = prices(vec![ComingDemand { gpu_type: name, windows: vec![window] }]);
    // then they cost something, but not more than anybody would pay.
    assert!(dearest > 1e-6 && dearest <= 2.1e-5, "{dearest}");
}
