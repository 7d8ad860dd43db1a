//! What all families together say of the next one: empirical Bayes over their curves' parameters.
//!
//! Each family gives its parameters with their uncertainty ([`Member`]); the population's means and variances are found
//! from them by a few rounds of weighing, with the published tables' values as pseudo-families, Huber's weights against those
//! far off, and equal shares for namespaces. Families of the same model are nearer to each other than to the rest:
//! a family's prior is pulled towards its siblings.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_core::GpuType;

use crate::kin::{Kin, Rows};
use crate::physics::{ACROSS, LEVEL, LIMITED, OVERLAP, P, Quantity, SYNC, Setting};
use crate::places::{self, Placed, Places};
use crate::posterior::{Found, Prior};
use crate::ratio::{Level, Levels, Ratios, Size};

/// How many families the values we start from count for.
const PSEUDO: f64 = 4.0;
/// Rounds of weighing.
const ROUNDS: usize = 24;
/// A family further than this many standard deviations from the mean weighs less: among few namespaces, where an odd family is
/// rather a rare one, and among many, where it may be a lie.
const HUBER: (f64, f64) = (1.5, 0.5);
/// Namespaces from which on one that is like nobody is left out, and how far off (in standard deviations) it then counts less,
/// and nothing.
pub(crate) const MANY: usize = 8;
const ODD: f64 = 2.0;
const ALIEN: f64 = 3.0;
/// Variance of a type's level that any family is granted before it is odd.
const LIKELY_TYPE: f64 = 0.02;
/// Variance of a type's level beyond the law where the population says nothing (published: off by 38 %).
const UNKNOWN_TYPE: f64 = 0.17;
/// A parameter with this variance was not told of.
const UNTOLD: f64 = 1e3;
/// Share of the variance that is left between families of one model, before they were compared.
const SIBLINGS: f64 = 0.4;

/// A family that was observed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub name: String,
    pub namespace: String,
    pub model: Option<String>,
    pub size: Size,
    pub found: [Found; P],
    /// Its levels by type, beyond the law.
    pub on: Vec<Level>,
    /// Log of its parameters over the time of a step, where both are known; what of its synchronisation was laid to it.
    pub bulk: Option<f64>,
    pub network: [f64; 2],
    /// Its rows beside its own physics.
    pub placed: Vec<Placed>,
    /// The same as families of its model are told of them.
    pub rows: Rows,
}

/// How synchronisation grows with what a model has to send for each second it computes: slope and origin, of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bulk {
    slope: f64,
    mean: f64,
}

/// The synchronisations that are told from it: on one node and between nodes.
const NETWORKS: [usize; 2] = [SYNC, ACROSS];
/// Slope before anything was seen and its standard deviation: physics says 1, samples of an epoch that nobody tells make it 0.
const BULK: (f64, f64) = (0.5, 0.5);
/// How far a family's bulk may be from the others' to count.
const BULKIEST: f64 = 4.0;

impl Bulk {
    /// What is known before of a family's synchronisation.
    fn of(self, bulk: Option<f64>) -> f64 {
        bulk.map_or(0.0, |x| self.slope * (x - self.mean).clamp(-BULKIEST, BULKIEST))
    }

    /// By weighted least squares, rows far off pulled in.
    fn fit(which: usize, members: &[&Member], weights: &[f64], variance: f64) -> Self {
        let told = |(m, w): (&&Member, &f64)| {
            let (x, found) = (m.bulk.filter(|_| *w > 0.0)?, m.found[NETWORKS[which]]);
            Some((
                x,
                found.mean + m.network[which],
                w / (variance + found.variance),
                variance + found.variance,
            ))
        };
        let mut rows: Vec<(f64, f64, f64, f64)> = members.iter().zip(weights).filter_map(told).collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(mean, ..)) = rows.get(rows.len() / 2) else { return Self::default() };
        for row in &mut rows {
            row.0 = (row.0 - mean).clamp(-BULKIEST, BULKIEST);
        }
        let total: f64 = rows.iter().map(|r| r.2).sum();
        let x_mean = rows.iter().map(|r| r.2 * r.0).sum::<f64>() / total;
        let y_mean = rows.iter().map(|r| r.2 * r.1).sum::<f64>() / total;
        let (start, sure) = (BULK.0, 1.0 / (BULK.1 * BULK.1));
        let mut slope = start;
        for _ in 0..ROUNDS {
            let (mut sum, mut square) = (start * sure, sure);
            for (x, y, weight, spread) in &rows {
                let (x, y) = (x - x_mean, y - y_mean);
                let off = (y - slope * x).abs() / libm::sqrt(*spread);
                let weight = if off > 1.0 { weight / off } else { *weight };
                (sum, square) = (sum + weight * x * y, square + weight * x * x);
            }
            slope = (sum / square).clamp(0.0, 1.2);
        }
        Self { slope, mean }
    }
}

