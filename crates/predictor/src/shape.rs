//! Law and correction together: how a quantity depends on the configuration, up to a constant of the family.

use andreas_core::GpuType;

use crate::known::Quantity;
use crate::law::Law;
use crate::regression::Correction;

/// Being spread over nodes costs at most this factor (log).
const MAX_SPREAD: f64 = 1.386;

/// The shape of a quantity over configurations (log).
#[derive(Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub quantity: Quantity,
    pub law: &'a Law,
    pub correction: Option<&'a Correction>,
}

impl Shape<'_> {
    /// Log of the quantity on a configuration, up to the family's own level.
    pub fn at(&self, gpu_type: &GpuType, gpus: u32, nodes: u32) -> f64 {
        let of_type = self.correction.map_or(0.0, |c| c.of_type(gpu_type));
        match self.quantity {
            Quantity::Time => self.law.log_type(gpu_type) + of_type + self.scaling(gpus) + self.spread(nodes),
            Quantity::Power => {
                let more = self.correction.map_or(0.0, |c| c.of_gpus(gpus) + c.of_nodes(nodes));
                self.law.log_watts(gpu_type, gpus, nodes) + of_type + more
            }
        }
    }

    /// The population ran on this type.
    pub fn learned(&self, gpu_type: &GpuType) -> bool {
        self.correction.is_some_and(|c| c.covers(gpu_type))
    }

    /// Time over GPUs, walked in doublings: each step is never slower and never faster than the GPUs added.
    fn scaling(&self, gpus: u32) -> f64 {
        let raw = |g: u32| Law::log_scaling(g, 1) + self.correction.map_or(0.0, |c| c.of_gpus(g));
        let origin = raw(1);
        let (mut at, mut g) = (0.0, 1u32);
        while g < gpus {
            let next = g.saturating_mul(2).min(gpus);
            let ideal = libm::log(f64::from(next) / f64::from(g));
            at = (raw(next) - origin).clamp(at - ideal, at);
            g = next;
        }
        at
    }

    fn spread(&self, nodes: u32) -> f64 {
        let learned = self.correction.map_or(0.0, |c| c.of_nodes(nodes));
        (Law::log_spread(nodes) + learned).clamp(0.0, MAX_SPREAD)
    }
}
