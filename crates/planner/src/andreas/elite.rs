//! The best plans of the random passes, for the local search and path relinking.
//!
//! In the public code a plan enters only if it is better than the worst one even while there is room, and in the
//! other branch the pool has a single place, so that relinking never does anything. Here the pool works as its
//! authors describe it: ten different plans.

use super::Chosen;

/// Places in the pool, as published.
const PLACES: usize = 10;

#[derive(Default)]
pub(super) struct Elite {
    /// Best first.
    pub plans: Vec<(f64, Chosen)>,
}

impl Elite {
    /// Takes a plan if there is room or it is better than the worst one, and it is not there yet.
    pub fn offer(&mut self, score: f64, chosen: &Chosen) {
        let worst = self.plans.last().map_or(f64::INFINITY, |(score, _)| *score);
        let known = |(known, plan): &(f64, Chosen)| *known == score && plan == chosen;
        if chosen.is_empty() || self.plans.len() >= PLACES && score >= worst || self.plans.iter().any(known) {
            return;
        }
        let at = self.plans.partition_point(|(other, _)| *other <= score);
        self.plans.insert(at, (score, chosen.clone()));
        self.plans.truncate(PLACES);
    }
}
