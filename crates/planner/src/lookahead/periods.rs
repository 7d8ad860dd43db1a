//! The planning horizon in periods of growing length, and prices over them.
//!
//! Period lengths follow the run times: the first period lasts 15 minutes for runs of hours, and less for
//! runs of minutes.

use andreas_core::Seconds;

use crate::instance::Instance;

/// Number of periods, including the last one, which has no end and no price.
pub(super) const PERIODS: usize = 12;
/// Maximum length of the first period, in seconds.
const MAX_UNIT_S: f64 = 900.0;
/// The first period is at most this part of the time of the median job.
const PART: f64 = 0.125;
/// Maximum number of halvings.
const HALVINGS: i32 = 12;

/// The mean price over this many periods is the present value.
const CURRENT_PRICE_PERIODS: usize = 3;

/// Starts of the periods: 0, 1, 2, 4, ... units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Periods {
    /// Starts, in seconds from now.
    pub begins: [f64; PERIODS],
    per_second: f64,
}

impl Periods {
    pub fn new(unit: f64) -> Self {
        let mut begins = [0.0; PERIODS];
        let mut begin = unit;
        for slot in &mut begins[1..] {
            *slot = begin;
            begin *= 2.0;
        }
        Self { begins, per_second: 1.0 / unit }
    }

    /// Periods that suit the jobs: by the median of their times on the configurations with the least energy.
    pub fn of(instance: &Instance<'_>) -> Self {
        let thriftiest = |configs: &[crate::instance::Config]| {
            let listed = configs.iter().filter(|c| c.listed);
            listed
                .map(|c| (c.power * c.time, c.time))
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(_, time)| time)
        };
        let mut times: Vec<f64> = instance.jobs.iter().filter_map(|job| thriftiest(&job.configs)).collect();
        let middle = times.len() / 2;
        let median = if times.is_empty() {
            f64::INFINITY
        } else {
            *times.select_nth_unstable_by(middle, f64::total_cmp).1
        };
        let mut unit = MAX_UNIT_S;
        for _ in 0..HALVINGS {
            if unit <= median * PART {
                break;
            }
            unit *= 0.5;
        }
        Self::new(unit)
    }

    /// Length of the first one in seconds.
    pub fn unit(&self) -> f64 {
        self.begins[1]
    }

    /// Index of the period that contains `seconds` from now. Period i >= 1 starts at 2^(i-1) units,
    /// so the binary exponent gives i.
    pub fn index_at(&self, seconds: f64) -> usize {
        let units = seconds * self.per_second;
        if units < 1.0 {
            return 0;
        }
        let exponent = (units.to_bits() >> 52) as usize - 1023;
        (exponent + 1).min(PERIODS - 1)
    }

    /// Ends of the priced periods, for the plan.
    pub fn ends(&self) -> Vec<Seconds> {
        self.begins[1..].iter().map(|s| Seconds(*s)).collect()
    }

    /// The periods with these ends, if they are valid.
    pub fn with_ends(ends: &[Seconds]) -> Option<Self> {
        let unit = ends.first()?.0;
        let periods = (unit > 0.0 && unit <= MAX_UNIT_S).then(|| Self::new(unit))?;
        (periods.ends() == ends).then_some(periods)
    }
}

/// A price over time: money per unit and second, constant in each period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Price {
    pub rate: [f64; PERIODS],
    /// Integral from now to the start of each period.
    sum: [f64; PERIODS],
    /// `sum` less the period's rate from now to its start; adding rate times time gives the integral.
    base: [f64; PERIODS],
}

impl Price {
    pub fn new(periods: &Periods, rate: [f64; PERIODS]) -> Self {
        let mut price = Self { rate, sum: [0.0; PERIODS], base: [0.0; PERIODS] };
        price.integrate(periods);
        price
    }

    /// Updates the integral from the rates.
    pub fn integrate(&mut self, periods: &Periods) {
        let begins = &periods.begins;
        for p in 1..PERIODS {
            self.sum[p] = self.sum[p - 1] + self.rate[p - 1] * (begins[p] - begins[p - 1]);
            self.base[p] = self.sum[p] - self.rate[p] * begins[p];
        }
        self.base[0] = 0.0;
    }

    /// Integral up to the start of a period.
    pub fn until_period(&self, p: usize) -> f64 {
        self.sum[p]
    }

    /// Integral up to a moment in a known period.
    pub fn until(&self, p: usize, seconds: f64) -> f64 {
        self.base[p] + self.rate[p] * seconds
    }

    /// Mean over the first periods.
    pub fn mean_of_first(&self, periods: &Periods) -> f64 {
        self.sum[CURRENT_PRICE_PERIODS] / periods.begins[CURRENT_PRICE_PERIODS]
    }

    /// From the end of the first period up to a moment.
    pub fn later(&self, periods: &Periods, seconds: f64) -> f64 {
        (self.until(periods.index_at(seconds), seconds) - self.sum[1]).max(0.0)
    }

    /// The same price `by` seconds later, as means over the new periods.
    pub fn shifted(&self, old: &Periods, by: f64, new: &Periods) -> Self {
        let until = |seconds: f64| self.until(old.index_at(seconds), seconds);
        let mut rate = [0.0; PERIODS];
        for (p, rate) in rate.iter_mut().enumerate().take(PERIODS - 1) {
            let (from, to) = (new.begins[p] + by, new.begins[p + 1] + by);
            *rate = ((until(to) - until(from)) / (to - from)).max(0.0);
        }
        Self::new(new, rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_price_costs_the_same_at_the_same_instant() {
        let periods = Periods::new(900.0);
        let mut rate = [0.0; PERIODS];
        rate[..3].copy_from_slice(&[4.0, 2.0, 1.0]);
        let price = Price::new(&periods, rate);
        let later = price.shifted(&periods, 900.0, &periods);
        // The old second period is now the first; half of the longer third one is in the second.
        assert_eq!(later.rate[0], 2.0);
        assert_eq!(later.rate[1], 1.0);
        assert_eq!(later.rate[2], 0.5);
        let until = |price: &Price, seconds: f64| price.until(periods.index_at(seconds), seconds);
        assert_eq!(until(&later, 3600.0), until(&price, 4500.0) - 3600.0);
        assert_eq!(price.later(&periods, 600.0), 0.0);
        assert_eq!(price.later(&periods, 1800.0), 1800.0);
        // The same with shorter periods.
        let fine = price.shifted(&periods, 0.0, &Periods::new(450.0));
        assert_eq!(fine.rate[..4], [4.0, 4.0, 2.0, 1.0]);
    }

    #[test]
    fn a_moment_is_in_the_period_that_has_begun_last() {
        let periods = Periods::new(450.0);
        for i in 0..100_000 {
            let seconds = f64::from(i) * 11.25;
            let expected = periods.begins[1..].partition_point(|begin| *begin <= seconds);
            assert_eq!(periods.index_at(seconds), expected, "{seconds}");
        }
        assert_eq!(periods.index_at(1e300), PERIODS - 1);
    }
}
