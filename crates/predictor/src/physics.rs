//! Physics of epoch time and GPU draw as a function of the setting, with parameters per profile.
//!
//! Time, after Pollux (OSDI 2021, section 3.2): a step is computation (overhead plus the samples of
//! one GPU) and synchronisation, which grows with GPUs. The two overlap, to the same degree in all
//! profiles. An epoch has a fixed number of samples, so its steps are as one over the batch. A
//! binding power limit stretches the step by a power of the share of draw it removes. Power: an
//! intercept on the analytic prior's draw, with slopes over batch, GPUs and nodes, cut softly at the
//! limit.
//!
//! All values are logs relative to the profile's reference batch, so that one prior serves models
//! of every size.

use andreas_model::GpuType;

/// Number of parameters; indices below.
pub(crate) const P: usize = 7;
pub(crate) type Theta = [f64; P];

/// Log of the intercept: time (or draw) at the origin.
pub(crate) const INTERCEPT: usize = 0;
/// Time: log of a step's fixed part over the samples of one GPU at the reference batch. Power:
/// slope over doublings of the batch.
const OVERHEAD: usize = 1;
/// Time: log of the synchronisation on one node. Power: slope over doublings of GPUs.
const SYNC: usize = 2;
/// Time: log of what the inter-node network adds to the synchronisation. Power: slope over
/// doublings of nodes.
const ACROSS: usize = 3;
/// Time: exponent of the synchronisation's growth with GPUs. Power: log of the share of a limit
/// that is drawn.
const GROWTH: usize = 4;
/// Time: log of the exponent of what a limit removes.
const LIMITED: usize = 5;
/// Time: exponent of the batch that the rest does not explain.
const BATCH: usize = 6;

/// Overlap of computation and synchronisation, an exponent; 1 means none.
const OVERLAP: f64 = 2.22;
/// Share of a limit that is drawn when it binds: Zeus' tables give 0.90-0.955 by type.
const DRAWN: f64 = -0.062;
/// Sharpness of the cut at a limit.
const CUT: f64 = 25.0;

/// Predicted quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Seconds of one epoch.
    Time,
    /// Watts of one GPU.
    Power,
}

/// A setting as the curve takes it. Default: one GPU without a limit and without priors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Setting {
    /// Index of the GPU type.
    pub kind: u16,
    /// Doublings of GPUs and nodes.
    pub gpus: f64,
    pub nodes: f64,
    /// Log of the global batch over the profile's reference batch.
    pub batch: f64,
    /// Time: log of the share of draw a limit removes, at least 0. Power: log of the limit.
    pub limit: f64,
    /// Log of the limit over the board's maximum; an input of the kernel.
    pub depth: f64,
    /// Prior: log of the type's time or draw.
    pub base: f64,
}

impl Quantity {
    /// Log of the quantity.
    pub fn log_at(self, theta: &Theta, s: &Setting) -> f64 {
        self.with_slopes(theta, s).0
    }

    /// The same with its derivatives by the parameters.
    pub fn with_slopes(self, theta: &Theta, s: &Setting) -> (f64, Theta) {
        match self {
            Self::Time => time(theta, s),
            Self::Power => power(theta, s),
        }
    }

    /// Prior means of the parameters.
    pub fn means(self) -> Theta {
        match self {
            // ElasticFlow's, Pollux' and Zeus' tables lie within a standard deviation of these.
            Self::Time => [0.0, -1.6, -2.3, -2.0, 0.27, -0.8, 0.0],
            Self::Power => [0.0, 0.05, -0.03, -0.05, DRAWN, 0.0, 0.0],
        }
    }

    /// Variances of the parameters between profiles; the intercept is nearly free.
    pub fn profile_variances(self) -> Theta {
        match self {
            Self::Time => [9.0, 1.2, 1.4, 1.0, 0.05, 0.2, 0.005],
            Self::Power => [0.12, 0.003, 0.002, 0.002, 0.001, 0.0, 0.0],
        }
    }

    /// Variances between GPU types within a profile, beyond the prior ratios of types.
    pub fn gpu_type_variances(self) -> Theta {
        match self {
            Self::Time => [0.15, 0.2, 0.2, 0.1, 0.005, 0.1, 0.001],
            Self::Power => [0.05, 0.001, 0.0005, 0.0005, 0.001, 0.0, 0.0],
        }
    }
}

/// Logistic function.
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// log(exp(a) + exp(b))
fn log_add_exp(a: f64, b: f64) -> f64 {
    a.max(b) + libm::log1p(libm::exp(-(a - b).abs()))
}

