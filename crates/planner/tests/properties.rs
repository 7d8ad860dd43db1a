//! What holds of every plan, whatever the cluster.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/properties.rs"]
mod every_method;
mod methods;
mod world;

use std::cell::Cell;

use andreas_model::Watts;
use andreas_planner::{Node, Options, plan};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use world::snapshots;

/// Prices of later are approximate: on clusters of a few nodes, a node more moves them so far that about one plan in a thousand is
/// counted dearer by more than 2 %, and one in four thousand by more than 10 %.
const NOISE: f64 = 0.02;
/// So many of the cases may be dearer by more than that,
const RARELY: f64 = 0.02;
/// and none by more than this.
const EVER: f64 = 0.5;

#[test]
fn a_free_node_more_never_costs_more() {
    let (sum, count, dearer) = (Cell::new(0.0), Cell::new(0.0), Cell::new(0.0));
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&(snapshots(), 0..7_usize), |(mut snapshot, pick)| {
        // Given nodes whose overhead is the same for each GPU, for it is billed by their mean,
        prop_assume!(!snapshot.nodes.is_empty() && !snapshot.jobs.is_empty());
        snapshot.budget = None;
        // nobody who begins at once whatever that costs because its turn has come,
        snapshot.lateness.aging = None;
        snapshot.nodes.iter_mut().for_each(|node| node.host_busy = Watts(30.0 * f64::from(node.gpus.0)));
        // and jobs that could run before: those that can run nowhere cost nothing,
        for job in &mut snapshot.jobs {
            job.spread.clear();
            job.forbidden.clear();
        }
        // when a node comes that is like another,
        let mut more = snapshot.clone();
        let node = &snapshot.nodes[pick % snapshot.nodes.len()];
        more.nodes.push(Node { name: "n99".into(), ..node.clone() });
        let options = Options { seed: 7, ..Options::default() };
        let cost = |snapshot| plan(snapshot, &options).unwrap().cost.0;
        let (with, without) = (cost(&more), cost(&snapshot));
        // then the plan is no dearer but for that noise,
        prop_assert!(with <= without * (1.0 + EVER) + 1e-9, "{with} instead of {without}");
        if with > without * (1.0 + NOISE) + 1e-9 {
            dearer.set(dearer.get() + 1.0);
        }
        if without > 1e-9 {
            sum.set(sum.get() + libm::log(with.max(1e-9) / without));
            count.set(count.get() + 1.0);
        }
        Ok(())
    });
    outcome.unwrap();
    let part = dearer.get() / count.get();
    assert!(part < RARELY, "{part} of the cases are dearer");
    // and in the mean it is clearly cheaper.
    let mean = libm::exp(sum.get() / count.get());
    assert!(mean < 0.99, "{mean} of the cost in the mean");
}
