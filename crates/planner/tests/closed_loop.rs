//! The default method over whole runs of a cluster.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod closed;

use andreas_planner::{MethodName, Options, plan};
use closed::{Bill, Load};

/// A method with the defaults.
fn with(method: MethodName) -> Options {
    Options { method, ..Options::default() }
}

fn replay(load: &Load, options: &Options) -> Bill {
    closed::replay(load, &mut |snapshot| plan(snapshot, options).unwrap())
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

#[test]
fn a_budget_that_is_lowered_below_the_draw_or_changes_by_windows_is_kept() {
    // Given a budget that falls to half of what is drawn in the middle, rises, and falls again to little above the idle draw (2200 W),
    let windows = vec![(3600.0, 3000.0), (7200.0, 9000.0), (10_800.0, 2600.0), (14_400.0, 6000.0)];
    let load = Load { jobs: 40, gap: 250.0, budget: Some(6000.0), windows, ..Load::default() };
    for method in [MethodName::RandomizedGreedy, MethodName::Edf] {
        // then no plan is above it, whoever has to stop for that, and everything is done at last.
        let bill = replay(&load, &Options { trials: 100, ..with(method) });
        assert!(bill.above <= 0.0, "{method}: {} W above the budget", bill.above);
        assert!(bill.mean_hours > 0.0 && bill.mean_hours.is_finite());
    }
}

#[test]
fn power_limits_on_offer_never_make_the_bill_larger() {
    // Given GPUs that may be run at power limits, and jobs at low, medium and high load,
    let mean = |limits: bool, gap: f64| {
        let one = |seed: u64| {
            let load = Load { jobs: 200, gap, seed, limits, ..Load::default() };
            replay(&load, &Options { trials: 100, ..with(MethodName::RandomizedGreedy) }).total()
        };
        (1..=4).map(one).sum::<f64>() / 4.0
    };
    // then more choices cost no more than noise, and save energy where there is time for it.
    for (gap, most) in [(900.0, 0.97), (450.0, 1.01), (250.0, 1.02)] {
        let (with, without) = (mean(true, gap), mean(false, gap));
        assert!(with <= most * without, "{gap} s: {with} with limits, {without} without");
    }
}

#[test]
fn wrong_predictions_cost_little_and_break_no_budget() {
    // Given times that are wrong by 16 % in the mean and never corrected (standard deviation of the logarithm 0.2),
    let right = Load { jobs: 100, gap: 450.0, budget: Some(9000.0), ..Load::default() };
    let wrong = Load { error: 0.2, ..right.clone() };
    let options = with(MethodName::RandomizedGreedy);
    let (right, wrong) = (replay(&right, &options), replay(&wrong, &options));
    // then the bill is a little higher, and the budget kept.
    assert!(wrong.total() <= 1.1 * right.total(), "{} against {}", wrong.total(), right.total());
    assert!(wrong.above <= 0.0, "{} W above the budget", wrong.above);
}
