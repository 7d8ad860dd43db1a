//! How far off predictions turn out to be, by job: whole families held out, each asked what it would have been asked.
//!
//! The curve's own variance is right only if the model is. Here each family in turn is predicted from the others and a part of
//! its own rows, and the errors over their predicted standard deviations give the factor that makes 90 % of them
//! fall inside. Every family counts the same, however many rows it has: rows of one family are not independent.

use crate::physics::Quantity;
use crate::population::{Member, Population};
use crate::posterior::Found;
use crate::stage::{Family, Spot, Stage, spread};

/// Standard normal quantile of 95 %: the interval of 90 %.
pub(crate) const Z95: f64 = 1.644_853_626_951_472_2;
/// Families that are held out, and cells of each.
const HELD_OUT: usize = 40;
const CELLS: usize = 48;
/// Settings asked of one family in one situation.
const ASKED: usize = 12;
const FOLDS: usize = 3;
/// How many families the factor 1 counts for.
const PSEUDO: f64 = 2.0;
const BOUNDS: (f64, f64) = (0.35, 3.0);

/// What is known of the family on the type that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// Nothing there; other types, or nothing at all.
    New,
    /// One or two settings.
    One,
    /// Up to nine.
    Few,
    /// Ten and more.
    Many,
}

impl Situation {
    pub fn of(cells: usize) -> Self {
        match cells {
            0 => Self::New,
            1..=2 => Self::One,
            3..=9 => Self::Few,
            _ => Self::Many,
        }
    }
}

/// Factors on the standard deviation, by situation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors([f64; 4]);

impl Default for Factors {
    fn default() -> Self {
        Self([1.0; 4])
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
    fn add(&mut self, mut errors: Vec<f64>) {
        errors.retain(|e| e.is_finite());
        let weight = 1.0 / errors.len().max(1) as f64;
        self.families += if errors.is_empty() { 0.0 } else { 1.0 };
        self.rows.extend(errors.into_iter().map(|e| (e.abs(), weight)));
    }

    fn factor(mut self) -> f64 {
        if self.rows.is_empty() {
            return 1.0;
        }
        self.rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        // A little above nine in ten: the families are few.
        let wanted = (0.9 * (self.families + 0.3)).min(0.96 * self.families.max(1.0));
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

/// Factors from the families.
pub(crate) fn calibrate(stage: &Stage, families: &[Family]) -> Factors {
    let mut most: Vec<&Family> = families.iter().filter(|f| f.spots.len() > 1).collect();
    most.sort_by(|a, b| b.spots.len().cmp(&a.spots.len()).then(a.name.cmp(&b.name)));
    most.truncate(HELD_OUT);
    let mut errors: [Errors; 4] = Default::default();
    for fold in 0..FOLDS {
        let held = |name: &str| most.iter().position(|f| f.name == name).is_some_and(|i| i % FOLDS == fold);
        let others: Vec<&Member> = stage.members.iter().filter(|m| !held(&m.name)).collect();
        let population = Population::fit(stage.quantity, &others);
        for family in most.iter().enumerate().filter(|(i, _)| i % FOLDS == fold).map(|(_, f)| f) {
            let [new, one, few, many] = ask(stage, &population, family);
            errors[0].add(new);
            errors[1].add(one);
            errors[2].add(few);
            errors[3].add(many);
        }
    }
    Factors(errors.map(Errors::factor))
}

fn ask(stage: &Stage, population: &Population, family: &Family) -> [Vec<f64>; 4] {
    let spots = spread(&family.spots, CELLS);
    let siblings: Vec<&Member> = stage
        .members
        .iter()
        .filter(|m| family.model.is_some() && m.model == family.model && m.name != family.name)
        .take(16)
        .collect();
    let expected = population.expect(stage.quantity, family.size, &siblings);
    let level = |rows: &[Spot]| match stage.quantity {
        Quantity::Time => stage.free_level(rows, &expected),
        Quantity::Power => Found::default(),
    };
    let errors = |rows: &[Spot], asked: &[Spot]| -> Vec<f64> {
        let curve = stage.curve_of(rows, expected.clone(), level(rows), stage.texture);
        let error = |spot: &Spot| {
            let (mean, variance) = curve.at(spot);
            (spot.log - mean) / libm::sqrt(variance)
        };
        asked.iter().map(error).collect()
    };
    let mut types: Vec<_> = spots.iter().map(|s| s.gpu_type.clone()).collect();
    types.sort();
    types.dedup();
    let mut found: [Vec<f64>; 4] = Default::default();
    for gpu_type in types.iter().take(4) {
        let (here, others): (Vec<Spot>, Vec<Spot>) =
            spots.iter().cloned().partition(|s| s.gpu_type == *gpu_type);
        if !others.is_empty() {
            found[0].extend(errors(&others, &spread(&here, ASKED)));
        }
        for (situation, known) in [(1, 1), (2, 4)] {
            // Short curves tell of three known what longer ones tell of four.
            let known = if known == here.len() { known - 1 } else { known };
            if here.len() <= known || situation == 2 && known < 3 {
                continue;
            }
            // Known are some of every part, asked are the rest.
            let n = here.len();
            let is_known = |i: usize| (0..known).any(|k| (2 * k + 1) * n / (2 * known) == i);
            let mut rows = others.clone();
            rows.extend(here.iter().enumerate().filter(|(i, _)| is_known(*i)).map(|(_, s)| s.clone()));
            let asked: Vec<Spot> =
                here.iter().enumerate().filter(|(i, _)| !is_known(*i)).map(|(_, s)| s.clone()).collect();
            found[situation].extend(errors(&rows, &spread(&asked, ASKED)));
        }
    }
    if spots.len() > 9 {
        let curve = stage.curve_of(&spots, expected.clone(), level(&spots), stage.texture);
        found[3] = curve.posterior.left_out();
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
