//! Estimates for the planner from predictions: one function for operator and simulator.
//!
//! **In**: a predictor, a job's profile and prior, configurations. **Out**: what the planner counts with. Times and
//! watts of a row are means ([`Prediction::mean_epoch`], [`Prediction::mean_power`]); effects of nodes and of power
//! limits are ratios of medians.

use andreas_model::{Configuration, GpuCount, GpuType, Watts};
use andreas_planner::{Estimate, LimitEffect, MultiNodeEffect};

use crate::{Prediction, Predictor, Prior, Profile, Source};

mod program;
mod unknown;

pub use program::{MAX_DESCRIPTION, Program, RunDescription};
pub use unknown::{RunFacts, UnknownRule, unknown_rule};

/// A limit that leaves more than this part of the draw is not offered.
const MAX_USEFUL_POWER_FACTOR: f64 = 0.98;

/// A fitted predictor with one job's profile and prior.
#[derive(Clone, Copy, Debug)]
pub struct PredictionContext<'a> {
    /// The fitted predictor.
    pub predictor: &'a Predictor,
    /// What is known of the job's profile.
    pub profile: &'a Profile,
    /// What is assumed where nothing is known.
    pub prior: &'a Prior,
}

/// Converts a prediction to a planner estimate. `draw` is `None`; the caller sets it from the GPU
/// type's power range.
pub fn planner_estimate(prediction: &Prediction) -> Estimate {
    Estimate {
        gpu_type: prediction.configuration.gpu_type.clone(),
        gpus: prediction.configuration.total_gpus(),
        epoch: prediction.mean_epoch(),
        power: prediction.mean_power(),
        draw: None,
        rel_std: prediction.epoch.planning_sigma(),
    }
}

impl PredictionContext<'_> {
    /// Predictions for these types and totals on one node without limit, in their order.
    pub fn on_one_node<'t>(&self, asked: impl Iterator<Item = (&'t GpuType, GpuCount)>) -> Vec<Prediction> {
        let asked: Vec<Configuration> = asked.map(|(name, gpus)| configuration(name, 1, gpus.0)).collect();
        self.predictor.predict(self.profile, self.prior, &asked)
    }

    /// Time factor of `nodes` nodes relative to one node (> 0): median over the predictions with a
    /// GPU total divisible by `nodes`. `None` if there is none.
    pub fn spread(&self, on_one_node: &[Prediction], nodes: u32) -> Option<MultiNodeEffect> {
        let gpus = |p: &Prediction| p.configuration.gpus_per_node.0;
        let divided: Vec<&Prediction> =
            on_one_node.iter().filter(|p| gpus(p).is_multiple_of(nodes)).collect();
        let asked: Vec<Configuration> = divided
            .iter()
            .map(|p| configuration(&p.configuration.gpu_type, nodes, gpus(p) / nodes))
            .collect();
        let predicted = self.predictor.predict(self.profile, self.prior, &asked);
        let factors = predicted.iter().zip(divided).map(|(p, one)| p.epoch.median / one.epoch.median);
        let mut factors: Vec<f64> = factors.filter(|factor| factor.is_finite() && *factor > 0.0).collect();
        factors.sort_by(f64::total_cmp);
        let time_factor = *factors.get(factors.len() / 2)?;
        Some(MultiNodeEffect { nodes, time_factor })
    }

    /// Time and power factors under these power limits (W), at the prior's GPU count on one node. Empty
    /// without evidence on the model.
    pub fn limit_effects(&self, gpu_type: &GpuType, limits: &[Watts]) -> Vec<LimitEffect> {
        if limits.is_empty() {
            return Vec::new();
        }
        let free = configuration(gpu_type, 1, self.prior.gpus.0);
        let limited = limits.iter().map(|limit| Configuration { limit: Some(*limit), ..free.clone() });
        let asked: Vec<Configuration> = std::iter::once(free.clone()).chain(limited).collect();
        let predicted = self.predictor.predict(self.profile, self.prior, &asked);
        let Some((free, limited)) = predicted.split_first() else { return Vec::new() };
        let effect = |(limited, limit): (&Prediction, &Watts)| {
            let time_factor = (limited.epoch.median / free.epoch.median).max(1.0);
            let power_factor = limited.power.median / free.power.median;
            let known = free.epoch.source != Source::Prior && time_factor.is_finite();
            (known && (0.0..MAX_USEFUL_POWER_FACTOR).contains(&power_factor)).then(|| LimitEffect {
                gpu_type: gpu_type.clone(),
                limit: *limit,
                time_factor,
                power_factor,
            })
        };
        limited.iter().zip(limits).filter_map(effect).collect()
    }
}

