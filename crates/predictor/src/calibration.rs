//! Calibration by job: whole profiles are held out and asked what they would have been asked.
//!
//! Each tenant is calibrated on its own held-out profiles. There are two sets of factors: one with other profiles of the model known, one with the whole model held out. For
//! models new to the tenant the second set is used.

use std::collections::BTreeMap;

use crate::conformal::{Errors, Factors, SITUATIONS};
use crate::held_out;
use crate::physics::Quantity;
use crate::pool::owner;
use crate::population::{FittedProfile, Population};
use crate::quantity_model::{Family, QuantityModel};
use crate::spread::spread;

/// Budget of all hold-outs; beyond `WHOLE`, profiles get decreasing weight. One unit is about 5 us.
const COST: f64 = 20_000.0;
const WHOLE: f64 = 12_000.0;
/// The cost of a profile is the square of its rows (at most `ROWS`), plus `BESIDES`.
const ROWS: usize = 24;
const BESIDES: usize = 20;
/// Cost that each profile of a tenant adds to a fit, and the most for one fit.
const MEMBER: usize = 20;
const FIT: usize = 2_000;
/// Most siblings (profiles of the same model) used for a held-out profile.
const SIBLINGS: usize = 16;
/// Folds of a tenant's profiles: below `MANY` profiles, and from there on, where fits take long and
/// half of the profiles suffice.
const PARTS: (usize, usize) = (6, 2);
const MANY: usize = 100;
/// Most other profiles used for a held-out one.
const OTHERS: usize = 256;

fn parts_of(families: usize) -> usize {
    if families < MANY { PARTS.0 } else { PARTS.1 }
}

/// Factors by tenant.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    /// Factors of tenants without data.
    start: Factors,
    /// Factors of profiles whose tenant ran other profiles of the model.
    beside: BTreeMap<String, Factors>,
    /// Factors of profiles whose model is new to the tenant.
    alone: BTreeMap<String, Factors>,
}

impl Calibration {
    /// Factors of a profile by its name; `beside`: the tenant has other profiles of its model.
    pub fn of(&self, name: &str, beside: bool) -> Factors {
        let found = |factors: &BTreeMap<String, Factors>| factors.get(owner(name)).copied();
        let beside = if beside { found(&self.beside) } else { None };
        beside.or_else(|| found(&self.alone)).unwrap_or(self.start)
    }

    /// Before any profile.
    pub fn new(quantity: Quantity) -> Self {
        Self { start: Factors::start(quantity), beside: BTreeMap::new(), alone: BTreeMap::new() }
    }

    /// From the profiles.
    pub fn fit(stage: &QuantityModel, families: &[Family]) -> Self {
        let mut most: Vec<&Family> = families.iter().filter(|f| f.spots.len() > 1).collect();
        most.sort_by(|a, b| b.spots.len().cmp(&a.spots.len()).then(a.name.cmp(&b.name)));
        let mut homes: BTreeMap<&str, Home<'_>> = BTreeMap::new();
        for asked in fair(most, &stage.members) {
            homes.entry(owner(&asked.0.name)).or_default().asked.push(asked);
        }
        for member in &stage.members {
            if let Some(home) = homes.get_mut(owner(&member.name)) {
                home.own.push(member);
            }
        }
        let mut it = Self::new(stage.quantity);
        for (owner, home) in homes {
            let alone = factors(&home.held_out(stage, true), it.start, it.start);
            let related = Home {
                asked: home.asked.into_iter().filter(|(f, _)| stage.has_siblings(f)).collect(),
                ..home
            };
            let beside = factors(&related.held_out(stage, false), it.start, alone);
            it.alone.insert(owner.to_owned(), alone);
            it.beside.insert(owner.to_owned(), beside);
        }
        it
    }
}

/// A held-out profile and its weight.
type Asked<'a> = (&'a Family, f64);
/// Weight of a profile and its errors by evidence bucket.
type Found = (f64, [Vec<f64>; SITUATIONS]);

/// A tenant's profiles: all observed ones, and those to hold out.
#[derive(Default)]
struct Home<'a> {
    own: Vec<&'a FittedProfile>,
    asked: Vec<Asked<'a>>,
}

