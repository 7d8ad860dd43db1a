//! The planning horizon in periods of growing length, and prices over them.
//!
//! Period lengths follow the run times: the first period lasts 15 minutes for runs of hours, and less for
//! runs of minutes. The next edges of tariff and budget split the periods that they lie in, so that a start
//! can aim at them.

use andreas_model::{Seconds, StepFunction, Time};

use crate::instance::{Instance, least_ahead};

/// Number of periods without edges, including the last one, which has no end and no price.
const OCTAVES: usize = 12;
/// Maximum number of edges of tariff and budget among the starts.
const EDGES: usize = 4;
/// Maximum number of periods.
pub(super) const PERIODS: usize = OCTAVES + EDGES;
/// An edge nearer to another start than this part of the first period is not a start of its own.
const NEAR: f64 = 0.02;
/// Maximum length of the first period, in seconds.
const MAX_UNIT_S: f64 = 900.0;
/// The first period is at most this part of the time of the median job.
const PART: f64 = 0.125;
/// Maximum number of halvings.
const HALVINGS: i32 = 12;

/// Starts of the periods: 0, 1, 2, 4, ... units (the octaves), and the edges between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Periods {
    starts: [f64; PERIODS],
    count: usize,
    unit: f64,
    per_second: f64,
    /// Index of the first period of each octave, and the number of periods.
    first: [usize; OCTAVES + 1],
}

impl Periods {
    /// Periods with a first octave of this length, split at the first few of these instants.
    pub fn new(unit: f64, edges: impl Iterator<Item = f64>) -> Self {
        let mut octaves = [0.0; OCTAVES];
        let mut begin = unit;
        for slot in &mut octaves[1..] {
            *slot = begin;
            begin *= 2.0;
        }
        let mut sorted = octaves.to_vec();
        for edge in edges {
            let near = |start: &f64| (edge - start).abs() < NEAR * unit;
            if edge > 0.0 && edge < octaves[OCTAVES - 1] && !sorted.iter().any(near) {
                sorted.push(edge);
            }
            if sorted.len() == PERIODS {
                break;
            }
        }
        sorted.sort_by(f64::total_cmp);
        let mut starts = [f64::INFINITY; PERIODS];
        starts[..sorted.len()].copy_from_slice(&sorted);
        let mut first = [sorted.len(); OCTAVES + 1];
        for (octave, start) in octaves.iter().enumerate() {
            first[octave] = sorted.partition_point(|s| s < start);
        }
        Self { starts, count: sorted.len(), unit, per_second: 1.0 / unit, first }
    }

    /// Periods that suit the jobs: by the median of their times on the configurations with the least energy.
    pub fn for_instance(instance: &Instance<'_>) -> Self {
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
        Self::new(unit, edges(instance).into_iter())
    }

    /// Starts of the periods, in seconds from now.
    pub fn starts(&self) -> &[f64] {
        &self.starts[..self.count]
    }

    /// Number of periods.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Length of the first octave in seconds.
    pub fn unit(&self) -> f64 {
        self.unit
    }

    /// Half to all of the time of the median job in seconds; at most two hours.
    pub fn median(&self) -> f64 {
        self.unit / PART
    }

    /// Index of the period that starts after the first octave.
    pub fn second(&self) -> usize {
        self.first[1]
    }

    /// Index of the period that contains `seconds` from now. Octave i >= 1 starts at 2^(i-1) units,
    /// so the binary exponent gives i.
    pub fn index_at(&self, seconds: f64) -> usize {
        let units = seconds * self.per_second;
        let octave = if units < 1.0 {
            0
        } else {
            let exponent = (units.to_bits() >> 52) as usize - 1023;
            (exponent + 1).min(OCTAVES - 1)
        };
        if self.count == OCTAVES {
            return octave;
        }
        let mut at = self.first[octave];
        while at + 1 < self.first[octave + 1] && self.starts[at + 1] <= seconds {
            at += 1;
        }
        at
    }

    /// Index of the first start that is not before a moment, or hardly.
    pub fn first_from(&self, seconds: f64) -> usize {
        let at = self.index_at(seconds);
        if self.starts[at] + NEAR * self.unit >= seconds { at } else { at + 1 }
    }

    /// Index of the start that is nearest to a moment.
    pub fn nearest(&self, seconds: f64) -> usize {
        let at = self.index_at(seconds);
        let after = self.starts().get(at + 1).map_or(f64::INFINITY, |begin| begin - seconds);
        if after < seconds - self.starts[at] { at + 1 } else { at }
    }

    /// Ends of the priced periods, for the plan.
    pub fn ends(&self) -> Vec<Seconds> {
        self.starts()[1..].iter().map(|s| Seconds(*s)).collect()
    }

    /// The periods with these ends, if they are valid.
    pub fn with_ends(ends: &[Seconds]) -> Option<Self> {
        // The last start is always that of the last octave.
        let unit = ends.last()?.0 / f64::from(1_u32 << (OCTAVES - 2));
        let possible = unit > 0.0 && unit <= MAX_UNIT_S && ends.len() < PERIODS;
        let octave = |end: f64| (0..OCTAVES - 1).any(|k| unit * f64::from(1_u32 << k) == end);
        let edges = ends.iter().map(|end| end.0).filter(|end| !octave(*end));
        let periods = possible.then(|| Self::new(unit, edges))?;
        (periods.ends() == ends).then_some(periods)
    }
}

/// The next edges of tariff and budget, in seconds from now, in order.
pub(super) fn edges(instance: &Instance<'_>) -> Vec<f64> {
    let snapshot = instance.snapshot;
    let mut edges: Vec<f64> = changes(&snapshot.tariff, snapshot.now).collect();
    edges.extend(snapshot.budget.iter().flat_map(|budget| changes(&budget.watts, snapshot.now)));
    edges.sort_by(f64::total_cmp);
    edges.dedup();
    edges.truncate(EDGES);
    edges
}

