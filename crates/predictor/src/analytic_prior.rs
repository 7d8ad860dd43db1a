//! Analytic prior: the expectation before any observation. The regressions learn deviations from
//! it.
//!
//! Time: Amdahl's law over GPUs, a factor per doubling of nodes, and type speed as a power of
//! maximum draw. Power: a share of the range between idle and maximum, less where GPUs wait for
//! each other.

use std::collections::BTreeMap;

use andreas_model::GpuType;

use crate::GpuModel;

/// Part of an epoch that does not shrink with GPUs. ElasticFlow's A100 tables (strong scaling, 8
/// GPUs) give 0.05-0.48, median 0.16; large batches 0.05-0.15.
const SERIAL: f64 = 0.1;
/// Slow-down per doubling of nodes (T4 nodes of 4 GPUs, Pollux: 1.05-1.3).
const PER_NODE_DOUBLING: f64 = 0.1;
/// Type speed ~ maximum draw to this power. It lies between the ratios of V100 and T4 to A100 in
/// the tables of Zeus and ElasticFlow (0.49-0.78 at 0.75 of the draw; 0.33-0.50 at 0.18 of it).
const TYPE_EXPONENT: f64 = 0.55;
/// Busy share of the range between idle and maximum: 0.75-0.90 for ResNet-50, BERT and DeepSpeech2
/// in Zeus' V100 table.
const BUSY: f64 = 0.8;
/// Board of an undescribed type, watts.
const UNKNOWN: Board = Board { idle: 30.0, max: 300.0 };
/// Time stretches by ((u - s) / (a - s))^gamma when a limit lowers the draw from u to a. s is this
/// share of the maximum (fits of Zeus' tables: 0.04 of a V100, up to 0.3 of an A40); gamma is
/// fitted per profile and type.
const LIMIT_STATIC: f64 = 0.15;

/// Bounds of logs: no input can exceed them.
pub(crate) const LOG_TIME: (f64, f64) = (-14.0, 21.0);
pub(crate) const LOG_WATTS: (f64, f64) = (-2.0, 11.0);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Board {
    pub idle: f64,
    pub max: f64,
}

/// Boards by type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnalyticPrior {
    boards: BTreeMap<GpuType, Board>,
}

impl AnalyticPrior {
    /// Invalid models (not finite, not positive, idle above maximum) count as unknown.
    pub fn new(models: &[GpuModel]) -> Self {
        let sane = |m: &&GpuModel| m.idle.0 >= 0.0 && m.max.0 > m.idle.0 && m.max.0 >= 1.0 && m.max.0 <= 1e4;
        let boards =
            models.iter().filter(sane).map(|m| (m.gpu_type.clone(), Board { idle: m.idle.0, max: m.max.0 }));
        Self { boards: boards.collect() }
    }

    pub fn board(&self, gpu_type: &GpuType) -> Board {
        self.boards.get(gpu_type).copied().unwrap_or(UNKNOWN)
    }

    /// Maximum draw of one GPU of a known type, W.
    pub fn max_draw(&self, gpu_type: &GpuType) -> Option<f64> {
        self.boards.get(gpu_type).map(|board| board.max)
    }

    /// Log of the time on one GPU of a type, up to a constant of the profile.
    pub fn log_type(&self, gpu_type: &GpuType) -> f64 {
        -TYPE_EXPONENT * libm::log(self.board(gpu_type).max / UNKNOWN.max)
    }

    /// Log of the time on `gpus` over `nodes`, relative to one GPU. Falls with `gpus`, never faster
    /// than 1 / gpus.
    pub fn log_scaling(gpus: u32, nodes: u32) -> f64 {
        let amdahl = SERIAL + (1.0 - SERIAL) / f64::from(gpus.max(1));
        libm::log(amdahl) + Self::log_spread(nodes)
    }

    /// Log of the slow-down by several nodes.
    pub fn log_spread(nodes: u32) -> f64 {
        libm::log(1.0 + PER_NODE_DOUBLING * libm::log2(f64::from(nodes.max(1))))
    }

    /// Log of the draw of one GPU.
    pub fn log_watts(&self, gpu_type: &GpuType, gpus: u32, nodes: u32) -> f64 {
        let Board { idle, max } = self.board(gpu_type);
        let efficiency = libm::exp(-Self::log_scaling(gpus, nodes)) / f64::from(gpus.max(1));
        libm::log(idle + BUSY * (max - idle) * libm::sqrt(efficiency.min(1.0)))
    }

    /// Log of the share of a GPU's draw above its static part that a limit removes (both draws in
    /// logs). 0 if it removes nothing; at most a factor 20.
    pub fn draw_reduction(&self, gpu_type: &GpuType, free: f64, limited: f64) -> f64 {
        let floor = LIMIT_STATIC * self.board(gpu_type).max;
        let above = |log: f64| (libm::exp(log) - floor).max(0.25 * libm::exp(log));
        let reduction = libm::log(above(free) / above(limited));
        if reduction.is_finite() { reduction.clamp(0.0, 3.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use andreas_model::Watts;

    use super::*;

    fn law() -> AnalyticPrior {
        let model = |t: &str, idle, max| GpuModel { gpu_type: t.into(), idle: Watts(idle), max: Watts(max) };
        AnalyticPrior::new(&[model("A100", 50.0, 400.0), model("V100", 30.0, 300.0), model("T4", 10.0, 70.0)])
    }

    #[test]
    fn types_are_ranked_and_spaced_as_the_published_tables_have_them() {
        let law = law();
        let speed = |t: &str| libm::exp(law.log_type(&"A100".into()) - law.log_type(&t.into()));
        assert!((0.49..0.9).contains(&speed("V100")), "{}", speed("V100"));
        assert!((0.33..0.5).contains(&speed("T4")), "{}", speed("T4"));
    }

    #[test]
    fn a_limit_takes_nothing_that_was_not_drawn_and_never_everything() {
        let law = law();
        let t = "V100".into();
        let log = libm::log;
        assert_eq!(law.draw_reduction(&t, log(200.0), log(250.0)), 0.0);
        let half = law.draw_reduction(&t, log(230.0), log(141.0));
        assert!((0.5..0.7).contains(&half), "{half}");
        assert!(law.draw_reduction(&t, log(230.0), log(0.001)) <= 3.0);
    }

    #[test]
    fn nonsense_boards_count_as_unknown() {
        let bad = GpuModel { gpu_type: "X".into(), idle: Watts(f64::NAN), max: Watts(-1.0) };
        assert_eq!(AnalyticPrior::new(&[bad]).board(&"X".into()), UNKNOWN);
    }
}
