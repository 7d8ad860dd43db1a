//! The power budget as plans are held to it: a lower window counts for a job from its grace period before it.

use andreas_model::{Seconds, StepFunction, Time, Watts};

use crate::snapshot::PowerBudget;

/// Instants that are no more than this apart are the same: sums of seconds are not exact.
const SAME_S: f64 = 1e-3;

/// A later window with a lower budget than all before it. Jobs that cannot be gone by then have to fit it now.
pub(crate) struct LowerWindow {
    /// Seconds from now until it begins, > 0.
    pub after: f64,
    /// Its budget less margin, in milliwatts of nodes and GPUs.
    pub most_mw: i128,
}

/// The lower windows that begin within so many seconds from `now`, in order. Each is lower than the one before it.
pub(super) fn lower_windows(budget: &PowerBudget, now: Time, within: Seconds) -> Vec<LowerWindow> {
    let mut least = budget.watts.at(now).map_or(f64::INFINITY, |watts| watts.0);
    let mut lower = Vec::new();
    for (begin, end, watts) in budget.watts.pieces(now, now + within + Seconds(2.0 * SAME_S)) {
        if begin > now && end > begin && watts.0 < least {
            least = watts.0;
            lower.push(LowerWindow { after: (begin - now).0, most_mw: budget.for_plans_mw(least) });
        }
    }
    lower
}

/// How many of these windows begin before a stop that takes so many seconds has ended, if it begins now.
pub(super) fn met_by(lower: &[LowerWindow], seconds: f64) -> usize {
    lower.partition_point(|window| window.after <= seconds + SAME_S)
}

/// From each instant from `now` on, the least budget for as long as a stop takes.
pub(crate) fn least_ahead(watts: &StepFunction<Watts>, ahead: Seconds, now: Time) -> StepFunction<Watts> {
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
        // In the middle, since rounding may put the end of the grace period on either side of an edge.
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
    use andreas_model::Seconds;

    use super::*;

    fn windows(list: &[(f64, f64)]) -> Vec<(Time, Watts)> {
        list.iter().map(|(begin, watts)| (Time(*begin), Watts(*watts))).collect()
    }

    fn ahead(list: &[(f64, f64)], grace: f64, now: f64) -> Vec<(Time, Watts)> {
        let watts = StepFunction::new(windows(list)).expect("in order");
        least_ahead(&watts, Seconds(grace), Time(now)).windows().to_vec()
    }

    #[test]
    fn of_the_windows_ahead_those_count_that_are_lower_than_all_before() {
        let list = [(0.0, 5.0), (100.0, 7.0), (200.0, 3.0), (300.0, 4.0), (400.0, 1.0), (3600.0, 0.5)];
        let watts = StepFunction::new(windows(&list)).expect("in order");
        let budget = PowerBudget { watts, margin: 0.0, scope_factor: 1.0 };
        let lower = lower_windows(&budget, Time(10.0), Seconds(600.0));
        let found: Vec<_> = lower.iter().map(|window| (window.after, window.most_mw)).collect();
        assert_eq!(found, [(190.0, 3_000), (390.0, 1_000)]);
        assert_eq!([0.0, 189.0, 190.0, 400.0].map(|grace| met_by(&lower, grace)), [0, 0, 1, 2]);
        // One that begins just when a stop ends counts; the present one does not.
        assert_eq!(lower_windows(&budget, Time(200.0), Seconds(200.0)).len(), 1);
    }

    #[test]
    fn a_lower_window_counts_earlier_and_a_higher_one_when_it_begins() {
        let budget = [(0.0, 3.0), (100.0, 1.0), (200.0, 4.0), (230.0, 2.0), (300.0, 5.0)];
        let expected = [(0.0, 3.0), (50.0, 1.0), (200.0, 2.0), (300.0, 5.0)];
        assert_eq!(ahead(&budget, 50.0, 0.0), windows(&expected));
        // A high window no longer than the grace period never counts.
        assert_eq!(ahead(&[(0.0, 1.0), (10.0, 9.0), (60.0, 1.0)], 50.0, 0.0), windows(&[(0.0, 1.0)]));
        assert_eq!(ahead(&budget, 0.0, 120.0), windows(&budget));
        assert_eq!(ahead(&budget, 50.0, 250.0), windows(&[(250.0, 2.0), (300.0, 5.0)]));
        // On an edge itself, in numbers that are not exact.
        assert_eq!(ahead(&[(0.0, 3.0), (0.3, 1.0)], 0.1, 0.3 - 0.1), windows(&[(0.3 - 0.1, 1.0)]));
    }
}
