//! Effects of power limits on a job: how much slower and thriftier it is under each.

use andreas_core::{Configuration, GpuType, Watts};
use andreas_planner::LimitEffect;
use andreas_predictor::{Predictor, Prior, Profile, Source};

use crate::energy::Types;

/// A limit that leaves more than this part of the draw is not offered.
const WORTH: f64 = 0.98;

/// The effect of limits on a job, by allowed type. It is taken at the GPU count of the job's prior, on one
/// node. Empty for an unknown model: its draw is a guess.
pub fn effects(
    predictor: &Predictor,
    family: &Profile,
    prior: &Prior,
    allowed: &[&GpuType],
    types: &Types,
) -> Vec<LimitEffect> {
    let asked = |gpu_type: &GpuType, limit: Option<i32>| Configuration {
        gpu_type: gpu_type.clone(),
        nodes: 1,
        gpus_per_node: prior.gpus,
        limit: limit.map(|watts| Watts(f64::from(watts))),
    };
    let of_type = |gpu_type: &&GpuType| {
        let levels = types.get(*gpu_type).map(|facts| facts.levels.as_slice()).unwrap_or_default();
        let all: Vec<Configuration> = std::iter::once(None)
            .chain(levels.iter().map(|watts| Some(*watts)))
            .map(|limit| asked(gpu_type, limit))
            .collect();
        let predicted = if levels.is_empty() { Vec::new() } else { predictor.predict(family, prior, &all) };
        let effects = predicted.split_first().map(|(free, limited)| {
            limited.iter().zip(levels).filter_map(|(limited, watts)| {
                let time_factor = (limited.epoch.median / free.epoch.median).max(1.0);
                let power_factor = limited.power.median / free.power.median;
                let known = free.epoch.source != Source::Prior && time_factor.is_finite();
                (known && (0.0..WORTH).contains(&power_factor)).then(|| LimitEffect {
                    gpu_type: (*gpu_type).clone(),
                    limit: Watts(f64::from(*watts)),
                    time_factor,
                    power_factor,
                })
            })
        });
        effects.into_iter().flatten().collect::<Vec<_>>()
    };
    allowed.iter().flat_map(of_type).collect()
}