fn configuration(gpu_type: &GpuType, nodes: u32, gpus_per_node: u32) -> Configuration {
    Configuration { gpu_type: gpu_type.clone(), nodes, gpus_per_node: GpuCount(gpus_per_node), limit: None }
}

#[cfg(test)]
mod tests {
    use andreas_model::{Seconds, Time};

    use crate::{GpuModel, Observation};

    use super::*;

    fn with_context<T>(observed: &[(u32, f64, f64)], ask: impl Fn(PredictionContext<'_>) -> T) -> T {
        let a100 = GpuType::from("A100");
        let predictor =
            Predictor::fit(&[GpuModel { gpu_type: a100.clone(), idle: Watts(50.0), max: Watts(400.0) }], &[]);
        let observation = |(gpus, epoch, watts): &(u32, f64, f64)| Observation {
            configuration: configuration(&a100, 1, *gpus),
            epoch: Some(Seconds(*epoch)),
            watts_per_gpu: Some(Watts(*watts)),
            epochs: 50.0,
            at: Time(0.0),
            gpus: None,
            batch: None,
            claimed: false,
        };
        let profile = Profile {
            name: "team/bert".into(),
            observations: observed.iter().map(observation).collect(),
            ..Profile::default()
        };
        let prior =
            Prior { run_time: Seconds(3_600.0), epochs: 10.0, gpu_type: a100.clone(), gpus: GpuCount(4) };
        ask(PredictionContext { predictor: &predictor, profile: &profile, prior: &prior })
    }

    #[test]
    fn rows_are_means_and_a_measured_one_is_what_was_measured() {
        let a100 = GpuType::from("A100");
        let rows = |observed: &[(u32, f64, f64)]| {
            with_context(observed, |context| {
                let predicted = context.on_one_node([1, 4].into_iter().map(|n| (&a100, GpuCount(n))));
                let rows: Vec<Estimate> = predicted.iter().map(planner_estimate).collect();
                assert!(rows.iter().zip(&predicted).all(|(row, p)| row.epoch == p.mean_epoch()));
                rows
            })
        };
        let measured = rows(&[(1, 100.0, 300.0), (4, 30.0, 280.0)]);
        assert_eq!(measured.iter().map(|row| row.gpus.0).collect::<Vec<_>>(), [1, 4]);
        assert!((measured[1].epoch.0 / 30.0 - 1.0).abs() < 0.05, "{:?}", measured[1]);
        assert!((measured[1].power.0 / 1_120.0 - 1.0).abs() < 0.1, "{:?}", measured[1]);
        let unknown = rows(&[]);
        assert!(unknown[1].rel_std > measured[1].rel_std);
        assert!(unknown[1].power.0 <= 1_600.0, "four boards draw no more: {:?}", unknown[1]);
    }

    #[test]
    fn more_nodes_slow_down_and_only_what_divides_is_asked() {
        let a100 = GpuType::from("A100");
        with_context(&[(4, 30.0, 280.0)], |context| {
            let predicted = context.on_one_node([3, 4, 8].into_iter().map(|n| (&a100, GpuCount(n))));
            let two = context.spread(&predicted, 2).expect("4 and 8 can be divided by 2");
            assert!(two.nodes == 2 && two.time_factor >= 1.0, "{two:?}");
            assert_eq!(context.spread(&predicted, 5), None);
        });
    }

    #[test]
    fn limits_are_offered_only_where_the_draw_is_known_and_they_save() {
        let a100 = GpuType::from("A100");
        let levels = [Watts(200.0), Watts(399.0)];
        let known = with_context(&[(4, 30.0, 290.0)], |context| context.limit_effects(&a100, &levels));
        assert_eq!(known.iter().map(|effect| effect.limit).collect::<Vec<_>>(), [Watts(200.0)]);
        assert!(known[0].power_factor < 0.8 && known[0].time_factor > 1.0, "{known:?}");
        assert!(with_context(&[], |context| context.limit_effects(&a100, &levels)).is_empty());
    }
}
