//! One tenant's model: learned from its own profiles, whoever else there is.

use std::collections::BTreeMap;

use andreas_core::{Configuration, GpuType, Watts};

use crate::analytic_prior::{AnalyticPrior, LOG_TIME, LOG_WATTS};
use crate::calibration::{Evidence, Factors};
use crate::estimate::FACTOR_THREE;
use crate::expected::Expected;
use crate::guard::guarded;
use crate::known::{Known, Value};
use crate::level::{Intercepts, positive};
use crate::physics::{LEVEL, Quantity};
use crate::pool::{Pooled, owner};
use crate::posterior::Found;
use crate::quantity_model::{Curve, Family, QuantityModel, QuantitySample};
use crate::ranges::Ranges;
use crate::ratio::Size;
use crate::samples::{AggregatedSample, given, observed};
use crate::scale::{BatchSemantics, Model, ReferenceBatch, Scale};
use crate::spread::spread;
use crate::table_trust::TableTrust;
use crate::{Check, Estimate, Features, GpuModel, Prediction, Prior, Profile, Query, Source};

/// Most profiles used to infer batch semantics.
const READ_FAMILIES: usize = 12;
/// Log-evidence bonus of the API's batch semantics.
const READING_EVIDENCE: f64 = 5.0;

/// Fitted model of one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    law: AnalyticPrior,
    scale: Scale,
    time: QuantityModel,
    power: QuantityModel,
    /// Calibration factors of times and watts.
    factors: [Factors; 2],
    intercepts: Intercepts,
    ranges: Ranges,
    /// Trust in its tables, for times and watts.
    trusted_times: TableTrust,
    trusted_watts: TableTrust,
}

/// Variance of the log of an unknown epoch time: seconds to days.
const UNKNOWN_LEVEL: f64 = 9.0;

/// Draws of one GPU: without a limit and with the sample's limit (logs).
type Draws<'a> = dyn Fn(&Family, &AggregatedSample, ReferenceBatch) -> Option<(f64, f64)> + 'a;

/// A profile's two curves.
struct Curves {
    usual: ReferenceBatch,
    time: Curve,
    watts: Curve,
    /// Standard deviation and source of the intercept without rows.
    level: (f64, Source),
}

