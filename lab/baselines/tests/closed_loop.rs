//! The default method against the others, over whole runs of a cluster.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod bound;
#[path = "../../../crates/planner/tests/closed/mod.rs"]
mod closed;

use andreas_baselines::{Method, Options, plan};
use bound::bound;
use closed::{Bill, Load};

/// A method with the defaults.
fn with(method: Method) -> Options {
    Options { method, ..Options::default() }
}

fn replay(load: &Load, options: &Options) -> Bill {
    closed::replay(load, &mut |snapshot| plan(snapshot, options).unwrap())
}

#[test]
fn the_default_is_cheaper_than_the_others_at_any_load() {
    // Given 101 jobs on ten nodes, with 120 s lost by each restart, at low, medium and high load,
    for gap in [900.0, 450.0, 250.0] {
        let load = Load { jobs: 101, gap, ..Load::default() };
        let ours = replay(&load, &with(Method::RandomizedGreedy));
        for method in [Method::Fifo, Method::Edf, Method::Priority, Method::Andreas] {
            // (some tens of random plans for the published one: a thousand change little and take long)
            let options =
                Options { method, trials: if method == Method::Andreas { 30 } else { 1 }, ..with(method) };
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
fn no_course_costs_less_than_the_bound() {
    // Given somebody who knows everything from the beginning, with a power budget and without,
    for budget in [None, Some(6000.0)] {
        for limits in [false, true] {
            let load = Load { jobs: 60, gap: 250.0, budget, limits, ..Load::default() };
            let bound = bound(&load, 60);
            for method in [Method::Edf, Method::Srtf, Method::RandomizedGreedy] {
                // then no method does better, and the default is not far above.
                let total = replay(&load, &Options { trials: 30, ..with(method) }).total();
                assert!(total >= bound, "{method}: {total} below {bound}");
                let near = method != Method::RandomizedGreedy || total <= 1.5 * bound;
                assert!(near, "{method}: {total} far above {bound}");
            }
        }
    }
}