impl Home<'_> {
    /// Errors of the held-out profiles, each alone or with its whole model.
    fn held_out(&self, stage: &QuantityModel, with_model: bool) -> Vec<Found> {
        // A profile without a model is held out alone.
        fn held<'b>(name: &'b str, model: Option<&'b str>, with_model: bool) -> (bool, &'b str) {
            model.filter(|_| with_model).map_or((false, name), |model| (true, model))
        }
        let count = parts_of(self.own.len());
        let mut parts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
        for (family, _) in &self.asked {
            let next = parts.len() % count;
            parts.entry(held(&family.name, family.model.as_deref(), with_model)).or_insert(next);
        }
        let part_of = |name: &str, model: Option<&str>| parts.get(&held(name, model, with_model)).copied();
        let siblings = if with_model { 0 } else { SIBLINGS };
        let mut found = Vec::with_capacity(self.asked.len());
        for part in 0..parts.len().min(count) {
            let others = self.own.iter().filter(|m| part_of(&m.name, m.model.as_deref()) != Some(part));
            let others = spread(&others.copied().collect::<Vec<_>>(), OTHERS);
            let home = Population::fit(stage.quantity, &others);
            let held = self.asked.iter().filter(|(f, _)| part_of(&f.name, f.model.as_deref()) == Some(part));
            found.extend(held.map(|(family, counts)| {
                let expected = stage.expect_beside(&home, family, siblings);
                (*counts, held_out::ask(stage, expected, family))
            }));
        }
        found
    }
}

/// Factors from the errors, shrunk to `start`; `otherwise` where there are no errors.
fn factors(found: &[Found], start: Factors, otherwise: Factors) -> Factors {
    Factors(std::array::from_fn(|situation| {
        let mut errors = Errors::default();
        for (counts, of) in found {
            errors.add(&of[situation], *counts);
        }
        errors.factor(start.0[situation]).unwrap_or(otherwise.0[situation])
    }))
}

/// Chooses the profiles to hold out: round robin over tenants by cost, within the budget. Weights
/// fall gradually at the end, so that a new tenant moves the others' factors little.
fn fair<'a>(families: Vec<&'a Family>, members: &[FittedProfile]) -> Vec<Asked<'a>> {
    let mut homes: BTreeMap<&str, usize> = BTreeMap::new();
    for member in members {
        *homes.entry(owner(&member.name)).or_default() += 1;
    }
    let mut fits: BTreeMap<&str, usize> = BTreeMap::new();
    let mut spent: BTreeMap<&str, usize> = BTreeMap::new();
    let turn = |family: &'a Family| {
        let owner = owner(&family.name);
        let own = homes.get(owner).copied().unwrap_or_default();
        let fits = fits.entry(owner).or_default();
        *fits += 1;
        let fit = if *fits <= parts_of(own) { (own * MEMBER).min(FIT) } else { 0 };
        let rows = family.spots.len().min(ROWS);
        let cost = rows * rows + fit + BESIDES;
        let spent = spent.entry(owner).or_default();
        *spent += cost;
        (*spent, cost, family)
    };
    let mut turns: Vec<(usize, usize, &Family)> = families.into_iter().map(turn).collect();
    turns.sort_by_key(|(spent, ..)| *spent);
    let mut all = 0;
    let asked = turns.into_iter().map(|(_, cost, family)| {
        all += cost;
        (family, ((COST - all as f64) / (COST - WHOLE)).min(1.0))
    });
    asked.take_while(|(_, counts)| *counts > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::physics::Setting;
    use crate::quantity_model::QuantitySample;
    use crate::ratio::Size;

    fn family(owner: &str, number: usize, rows: usize) -> Family {
        let spot = |i: usize| QuantitySample {
            gpu_type: "T4".into(),
            law: 0.0,
            setting: Setting { gpus: i as f64 / 4.0, ..Setting::default() },
            log: 5.0 - 0.1 * i as f64,
            noise: 0.01,
            table: None,
        };
        let (name, size) = (format!("{owner}/job-{number}"), Size::default());
        let spots = (0..rows).map(spot).collect();
        Family { name, model: None, size, spots }
    }

    #[test]
    fn a_tenant_with_many_families_does_not_displace_others() {
        let honest = (0..10).flat_map(|owner| (0..4).map(move |i| family(&format!("lab-{owner}"), i, 3)));
        let crowd = (0..60).map(|i| family("crowd", i, 24));
        let families: Vec<Family> = honest.chain(crowd).collect();
        let stage = QuantityModel::fit(Quantity::Time, &families);
        let asked = fair(families.iter().rev().collect(), &stage.members);
        let whole =
            |name: &str| asked.iter().filter(|(f, counts)| owner(&f.name) == name && *counts >= 1.0).count();
        assert!((0..10).all(|owner| whole(&format!("lab-{owner}")) == 4));
        assert!((1..60).contains(&whole("crowd")), "{}", whole("crowd"));
    }

    #[test]
    fn without_own_runs_intervals_come_from_other_tenants() {
        let stage = QuantityModel::fit(Quantity::Time, &[family("lab", 0, 1)]);
        let calibration = Calibration::fit(&stage, &[family("lab", 0, 1)]);
        assert_eq!(calibration.of("lab/next", false), Factors::start(Quantity::Time));
        assert_eq!(calibration.of("other/first", true), Factors::start(Quantity::Time));
    }
}
