//! Predictions for one job: time and watts of every configuration it may be given.

use std::sync::Arc;

use andreas_cluster::energy::Types;
use andreas_model::{GpuCount, GpuType, Seconds, TypeDraw, Watts};
use andreas_planner as planner;
use andreas_predictor::estimates::{self, PredictionContext};
use andreas_predictor::{LogNormal, Prediction, Prior, Source};

/// Predictions for one job.
#[derive(Debug)]
pub struct Table {
    /// Rows for the planner, by type and total.
    pub rows: Arc<[planner::Estimate]>,
    /// The same with intervals and sources, in the same order.
    pub times: Vec<LogNormal>,
    /// Draws with intervals and sources, in the same order.
    pub draws: Vec<LogNormal>,
    /// Slowdown of gangs over several nodes.
    pub spread: Vec<planner::MultiNodeEffect>,
    /// Effects of power limits.
    pub limits: Vec<planner::LimitEffect>,
    /// True if nothing is known of the job's model.
    pub prior: bool,
    /// Index of the row that the usual duration of an unknown run is for: the fewest allowed GPUs of the commonest
    /// allowed type.
    pub usual_row: Option<usize>,
    /// The predictions behind the rows, in the same order.
    pub predictions: Vec<Prediction>,
    /// Assumed duration of an unknown run: from the namespace's finished runs, or the policy.
    pub usual_run: Seconds,
}

impl Table {
    /// Index of the row with this type and total.
    pub fn row_index(&self, gpu_type: &str, gpus: u32) -> Option<usize> {
        self.rows.iter().position(|row| row.gpu_type.as_str() == gpu_type && row.gpus.0 == gpus)
    }

    /// Epoch time and draw on one node, for a type and a total.
    pub fn row(&self, gpu_type: &str, gpus: u32) -> Option<(&planner::Estimate, &LogNormal)> {
        let at = self.row_index(gpu_type, gpus)?;
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

/// The table of a job for `asked` types and totals, of the `allowed` types, on up to `max_nodes` nodes. `guarded`: its starts have
/// guards where its GPUs take limits.
pub(super) fn predicted(
    context: PredictionContext<'_>,
    allowed: &[&GpuType],
    asked: &[(&GpuType, i32)],
    max_nodes: u32,
    (types, guarded): (&Types, bool),
) -> Table {
    let asked = asked.iter().map(|(name, total)| (*name, GpuCount(count(*total))));
    let predicted = context.on_one_node(asked);
    let row = |prediction: &Prediction| {
        let row = estimates::planner_estimate(prediction);
        let draw = types.get(&row.gpu_type).and_then(|facts| facts.draw);
        let most = draw.map_or(f64::INFINITY, |draw| draw.max * f64::from(row.gpus.0));
        let power = Watts(row.power.0.min(most));
        let counted = |draw: TypeDraw| match guarded {
            true => draw.of_start(prediction.power.median, prediction.power.p90(), power.0, row.gpus.0),
            false => draw.of_predicted(power.0, row.gpus.0),
        };
        planner::Estimate { power, draw: draw.map(counted).map(Watts), ..row }
    };
    let rows: Vec<planner::Estimate> = predicted.iter().map(row).collect();
    let limits = |name: &&GpuType| {
        let levels = types.get(*name).map(|facts| facts.levels.as_slice()).unwrap_or_default();
        let levels: Vec<Watts> = levels.iter().map(|watts| Watts(f64::from(*watts))).collect();
        context.limit_effects(name, &levels)
    };
    let Prior { run_time, gpu_type, gpus, .. } = context.prior;
    Table {
        spread: (2..=max_nodes.min(64)).filter_map(|nodes| context.spread(&predicted, nodes)).collect(),
        limits: allowed.iter().flat_map(limits).collect(),
        prior: predicted.first().is_some_and(|p| p.epoch.source == Source::Prior),
        usual_row: rows.iter().position(|row| row.gpu_type == *gpu_type && row.gpus == *gpus),
        usual_run: *run_time,
        times: predicted.iter().map(|p| p.epoch).collect(),
        draws: predicted.iter().map(|p| p.power).collect(),
        predictions: predicted,
        rows: rows.into(),
    }
}

/// A number of GPUs or nodes, at least 1.
pub(super) fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(1).max(1)
}
