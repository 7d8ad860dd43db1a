//! Monotone projection: on the same type and nodes, more GPUs are never slower and never faster
//! than their ratio, unless a table or an observation says so.
//!
//! The curve is read on a fixed grid of GPU counts, upwards. Each step stays between "no faster"
//! and ideal speed-up, and within what the next known count allows. Log-linear interpolation
//! between grid points keeps both.

/// Grid: every count up to 16, then steps of about an eighth. Beyond [`LAST`] the value is
/// constant.
const LAST: u32 = 65_536;

fn next(gpus: u32) -> u32 {
    gpus.saturating_add((gpus / 8).max(1)).min(LAST)
}

/// Log of the time on `gpus`; `raw` is the curve, `known` the counts with known values, ascending.
pub(crate) fn guarded(first: u32, gpus: u32, known: &[(u32, f64)], raw: impl Fn(u32) -> f64) -> f64 {
    let first = first.clamp(1, LAST);
    let gpus = gpus.clamp(first, LAST);
    let exactly = |g: u32| known.iter().find(|(k, _)| *k == g).map(|(_, v)| *v);
    if let Some(value) = exactly(gpus) {
        return value;
    }
    let ideal = |from: u32, to: u32| libm::log(f64::from(to) / f64::from(from));
    let mut g = first.min(known.first().map_or(first, |(k, _)| *k));
    let mut before: Option<(u32, f64)> = None;
    // Known counts are always grid points.
    loop {
        let value = exactly(g).unwrap_or_else(|| {
            let mut value = raw(g);
            if let Some((from, was)) = before {
                value = value.clamp(was - ideal(from, g), was);
            }
            if let Some((to, goal)) = known.iter().find(|(k, _)| *k > g) {
                let reachable = before.is_none_or(|(_, was)| *goal <= was);
                if reachable {
                    value = value.clamp(*goal, *goal + ideal(g, *to));
                }
            }
            value
        });
        if g == gpus {
            return value;
        }
        let upcoming = known.iter().map(|(k, _)| *k).find(|k| *k > g);
        let to = upcoming.map_or(next(g), |k| k.min(next(g)));
        if to > gpus {
            // Between two grid points: interpolate in logs.
            let end = guarded(first, to, known, &raw as &dyn Fn(u32) -> f64);
            let part = ideal(g, gpus) / ideal(g, to);
            return value + part * (end - value);
        }
        if to == g {
            return value;
        }
        before = Some((g, value));
        g = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_that_turns_back_is_flat_and_one_too_good_to_be_true_is_ideal() {
        let up = |g: u32| guarded(1, g, &[], |g| f64::from(g) * 0.1);
        assert_eq!((up(1), up(9)), (0.1, 0.1));
        let down = |g: u32| guarded(1, g, &[], |g| -2.0 * libm::log(f64::from(g)));
        for g in [2, 7, 24, 100] {
            assert!((down(g) + libm::log(f64::from(g))).abs() < 1e-9, "{g}: {}", down(g));
        }
    }

    #[test]
    fn what_is_known_stands_and_its_neighbours_fit_to_it() {
        let known = [(2, 1.0), (8, 0.2)];
        let at = |g: u32| guarded(1, g, &known, |_| 5.0);
        assert_eq!((at(2), at(8)), (1.0, 0.2));
        let mut before = at(1);
        for g in 2..=64 {
            let here = at(g);
            assert!(
                here <= before + 1e-12 && here >= before - libm::log(f64::from(g) / f64::from(g - 1)) - 1e-12
            );
            before = here;
        }
    }
}
