//! The door: fit once on the population, then ask for configurations.

use andreas_core::Configuration;

use crate::curve::{Value, value};
use crate::estimate::FACTOR_THREE;
use crate::known::{Known, Quantity, gather, observed};
use crate::law::{LOG_TIME, LOG_WATTS, Law};
use crate::level::Levels;
use crate::regression::{Correction, FamilyRows};
use crate::shape::Shape;
use crate::{Estimate, Features, GpuModel, Prediction, Prior, Profile, Source};

/// Families read in one fit, by name: with at most a few configurations each, far above the row cap.
const MAX_FAMILIES: usize = 2048;
/// Spread of the power of a family nobody has seen, by nameplate watts alone: published errors are 27-37 %.
const UNSEEN_POWER: f64 = 0.3;
/// Spread that a power limit adds: the fit of Zeus' V100 tables has an rms log error of 0.1.
const LIMIT_SIGMA: f64 = 0.1;

/// What was learned from the population. Cheap to keep, fitted anew when an attempt has ended (milliseconds; at
/// most a few hundred rows).
#[derive(Clone, Debug)]
pub struct Predictor {
    law: Law,
    time: Option<Correction>,
    power: Option<Correction>,
    levels: Levels,
}

impl Predictor {
    /// Learns from all families at hand, in any order: the result does not depend on it.
    pub fn fit(gpus: &[GpuModel], population: &[Profile]) -> Self {
        let law = Law::new(gpus);
        let mut families: Vec<&Profile> = population.iter().collect();
        families.sort_by(|a, b| a.name.cmp(&b.name));
        families.truncate(MAX_FAMILIES);
        let power = Correction::fit(&residuals(&law, &families, Quantity::Power));
        let rows = residuals(&law, &families, Quantity::Time);
        let time = Correction::fit(&rows);
        let shape = Shape { quantity: Quantity::Time, law: &law, correction: time.as_ref() };
        // Levels are measured against the shape as it will be used, law and correction together.
        let level = |(profile, rows): (&&Profile, &FamilyRows)| -> Option<(Features, f64)> {
            let level = rows.level(|o| {
                shape.at(&o.gpu_type, o.gpus, o.nodes)
                    - plain(&law, Quantity::Time, &o.gpu_type, o.gpus, o.nodes)
            })?;
            Some((profile.features.clone(), level))
        };
        let seen: Vec<(Features, f64)> = families.iter().zip(&rows).filter_map(level).collect();
        let levels = Levels::fit(&seen.iter().map(|(f, y)| (f, *y)).collect::<Vec<_>>());
        Self { law, time, power, levels }
    }

    /// Whether enough was observed for the regression of times.
    pub fn has_regression(&self) -> bool {
        self.time.is_some()
    }

    /// Times and watts of a family on the configurations asked, in their order. Finite on every input.
    pub fn predict(&self, profile: &Profile, prior: &Prior, asked: &[Configuration]) -> Vec<Prediction> {
        let times = gather(profile, Quantity::Time);
        let watts = gather(profile, Quantity::Power);
        asked.iter().map(|c| self.one(profile, prior, &times, &watts, c)).collect()
    }

    fn one(
        &self,
        profile: &Profile,
        prior: &Prior,
        times: &[Known],
        watts: &[Known],
        c: &Configuration,
    ) -> Prediction {
        let (gpus, nodes) = (c.total_gpus().0.max(1), c.nodes.max(1));
        let mut time = self.time_of(&profile.features, prior, times, c, gpus, nodes);
        let mut power = self.power_of(watts, c, gpus, nodes);
        if let Some(limit) = c.limit {
            let free = libm::exp(power.log);
            let (limited, slower) = self.law.limited(&c.gpu_type, free, limit.0);
            if slower > 1.0 {
                power = Value { log: libm::log(limited), ..power };
                time.log += libm::log(slower);
                time.sigma = libm::hypot(time.sigma, LIMIT_SIGMA);
            }
            // Runs under this very limit say it better than the law of limits.
            time = under_limit(profile, Quantity::Time, c, gpus, nodes).unwrap_or(time);
            power = under_limit(profile, Quantity::Power, c, gpus, nodes).unwrap_or(power);
        }
        let per_gpu = libm::exp(power.log.clamp(LOG_WATTS.0, LOG_WATTS.1));
        Prediction {
            configuration: c.clone(),
            epoch: Estimate {
                median: libm::exp(time.log.clamp(LOG_TIME.0, LOG_TIME.1)),
                sigma: time.sigma,
                source: time.source,
            },
            power: Estimate { median: per_gpu * f64::from(gpus), sigma: power.sigma, source: power.source },
        }
    }