/// What the population says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Population {
    prior: Prior,
    ratios: Ratios,
    bulk: [Bulk; 2],
    /// By type: how a power limit stretches times beyond the mean of all (log of the exponent).
    bent: Arc<BTreeMap<GpuType, f64>>,
    places: Arc<Places>,
    /// Share of the variances left between families of one model.
    siblings: f64,
    /// Variance of a type's level where the population covers it.
    type_variance: f64,
}

/// What is thought of one family before its own rows.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub prior: Prior,
    ratios: Ratios,
    bulk: [Bulk; 2],
    /// By type: how a power limit stretches times beyond the mean of all (log of the exponent).
    bent: Arc<BTreeMap<GpuType, f64>>,
    places: Arc<Places>,
    size: Size,
    /// What the siblings' shapes have in common.
    pub kin: Option<Arc<Kin>>,
    /// By type: mean of the siblings' residuals, shrunk.
    siblings: BTreeMap<GpuType, f64>,
    /// The siblings' level, its variance, and how many there are.
    pub level: Option<Found>,
}

impl Expected {
    /// Log of the type's time or draw relative to others.
    pub fn base(&self, gpu_type: &GpuType, law: f64) -> f64 {
        law + self.ratios.of(gpu_type, law, self.size) + self.siblings.get(gpu_type).copied().unwrap_or(0.0)
    }

    /// A setting with all that is known before of it.
    pub fn place(&self, gpu_type: &GpuType, law: f64, level: f64, s: Setting) -> Setting {
        let base = self.base(gpu_type, law) + level;
        let bulk = self.size.bulk(base);
        let [network, between] = self.bulk.map(|b| b.of(bulk));
        let bent = self.bent(gpu_type);
        Setting { base: base + self.shared(gpu_type, &s), network, between, bent, ..s }
    }

    /// How a power limit stretches times on a type beyond the mean of all (log of the exponent).
    pub fn bent(&self, gpu_type: &GpuType) -> f64 {
        self.bent.get(gpu_type).copied().unwrap_or(0.0)
    }

    /// Nothing shared on any placement.
    pub fn without_places(mut self) -> Self {
        self.places = Arc::default();
        self
    }

    /// What is shared of times on one node.
    pub fn shared(&self, gpu_type: &GpuType, s: &Setting) -> f64 {
        if s.nodes > 0.0 { 0.0 } else { self.places.of(gpu_type, places::at(s.nodes, s.gpus)) }
    }

    /// The population, or a family of the same model, ran on this type beside others.
    pub fn covers(&self, gpu_type: &GpuType) -> bool {
        self.ratios.covers(gpu_type)
    }
}

impl Population {
    /// Nothing but what we start from.
    pub fn new(quantity: Quantity) -> Self {
        let within = quantity.within();
        Self {
            prior: Prior { mean: quantity.means(), own: quantity.between(), within },
            ratios: Ratios::default(),
            bulk: [Bulk::default(); 2],
            bent: Arc::default(),
            places: Arc::default(),
            siblings: SIBLINGS,
            type_variance: within[LEVEL],
        }
    }

    /// From the families.
    pub fn fit(quantity: Quantity, members: &[&Member]) -> Self {
        let mut it = Self::new(quantity);
        if members.is_empty() {
            return it;
        }
        let mut weights = shares(members, quantity);
        it.weigh_all(quantity, members, &weights);
        let namespaces: std::collections::BTreeSet<&str> =
            members.iter().map(|m| m.namespace.as_str()).collect();
        if namespaces.len() >= MANY {
            // With many to compare it is seen who is like nobody: those do not count at all.
            for (member, weight) in members.iter().zip(&mut weights) {
                *weight *= ((ALIEN - it.oddness(quantity, member)) / (ALIEN - ODD)).clamp(0.0, 1.0);
            }
            it = Self::new(quantity);
            it.weigh_all(quantity, members, &weights);
        }
        it.siblings = it.sibling_share(members);
        it
    }

