//! One tenant's model: learned from its own profiles, whoever else there is.

use std::collections::BTreeMap;

use andreas_core::{Configuration, GpuType, Watts};

use crate::analytic_prior::{AnalyticPrior, LOG_TIME, LOG_WATTS};
use crate::calibration::Factors;
use crate::curves::{Curves, draws, walk};
use crate::estimate::FACTOR_THREE;
use crate::expected::Expected;
use crate::known::Known;
use crate::level::{Intercepts, positive};
use crate::physics::{LEVEL, Quantity};
use crate::pool::Pooled;
use crate::posterior::Found;
use crate::quantity_model::{Family, QuantityModel, QuantitySample};
use crate::samples::{AggregatedSample, given, observed};
use crate::scale::{ReferenceBatch, Scale};
use crate::table_trust::TableTrust;
use crate::{Check, Estimate, Features, Prediction, Prior, Profile, Query, Source};

/// Variance of the log of an unknown epoch time: seconds to days.
const UNKNOWN_LEVEL: f64 = 9.0;
/// Epoch time where nothing is known, seconds.
const UNKNOWN_EPOCH: f64 = 600.0;

/// Fitted model of one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub law: AnalyticPrior,
    scale: Scale,
    time: QuantityModel,
    power: QuantityModel,
    /// Calibration factors of times and watts.
    factors: [Factors; 2],
    intercepts: Intercepts,
    /// Trust in its tables, for times and watts.
    trusted: [TableTrust; 2],
}

