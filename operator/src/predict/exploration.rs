//! Exploration of GPU types without measurements, where the information is worth more than it costs (`spec.profiling: Auto`).
//!
//! **In**: a job's estimates with their sources, and its costs. **Out**: the best estimate of an unknown type, and a factor that
//! makes it cheaper by the value of information, net of the cost of exploring. Plans alone count with it. There is no state:
//! exploration ends when an epoch was measured there, because the type is then known.
//!
//! The value is the expected improvement (of the log-normal cost of an epoch, the part below the best known row) over all epochs
//! but the first. The cost is the first epoch's expected extra cost and a restart to return; the planner accounts for the restart
//! to go there.

use andreas_core::Seconds;
use andreas_planner::{self as planner, Exploration};
use andreas_predictor::{LogNormal, Source, mean_over_median, on_time_probability};

/// Epochs of an exploration.
const EXPLORED_EPOCHS: f64 = 1.0;
/// Epochs that must remain for an exploration to have value.
const MIN_LEFT: f64 = 4.0;
/// Lower bound of the cost after the factor, relative to the cost at the median time and draw.
const MIN_FACTOR: f64 = 0.7;

/// Prices and limits used to weigh an exploration.
#[derive(Clone, Copy, Debug)]
pub struct ExplorationCosts {
    /// Cost of a joule, PUE included.
    pub per_joule: f64,
    /// Cost of a second of the job's time in the system.
    pub per_second: f64,
    /// Time lost by a restart.
    pub restart: Seconds,
    /// Epochs left.
    pub epochs: f64,
    /// Time until the deadline; `None` without one.
    pub available: Option<Seconds>,
}

/// Mean cost of an epoch on the configuration of a row.
fn epoch_cost(row: &planner::Estimate, costs: &ExplorationCosts) -> f64 {
    row.epoch.0 * (row.power.0 * costs.per_joule + costs.per_second)
}

/// Probability that a log-normal cost is below a limit.
fn below(median: f64, sigma: f64, limit: f64) -> f64 {
    on_time_probability(Seconds(median), sigma, Seconds(limit))
}