fn changes<T: Copy + PartialEq>(steps: &StepFunction<T>, now: Time) -> impl Iterator<Item = f64> {
    let pairs = steps.windows().windows(2).skip(steps.windows().partition_point(|w| w.0 <= now).max(1) - 1);
    pairs.filter(|pair| pair[0].1 != pair[1].1).map(move |pair| (pair[1].0 - now).0).take(EDGES)
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
        let starts = periods.starts();
        for p in 1..starts.len() {
            self.sum[p] = self.sum[p - 1] + self.rate[p - 1] * (starts[p] - starts[p - 1]);
            self.base[p] = self.sum[p] - self.rate[p] * starts[p];
        }
        self.base[0] = 0.0;
    }

    /// Integral up to a moment in a known period.
    #[inline]
    pub fn until(&self, p: usize, seconds: f64) -> f64 {
        self.base[p] + self.rate[p] * seconds
    }

    /// Integral from the start of a period to a moment in the period `end`.
    #[inline]
    pub fn between(&self, from: usize, end: usize, seconds: f64) -> f64 {
        self.until(end, seconds) - self.sum[from]
    }

    /// From the end of the first octave up to a moment.
    pub fn later(&self, periods: &Periods, seconds: f64) -> f64 {
        (self.until(periods.index_at(seconds), seconds) - self.sum[periods.second()]).max(0.0)
    }

    /// The same price `by` seconds later, as means over the new periods.
    pub fn shifted(&self, old: &Periods, by: f64, new: &Periods) -> Self {
        let until = |seconds: f64| self.until(old.index_at(seconds), seconds);
        let mut rate = [0.0; PERIODS];
        for (rate, pair) in rate.iter_mut().zip(new.starts().windows(2)) {
            let (from, to) = (pair[0] + by, pair[1] + by);
            *rate = ((until(to) - until(from)) / (to - from)).max(0.0);
        }
        Self::new(new, rate)
    }
}

/// Highest budget of each period for a job whose stop takes so long, in watts.
pub(super) fn most_watts(instance: &Instance<'_>, periods: &Periods, grace: Seconds) -> Option<Vec<f64>> {
    budget_by_period(instance, periods, grace, |watts, _| watts, f64::max)
}

/// The budget less its margin by period: the watts of each step of the budget and its part of the period, folded.
pub(super) fn budget_by_period(
    instance: &Instance<'_>,
    periods: &Periods,
    grace: Seconds,
    of_step: impl Fn(f64, f64) -> f64,
    fold: impl Fn(f64, f64) -> f64,
) -> Option<Vec<f64>> {
    // A start then is held to what is seen ahead, like a start now: otherwise each later one looks possible and none is.
    let (budget, now) = (instance.snapshot.budget.as_ref()?, instance.snapshot.now);
    let ahead = least_ahead(&budget.watts, grace, now);
    let starts = periods.starts();
    let of_period = |(p, &from): (usize, &f64)| {
        let to = starts.get(p + 1).copied().unwrap_or(from * 2.0);
        let steps = ahead.pieces(now + Seconds(from), now + Seconds(to));
        let watts = steps.map(|(begin, end, watts)| of_step(watts.0, (end - begin).0 / (to - from)));
        budget.for_plans(watts.fold(0.0, &fold))
    };
    Some(starts.iter().enumerate().map(of_period).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(unit: f64) -> Periods {
        Periods::new(unit, std::iter::empty())
    }

    #[test]
    fn a_shifted_price_costs_the_same_at_the_same_instant() {
        let periods = plain(900.0);
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
        let fine = price.shifted(&periods, 0.0, &plain(450.0));
        assert_eq!(fine.rate[..4], [4.0, 4.0, 2.0, 1.0]);
        // The same with an edge in between.
        let split = price.shifted(&periods, 0.0, &Periods::new(900.0, [1200.0].into_iter()));
        assert_eq!(split.rate[..4], [4.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn a_moment_is_in_the_period_that_has_begun_last() {
        for edges in [vec![], vec![100.0, 500.0, 600.0, 100_000.0], vec![450.0, 5000.0]] {
            let periods = Periods::new(450.0, edges.into_iter());
            for i in 0..100_000 {
                let seconds = f64::from(i) * 11.25;
                let expected = periods.starts()[1..].partition_point(|begin| *begin <= seconds);
                assert_eq!(periods.index_at(seconds), expected, "{seconds}");
            }
            assert_eq!(periods.index_at(1e300), periods.count() - 1);
        }
    }

    #[test]
    fn edges_are_starts_and_survive_the_warm_start() {
        // Given four edges, one of them at a start and a fifth one beyond the number,
        let edges = [300.0, 900.0, 4000.0, 21_600.0, 43_200.0, 50_000.0];
        let periods = Periods::new(900.0, edges.into_iter());
        // then the first four that are not starts already split the periods,
        assert_eq!(periods.starts()[..7], [0.0, 300.0, 900.0, 1800.0, 3600.0, 4000.0, 7200.0]);
        assert_eq!(periods.count(), PERIODS);
        assert!(!periods.starts().contains(&50_000.0));
        // and the periods are found again by their ends.
        assert_eq!(Periods::with_ends(&periods.ends()), Some(periods));
        assert_eq!(Periods::with_ends(&plain(450.0).ends()), Some(plain(450.0)));
        assert_eq!(Periods::with_ends(&[Seconds(1.0), Seconds(2.0)]), None);
        assert_eq!(Periods::with_ends(&[]), None);
    }
}
