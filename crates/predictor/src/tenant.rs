//! One tenant's model, learned from its own profiles only.

use std::collections::BTreeMap;

use andreas_model::{Configuration, GpuType, Watts};

use crate::analytic_prior::{AnalyticPrior, LOG_TIME, LOG_WATTS};
use crate::calibration::Factors;
use crate::curves::{Curves, draws, monotone_projection};
use crate::estimate::FACTOR_THREE;
use crate::expected::Expected;
use crate::intercept::{Intercepts, positive};
use crate::known::{Known, Value};
use crate::physics::{INTERCEPT, Quantity};
use crate::pool::Pooled;
use crate::posterior::ParameterEstimate;
use crate::quantity_model::{ProfileSamples, QuantityModel, QuantitySample};
use crate::runs::RunSpread;
use crate::samples::{AggregatedSample, observed, run_spread, table_samples};
use crate::scale::{ReferenceBatch, Scale};
use crate::table_trust::TableTrust;
use crate::{Features, LeaveOneOutErrors, LogNormal, Prediction, Prior, Profile, Query, Source};

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
    /// Usual variance between runs of a profile.
    runs: f64,
}

impl Tenant {
    /// From the tenant's profiles, ordered by name, and the differences between their runs.
    pub fn fit(law: &AnalyticPrior, pooled: &[Pooled<'_>], runs: RunSpread) -> Self {
        let scale = Scale::new(pooled.iter().map(|p| (model(p.profile), p.times.as_slice())));
        let reference = |p: &Pooled<'_>| scale.reference_batch(model(p.profile), &p.times, None);
        let of_watts = |p: &Pooled<'_>| {
            let reference = reference(p);
            let sample = |c: &AggregatedSample| reference.sample(law, Quantity::Power, c, None);
            profile_samples(p.profile, p.watts.iter().map(sample).collect())
        };
        let watts: Vec<ProfileSamples> =
            pooled.iter().filter(|p| !p.watts.is_empty()).map(of_watts).collect();
        let power = QuantityModel::fit(Quantity::Power, &watts);
        let of_times = |p: &Pooled<'_>| {
            let (reference, watts) = (reference(p), of_watts(p));
            let curve = power.curve(&watts.samples, power.expect(&watts), ParameterEstimate::default());
            let sample = |c: &AggregatedSample| {
                reference.sample(law, Quantity::Time, c, draws(law, reference, &curve, c))
            };
            profile_samples(p.profile, p.times.iter().map(sample).collect())
        };
        let times: Vec<ProfileSamples> =
            pooled.iter().filter(|p| !p.times.is_empty()).map(of_times).collect();
        let time = QuantityModel::fit(Quantity::Time, &times);
        // Both are sorted by name, and members are a subset of the pooled.
        let mut profiles = pooled.iter().map(|p| p.profile);
        let described = time.members.iter().filter_map(|m| {
            let profile = profiles.by_ref().find(|p| p.name == m.name)?;
            Some((&profile.features, m.found[INTERCEPT].mean))
        });
        Self {
            law: law.clone(),
            factors: [Factors::fit(&time, &times), Factors::fit(&power, &watts)],
            intercepts: Intercepts::fit(&described.collect::<Vec<_>>()),
            trusted: [Quantity::Time, Quantity::Power].map(|quantity| TableTrust::learn(pooled, quantity)),
            runs: runs.usual(),
            scale,
            time,
            power,
        }
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
                epoch: LogNormal {
                    median: libm::exp(time.log.clamp(LOG_TIME.0, LOG_TIME.1)),
                    sigma: further_run(&time, times.runs),
                    source: time.source,
                },
                power: LogNormal { median: per_gpu * gpus, sigma: power.sigma, source: power.source },
                board_max: self.law.max_draw(&c.gpu_type).map(|each| Watts(each * gpus)),
            }
        };
        asked.iter().map(answer).collect()
    }

    /// Relative leave-one-out errors (0.1 = 10 %) of epoch time and power for each row of the
    /// profile, by GPU type.
    pub fn leave_one_out_errors(&self, profile: &Profile) -> BTreeMap<GpuType, LeaveOneOutErrors> {
        let [times, watts] = self.known(profile);
        let curves = self.curves(profile, None, [&times, &watts], profile.features.batch);
        let mut errors: BTreeMap<GpuType, LeaveOneOutErrors> = BTreeMap::new();
        for (cell, error) in times.rows().zip(curves.time.posterior.errors()) {
            errors.entry(cell.gpu_type.clone()).or_default().epoch.push(libm::expm1(error.abs()));
        }
        for (cell, error) in watts.rows().zip(curves.watts.posterior.errors()) {
            errors.entry(cell.gpu_type.clone()).or_default().power.push(libm::expm1(error.abs()));
        }
        errors
    }

    /// The profile's own evidence on times and watts.
    fn known(&self, profile: &Profile) -> [Known; 2] {
        let of = |(quantity, trusted): (Quantity, TableTrust)| {
            let batch = profile.features.batch;
            let runs = match quantity {
                Quantity::Time => run_spread(&profile.observations, batch).variance(self.runs),
                Quantity::Power => 0.0,
            };
            let seen = observed(&profile.observations, quantity, batch, runs);
            let mut table = table_samples(profile, quantity);
            let trust = trusted.for_profile(&mut table, &seen);
            Known { table, seen, trust, runs }
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
        let cells: Vec<AggregatedSample> = times.rows().cloned().collect();
        let reference = self.scale.reference_batch(model(profile), &cells, batch);
        let sample = |c: &AggregatedSample| reference.sample(&self.law, Quantity::Power, c, None);
        let mut own = profile_samples(profile, watts.rows().map(sample).collect());
        let watts = self.power.curve(&own.samples, self.power.expect(&own), ParameterEstimate::default());
        let sample = |c: &AggregatedSample| {
            reference.sample(&self.law, Quantity::Time, c, draws(&self.law, reference, &watts, c))
        };
        own.samples = cells.iter().map(sample).collect();
        let expected = self.time.expect(&own);
        let (level, source) = if own.samples.is_empty() {
            self.unseen_level(&own, &profile.features, prior, &expected, reference)
        } else {
            (self.time.free_level(&own.samples, &expected), Source::Observed)
        };
        let time = self.time.curve(&own.samples, expected, level);
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
        own: &ProfileSamples,
        features: &Features,
        prior: Option<&Prior>,
        expected: &Expected,
        reference: ReferenceBatch,
    ) -> (ParameterEstimate, Source) {
        let has_samples = positive(features.samples).is_some();
        if prior.is_none() || has_samples {
            if let (Some(level), false) = (expected.level, has_samples) {
                return (level, Source::Regression);
            }
            if let Some((mean, sigma)) = self.intercepts.predict(features) {
                return (ParameterEstimate { mean, variance: sigma * sigma }, Source::Regression);
            }
        }
        let variance = FACTOR_THREE * FACTOR_THREE;
        let Some(prior) = prior else {
            let mut levels: Vec<f64> = self.time.members.iter().map(|m| m.found[INTERCEPT].mean).collect();
            levels.sort_by(f64::total_cmp);
            let mean = levels.get(levels.len() / 2).copied().unwrap_or(libm::log(UNKNOWN_EPOCH));
            // A single value has no spread.
            let spread = match levels.as_slice() {
                [first, .., last] => (last - first) * (last - first) / 12.0,
                _ => UNKNOWN_LEVEL,
            };
            return (ParameterEstimate { mean, variance: variance.max(spread) }, Source::Prior);
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
        let curve =
            self.time.curve(&own.samples, expected.clone(), ParameterEstimate { mean: 0.0, variance });
        let sample = |c: &AggregatedSample| reference.sample(&self.law, Quantity::Time, c, None);
        (
            ParameterEstimate { mean: wanted - monotone_projection(&curve, &cell, &[], sample), variance },
            Source::Prior,
        )
    }
}

/// Standard deviation of the log: a further run differs from those that were seen. Without any, the prior's is wide enough.
fn further_run(time: &Value, runs: f64) -> f64 {
    if time.source == Source::Prior { time.sigma } else { libm::sqrt(time.sigma * time.sigma + runs) }
}

fn model(profile: &Profile) -> Option<&str> {
    profile.features.model_family.as_deref()
}

fn profile_samples(profile: &Profile, samples: Vec<QuantitySample>) -> ProfileSamples {
    ProfileSamples { name: profile.name.clone(), model: profile.features.model_family.clone(), samples }
}
