//! Predictions for one job: time and watts of every configuration it may be given.

use std::sync::Arc;

use andreas_core::{Configuration, GpuCount, GpuType, Seconds, Watts};
use andreas_planner as planner;
use andreas_predictor::{Estimate, Predictor, Prior, Profile, Source};

use crate::energy::Types;

/// Predictions for one job.
#[derive(Debug)]
pub struct Table {
    /// Rows for the planner, by type and total.
    pub rows: Arc<[planner::Estimate]>,
    /// The same with intervals and sources, in the same order.
    pub times: Vec<Estimate>,
    /// Draws with intervals and sources, in the same order.
    pub draws: Vec<Estimate>,
    /// Slowdown of gangs over several nodes.
    pub spread: Vec<planner::Spread>,
    /// Effects of power limits.
    pub limits: Vec<planner::LimitEffect>,
    /// True if nothing is known of the job's model.
    pub prior: bool,
    /// Index of the conservative row for such a job: `gpus.min` of the commonest allowed type.
    pub cautious: Option<usize>,
    /// Assumed duration of an unknown run: from the namespace's finished runs, or the policy.
    pub usual_run: Seconds,
}

impl Table {
    /// Index of the row with this type and total.
    pub fn at(&self, gpu_type: &str, gpus: u32) -> Option<usize> {
        self.rows.iter().position(|row| row.gpu_type.as_str() == gpu_type && row.gpus.0 == gpus)
    }

    /// Epoch time and draw on one node, for a type and a total.
    pub fn row(&self, gpu_type: &str, gpus: u32) -> Option<(&planner::Estimate, &Estimate)> {
        let at = self.at(gpu_type, gpus)?;
        Some((&self.rows[at], self.times.get(at)?))
    }

    /// Slowdown factor of a power limit; 1 if it is not offered.
    pub fn limit_factor(&self, gpu_type: &str, limit: Option<i32>) -> f64 {
        let Some(watts) = limit.map(f64::from) else { return 1.0 };
        let same = |l: &&planner::LimitEffect| l.gpu_type.as_str() == gpu_type && l.limit.0 == watts;
        self.limits.iter().find(same).map_or(1.0, |effect| effect.time_factor)
    }

    /// Slowdown factor over that many nodes.
    pub fn spread_factor(&self, nodes: usize) -> f64 {
        let found = self.spread.iter().find(|spread| usize::try_from(spread.nodes) == Ok(nodes));
        found.map_or(1.0, |spread| spread.time_factor)
    }
}

/// The table of a job of this profile for `totals` GPUs of the `allowed` types, without power limits.
pub(super) fn of(
    predictor: &Predictor,
    family: &Profile,
    prior: &Prior,
    allowed: &[&GpuType],
    totals: &[i32],
    max_nodes: u32,
    types: &Types,
) -> Table {
    let configuration = |gpu_type: &GpuType, nodes: u32, gpus: u32| Configuration {
        gpu_type: gpu_type.clone(),
        nodes,
        gpus_per_node: GpuCount(gpus),
        limit: None,
    };
    let asked: Vec<Configuration> = allowed
        .iter()
        .flat_map(|name| totals.iter().map(|total| configuration(name, 1, count(*total))))
        .collect();
    let predicted = predictor.predict(family, prior, &asked);
    let rows: Vec<planner::Estimate> = predicted
        .iter()
        .map(|p| planner::Estimate {
            gpu_type: p.configuration.gpu_type.clone(),
            gpus: p.configuration.total_gpus(),
            epoch: p.mean_epoch(),
            power: p.mean_power(),
            draw: types
                .get(&p.configuration.gpu_type)
                .and_then(|facts| facts.draw)
                .map(|draw| Watts(draw.of_predicted(p.power.mean(), p.configuration.total_gpus().0))),
            rel_std: p.epoch.planning_sigma(),
        })
        .collect();
    // One factor per number of nodes: the median over the configurations that can be spread so.
    let spread = (2..=max_nodes.min(64)).filter_map(|nodes| {
        let over: Vec<(usize, Configuration)> = asked
            .iter()
            .enumerate()
            .filter(|(_, c)| c.gpus_per_node.0 % nodes == 0)
            .map(|(at, c)| (at, configuration(&c.gpu_type, nodes, c.gpus_per_node.0 / nodes)))
            .collect();
        let asked: Vec<Configuration> = over.iter().map(|(_, c)| c.clone()).collect();
        let mut factors: Vec<f64> = predictor
            .predict(family, prior, &asked)
            .iter()
            .zip(&over)
            .map(|(p, (at, _))| p.epoch.median / predicted[*at].epoch.median)
            .filter(|factor| factor.is_finite() && *factor > 0.0)
            .collect();
        factors.sort_by(f64::total_cmp);
        let time_factor = *factors.get(factors.len() / 2)?;
        Some(planner::Spread { nodes, time_factor })
    });
    let least = totals.iter().min().map(|total| count(*total));
    Table {
        spread: spread.collect(),
        limits: Vec::new(),
        prior: predicted.first().is_some_and(|p| p.epoch.source == Source::Prior),
        cautious: rows.iter().position(|row| row.gpu_type == prior.gpu_type && Some(row.gpus.0) == least),
        usual_run: prior.run_time,
        times: predicted.iter().map(|p| p.epoch).collect(),
        draws: predicted.iter().map(|p| p.power).collect(),
        rows: rows.into(),
    }
}

/// A number of GPUs or nodes, at least 1.
pub(super) fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(1).max(1)
}
