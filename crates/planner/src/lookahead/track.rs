//! Search state of a price over time, with steps as in Rprop (Riedmiller and Braun 1993).

use super::periods::{PERIODS, Periods, Price};

/// Search state of the price of one resource.
pub(super) struct Track {
    pub price: Price,
    step: [f64; PERIODS],
    up: [i8; PERIODS],
    capacity: [f64; PERIODS],
    pub used: [f64; PERIODS],
    pub sum: [f64; PERIODS],
    least: f64,
}

impl Track {
    pub fn new(price: Price, capacity: [f64; PERIODS], step: f64) -> Self {
        Self {
            price,
            step: [step; PERIODS],
            up: [0; PERIODS],
            capacity,
            used: [0.0; PERIODS],
            sum: [0.0; PERIODS],
            least: step * 1e-3,
        }
    }

    /// Adds a use from the start of a period on.
    pub fn add(&mut self, periods: &Periods, amount: f64, start: usize, end: usize, until: f64) {
        let starts = periods.starts();
        for p in start..end {
            self.used[p] += amount;
        }
        if end + 1 < starts.len() {
            self.used[end] += amount * (until - starts[end]) / (starts[end + 1] - starts[end]);
        }
    }

    /// Takes what is used from the capacity, for all rounds.
    pub fn take_used(&mut self) {
        for (capacity, used) in self.capacity.iter_mut().zip(&mut self.used) {
            *capacity = (*capacity - std::mem::take(used)).max(0.0);
        }
    }

    pub fn update(&mut self, periods: &Periods) {
        for p in 0..periods.count() - 1 {
            let (used, capacity) = (self.used[p], self.capacity[p]);
            let up: i8 = if used > capacity * 1.005 {
                1
            } else if used < capacity * 0.995 && self.price.rate[p] > 0.0 {
                -1
            } else {
                0
            };
            if up * self.up[p] > 0 {
                self.step[p] *= 1.5;
            } else if up * self.up[p] < 0 {
                self.step[p] = (self.step[p] * 0.4).max(self.least);
            }
            if up != 0 {
                self.up[p] = up;
            }
            self.price.rate[p] = (self.price.rate[p] + f64::from(up) * self.step[p]).max(0.0);
            self.used[p] = 0.0;
        }
        self.used[periods.count() - 1] = 0.0;
        self.price.integrate(periods);
    }
}