    fn weigh_all(&mut self, quantity: Quantity, members: &[&Member], weights: &[f64]) {
        let namespaces: std::collections::BTreeSet<&str> =
            members.iter().map(|m| m.namespace.as_str()).collect();
        let huber = if namespaces.len() < MANY { HUBER.0 } else { HUBER.1 };
        self.ratios = Ratios::fit(&levels(members, weights));
        if quantity == Quantity::Time {
            self.bulk = [0, 1].map(|i| Bulk::fit(i, members, weights, self.prior.own[NETWORKS[i]]));
            self.bent = Arc::new(bent(members, weights, self.prior, huber));
            let placed: Vec<(f64, &[Placed])> =
                members.iter().zip(weights).map(|(m, w)| (*w, m.placed.as_slice())).collect();
            self.places = Arc::new(Places::fit(&placed));
        }
        // How far computing and waiting overlap stays what physics says: rows hardly tell it from growth, and who claims to know
        // would move all.
        let told = |p: &usize| quantity == Quantity::Power || ![LEVEL, OVERLAP].contains(p);
        for p in (0..P).filter(told) {
            let bulk = |m: &Member| {
                let which = NETWORKS.iter().position(|n| *n == p && quantity == Quantity::Time);
                which.map_or(0.0, |i| m.network[i] - self.bulk[i].of(m.bulk))
            };
            let found = |m: &Member| Found { mean: m.found[p].mean + bulk(m), ..m.found[p] };
            let found: Vec<(f64, Found)> = members.iter().zip(weights).map(|(m, w)| (*w, found(m))).collect();
            (self.prior.mean[p], self.prior.own[p]) =
                weigh(self.prior.mean[p], self.prior.own[p], &found, huber);
        }
        let mut squares = (PSEUDO * self.type_variance, PSEUDO);
        for (family, weight) in levels(members, weights).iter().zip(weights).filter(|(f, _)| f.on.len() > 1) {
            let n = family.on.len() as f64;
            let residuals = self.ratios.residuals(family);
            let squares_here =
                residuals.iter().zip(family.on).map(|(r, l)| (r * r - l.variance).clamp(0.0, 0.5));
            let told = family.on.iter().map(|l| l.told(self.type_variance)).sum::<f64>() / n;
            let square: f64 = squares_here.sum();
            squares = (squares.0 + weight * told * square, squares.1 + weight * told * (n - 1.0));
        }
        self.type_variance = (squares.0 / squares.1).clamp(0.004, 0.5);
    }

    /// How far a family is from the others at most, in standard deviations.
    fn oddness(&self, quantity: Quantity, member: &Member) -> f64 {
        let first = if quantity == Quantity::Power { 0 } else { 1 };
        let odd = |p: usize| {
            let f = member.found[p];
            let spread = self.prior.own[p] + f.variance;
            if spread > 0.0 { (f.mean - self.prior.mean[p]).abs() / libm::sqrt(spread) } else { 0.0 }
        };
        let family = Levels { size: member.size, weight: 1.0, on: &member.on };
        let residuals = self.ratios.residuals(&family).into_iter().zip(&member.on);
        let on =
            residuals.map(|(r, l)| r.abs() / libm::sqrt(self.type_variance.max(LIKELY_TYPE) + l.variance));
        (first..P).map(odd).chain(on).fold(0.0, f64::max)
    }

    /// How near families of one model are to each other: the variance among siblings over that among all.
    fn sibling_share(&self, members: &[&Member]) -> f64 {
        let mut by_model: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
        for member in members {
            if let Some(model) = &member.model {
                by_model.entry(model).or_default().push(member);
            }
        }
        let (mut among, mut all) = (SIBLINGS * 6.0, 6.0);
        for family in by_model.values().filter(|f| f.len() > 1) {
            for p in 1..P {
                let total = self.prior.own[p];
                let known: Vec<&&Member> =
                    family.iter().filter(|m| m.found[p].variance < 0.5 * total).collect();
                if known.len() < 2 || total <= 0.0 {
                    continue;
                }
                // Every namespace is one voice, as where siblings are asked.
                let voice = |m: &Member| {
                    1.0 / known.iter().filter(|k| k.namespace == m.namespace).count().max(1) as f64
                };
                let n: f64 = known.iter().map(|m| voice(m)).sum();
                if n <= 1.5 {
                    continue;
                }
                let mean = known.iter().map(|m| voice(m) * m.found[p].mean).sum::<f64>() / n;
                let square: f64 = known
                    .iter()
                    .map(|m| voice(m) * (m.found[p].mean - mean) * (m.found[p].mean - mean))
                    .sum();
                among += (square / total).min(4.0 * (n - 1.0));
                all += n - 1.0;
            }
        }
        (among / all).clamp(0.1, 1.0)
    }