impl Tenant {
    /// From the tenant's profiles, ordered by name.
    pub fn fit(law: &AnalyticPrior, pooled: &[Pooled<'_>]) -> Self {
        let scale = Scale::new(pooled.iter().map(|p| (model(p.profile), p.times.as_slice())));
        let reference = |p: &Pooled<'_>| scale.of(model(p.profile), &p.times, None);
        let of_watts = |p: &Pooled<'_>| {
            let reference = reference(p);
            let spot = |c: &AggregatedSample| reference.spot(law, Quantity::Power, c, None);
            family(p.profile, p.watts.iter().map(spot).collect())
        };
        let watts: Vec<Family> = pooled.iter().filter(|p| !p.watts.is_empty()).map(of_watts).collect();
        let power = QuantityModel::fit(Quantity::Power, &watts);
        let of_times = |p: &Pooled<'_>| {
            let (reference, watts) = (reference(p), of_watts(p));
            let curve = power.curve(&watts.spots, power.expect(&watts), Found::default());
            let spot = |c: &AggregatedSample| {
                reference.spot(law, Quantity::Time, c, draws(law, reference, &curve, c))
            };
            family(p.profile, p.times.iter().map(spot).collect())
        };
        let times: Vec<Family> = pooled.iter().filter(|p| !p.times.is_empty()).map(of_times).collect();
        let time = QuantityModel::fit(Quantity::Time, &times);
        // Both are sorted by name, and members are a subset of the pooled.
        let mut profiles = pooled.iter().map(|p| p.profile);
        let described = time.members.iter().filter_map(|m| {
            let profile = profiles.by_ref().find(|p| p.name == m.name)?;
            Some((&profile.features, m.found[LEVEL].mean))
        });
        Self {
            law: law.clone(),
            factors: [Factors::fit(&time, &times), Factors::fit(&power, &watts)],
            intercepts: Intercepts::fit(&described.collect::<Vec<_>>()),
            trusted: [Quantity::Time, Quantity::Power].map(|quantity| TableTrust::learn(pooled, quantity)),
            scale,
            time,
            power,
        }
    }

    /// Whether there are at least two profiles with times.
    pub fn has_regression(&self) -> bool {
        self.time.members.len() > 1
    }

    /// As [`Predictor::answer`](crate::Predictor::answer).
    pub fn answer(&self, profile: &Profile, prior: Option<&Prior>, asked: &[Query]) -> Vec<Prediction> {
        let batch = profile.features.batch;
        let [times, watts] = self.known(profile);
        let first = asked.first().and_then(|q| q.batch).or(batch);
        let curves = self.curves(profile, prior, [&times, &watts], first);
        let answer = |query: &Query| {
            let c = &query.configuration;
            let cell = AggregatedSample::asked(c, query.gpus, query.batch.or(batch));
            let (time, power) = (curves.time_of(&times, &cell), curves.power_of(&watts, &cell));
            let per_gpu = libm::exp(power.log.clamp(LOG_WATTS.0, LOG_WATTS.1));
            let gpus = f64::from(cell.gpus);
            Prediction {
                configuration: c.clone(),
                epoch: Estimate {
                    median: libm::exp(time.log.clamp(LOG_TIME.0, LOG_TIME.1)),
                    sigma: time.sigma,
                    source: time.source,
                },
                power: Estimate { median: per_gpu * gpus, sigma: power.sigma, source: power.source },
                board_max: self.law.most(&c.gpu_type).map(|each| Watts(each * gpus)),
            }
        };
        asked.iter().map(answer).collect()
    }

    /// Leave-one-out errors of a profile's own rows, by GPU type.
    pub fn check(&self, profile: &Profile) -> BTreeMap<GpuType, Check> {
        let [times, watts] = self.known(profile);
        let curves = self.curves(profile, None, [&times, &watts], profile.features.batch);
        let mut checks: BTreeMap<GpuType, Check> = BTreeMap::new();
        for (cell, error) in times.all().zip(curves.time.posterior.errors()) {
            checks.entry(cell.gpu_type.clone()).or_default().epoch.push(libm::expm1(error.abs()));
        }
        for (cell, error) in watts.all().zip(curves.watts.posterior.errors()) {
            checks.entry(cell.gpu_type.clone()).or_default().power.push(libm::expm1(error.abs()));
        }
        checks
    }

    /// The profile's own evidence on times and watts.
    fn known(&self, profile: &Profile) -> [Known; 2] {
        let of = |(quantity, trusted): (Quantity, TableTrust)| {
            let seen = observed(&profile.observations, quantity, profile.features.batch);
            let mut table = given(profile, quantity);
            let trust = trusted.read(&mut table, &seen);
            Known { table, seen, trust }
        };
        [(Quantity::Time, self.trusted[0]), (Quantity::Power, self.trusted[1])].map(of)
    }

    fn curves(
        &self,
        profile: &Profile,
        prior: Option<&Prior>,
        [times, watts]: [&Known; 2],
        batch: Option<f64>,
    ) -> Curves<'_> {
        let cells: Vec<AggregatedSample> = times.all().cloned().collect();
        let reference = self.scale.of(model(profile), &cells, batch);
        let spot = |c: &AggregatedSample| reference.spot(&self.law, Quantity::Power, c, None);
        let mut family = family(profile, watts.all().map(spot).collect());
        let watts = self.power.curve(&family.spots, self.power.expect(&family), Found::default());
        let spot = |c: &AggregatedSample| {
            reference.spot(&self.law, Quantity::Time, c, draws(&self.law, reference, &watts, c))
        };
        family.spots = cells.iter().map(spot).collect();
        let expected = self.time.expect(&family);
        let (level, source) = if family.spots.is_empty() {
            self.unseen_level(&family, &profile.features, prior, &expected, reference)
        } else {
            (self.time.free_level(&family.spots, &expected), Source::Observed)
        };
        let time = self.time.curve(&family.spots, expected, level);
        Curves {
            law: &self.law,
            factors: self.factors,
            reference,
            time,
            watts,
            unseen: (libm::sqrt(level.variance), source),
        }
    }

    /// Intercept of a profile without rows, and its source.
    fn unseen_level(
        &self,
        family: &Family,
        features: &Features,
        prior: Option<&Prior>,
        expected: &Expected,
        reference: ReferenceBatch,
    ) -> (Found, Source) {
        let has_samples = positive(features.samples).is_some();
        if prior.is_none() || has_samples {
            if let (Some(level), false) = (expected.level, has_samples) {
                return (level, Source::Regression);
            }
            if let Some((mean, sigma)) = self.intercepts.at(features) {
                return (Found { mean, variance: sigma * sigma }, Source::Regression);
            }
        }
        let variance = FACTOR_THREE * FACTOR_THREE;
        let Some(prior) = prior else {
            let mut levels: Vec<f64> = self.time.members.iter().map(|m| m.found[LEVEL].mean).collect();
            levels.sort_by(f64::total_cmp);
            let mean = levels.get(levels.len() / 2).copied().unwrap_or(libm::log(UNKNOWN_EPOCH));
            // A single value has no spread.
            let spread = match levels.as_slice() {
                [first, .., last] => (last - first) * (last - first) / 12.0,
                _ => UNKNOWN_LEVEL,
            };
            return (Found { mean, variance: variance.max(spread) }, Source::Prior);
        };
        let run = Some(prior.run_time.0).filter(|s| s.is_finite() && *s > 0.0).unwrap_or(1.0);
        let epochs = Some(prior.epochs).filter(|e| e.is_finite() && *e > 0.0).unwrap_or(1.0);
        let wanted = (libm::log(run) - libm::log(epochs)).clamp(LOG_TIME.0, LOG_TIME.1);
        let at = Configuration {
            gpu_type: prior.gpu_type.clone(),
            nodes: 1,
            gpus_per_node: prior.gpus,
            limit: None,
        };
        let cell = AggregatedSample::asked(&at, None, features.batch);
        let curve = self.time.curve(&family.spots, expected.clone(), Found { mean: 0.0, variance });
        let spot = |c: &AggregatedSample| reference.spot(&self.law, Quantity::Time, c, None);
        (Found { mean: wanted - walk(&curve, &cell, &[], spot), variance }, Source::Prior)
    }
}

fn model(profile: &Profile) -> Option<&str> {
    profile.features.model_family.as_deref()
}

fn family(profile: &Profile, spots: Vec<QuantitySample>) -> Family {
    Family { name: profile.name.clone(), model: profile.features.model_family.clone(), spots }
}
