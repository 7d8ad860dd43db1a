//! Coming time, cut into periods of growing length, and prices over them.

use andreas_core::Seconds;

/// Begins of the periods, in seconds from now; the last one has no end and no price.
pub(super) const BEGINS: [f64; PERIODS] = [
    0.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0, 57_600.0, 115_200.0, 230_400.0, 460_800.0,
    921_600.0,
];
/// Number of periods, the open one included.
pub(super) const PERIODS: usize = 12;

/// The period that holds a moment.
pub(super) fn period(seconds: f64) -> usize {
    BEGINS[1..].partition_point(|begin| *begin <= seconds)
}

/// A price over time: money per unit and second, constant in each period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Price {
    pub rate: [f64; PERIODS],
    /// Integral from now to the begin of each period.
    sum: [f64; PERIODS],
}

impl Price {
    pub fn new(rate: [f64; PERIODS]) -> Self {
        let mut price = Self { rate, sum: [0.0; PERIODS] };
        price.integrate();
        price
    }

    /// Brings the integral up to date with the rates.
    pub fn integrate(&mut self) {
        for p in 1..PERIODS {
            self.sum[p] = self.sum[p - 1] + self.rate[p - 1] * (BEGINS[p] - BEGINS[p - 1]);
        }
    }

    /// Up to the begin of a period.
    pub fn until_period(&self, p: usize) -> f64 {
        self.sum[p]
    }

    /// Up to a moment within a period that is known.
    pub fn until(&self, p: usize, seconds: f64) -> f64 {
        self.sum[p] + self.rate[p] * (seconds - BEGINS[p])
    }

    /// From the end of the first period up to a moment.
    pub fn later(&self, seconds: f64) -> f64 {
        (self.until(period(seconds), seconds) - self.sum[1]).max(0.0)
    }

    /// The same price seen some seconds later: means over the shifted periods.
    pub fn shifted(&self, by: f64) -> Self {
        let mean = |p: usize| {
            let (from, to) = (BEGINS[p] + by, BEGINS[p + 1] + by);
            (self.until(period(to), to) - self.until(period(from), from)) / (to - from)
        };
        let mut rate = [0.0; PERIODS];
        for (p, rate) in rate.iter_mut().enumerate().take(PERIODS - 1) {
            *rate = mean(p);
        }
        Self::new(rate)
    }
}

/// Ends of the priced periods, for the plan.
pub(super) fn ends() -> Vec<Seconds> {
    BEGINS[1..].iter().map(|s| Seconds(*s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_price_costs_the_same_at_the_same_instant() {
        let mut rate = [0.0; PERIODS];
        rate[..3].copy_from_slice(&[4.0, 2.0, 1.0]);
        let price = Price::new(rate);
        let later = price.shifted(900.0);
        // What was the second period is the first now; half of the longer third one falls into the second.
        assert_eq!(later.rate[0], 2.0);
        assert_eq!(later.rate[1], 1.0);
        assert_eq!(later.rate[2], 0.5);
        assert_eq!(later.until(period(3600.0), 3600.0), price.until(period(4500.0), 4500.0) - 3600.0);
        assert_eq!(price.later(600.0), 0.0);
        assert_eq!(price.later(1800.0), 1800.0);
    }
}