fn time(theta: &Theta, s: &Setting) -> (f64, Theta) {
    let ln2 = std::f64::consts::LN_2;
    let samples = s.batch - s.gpus * ln2;
    let compute = log_add_exp(theta[OVERHEAD], samples);
    let mut slopes = [0.0; P];
    slopes[INTERCEPT] = 1.0;
    slopes[OVERHEAD] = logistic(theta[OVERHEAD] - samples);
    let mut step = compute;
    if s.gpus > 0.0 {
        let spread = s.nodes > 0.0;
        let node = theta[SYNC];
        // The inter-node network is separate: the waiting on one node says little about it.
        let across = if spread { theta[ACROSS] } else { f64::NEG_INFINITY };
        let doublings = (s.gpus - 1.0) * ln2;
        let sync = if spread { log_add_exp(node, across) } else { node } + theta[GROWTH].max(0.0) * doublings;
        step = log_add_exp(OVERLAP * compute, OVERLAP * sync) / OVERLAP;
        let waiting = logistic(OVERLAP * (sync - compute));
        slopes[OVERHEAD] *= 1.0 - waiting;
        let between = if spread { logistic(across - node) } else { 0.0 };
        slopes[SYNC] = waiting * (1.0 - between);
        slopes[ACROSS] = waiting * between;
        slopes[GROWTH] = if theta[GROWTH] > 0.0 { waiting * doublings } else { 0.0 };
    }
    slopes[OVERHEAD] -= logistic(theta[OVERHEAD]);
    slopes[LIMITED] = libm::exp(theta[LIMITED]) * s.limit;
    slopes[BATCH] = s.batch;
    let origin = log_add_exp(0.0, theta[OVERHEAD]);
    let at = s.base + theta[INTERCEPT] + step - origin - s.batch + theta[BATCH] * s.batch + slopes[LIMITED];
    (at, slopes)
}

fn power(theta: &Theta, s: &Setting) -> (f64, Theta) {
    let doublings = s.batch / std::f64::consts::LN_2;
    let mut slopes = [0.0; P];
    (slopes[INTERCEPT], slopes[OVERHEAD], slopes[SYNC], slopes[ACROSS]) = (1.0, doublings, s.gpus, s.nodes);
    let by_settings = theta[OVERHEAD] * doublings + theta[SYNC] * s.gpus + theta[ACROSS] * s.nodes;
    let free = s.base + theta[INTERCEPT] + by_settings;
    let cut = s.limit + theta[GROWTH];
    if !cut.is_finite() {
        return (free, slopes);
    }
    let bound = logistic(CUT * (free - cut));
    for slope in &mut slopes {
        *slope *= 1.0 - bound;
    }
    slopes[GROWTH] = bound;
    (-log_add_exp(-CUT * free, -CUT * cut) / CUT, slopes)
}

/// Indices of GPU types, in order of first use.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuTypeIndex(Vec<GpuType>);

impl GpuTypeIndex {
    /// Index of a type; a new one is added.
    pub fn index_of(&mut self, gpu_type: &GpuType) -> u16 {
        let found = self.0.iter().position(|t| t == gpu_type);
        let at = found.unwrap_or_else(|| {
            self.0.push(gpu_type.clone());
            self.0.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// In order of indices.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &GpuType)> {
        (0u16..).zip(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(gpus: f64, nodes: f64) -> Setting {
        Setting { gpus, nodes, ..Setting::default() }
    }

    #[test]
    fn the_origin_is_the_level_and_nothing_scales_better_than_its_gpus() {
        let theta = Quantity::Time.means();
        assert!(Quantity::Time.log_at(&theta, &on(0.0, 0.0)).abs() < 1e-12);
        for doublings in 1..10 {
            let d = f64::from(doublings);
            let t = Quantity::Time.log_at(&theta, &on(d, 0.0));
            assert!(t >= -d * std::f64::consts::LN_2, "{doublings}: {t}");
            assert!(Quantity::Time.log_at(&theta, &on(d, 1.0)) > t);
        }
    }

    #[test]
    fn slopes_are_the_derivatives() {
        let s = Setting { gpus: 2.5, nodes: 1.0, batch: 0.7, limit: 0.4, depth: -0.2, kind: 0, base: 0.3 };
        for quantity in [Quantity::Time, Quantity::Power] {
            let theta = [0.2, -0.5, -1.0, 0.3, 0.25, -0.7, 0.05];
            let (at, slopes) = quantity.with_slopes(&theta, &s);
            for p in 0..P {
                let mut moved = theta;
                moved[p] += 1e-6;
                let found = (quantity.log_at(&moved, &s) - at) / 1e-6;
                assert!((found - slopes[p]).abs() < 1e-4, "{quantity:?} {p}: {found} {}", slopes[p]);
            }
        }
    }

    #[test]
    fn a_limit_above_the_draw_changes_nothing_and_one_below_it_is_what_is_drawn() {
        let theta = Quantity::Power.means();
        let limited =
            |limit: f64| Setting { limit: libm::log(limit), base: libm::log(200.0), ..on(0.0, 0.0) };
        let watts = |limit: f64| libm::exp(Quantity::Power.log_at(&theta, &limited(limit)));
        assert!((watts(400.0) - 200.0).abs() < 0.1 && (watts(f64::INFINITY) - 200.0).abs() < 1e-9);
        assert!((watts(100.0) - 94.0).abs() < 0.5, "{}", watts(100.0));
    }
}
