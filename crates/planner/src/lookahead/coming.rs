//! Demand of jobs that are still to be submitted, in the price search.

use super::classes::Classes;
use super::periods::{PERIODS, Periods};
use super::track::Track;
use crate::instance::Instance;

/// Demand of jobs still to be submitted for one class.
pub(super) struct ComingByClass {
    pub class: usize,
    /// By period: mean GPUs wanted at no price.
    gpus: [f64; PERIODS],
    /// By period: mean price per GPU and second that they would pay.
    price: [f64; PERIODS],
}

impl ComingByClass {
    /// The demand for a type, shared by its classes in proportion to their GPUs.
    pub fn of(instance: &Instance<'_>, classes: &Classes, periods: &Periods) -> Vec<Self> {
        let mut all = Vec::new();
        for demand in &instance.snapshot.coming {
            let of_type = || {
                classes
                    .list
                    .iter()
                    .enumerate()
                    .filter(|(_, c)| instance.types[c.kind].name == demand.gpu_type)
            };
            let total: f64 = of_type().map(|(_, c)| c.gpus).sum();
            if total <= 0.0 {
                continue;
            }
            let (mut wanted, mut price) = ([0.0; PERIODS], [0.0; PERIODS]);
            for (p, pair) in periods.begins().windows(2).enumerate() {
                let (mut gpu_seconds, mut paid) = (0.0, 0.0);
                for window in &demand.windows {
                    let (from, until) = (window.from.0, window.until.0);
                    let part = (until.min(pair[1]) - from.max(pair[0])).max(0.0) / (until - from);
                    gpu_seconds += window.gpu_seconds * part;
                    paid += window.gpu_seconds * part * window.price;
                }
                if gpu_seconds > 0.0 {
                    (wanted[p], price[p]) = (gpu_seconds / (pair[1] - pair[0]), paid / gpu_seconds);
                }
            }
            all.extend(of_type().map(|(class, c)| Self {
                class,
                gpus: wanted.map(|gpus| gpus * c.gpus / total),
                price,
            }));
        }
        all
    }

    /// Adds what is asked for at the present price: all of it at none, nothing at twice the mean price.
    pub fn ask(&self, track: &mut Track) {
        for p in 0..PERIODS {
            if self.gpus[p] > 0.0 && self.price[p] > 0.0 {
                let share = (1.0 - track.price.rate[p] / (2.0 * self.price[p])).max(0.0);
                track.used[p] += self.gpus[p] * share;
            }
        }
    }
}
