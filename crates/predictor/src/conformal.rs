//! How far off predictions turn out to be, by job: whole families held out, each asked what it would have been asked.
//!
//! The curve's own variance is right only if the model is. Here each family in turn is predicted from the others and a part of
//! its own rows, and the errors over their predicted standard deviations give the factor that makes 90 % of them
//! fall inside. Every family counts the same, however many rows it has: rows of one family are not independent. A namespace's own
//! families count whole, those of strangers as much as strangers are heard in anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::physics::Quantity;
use crate::pool::owner;
use crate::population::Member;
use crate::populations::Populations;
use crate::posterior::Found;
use crate::stage::{Family, Spot, Stage, spread};
use crate::voices::{Hearing, Voice, heard, shares};

/// Standard normal quantile of 95 %: the interval of 90 %.
pub(crate) const Z95: f64 = 1.644_853_626_951_472_2;
/// Families that are held out, and cells of each.
const HELD_OUT: usize = 40;
const CELLS: usize = 48;
/// Families of one model that are asked for one that is held out.
const SIBLINGS: usize = 16;
/// Parts that the families are held out in: of many, and of few.
const FOLDS: (usize, usize) = (3, 6);
const FEW_FAMILIES: usize = 64;
/// Settings asked of one family in one situation.
const ASKED: usize = 12;
/// How many families the factor 1 counts for.
const PSEUDO: f64 = 2.0;
const BOUNDS: (f64, f64) = (0.35, 3.0);

/// What is known of the family on the type that is asked, and elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// Nothing there; other types, or nothing at all.
    New,
    /// One or two settings, and others on other types.
    One,
    /// Up to nine, and others on other types.
    Few,
    /// Ten and more.
    Many,
    /// One or two settings, and nothing on any other type: its first runs.
    First,
    /// Up to nine, and nothing on any other type.
    Early,
}

impl Situation {
    /// From the settings seen on the type and in all.
    pub fn of(here: usize, all: usize) -> Self {
        match (here, all > here) {
            (0, _) => Self::New,
            (1..=2, true) => Self::One,
            (1..=2, false) => Self::First,
            (3..=9, true) => Self::Few,
            (3..=9, false) => Self::Early,
            _ => Self::Many,
        }
    }
}

/// Factors on the standard deviation, by situation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors([f64; SITUATIONS]);

const SITUATIONS: usize = 6;

impl Default for Factors {
    fn default() -> Self {
        Self([1.0; SITUATIONS])
    }
}

impl Factors {
    pub fn of(&self, situation: Situation) -> f64 {
        self.0[situation as usize]
    }
}

/// Errors over standard deviations of one situation, with their weights.
#[derive(Default)]
struct Errors {
    rows: Vec<(f64, f64)>,
    families: f64,
}

impl Errors {
    fn add(&mut self, mut errors: Vec<f64>, voice: f64) {
        errors.retain(|e| e.is_finite());
        let weight = voice / errors.len().max(1) as f64;
        self.families += if errors.is_empty() { 0.0 } else { voice };
        self.rows.extend(errors.into_iter().map(|e| (e.abs(), weight)));
    }

    fn factor(mut self) -> f64 {
        if self.rows.is_empty() {
            return 1.0;
        }
        self.rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        // As if one more family lay beyond them all: the one that is asked is none of them. With too few for that, nine in ten.
        let n = self.families;
        let wanted = (0.9 * (n + 1.0)).min((0.9 * n).max(n - 1.0));
        let mut below = 0.0;
        let mut at = 0.0;
        for (error, weight) in &self.rows {
            below += weight;
            at = *error;
            if below >= wanted {
                break;
            }
        }
        ((self.families * at / Z95 + PSEUDO) / (self.families + PSEUDO)).clamp(BOUNDS.0, BOUNDS.1)
    }
}

/// Factors by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calibration {
    strangers: Factors,
    homes: BTreeMap<String, Factors>,
}

impl Calibration {
    /// Of a family by its name.
    pub fn of(&self, name: &str) -> Factors {
        *self.homes.get(owner(name)).unwrap_or(&self.strangers)
    }

