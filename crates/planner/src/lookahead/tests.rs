//! Bounds and proofs compared with all plans, on tiny clusters.

mod anchors;
mod milp;

use proptest::prelude::*;

use super::*;
use crate::instance::Nodes;
use crate::snapshot::{JobState, Placement, Snapshot};

#[path = "../../tests/world/mod.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests outside, which use the rest of it")]
mod world;

/// The same snapshot with fewer jobs and nodes; jobs of removed nodes wait.
fn smaller(mut snapshot: Snapshot, jobs: usize, nodes: usize) -> Snapshot {
    snapshot.lateness.aging = None;
    snapshot.jobs.truncate(jobs);
    snapshot.nodes.truncate(nodes);
    let known = |p: &Placement| p.nodes.iter().all(|n| snapshot.nodes.iter().any(|m| m.name == *n));
    for job in &mut snapshot.jobs {
        let stays = match &job.state {
            JobState::Waiting => true,
            JobState::Starting { target: p, .. }
            | JobState::Running { placement: p, .. }
            | JobState::Stopping { holds: p, .. } => known(p),
        };
        if !stays {
            job.state = JobState::Waiting;
        }
        if !matches!(job.state, JobState::Waiting) {
            // A job on an excluded node may stay, but no plan made from scratch contains it.
            job.candidates = None;
            job.forbidden.clear();
        }
    }
    snapshot
}

/// One decision: the context, the present assignments, and which jobs are movable.
fn decision<T>(
    snapshot: &Snapshot,
    then: impl FnOnce(&Context<'_, '_>, &[Option<Assignment>], &[bool]) -> T,
) -> T {
    let instance = budget::prepared(snapshot);
    let options = Options::default();
    let classes = Classes::new(&instance);
    let cost_table = CostTable::new(&instance, &classes);
    let (current, movable) = super::present(&instance);
    let tables = (&classes, &cost_table);
    let prices = ShadowPrices::new(&instance, tables, &super::kept(&instance, &current), 0.0);
    let priced = Priced::new(&instance, tables, &prices, &current);
    let context = Context {
        instance: &instance,
        options: &options,
        classes: &classes,
        cost_table: &cost_table,
        priced: &priced,
    };
    then(&context, &current, &movable)
}

/// A partial plan from assignments.
fn partial(instance: &Instance<'_>, assignments: &[Option<Assignment>]) -> PartialPlan {
    let mut partial = PartialPlan::new(instance, |_, _| false);
    for (job, assignment) in assignments.iter().enumerate() {
        partial.unassign(instance, job);
        if let Some(assignment) = assignment {
            partial.assign(instance, job, assignment.clone());
        }
    }
    partial
}

/// Whether the budget forces limits or stops.
fn above_budget(instance: &Instance<'_>) -> bool {
    let mut all = PartialPlan::new(instance, |_, _| true);
    let before = all.assignments.clone();
    !budget::enforce(instance, &mut all).is_empty() || before != all.assignments
}

fn permutations(of: Vec<usize>) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![of];
    }
    let with = |at: usize| {
        let mut rest = of.clone();
        let first = rest.remove(at);
        permutations(rest).into_iter().map(move |more| [vec![first], more].concat())
    };
    (0..of.len()).flat_map(with).collect()
}

/// The cheapest of all plans that place jobs in this order.
fn cheapest_of_all(search_state: &mut SearchState<'_, '_, '_>, order: &[usize]) -> f64 {
    let instance = search_state.step.instance;
    let Some((&job, rest)) = order.split_first() else { return search_state.total() };
    let mut least = cheapest_of_all(search_state, rest);
    if !search_state.open[job] {
        return least;
    }
    for (config, of) in instance.jobs[job].configs.iter().enumerate() {
        let current = search_state.step.current[job].as_ref();
        for &node in &instance.types[of.kind].nodes {
            let assignment = Assignment { config, nodes: Nodes::One(node) };
            let stays = current.is_some_and(|p| instance.jobs[job].same_gpus(p, &assignment));
            let may = of.offered && of.nodes == 1 || stays && current.is_some_and(|p| p.config == config);
            if may && search_state.partial.ledger.fits(instance, job, &assignment).is_ok() {
                search_state.assign(job, assignment);
                least = least.min(cheapest_of_all(search_state, rest));
                search_state.unassign(job);
            }
        }
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_costs_less_than_the_bound_and_a_proof_is_one(snapshot in world::snapshots()) {
        // Given up to four jobs on up to three nodes, with budgets, quotas, and jobs in all states,
        let mut alone = smaller(snapshot, 4, 3);
        alone.jobs.iter_mut().for_each(|job| job.spread.clear());
        decision(&alone, |context, current, movable| {
            let instance = context.instance;
            let found = context.round(current, movable, Vec::new());
            // when every plan is enumerated,
            let mut base = PartialPlan::after(instance, current, movable);
            budget::enforce(instance, &mut base);
            let step = context.step(current, &base).with_options(&base, Vec::new());
            let step = dual::priced_step(step, &base, 0.0);
            let open: Vec<bool> = base.assignments.iter().map(Option::is_none).collect();
            let mut search_state = SearchState::new(&step, base, &open);
            // Jobs that restart where they stop give capacity back once placed: they come first, and each of
            // them is tried first.
            let (leaving, others): (Vec<usize>, Vec<usize>) =
                (0..open.len()).partition(|job| instance.jobs[*job].leaving().is_some());
            let orders = permutations(leaving).into_iter().map(|first| [first, others.clone()].concat());
            let least =
                orders.map(|order| cheapest_of_all(&mut search_state, &order)).fold(f64::INFINITY, f64::min);
            // then none is below the bound, and where the bound is the plan's cost, none is below the plan.
            let near = 1e-9 * least.abs().max(1e-9);
            prop_assert!(found.bound <= least + near, "bound {} above {least}", found.bound);
            let cost = SearchState::new(&step, partial(instance, &found.assignments), &open).total();
            if above_budget(instance) {
                // Limits and stops may then change jobs that no plan may move.
                return Ok(());
            }
            prop_assert!(cost >= least - near, "{cost} below all plans, {least}");
            if cost - found.bound < near {
                prop_assert!(cost <= least + 2e-7 * least.abs() + near, "{cost} called optimal, {least} is possible");
            }
            Ok(())
        })?;
    }
}
