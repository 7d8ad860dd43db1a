//! Prior of one profile, before its own rows.

use std::collections::BTreeMap;

use andreas_model::GpuType;

use crate::curve_prior::Prior;
use crate::physics::Setting;
use crate::posterior::ParameterEstimate;
use crate::ratio::Ratios;

/// Prior of one profile, before its own rows.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub prior: Prior,
    pub ratios: Ratios,
    /// By type: shrunk mean of the siblings' residuals.
    pub siblings: BTreeMap<GpuType, f64>,
    /// The siblings' intercept and its variance.
    pub level: Option<ParameterEstimate>,
}

impl Expected {
    /// Log of the type's time or draw relative to other types.
    pub fn base(&self, gpu_type: &GpuType, law: f64) -> f64 {
        law + self.ratios.correction(gpu_type) + self.siblings.get(gpu_type).copied().unwrap_or(0.0)
    }

    /// The setting with all priors filled in.
    pub fn place(&self, gpu_type: &GpuType, law: f64, level: f64, s: Setting) -> Setting {
        Setting { base: self.base(gpu_type, law) + level, ..s }
    }

    /// Whether some profile has data on this GPU type and another, so that a ratio is known.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.ratios.covers(gpu_type)
    }
}
