//! The elite set: the best plans of the random passes, input of the local search.
//!
//! In the public code a plan enters only if it beats the worst one, even while there is room. Its other
//! branch has a pool of one plan, so its path relinking has no effect and is not offered. Here the pool
//! holds ten different plans, as the paper describes.

use super::AssignmentList;

/// Size of the elite set, as published.
const PLACES: usize = 10;

#[derive(Default)]
pub(super) struct Elite {
    /// Best first.
    pub plans: Vec<(f64, AssignmentList)>,
}

impl Elite {
    /// Adds a plan that is new, if there is room or if it beats the worst one.
    pub fn offer(&mut self, score: f64, chosen: &AssignmentList) {
        let worst = self.plans.last().map_or(f64::INFINITY, |(score, _)| *score);
        let known = |(known, plan): &(f64, AssignmentList)| *known == score && plan == chosen;
        if chosen.is_empty() || self.plans.len() >= PLACES && score >= worst || self.plans.iter().any(known) {
            return;
        }
        let at = self.plans.partition_point(|(other, _)| *other <= score);
        self.plans.insert(at, (score, chosen.clone()));
        self.plans.truncate(PLACES);
    }
}