    /// What to think of a family; `siblings` are those of the same model but itself, with their weights.
    pub fn expect(&self, quantity: Quantity, size: Size, siblings: &[(f64, &Member)]) -> Expected {
        let mut prior = self.prior;
        prior.within[LEVEL] =
            if self.ratios == Ratios::default() { UNKNOWN_TYPE } else { self.type_variance };
        let mut by_type: BTreeMap<GpuType, Vec<(f64, f64, f64)>> = BTreeMap::new();
        let mut level = None;
        let voices: f64 = siblings.iter().map(|(w, _)| w).sum();
        // Among many an odd one may be a lie.
        let huber = if voices < MANY as f64 { f64::INFINITY } else { HUBER.1 };
        if !siblings.is_empty() {
            let first = if quantity == Quantity::Power { 0 } else { 1 };
            for p in first..P {
                let among = self.siblings * prior.own[p];
                let (start, sure) = (prior.mean[p], 1.0 / prior.own[p].max(1e-9));
                let found = siblings.iter().map(|(w, m)| {
                    (
                        m.found[p].mean,
                        w / (m.found[p].variance + among).max(1e-9),
                        m.found[p].variance + among,
                    )
                });
                let (mean, total) = pulled(start, sure, &found.collect::<Vec<_>>(), huber);
                prior.mean[p] = mean;
                prior.own[p] = among + 1.0 / total;
            }
            for (weight, member) in siblings.iter().filter(|(_, m)| m.on.len() > 1) {
                let family = Levels { size: member.size, weight: 1.0, on: &member.on };
                for (l, residual) in member.on.iter().zip(self.ratios.residuals(&family)) {
                    let told = weight * l.told(self.type_variance);
                    let spread = self.type_variance + l.variance;
                    by_type.entry(l.gpu_type.clone()).or_default().push((residual, told, spread));
                }
            }
            level = Some(level_of(siblings));
            if by_type.len() > 1 {
                prior.within[LEVEL] *= (self.siblings + 1.0 / (1.0 + voices)).min(1.0);
            }
        }
        // One more pull for a single sibling than for many.
        let of_type = |found: Vec<(f64, f64, f64)>| pulled(0.0, self.siblings, &found, huber).0;
        let siblings = by_type.into_iter().map(|(t, found)| (t, of_type(found))).collect();
        Expected {
            prior,
            ratios: self.ratios.clone(),
            bulk: self.bulk,
            bent: Arc::clone(&self.bent),
            places: Arc::clone(&self.places),
            size,
            kin: None,
            siblings,
            level,
        }
    }

    /// What families share on a placement.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The variance of a type's level that the law alone knows.
    pub fn unknown_type() -> f64 {
        UNKNOWN_TYPE
    }
}

/// Mean of values with their weights and variances, drawn to `start`; those further off than `furthest` standard deviations weigh
/// less. And the weight of all.
fn pulled(start: f64, sure: f64, found: &[(f64, f64, f64)], furthest: f64) -> (f64, f64) {
    let mut at = (start, sure);
    for round in 0..ROUNDS {
        let (mut sum, mut total) = (sure * start, sure);
        for (value, weight, spread) in found {
            let off = (value - at.0).abs() / libm::sqrt(spread.max(1e-9));
            let weight = weight * if round > 0 && off > furthest { furthest / off } else { 1.0 };
            (sum, total) = (sum + weight * value, total + weight);
        }
        at = (sum / total, total);
        if furthest.is_infinite() {
            break;
        }
    }
    at
}