impl Tenant {
    /// From the tenant's profiles, ordered by name.
    pub fn fit(law: &AnalyticPrior, pooled: &[Pooled<'_>]) -> Self {
        let ranges = Ranges::new(pooled.iter().flat_map(|p| p.times.iter().chain(&p.watts)));
        let scale = read(law, pooled);
        let families = |quantity: Quantity, draws: &Draws<'_>| {
            let family = |p: &Pooled<'_>| {
                let cells = if quantity == Quantity::Time { &p.times } else { &p.watts };
                let usual = scale.usual(model(p.profile), &p.times, None);
                let mut family = family(p.profile, usual);
                let spot =
                    |c: &AggregatedSample| scale.spot(law, quantity, c, usual, draws(&family, c, usual));
                family.spots = cells.iter().map(spot).collect();
                family
            };
            pooled.iter().map(family).filter(|f| !f.spots.is_empty()).collect::<Vec<Family>>()
        };
        let watts = families(Quantity::Power, &|_, _, _| None);
        let power = QuantityModel::fit(Quantity::Power, &watts);
        let alone = |f: &Family, spots: &[QuantitySample]| {
            power.curve_of(spots, power.expect(f), Found::default(), power.kernel)
        };
        let curves: BTreeMap<&str, Curve> =
            watts.iter().map(|f| (f.name.as_str(), alone(f, &f.spots))).collect();
        let times = families(Quantity::Time, &|family, cell, usual| {
            cell.limit?;
            let made;
            let curve = match curves.get(family.name.as_str()) {
                Some(curve) => curve,
                None => {
                    made = alone(family, &[]);
                    &made
                }
            };
            Some(draws(law, &scale, curve, cell, usual))
        });
        let time = QuantityModel::fit(Quantity::Time, &times);
        // Both are sorted by name, and members are a subset of the pooled.
        let mut profiles = pooled.iter().map(|p| p.profile);
        let described = time.members.iter().filter_map(|m| {
            let profile = profiles.by_ref().find(|p| p.name == m.name)?;
            Some((&profile.features, m.found[LEVEL].mean))
        });
        let intercepts = Intercepts::fit(&described.collect::<Vec<_>>());
        let factors = [Factors::fit(&time, &times), Factors::fit(&power, &watts)];
        let trusted = |quantity| TableTrust::learn(pooled, quantity);
        let (trusted_times, trusted_watts) = (trusted(Quantity::Time), trusted(Quantity::Power));
        Self { law: law.clone(), scale, time, power, factors, intercepts, ranges, trusted_times, trusted_watts }
    }

    /// Whether there are at least two profiles with times.
    pub fn has_regression(&self) -> bool {
        self.time.members.len() > 1
    }

    /// As [`Predictor::answer`](crate::Predictor::answer).
    pub fn answer(&self, profile: &Profile, prior: Option<&Prior>, asked: &[Query]) -> Vec<Prediction> {
        let batch = profile.features.batch;
        let seen = observed(&profile.observations, Quantity::Time, batch);
        let seen_watts = observed(&profile.observations, Quantity::Power, batch);
        let (mut table, mut table_watts) = (given(profile, Quantity::Time), given(profile, Quantity::Power));
        let trust = self.trusted_times.read(&mut table, &seen);
        let trust_watts = self.trusted_watts.read(&mut table_watts, &seen_watts);
        let cells: Vec<AggregatedSample> = table.iter().chain(&seen).cloned().collect();
        let watts: Vec<AggregatedSample> = table_watts.iter().chain(&seen_watts).cloned().collect();
        let first = asked.first().and_then(|q| q.batch).or(batch);
        let curves = self.curves(profile, prior, &cells, &watts, first);
        let ranges = self.ranges.with(cells.iter().chain(&watts));
        let known = Known { table: &table, seen: &seen, trust };
        let known_watts = Known { table: &table_watts, seen: &seen_watts, trust: trust_watts };
        let answer = |query: &Query| {
            let c = &query.configuration;
            let cell = AggregatedSample::asked(c, query.gpus, query.batch.or(batch));
            let time = self.time_of(&curves, &known, &cell);
            let power = self.power_of(&curves, &known_watts, &cell);
            let per_gpu = libm::exp(power.log.clamp(LOG_WATTS.0, LOG_WATTS.1));
            Prediction {
                configuration: c.clone(),
                epoch: Estimate {
                    median: libm::exp(time.log.clamp(LOG_TIME.0, LOG_TIME.1)),
                    sigma: time.sigma,
                    source: time.source,
                },
                power: Estimate {
                    median: per_gpu * f64::from(cell.gpus),
                    sigma: power.sigma,
                    source: power.source,
                },
                board_max: self.law.most(&c.gpu_type).map(|each| Watts(each * f64::from(cell.gpus))),
                out_of_range: ranges.outside(&cell),
            }
        };
        asked.iter().map(answer).collect()
    }

    /// Leave-one-out errors of a profile's own rows, by GPU type.
    pub fn check(&self, profile: &Profile) -> BTreeMap<GpuType, Check> {
        let batch = profile.features.batch;
        let of = |quantity| -> Vec<AggregatedSample> {
            let (mut table, seen) =
                (given(profile, quantity), observed(&profile.observations, quantity, batch));
            let trusted = if quantity == Quantity::Time { self.trusted_times } else { self.trusted_watts };
            trusted.read(&mut table, &seen);
            table.into_iter().chain(seen).collect()
        };
        let (times, watts) = (of(Quantity::Time), of(Quantity::Power));
        let curves = self.curves(profile, None, &times, &watts, batch);
        let mut checks: BTreeMap<GpuType, Check> = BTreeMap::new();
        for (cell, error) in times.iter().zip(curves.time.posterior.errors()) {
            checks.entry(cell.gpu_type.clone()).or_default().epoch.push(libm::expm1(error.abs()));
        }
        for (cell, error) in watts.iter().zip(curves.watts.posterior.errors()) {
            checks.entry(cell.gpu_type.clone()).or_default().power.push(libm::expm1(error.abs()));
        }
        checks
    }

    fn curves(
        &self,
        profile: &Profile,
        prior: Option<&Prior>,
        cells: &[AggregatedSample],
        watts: &[AggregatedSample],
        batch: Option<f64>,
    ) -> Curves {
        let usual = self.scale.usual(model(profile), cells, batch);
        let mut family = family(profile, usual);
        let spot = |c: &AggregatedSample| self.scale.spot(&self.law, Quantity::Power, c, usual, None);
        family.spots = watts.iter().map(spot).collect();
        let watts = self.power.curve(&family, self.power.expect(&family), Found::default());
        let spot = |c: &AggregatedSample| {
            let draw = c.limit.map(|_| draws(&self.law, &self.scale, &watts, c, usual));
            self.scale.spot(&self.law, Quantity::Time, c, usual, draw)
        };
        family.spots = cells.iter().map(spot).collect();
        let expected = self.time.expect(&family);
        let (level, source) = if family.spots.is_empty() {
            self.unseen_level(&family, &profile.features, prior, &expected, usual)
        } else {
            (self.time.free_level(&family.spots, &expected), Source::Observed)
        };
        let time = self.time.curve(&family, expected, level);
        Curves { usual, time, watts, level: (libm::sqrt(level.variance), source) }
    }

    /// Intercept of a profile without rows, and its source.
    fn unseen_level(
        &self,
        family: &Family,
        features: &Features,
        prior: Option<&Prior>,
        expected: &Expected,
        usual: ReferenceBatch,
    ) -> (Found, Source) {
        if prior.is_none() || positive(features.samples).is_some() {
            if let (Some(level), true) = (expected.level, positive(features.samples).is_none()) {
                return (level, Source::Regression);
            }
            if let Some((mean, sigma)) = self.intercepts.at(features) {
                return (Found { mean, variance: sigma * sigma }, Source::Regression);
            }
        }
        let sigma = FACTOR_THREE * FACTOR_THREE;
        let Some(prior) = prior else {
            let mut levels: Vec<f64> = self.time.members.iter().map(|m| m.found[LEVEL].mean).collect();
            levels.sort_by(f64::total_cmp);
            let mean = levels.get(levels.len() / 2).copied().unwrap_or(libm::log(600.0));
            // A single value has no spread.
            let spread = match levels.as_slice() {
                [first, .., last] => (last - first) * (last - first) / 12.0,
                _ => UNKNOWN_LEVEL,
            };
            return (Found { mean, variance: sigma.max(spread) }, Source::Prior);
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
        let curve = self.time.curve(family, expected.clone(), Found { mean: 0.0, variance: sigma });
        let there = self.walk(&curve, &cell, &[], usual, None);
        (Found { mean: wanted - there, variance: sigma }, Source::Prior)
    }

    /// The monotone projection of the curve.
    fn walk(
        &self,
        curve: &Curve,
        cell: &AggregatedSample,
        known: &[(u32, f64)],
        usual: ReferenceBatch,
        watts: Option<&Curve>,
    ) -> f64 {
        let spot = |gpus: u32| {
            let cell = AggregatedSample { gpus, ..cell.clone() };
            let draw = cell.limit.and(watts).map(|w| draws(&self.law, &self.scale, w, &cell, usual));
            self.scale.spot(&self.law, Quantity::Time, &cell, usual, draw)
        };
        let offset = |spot: &QuantitySample| self.scale.offset(Quantity::Time, spot.setting.batch);
        if curve.speaks_for(&cell.gpu_type, cell.gpus) {
            let spot = spot(cell.gpus);
            return curve.mean(&spot) + offset(&spot);
        }
        let raw = |gpus: u32| {
            let spot = spot(gpus);
            curve.mean(&spot) + offset(&spot)
        };
        guarded(cell.nodes, cell.gpus, known, raw)
    }

    fn time_of(&self, curves: &Curves, known: &Known<'_>, cell: &AggregatedSample) -> Value {
        if let Some(value) = known.as_given(cell) {
            return value;
        }
        let draw = cell.limit.map(|_| draws(&self.law, &self.scale, &curves.watts, cell, curves.usual));
        let spot = self.scale.spot(&self.law, Quantity::Time, cell, curves.usual, draw);
        let offset = self.scale.offset(Quantity::Time, spot.setting.batch);
        if let Some(value) = known.as_corrected(&curves.time, &spot, offset, cell) {
            return value;
        }
        let stand = |c: &AggregatedSample| {
            let draw = c.limit.map(|_| draws(&self.law, &self.scale, &curves.watts, c, curves.usual));
            let spot = self.scale.spot(&self.law, Quantity::Time, c, curves.usual, draw);
            let offset = self.scale.offset(Quantity::Time, spot.setting.batch);
            if known.stands() {
                return (c.gpus, c.log);
            }
            let corrected = known.as_corrected(&curves.time, &spot, offset, c);
            (c.gpus, corrected.map_or_else(|| curves.time.mean(&spot) + offset, |value| value.log))
        };
        let mut standing: Vec<(u32, f64)> = known.beside(cell).map(stand).collect();
        standing.sort_by_key(|(gpus, _)| *gpus);
        standing.dedup_by_key(|(gpus, _)| *gpus);
        let log = self.walk(&curves.time, cell, &standing, curves.usual, Some(&curves.watts));
        let (_, variance) = curves.time.at(&spot);
        let sigma = sigma(self.factors[0], &curves.time, &cell.gpu_type, variance);
        if curves.time.counts.is_empty() {
            let sigma =
                if curves.level.1 == Source::Prior { curves.level.0 } else { sigma.max(curves.level.0) };
            return Value { log, sigma, source: curves.level.1 };
        }
        Value { log, sigma, source: known.source(cell, curves.time.count(&cell.gpu_type)) }
    }

    fn power_of(&self, curves: &Curves, known: &Known<'_>, cell: &AggregatedSample) -> Value {
        if let Some(value) = known.as_given(cell) {
            return value;
        }
        let spot = self.scale.spot(&self.law, Quantity::Power, cell, curves.usual, None);
        if let Some(value) = known.as_corrected(&curves.watts, &spot, 0.0, cell) {
            return value;
        }
        let (mut log, variance) = curves.watts.at(&spot);
        let sigma = sigma(self.factors[1], &curves.watts, &cell.gpu_type, variance);
        let source = if curves.watts.counts.is_empty() {
            if curves.watts.expected.covers(&cell.gpu_type) { Source::Regression } else { Source::Prior }
        } else {
            known.source(cell, curves.watts.count(&cell.gpu_type))
        };
        // A measured configuration keeps its value, even above the nameplate.
        if !known.seen.iter().chain(known.table).any(|c| c.is(cell)) {
            let board = self.law.board(&cell.gpu_type);
            let floor = libm::log(board.idle.max(0.5));
            log = log.clamp(floor, libm::log(board.max).max(floor) + 0.05);
        }
        Value { log, sigma, source }
    }
}

