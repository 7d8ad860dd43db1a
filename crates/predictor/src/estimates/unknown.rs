//! The rule for unknown runs: no estimate from the user, and no earlier run of the profile.
//!
//! Only the *scale* of such a run is unknown; how configurations compare is known to 12 to 25 %. So it is offered every
//! configuration, and what it may lose is bounded instead: the planner charges GPUs beyond the fewest until the first
//! report ([`UnknownRun`]). Until then it is not moved and gets no power limit.

use andreas_model::{GpuCount, Seconds};
use andreas_planner::UnknownRun;

use crate::{Prediction, Source};

/// Standard deviation of the log of a configuration's time relative to the others, where nothing of the run was
/// observed: the upper end of what held-out profiles show.
const SHAPE: f64 = 0.25;

/// What is known of a run besides its predictions.
#[derive(Clone, Copy, Debug)]
pub struct RunFacts {
    /// It has reported progress, in this attempt or an earlier one.
    pub reported: bool,
    /// How long its present attempt has run; 0 while it waits.
    pub running_for: Seconds,
    /// The assumed length of the whole run.
    pub usual_run: Seconds,
    /// Epochs of the whole run, > 0.
    pub epochs: f64,
    /// Fewest GPUs it may have.
    pub least: GpuCount,
}

/// How the planner is to treat a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnknownRule {
    /// For [`andreas_planner::Job::unknown`].
    pub cost: Option<UnknownRun>,
    /// Whether it may be moved; its minimum run time holds besides.
    pub movable: bool,
    /// Whether its GPUs may get a power limit.
    pub limits: bool,
}

/// The rule for a run with these predictions. A run without progress reports counts as known once it has run for the
/// usual time.
pub fn unknown_rule(predictions: &[Prediction], facts: &RunFacts) -> UnknownRule {
    let prior = !predictions.is_empty() && predictions.iter().all(|p| p.epoch.source == Source::Prior);
    if !prior || facts.reported || facts.running_for.0 > 0.0 && facts.running_for >= facts.usual_run {
        return UnknownRule { cost: None, movable: true, limits: true };
    }
    let epoch = facts.usual_run.0 / facts.epochs.max(1.0);
    let first_report = Seconds((epoch - facts.running_for.0).max(0.0));
    let cost = UnknownRun { shape: SHAPE, first_report, least: facts.least };
    UnknownRule { cost: Some(cost), movable: false, limits: false }
}

#[cfg(test)]
mod tests {
    use andreas_model::Configuration;

    use crate::LogNormal;

    use super::*;

    fn prediction(source: Source) -> Prediction {
        let configuration =
            Configuration { gpu_type: "A100".into(), nodes: 1, gpus_per_node: GpuCount(4), limit: None };
        let of = |median| LogNormal { median, sigma: 0.8, source };
        Prediction { configuration, epoch: of(100.0), power: of(1_000.0), board_max: None }
    }

    fn facts() -> RunFacts {
        RunFacts {
            reported: false,
            running_for: Seconds::ZERO,
            usual_run: Seconds(14_400.0),
            epochs: 20.0,
            least: GpuCount(2),
        }
    }

    #[test]
    fn an_unknown_run_pays_for_more_gpus_until_its_first_report() {
        let unknown = [prediction(Source::Prior)];
        let rule = unknown_rule(&unknown, &facts());
        assert_eq!(
            rule.cost,
            Some(UnknownRun { shape: 0.25, first_report: Seconds(720.0), least: GpuCount(2) })
        );
        assert!(!rule.movable && !rule.limits);
        let half = unknown_rule(&unknown, &RunFacts { running_for: Seconds(700.0), ..facts() });
        assert_eq!(half.cost.map(|cost| cost.first_report), Some(Seconds(20.0)));
        let free = UnknownRule { cost: None, movable: true, limits: true };
        assert_eq!(unknown_rule(&unknown, &RunFacts { reported: true, ..facts() }), free);
        assert_eq!(unknown_rule(&unknown, &RunFacts { running_for: Seconds(14_400.0), ..facts() }), free);
    }

    #[test]
    fn a_known_run_is_free() {
        for source in [Source::UserGiven, Source::Observed, Source::Regression] {
            assert!(unknown_rule(&[prediction(source), prediction(Source::Prior)], &facts()).movable);
        }
        assert!(unknown_rule(&[], &facts()).movable, "nothing fits: there is nothing to bound");
    }
}
