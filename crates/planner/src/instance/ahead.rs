//! The power budget as plans are held to it: a lower window counts from the look-ahead before it.

use andreas_core::{StepFunction, Time, Watts};

use crate::snapshot::PowerBudget;

/// From each instant from `now` on, the least budget until the look-ahead from then.
pub(super) fn least_ahead(budget: &PowerBudget, now: Time) -> StepFunction<Watts> {
    let (watts, ahead) = (&budget.watts, budget.look_ahead);
    if ahead.0 <= 0.0 {
        return watts.clone();
    }
    // It changes only at the begin of a window and the look-ahead before that.
    let begins = watts.windows().iter().skip(1).map(|(begin, _)| *begin);
    let mut edges: Vec<Time> = begins.flat_map(|begin| [begin, begin - ahead]).collect();
    edges.retain(|edge| *edge > now);
    edges.push(now);
    edges.sort_by(Time::total_cmp);
    edges.dedup();
    let mut least: Vec<(Time, Watts)> = Vec::with_capacity(edges.len());
    for (i, &from) in edges.iter().enumerate() {
        // In the middle, since rounding may put the end of the look-ahead on either side of an edge.
        let at = edges.get(i + 1).map_or(from, |to| from + (*to - from) * 0.5);
        let seen = watts.pieces(at, at + ahead).map(|(_, _, watts)| watts);
        let Some(value) = seen.min_by(Watts::total_cmp) else { continue };
        if least.last().is_none_or(|(_, last)| *last != value) {
            least.push((from, value));
        }
    }
    // Never empty nor out of order, unless the budget is.
    StepFunction::new(least).unwrap_or_else(|_| watts.clone())
}

#[cfg(test)]
mod tests {
    use andreas_core::Seconds;

    use super::*;

    fn windows(list: &[(f64, f64)]) -> Vec<(Time, Watts)> {
        list.iter().map(|(begin, watts)| (Time(*begin), Watts(*watts))).collect()
    }

    fn ahead(list: &[(f64, f64)], look_ahead: f64, now: f64) -> Vec<(Time, Watts)> {
        let watts = StepFunction::new(windows(list)).expect("in order");
        let budget = PowerBudget { watts, margin: 0.0, scope_factor: 1.0, look_ahead: Seconds(look_ahead) };
        least_ahead(&budget, Time(now)).windows().to_vec()
    }

    #[test]
    fn a_lower_window_counts_earlier_and_a_higher_one_when_it_begins() {
        let budget = [(0.0, 3.0), (100.0, 1.0), (200.0, 4.0), (230.0, 2.0), (300.0, 5.0)];
        let expected = [(0.0, 3.0), (50.0, 1.0), (200.0, 2.0), (300.0, 5.0)];
        assert_eq!(ahead(&budget, 50.0, 0.0), windows(&expected));
        // A high window no longer than the look-ahead never counts.
        assert_eq!(ahead(&[(0.0, 1.0), (10.0, 9.0), (60.0, 1.0)], 50.0, 0.0), windows(&[(0.0, 1.0)]));
        assert_eq!(ahead(&budget, 0.0, 120.0), windows(&budget));
        assert_eq!(ahead(&budget, 50.0, 250.0), windows(&[(250.0, 2.0), (300.0, 5.0)]));
        // On an edge itself, in numbers that are not exact.
        assert_eq!(ahead(&[(0.0, 3.0), (0.3, 1.0)], 0.1, 0.3 - 0.1), windows(&[(0.3 - 0.1, 1.0)]));
    }
}
