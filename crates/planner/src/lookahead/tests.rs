//! Bounds and proofs against every plan there is, on tiny clusters.

use proptest::prelude::*;

use super::*;
use crate::instance::Nodes;

#[path = "../../tests/world/mod.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests outside, which use the rest of it")]
mod world;

/// The cheapest of all plans.
fn cheapest_of_all(desk: &mut Desk<'_, '_, '_>, order: &[usize]) -> f64 {
    let instance = desk.step.instance;
    let Some((&job, rest)) = order.split_first() else { return desk.total() };
    let mut least = cheapest_of_all(desk, rest);
    if !desk.open[job] {
        return least;
    }
    for (config, of) in instance.jobs[job].configs.iter().enumerate() {
        let present = desk.step.present[job].as_ref();
        for &node in &instance.types[of.kind].nodes {
            let spot = Spot { config, nodes: Nodes::One(node) };
            let stays = present.is_some_and(|p| desk.step.same_gpus(job, p, &spot));
            let may = of.offered && of.nodes == 1 || stays && present.is_some_and(|p| p.config == config);
            if may && desk.board.ledger.fits(instance, job, &spot).is_ok() {
                desk.put(job, spot);
                least = least.min(cheapest_of_all(desk, rest));
                desk.lift(job);
            }
        }
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_costs_less_than_the_bound_and_a_proof_is_one(mut snapshot in world::snapshots()) {
        // Given up to four jobs on up to three nodes, with budgets, quotas, and jobs in all states,
        snapshot.lateness.aging = None;
        let mut alone = snapshot.clone();
        alone.jobs.truncate(4);
        alone.nodes.truncate(3);
        for job in &mut alone.jobs {
            job.spread.clear();
            let gone = |p: &crate::Placement| p.nodes.iter().any(|n| alone.nodes.iter().all(|m| m.name != *n));
            let lost = match &job.state {
                crate::JobState::Waiting => false,
                crate::JobState::Starting { target: p, .. }
                | crate::JobState::Running { placement: p, .. }
                | crate::JobState::Stopping { holds: p, .. } => gone(p),
            };
            if lost {
                job.state = crate::JobState::Waiting;
            }
            if !matches!(job.state, crate::JobState::Waiting) {
                // A job that is where it may not be can stay, but is in no plan made from nothing.
                job.candidates = None;
                job.forbidden.clear();
            }
        }
        let instance = Instance::new(&alone);
        let options = Options { method: MethodName::Exact, ..Options::default() };
        let classes = Classes::new(&instance);
        let menu = Menu::new(&instance, &classes);
        let look = Look::new(&instance, &classes, &menu);
        let ahead = Ahead::new(&instance, &menu, &look);
        let context = Context { instance: &instance, options: &options, classes: &classes, menu: &menu, look: &look, ahead: &ahead };
        let present: Vec<Option<Spot>> = instance.jobs.iter().map(|d| d.present().cloned()).collect();
        let touchable: Vec<bool> = instance.jobs.iter().map(|d| match d.holding {
            Holding::Nothing | Holding::Leaving { .. } => true,
            Holding::Running { free_to_move, .. } => free_to_move,
            Holding::Committed { .. } => false,
        }).collect();
        let found = context.round(&present, &touchable);
        // when every plan is looked at,
        let mut base = Board::after(&instance, &present, &touchable);
        budget::enforce(&instance, &mut base);
        let step = context.step(&present, &base).weigh(&base);
        let open: Vec<bool> = base.spots.iter().map(Option::is_none).collect();
        let mut desk = Desk::new(&step, base, &open);
        // Jobs that go on where they stop give room back once they are placed: they come first.
        let mut order: Vec<usize> = (0..open.len()).collect();
        order.sort_by_key(|job| instance.jobs[*job].leaving().is_none());
        let least = cheapest_of_all(&mut desk, &order);
        // then none is below the bound, and where the bound is the plan's cost, none is below the plan.
        let near = 1e-9 * least.abs().max(1e-9);
        prop_assert!(found.bound <= least + near, "bound {} above {least}", found.bound);
        let mut board = Board::new(&instance, |_, _| false);
        for (job, spot) in found.spots.iter().enumerate() {
            board.lift(&instance, job);
            if let Some(spot) = spot {
                board.put(&instance, job, spot.clone());
            }
        }
        let cost = Desk::new(&step, board, &open).total();
        let mut all = Board::new(&instance, |_, _| true);
        if !budget::enforce(&instance, &mut all).is_empty() || Board::new(&instance, |_, _| true).spots != all.spots {
            // Limits and stops may then touch jobs that no plan may.
            return Ok(());
        }
        prop_assert!(cost >= least - near, "{cost} below all plans, {least}");
        if cost - found.bound < near {
            prop_assert!(cost <= least + 2e-7 * least.abs() + near, "{cost} called optimal, {least} is possible");
        }
    }
}