fn sigma(factors: Factors, curve: &Curve, gpu_type: &GpuType, variance: f64) -> f64 {
    (factors.of(Evidence::of(curve.count(gpu_type))) * libm::sqrt(variance)).clamp(0.01, 3.0)
}

/// Logs of one GPU's draw without a limit and with the sample's.
fn draws(
    law: &AnalyticPrior,
    scale: &Scale,
    watts: &Curve,
    cell: &AggregatedSample,
    usual: ReferenceBatch,
) -> (f64, f64) {
    let at = |limit: Option<f64>| {
        watts.mean(&scale.spot(
            law,
            Quantity::Power,
            &AggregatedSample { limit, ..cell.clone() },
            usual,
            None,
        ))
    };
    let free = at(None);
    (free, at(cell.limit).min(free))
}

fn model(profile: &Profile) -> Model<'_> {
    (owner(&profile.name), profile.features.model_family.as_deref())
}

fn family(profile: &Profile, usual: ReferenceBatch) -> Family {
    let batch = usual.known.then_some(usual.per_gpu);
    Family {
        name: profile.name.clone(),
        model: profile.features.model_family.clone(),
        size: Size { parameters: positive(profile.features.parameters), batch },
        spots: Vec::new(),
    }
}

/// Infers batch and epoch semantics of a table.
fn read(law: &AnalyticPrior, pooled: &[Pooled<'_>]) -> Scale {
    let telling = |p: &&Pooled<'_>| {
        let mut batches: Vec<f64> = p.times.iter().filter_map(|c| c.batch).collect();
        batches.sort_by(f64::total_cmp);
        batches.dedup();
        batches.len() > 1
    };
    let all: Vec<(Model<'_>, &[AggregatedSample])> =
        pooled.iter().map(|p| (model(p.profile), p.times.as_slice())).collect();
    // Names with a namespace always have the API's semantics.
    let of_a_table = |p: &&Pooled<'_>| owner(&p.profile.name).is_empty();
    let mut telling: Vec<&Pooled<'_>> = pooled.iter().filter(of_a_table).filter(telling).collect();
    telling.sort_by(|a, b| b.times.len().cmp(&a.times.len()).then(a.profile.name.cmp(&b.profile.name)));
    telling.truncate(READ_FAMILIES);
    let mut best = (f64::NEG_INFINITY, Scale::new(&all, BatchSemantics::default()));
    if telling.is_empty() {
        return best.1;
    }
    let stage = QuantityModel::fit(Quantity::Time, &[]);
    for reading in BatchSemantics::ALL {
        let scale = Scale::new(&all, reading);
        let mut evidence = if reading == BatchSemantics::default() { READING_EVIDENCE } else { 0.0 };
        for p in &telling {
            let usual = scale.usual(model(p.profile), &p.times, None);
            let mut family = family(p.profile, usual);
            // One limit is enough: effects of limits are not known yet.
            let unlimited =
                |c: &&AggregatedSample| c.limit == p.times.iter().map(|c| c.limit).fold(None, highest);
            let spot = |c: &AggregatedSample| scale.spot(law, Quantity::Time, c, usual, None);
            family.spots = p.times.iter().filter(unlimited).map(spot).collect();
            let spots = spread(&family.spots, 32);
            let expected = stage.expect(&family);
            let level = stage.free_level(&spots, &expected);
            evidence += stage.curve_of(&spots, expected, level, stage.kernel).posterior.evidence;
        }
        if evidence > best.0 {
            best = (evidence, scale);
        }
    }
    best.1
}

fn highest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}
