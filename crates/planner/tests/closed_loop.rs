//! The default method against the others, over whole runs of a cluster.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod closed;

use andreas_planner::{MethodName, Options};
use closed::{Bill, Load, replay, with};

#[test]
fn the_default_is_cheaper_than_the_others_at_any_load() {
    // Given 101 jobs on ten nodes, with 120 s lost by each restart, at low, medium and high load,
    for gap in [900.0, 450.0, 250.0] {
        let load = Load { jobs: 101, gap, ..Load::default() };
        let ours = replay(&load, &with(MethodName::RandomizedGreedy));
        for method in [MethodName::Fifo, MethodName::Edf, MethodName::Priority, MethodName::Andreas] {
            // (some tens of random plans for the published one: a thousand change little and take long)
            let options = Options {
                method,
                trials: if method == MethodName::Andreas { 30 } else { 1 },
                ..with(method)
            };
            let theirs = replay(&load, &options);
            assert!(
                ours.total() < theirs.total(),
                "{gap} s, {method}: {} against {}",
                ours.total(),
                theirs.total()
            );
        }
        // then the default costs less, and does not pay with churn.
        assert!(ours.restarts <= 1.5, "{} restarts per job", ours.restarts);
    }
}

#[test]
fn a_power_budget_is_kept_all_the_way() {
    // Given a budget of a little over half of what the cluster draws at its peak,
    let load = Load { jobs: 40, gap: 250.0, budget: Some(6000.0), ..Load::default() };
    // then no plan is ever above it, and everything is done at last.
    let Bill { above, mean_hours, .. } = replay(&load, &with(MethodName::RandomizedGreedy));
    assert!(above <= 0.0, "{above} W above the budget");
    assert!(mean_hours > 0.0);
}