fn level_of(siblings: &[(f64, &Member)]) -> Found {
    let n: f64 = siblings.iter().map(|(w, _)| w).sum();
    let mean = siblings.iter().map(|(w, m)| w * m.found[LEVEL].mean).sum::<f64>() / n;
    let off = |m: &Member| m.found[LEVEL].mean - mean;
    let square: f64 = siblings.iter().map(|(w, m)| w * off(m) * off(m)).sum();
    // Half a sibling of a factor 2: the same model may have other data.
    Found { mean, variance: (square + 0.5) / n * (1.0 + 1.0 / n) }
}

/// How limits stretch times by type: a board's clocks follow its power in their own way, whatever runs. Drawn towards the mean
/// of all types.
fn bent(members: &[&Member], weights: &[f64], prior: Prior, furthest: f64) -> BTreeMap<GpuType, f64> {
    let mut types: BTreeMap<&GpuType, Vec<(f64, Found)>> = BTreeMap::new();
    for (member, weight) in members.iter().zip(weights) {
        for level in member.on.iter().filter(|l| l.limited.variance < UNTOLD) {
            types.entry(&level.gpu_type).or_default().push((*weight, level.limited));
        }
    }
    let of = |found: Vec<(f64, Found)>| {
        let mut mean = 0.0;
        for _ in 0..ROUNDS {
            let (mut sum, mut total) = (0.0, 1.0 / prior.within[LIMITED]);
            for (weight, f) in &found {
                let spread = prior.own[LIMITED] + f.variance;
                let off = (f.mean - mean).abs() / libm::sqrt(spread);
                let weight = weight * if off > furthest { furthest / off } else { 1.0 } / spread;
                (sum, total) = (sum + weight * f.mean, total + weight);
            }
            mean = sum / total;
        }
        mean
    };
    types.into_iter().map(|(t, found)| (t.clone(), of(found))).collect()
}

fn levels<'a>(members: &[&'a Member], weights: &[f64]) -> Vec<Levels<'a>> {
    members.iter().zip(weights).map(|(m, w)| Levels { size: m.size, weight: *w, on: &m.on }).collect()
}

/// How much a family's rows say, of its parameters and of types.
fn information(member: &Member, quantity: Quantity) -> f64 {
    let between = quantity.between();
    let told =
        |p: usize| if between[p] > 0.0 { between[p] / (between[p] + member.found[p].variance) } else { 0.0 };
    let on = member.on.iter().map(|l| l.told(UNKNOWN_TYPE)).sum::<f64>();
    (1..P).map(told).sum::<f64>() + on
}

/// No namespace weighs more than the middle one does, however many rows it has and however sure they are.
fn shares(members: &[&Member], quantity: Quantity) -> Vec<f64> {
    let mut by_namespace: BTreeMap<&str, f64> = BTreeMap::new();
    for m in members {
        *by_namespace.entry(&m.namespace).or_default() += information(m, quantity);
    }
    let mut sizes: Vec<f64> = by_namespace.values().copied().collect();
    sizes.sort_by(f64::total_cmp);
    let middle = sizes[sizes.len() / 2];
    members.iter().map(|m| (middle / by_namespace[m.namespace.as_str()].max(1e-9)).min(1.0)).collect()
}

/// Mean and variance of a parameter over families that are each known with uncertainty: expectation and maximisation.
fn weigh(start: f64, start_variance: f64, found: &[(f64, Found)], furthest: f64) -> (f64, f64) {
    if start_variance <= 0.0 {
        return (start, start_variance);
    }
    let (mut mean, mut variance) = (start, start_variance);
    for _ in 0..ROUNDS {
        let (mut sum, mut total) = (PSEUDO * start / (2.0 * variance), PSEUDO / (2.0 * variance));
        let (mut square, mut count) = (PSEUDO * start_variance, PSEUDO);
        for (share, f) in found {
            let spread = variance + f.variance;
            let off = (f.mean - mean).abs() / libm::sqrt(spread);
            let huber = if off > furthest { furthest / off } else { 1.0 };
            (sum, total) = (sum + share * huber * f.mean / spread, total + share * huber / spread);
            // The family's own value given all: nearer to the mean the less it says.
            let told = variance / spread;
            let moved = told * huber * (f.mean - mean);
            square += share * (moved * moved + variance * (1.0 - told));
            count += share;
        }
        mean = sum / total;
        variance = (square / count).clamp(0.02 * start_variance, 3.0 * start_variance);
    }
    (mean, variance)
}

#[cfg(test)]
mod tests;