    /// From the families.
    pub fn fit(stage: &Stage, families: &[Family]) -> Self {
        let mut most: Vec<&Family> = families.iter().filter(|f| f.spots.len() > 1).collect();
        most.sort_by(|a, b| b.spots.len().cmp(&a.spots.len()).then(a.name.cmp(&b.name)));
        let most = fair(most);
        let mut found: Vec<(&Family, [Vec<f64>; SITUATIONS])> = Vec::with_capacity(most.len());
        // Among few families it matters how many the others are.
        let folds =
            if stage.members.len() <= FEW_FAMILIES { FOLDS.1 } else { FOLDS.0 }.min(most.len().max(1));
        for fold in 0..folds {
            let held =
                |name: &str| most.iter().position(|f| f.name == name).is_some_and(|i| i % folds == fold);
            let others: Vec<&Member> = stage.members.iter().filter(|m| !held(&m.name)).collect();
            let asks = |who: &str| most.iter().any(|f| owner(&f.name) == who && held(&f.name));
            let populations = Populations::of_some(stage.quantity, &others, asks);
            let asked = most.iter().enumerate().filter(|(i, _)| i % folds == fold);
            found.extend(asked.map(|(_, family)| (*family, ask(stage, &populations, family))));
        }
        let voices = shares(&found.iter().map(|(f, _)| (f.namespace.as_str(), 1.0)).collect::<Vec<_>>());
        let owners: BTreeSet<&str> = found.iter().map(|(f, _)| owner(&f.name)).collect();
        let homes = owners.into_iter().map(|home| (home.to_owned(), factors(&found, &voices, Some(home))));
        Self { homes: homes.collect(), strangers: factors(&found, &voices, None) }
    }
}

/// Factors for an owner's families, or for those of somebody of whom nothing is known.
fn factors(found: &[(&Family, [Vec<f64>; SITUATIONS])], voices: &[Voice], home: Option<&str>) -> Factors {
    let mine = |family: &Family| home == Some(owner(&family.name));
    Factors(std::array::from_fn(|situation| {
        let all = found.iter().zip(voices).filter(|((_, errors), _)| !errors[situation].is_empty());
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|((family, _), _)| mine(family));
        // A table needs nobody else's word.
        let others = if home.is_some_and(str::is_empty) { Vec::new() } else { others };
        let said: Vec<(Voice, f64)> = others.iter().map(|(_, voice)| (**voice, voice.weight)).collect();
        let heard = heard(&said, own.len() as f64 + PSEUDO, Hearing::of_strangers());
        let mut errors = Errors::default();
        for ((_, of), _) in own {
            errors.add(of[situation].clone(), 1.0);
        }
        for (((_, of), voice), heard) in others.into_iter().zip(heard) {
            errors.add(of[situation].clone(), voice.weight * heard);
        }
        errors.factor()
    }))
}

/// So many that are held out: the first of every namespace, then the second of each, and so on.
fn fair(families: Vec<&Family>) -> Vec<&Family> {
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, &Family)> = Vec::with_capacity(families.len());
    for family in families {
        let turn = taken.entry(&family.namespace).or_default();
        turns.push((*turn, family));
        *turn += 1;
    }
    turns.sort_by_key(|(turn, _)| *turn);
    turns.truncate(HELD_OUT);
    turns.into_iter().map(|(_, family)| family).collect()
}

