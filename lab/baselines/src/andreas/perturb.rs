//! The random part of a pass: swaps of jobs, and draws of configurations.

use andreas_planner::policy::Instance;

use super::rng::Numbers;
use crate::candidates::Candidates;

/// Half the difference between the probabilities of swapping and of not swapping two neighbours.
const SWAP: f64 = 0.05;
/// Share of the remaining configurations among which one is drawn.
const DRAW: f64 = 0.05;

/// One pass of random swaps of neighbours. As published, a heavier job in front is swapped back more
/// often.
pub(super) fn perturb_order(instance: &Instance<'_>, order: &mut [usize], rng: &mut Numbers, original: bool) {
    for at in 1..order.len() {
        let (front, back) = (order[at - 1], order[at]);
        let heavier = instance.jobs[front].weight > instance.jobs[back].weight;
        let chance = if heavier { 0.5 + SWAP } else { 0.5 - SWAP };
        if rng.unit_interval() < chance {
            order.swap(at - 1, at);
        }
    }
    // The public code draws once more, for a neighbour that does not exist.
    if original {
        rng.unit_interval();
    }
}

/// Orders configurations at random: each is drawn from the first twentieth of the rest, those that meet the
/// deadline first. With fewer than thirty configurations the order is fixed.
pub(super) fn draw(candidates: &Candidates, rng: &mut Numbers) -> Vec<usize> {
    let (in_time, late) = candidates.order.split_at(candidates.in_time);
    let mut drawn = Vec::with_capacity(candidates.order.len());
    for part in [in_time, late] {
        let mut left = part.to_vec();
        while !left.is_empty() {
            let among = libm::round(DRAW * left.len() as f64) as u32;
            let pick = if among > 1 { (rng.unit_interval() * f64::from(among)) as usize } else { 0 };
            drawn.push(left.remove(pick.min(left.len() - 1)));
        }
    }
    drawn
}