    fn time_of(
        &self,
        features: &Features,
        prior: &Prior,
        known: &[Known],
        c: &Configuration,
        gpus: u32,
        nodes: u32,
    ) -> Value {
        let shape = Shape { quantity: Quantity::Time, law: &self.law, correction: self.time.as_ref() };
        if let Some(value) = value(&shape, known, &c.gpu_type, gpus, nodes) {
            return value;
        }
        let here = shape.at(&c.gpu_type, gpus, nodes);
        if let Some((level, sigma)) = self.levels.at(features) {
            return Value { log: level + here, sigma, source: Source::Regression };
        }
        let run = Some(prior.run_time.0).filter(|s| s.is_finite() && *s > 0.0).unwrap_or(1.0);
        let epochs = Some(prior.epochs).filter(|e| e.is_finite() && *e > 0.0).unwrap_or(1.0);
        let there = shape.at(&prior.gpu_type, prior.gpus.0.max(1), 1);
        let level = (libm::log(run) - libm::log(epochs)).clamp(LOG_TIME.0, LOG_TIME.1);
        Value { log: level + here - there, sigma: FACTOR_THREE, source: Source::Prior }
    }

    fn power_of(&self, known: &[Known], c: &Configuration, gpus: u32, nodes: u32) -> Value {
        let shape = Shape { quantity: Quantity::Power, law: &self.law, correction: self.power.as_ref() };
        let board = self.law.board(&c.gpu_type);
        let found = value(&shape, known, &c.gpu_type, gpus, nodes);
        let mut value = found.unwrap_or_else(|| {
            let here = shape.at(&c.gpu_type, gpus, nodes);
            match self.power.as_ref().and_then(|p| p.level).filter(|_| shape.learned(&c.gpu_type)) {
                Some((level, sigma)) => Value { log: here + level, sigma, source: Source::Regression },
                None => Value { log: here, sigma: UNSEEN_POWER, source: Source::Prior },
            }
        });
        // What was said or measured of exactly this configuration stands, even above the nameplate.
        if crate::known::exact(known, &c.gpu_type, gpus, nodes).is_none() {
            let floor = libm::log(board.idle.max(0.5));
            value.log = value.log.clamp(floor, libm::log(board.max).max(floor));
        }
        value
    }
}

/// What was observed on this configuration under this limit.
fn under_limit(
    profile: &Profile,
    quantity: Quantity,
    c: &Configuration,
    gpus: u32,
    nodes: u32,
) -> Option<Value> {
    let rows = observed(&profile.observations, quantity, c.limit);
    let seen = rows.into_iter().find(|o| o.gpu_type == c.gpu_type && o.gpus == gpus && o.nodes == nodes)?;
    let sigma = seen.spread.max(0.1) / libm::sqrt(seen.epochs.max(0.1));
    Some(Value { log: seen.log, sigma: sigma.max(0.03), source: Source::Observed })
}

fn plain(law: &Law, quantity: Quantity, gpu_type: &andreas_core::GpuType, gpus: u32, nodes: u32) -> f64 {
    Shape { quantity, law, correction: None }.at(gpu_type, gpus, nodes)
}

/// Each family's observations against the law alone.
fn residuals(law: &Law, families: &[&Profile], quantity: Quantity) -> Vec<FamilyRows> {
    let rows = |profile: &&Profile| {
        let seen = observed(&profile.observations, quantity, None).into_iter();
        let residual = |o: crate::known::Observed| {
            let r = o.log - plain(law, quantity, &o.gpu_type, o.gpus, o.nodes);
            (o, r)
        };
        FamilyRows { rows: seen.map(residual).collect() }
    };
    families.iter().map(rows).collect()
}