fn ask(stage: &Stage, populations: &Populations, family: &Family) -> [Vec<f64>; SITUATIONS] {
    let spots = spread(&family.spots, CELLS);
    let expected = stage.expect_beside(populations, family, SIBLINGS);
    let level = |rows: &[Spot]| match stage.quantity {
        Quantity::Time => stage.free_level(rows, &expected),
        Quantity::Power => Found::default(),
    };
    let errors = |rows: &[Spot], asked: &[Spot]| -> Vec<f64> {
        let curve = stage.curve_of(rows, expected.clone(), level(rows), stage.texture(family));
        let error = |spot: &Spot| {
            let (mean, variance) = curve.at(spot);
            (spot.log - mean) / libm::sqrt(variance)
        };
        asked.iter().map(error).collect()
    };
    let mut types: Vec<_> = spots.iter().map(|s| s.gpu_type.clone()).collect();
    types.sort();
    types.dedup();
    let mut found: [Vec<f64>; SITUATIONS] = Default::default();
    for gpu_type in types.iter().take(4) {
        let (here, others): (Vec<Spot>, Vec<Spot>) =
            spots.iter().cloned().partition(|s| s.gpu_type == *gpu_type);
        if !others.is_empty() {
            found[Situation::New as usize].extend(errors(&others, &spread(&here, ASKED)));
        }
        for (elsewhere, alone, known) in [
            (Situation::One, Situation::First, 1),
            (Situation::One, Situation::First, 2),
            (Situation::Few, Situation::Early, 4),
        ] {
            // Short curves tell of three known what longer ones tell of four.
            let known = if known == here.len() { known - 1 } else { known };
            if here.len() <= known || known == 0 || elsewhere == Situation::Few && known < 3 {
                continue;
            }
            let mut ask = |situation: Situation, others: &[Spot], is_known: &dyn Fn(usize) -> bool| {
                let of = |wanted: bool| {
                    let picked = here.iter().enumerate().filter(move |(i, _)| is_known(*i) == wanted);
                    picked.map(|(_, s)| s.clone()).collect::<Vec<Spot>>()
                };
                let rows: Vec<Spot> = others.iter().cloned().chain(of(true)).collect();
                found[situation as usize].extend(errors(&rows, &spread(&of(false), ASKED)));
            };
            // Known are some of every part, asked are the rest.
            let n = here.len();
            let first = first(&here, known);
            if elsewhere == Situation::Few && !others.is_empty() {
                ask(elsewhere, &others, &|i| (0..known).any(|k| (2 * k + 1) * n / (2 * known) == i));
            } else if !others.is_empty() {
                ask(elsewhere, &others, &|i| first.contains(&i));
            }
            ask(alone, &[], &|i| first.contains(&i));
        }
    }
    if spots.len() > 9 {
        let curve = stage.curve_of(&spots, expected.clone(), level(&spots), stage.texture(family));
        found[Situation::Many as usize] = curve.posterior.left_out();
    }
    found
}

/// The rows a family starts with: the middle batch on the fewest GPUs without a limit, then more GPUs, then the smallest and the
/// largest batch on the fewest.
fn first(here: &[Spot], known: usize) -> Vec<usize> {
    let by = |key: &dyn Fn(&Spot) -> [f64; 3]| {
        let mut order: Vec<(usize, [f64; 3])> = here.iter().map(key).enumerate().collect();
        order.sort_by(|(i, a), (j, b)| {
            let differ = a.iter().zip(b).map(|(a, b)| a.total_cmp(b)).find(|o| o.is_ne());
            differ.unwrap_or(std::cmp::Ordering::Equal).then(i.cmp(j))
        });
        order.into_iter().map(|(i, _)| i).collect::<Vec<usize>>()
    };
    let fewest = here.iter().map(|s| s.setting.gpus).fold(f64::INFINITY, f64::min);
    let start = by(&|s| [s.setting.gpus, -s.setting.depth, s.setting.batch.abs()]);
    let per_gpu = |s: &Spot| (s.setting.batch - s.setting.gpus * std::f64::consts::LN_2).abs();
    let next =
        by(&|s| [if s.setting.gpus > fewest { s.setting.gpus } else { 1e9 }, -s.setting.depth, per_gpu(s)]);
    let small = by(&|s| [s.setting.gpus, -s.setting.depth, s.setting.batch]);
    let large = by(&|s| [s.setting.gpus, -s.setting.depth, -s.setting.batch]);
    let mut found: Vec<usize> = Vec::new();
    for i in [start[0], next[0], small[0], large[0]].into_iter().chain(start) {
        if found.len() < known && !found.contains(&i) {
            found.push(i);
        }
    }
    found
}

/// The factor of a family with many rows: the population's, and what its own rows say.
pub(crate) fn own(pooled: f64, left_out: Vec<f64>) -> f64 {
    const WEIGHT: f64 = 20.0;
    let n = left_out.len() as f64;
    if left_out.len() < 10 {
        return pooled;
    }
    let mut sizes: Vec<f64> = left_out.into_iter().map(f64::abs).filter(|e| e.is_finite()).collect();
    sizes.sort_by(f64::total_cmp);
    let rank = ((sizes.len() + 1) * 9).div_ceil(10);
    let Some(at) = sizes.get(rank.min(sizes.len()).saturating_sub(1)) else { return pooled };
    ((WEIGHT * pooled + n * at / Z95) / (WEIGHT + n)).clamp(BOUNDS.0, BOUNDS.1)
}