/// The most valuable exploration of a type that `may` be explored; `None` if none is worth its cost or
/// nothing is known to compare with. `times` and `draws` are the predictions behind the rows. `known`: types that this
/// run was measured on.
pub fn best(
    rows: &[planner::Estimate],
    (times, draws): (&[LogNormal], &[LogNormal]),
    known: Option<&str>,
    costs: &ExplorationCosts,
    may: impl Fn(&str) -> bool,
) -> Option<Exploration> {
    if costs.epochs < MIN_LEFT {
        return None;
    }
    let is_known = |at: usize| {
        let source = times.get(at).map(|time| time.source);
        matches!(source, Some(Source::UserGiven | Source::Observed))
            || known.is_some_and(|known| known == rows[at].gpu_type.as_str())
    };
    let at = |at: &usize| (*at, epoch_cost(&rows[*at], costs));
    let cheaper = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
    let (best, least) = (0..rows.len()).filter(|n| is_known(*n)).map(|n| at(&n)).min_by(cheaper)?;
    let restart = costs.restart.0 * (rows[best].power.0 * costs.per_joule + costs.per_second);
    let explore = |(n, mean): (usize, f64)| {
        let row = &rows[n];
        let sigma = row.rel_std;
        let median = mean / mean_over_median(sigma);
        let in_time = costs.available.is_none_or(|available| {
            let epoch = row.epoch.0 / mean_over_median(sigma);
            let slowest = LogNormal { median: epoch, sigma, source: Source::Regression }.high();
            slowest * costs.epochs + 2.0 * costs.restart.0 <= available.0
        });
        let gain =
            least * below(median, sigma, least) - mean * below(median * (sigma * sigma).exp(), sigma, least);
        let worth =
            gain * (costs.epochs - EXPLORED_EPOCHS) - EXPLORED_EPOCHS * (mean - least).max(0.0) - restart;
        let draw_sigma = draws.get(n).map_or(0.0, LogNormal::planning_sigma);
        let floor = planner::Estimate {
            epoch: row.epoch * (MIN_FACTOR / mean_over_median(sigma)),
            power: row.power * mean_over_median(draw_sigma).recip(),
            ..row.clone()
        };
        let factor = (least - worth / costs.epochs).max(epoch_cost(&floor, costs)) / mean;
        (in_time && worth > 0.0 && factor < 1.0).then(|| {
            (worth, Exploration { gpu_type: row.gpu_type.clone(), gpus: row.gpus, time_factor: factor })
        })
    };
    // The best row of each unknown type.
    let mut unknown: Vec<(usize, f64)> = Vec::new();
    for (n, mean) in (0..rows.len()).filter(|n| !is_known(*n)).map(|n| at(&n)) {
        match unknown.iter_mut().find(|(other, _)| rows[*other].gpu_type == rows[n].gpu_type) {
            Some(held) if mean < held.1 => *held = (n, mean),
            Some(_) => {}
            None => unknown.push((n, mean)),
        }
    }
    let explorations =
        unknown.into_iter().filter(|(n, _)| may(rows[*n].gpu_type.as_str())).filter_map(explore);
    explorations.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, exploration)| exploration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_core::{GpuCount, Watts};

    /// A known type at a median of 100 s, and another at `other` seconds with spread `sigma`.
    fn rows(other: f64, sigma: f64, source: Source) -> (Vec<planner::Estimate>, Vec<LogNormal>) {
        let row = |gpu_type: &str, epoch: f64, sigma: f64| planner::Estimate {
            gpu_type: gpu_type.into(),
            gpus: GpuCount(1),
            epoch: Seconds(epoch * mean_over_median(sigma)),
            power: Watts(300.0),
            draw: None,
            rel_std: sigma,
        };
        let time = |median, sigma, source| LogNormal { median, sigma, source };
        (
            vec![row("A", 100.0, 0.05), row("B", other, sigma)],
            vec![time(100.0, 0.05, Source::Observed), time(other, sigma, source)],
        )
    }

    fn costs(epochs: f64) -> ExplorationCosts {
        ExplorationCosts {
            per_joule: 7.2e-8,
            per_second: 5.6e-6,
            restart: Seconds(120.0),
            epochs,
            available: None,
        }
    }

    fn explore(other: f64, sigma: f64, epochs: f64) -> Option<f64> {
        let (rows, times) = rows(other, sigma, Source::Regression);
        best(&rows, (&times, &[]), None, &costs(epochs), |_| true).map(|exploration| exploration.time_factor)
    }

    #[test]
    fn a_look_is_worth_it_where_much_is_unknown_and_much_is_left() {
        let factor = explore(105.0, 0.4, 200.0).expect("worth it");
        // Cheaper than the known type by the net value, and bounded.
        assert!((MIN_FACTOR..0.95).contains(&(factor * mean_over_median(0.4))), "{factor}");
        assert_eq!(explore(105.0, 0.4, 6.0), None, "too little is left to pay for it");
        assert_eq!(explore(105.0, 0.02, 200.0), None, "there is nothing to learn");
        assert_eq!(explore(400.0, 0.3, 200.0), None, "it is far too slow to be wrong so far");
        let more = |epochs| explore(120.0, 0.4, epochs).expect("worth it");
        assert!(more(1_000.0) < more(60.0), "the more is left the more it is worth");
    }

    #[test]
    fn a_look_makes_nothing_cheaper_than_a_part_of_its_median_cost() {
        // Given an almost unknown type, and a draw of 300 W, the mean of a wide spread.
        let (rows, times) = rows(100.0, 1.9, Source::Regression);
        let draw =
            LogNormal { median: 300.0 / mean_over_median(0.3), sigma: 0.3, source: Source::Regression };
        let costs = costs(1e6);
        let found = best(&rows, (&times, &[draw, draw]), None, &costs, |_| true).expect("worth it");
        // Then its cost is what the bound says.
        let median = 100.0 * (draw.median * costs.per_joule + costs.per_second);
        let left = found.time_factor * epoch_cost(&rows[1], &costs);
        assert!((left / median - MIN_FACTOR).abs() < 1e-9, "{left} {median}");
    }

    #[test]
    fn what_is_known_what_may_not_be_and_what_could_be_late_is_not_looked_at() {
        let asked = |source, known, costs: &ExplorationCosts, may| {
            let (rows, times) = rows(105.0, 0.4, source);
            best(&rows, (&times, &[]), known, costs, |_| may).is_some()
        };
        let plenty = costs(200.0);
        assert!(asked(Source::Regression, None, &plenty, true));
        assert!(!asked(Source::UserGiven, None, &plenty, true));
        assert!(!asked(Source::Regression, Some("B"), &plenty, true), "it was seen there: the look is over");
        assert!(!asked(Source::Regression, None, &plenty, false));
        // 200 epochs of 105 s, twice as long in the worst case.
        let due = |seconds| ExplorationCosts { available: Some(Seconds(seconds)), ..plenty };
        assert!(!asked(Source::Regression, None, &due(25_000.0), true));
        assert!(asked(Source::Regression, None, &due(60_000.0), true));
    }

    #[test]
    fn where_nothing_is_known_there_is_nothing_to_compare_with() {
        let (rows, mut times) = rows(105.0, 0.4, Source::Prior);
        times[0].source = Source::Prior;
        assert_eq!(best(&rows, (&times, &[]), None, &costs(200.0), |_| true), None);
    }
}
