//! Search state of prices over time, with steps as in Rprop (Riedmiller and Braun 1993).

use super::periods::{PERIODS, Periods, Price};

/// Everything that has a price.
pub(super) struct Tracks {
    /// By class.
    pub gpu: Vec<Track>,
    /// With a budget.
    pub watt: Option<Track>,
}

impl Tracks {
    pub fn all(&mut self) -> impl Iterator<Item = &mut Track> {
        self.gpu.iter_mut().chain(&mut self.watt)
    }
}

/// Within a round a price rises by this part while as much is asked for as is there, and is right in the mean.
const CROWDING: f64 = 0.03;

/// Search state of the price of one resource.
pub(super) struct Track {
    pub price: Price,
    step: [f64; PERIODS],
    up: [i8; PERIODS],
    capacity: [f64; PERIODS],
    /// Crowding by a unit that is used; 0 where nothing is there.
    crowding_each: [f64; PERIODS],
    used: [f64; PERIODS],
    crowding: [f64; PERIODS],
    sum: [f64; PERIODS],
    first_step: f64,
}

impl Track {
    pub fn new(price: Price, capacity: [f64; PERIODS], step: f64) -> Self {
        let mut track = Self {
            price,
            step: [step; PERIODS],
            up: [0; PERIODS],
            capacity,
            crowding_each: [0.0; PERIODS],
            used: [0.0; PERIODS],
            crowding: [0.0; PERIODS],
            sum: [0.0; PERIODS],
            first_step: step,
        };
        track.take_used();
        track
    }

    /// Begins again without a price.
    pub fn restart(&mut self) {
        (self.price, self.step, self.up) = (Price::default(), [self.first_step; PERIODS], [0; PERIODS]);
    }

    /// Adds a use from the start of a period on.
    pub fn add(&mut self, periods: &Periods, amount: f64, start: usize, end: usize, until: f64) {
        let starts = periods.starts();
        for p in start..end {
            self.used[p] += amount;
            self.crowding[p] += amount * self.crowding_each[p];
        }
        if end + 1 < starts.len() {
            let amount = amount * (until - starts[end]) / (starts[end + 1] - starts[end]);
            self.used[end] += amount;
            self.crowding[end] += amount * self.crowding_each[end];
        }
    }

    /// Takes what is used from the capacity, for all rounds.
    pub fn take_used(&mut self) {
        for (capacity, used) in self.capacity.iter_mut().zip(&mut self.used) {
            *capacity = (*capacity - std::mem::take(used)).max(0.0);
        }
        self.crowding_each =
            self.capacity.map(|capacity| if capacity > 0.0 { CROWDING / capacity } else { 0.0 });
        self.clear_used();
    }

    /// By period: factor on the price for who asks next for what begins there. Alike resources would otherwise be asked for all at
    /// once or not at all, in turns, and their prices would stay where they are.
    pub fn crowding(&self) -> &[f64; PERIODS] {
        &self.crowding
    }

    /// What is used, as a part of what is there, in all periods up to one; `None` where nothing is scarce, or nothing is
    /// there.
    pub fn used_part_until(&self, periods: &Periods, until: usize) -> Option<f64> {
        let (mut used, mut capacity) = (0.0, 0.0);
        for (p, pair) in periods.starts().windows(2).take(until).enumerate() {
            used += self.used[p] * (pair[1] - pair[0]);
            capacity += self.capacity[p] * (pair[1] - pair[0]);
        }
        (capacity > 0.0 && capacity.is_finite()).then(|| used / capacity)
    }

    /// Whether the price up to a period is more than what is left of steps down.
    pub fn has_price_until(&self, until: usize) -> bool {
        self.price.rate[..until].iter().any(|rate| *rate > self.first_step)
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
                self.step[p] = (self.step[p] * 0.4).max(self.first_step * 1e-3);
            }
            if up != 0 {
                self.up[p] = up;
            }
            self.price.rate[p] = (self.price.rate[p] + f64::from(up) * self.step[p]).max(0.0);
        }
        self.price.integrate(periods);
    }

    /// Forgets what is used.
    pub fn clear_used(&mut self) {
        self.used = [0.0; PERIODS];
        self.crowding = [1.0 - CROWDING / 2.0; PERIODS];
    }

    /// Adds the price to the sum whose mean is the result.
    pub fn count(&mut self) {
        self.sum.iter_mut().zip(self.price.rate).for_each(|(sum, rate)| *sum += rate);
    }

    /// The mean of the prices that were counted; begins a new sum.
    pub fn mean(&mut self, periods: &Periods, counted: f64) -> Price {
        Price::new(periods, std::mem::take(&mut self.sum).map(|sum| sum / counted))
    }
}
