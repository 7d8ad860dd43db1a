//! How far off predictions turn out to be, by job: whole families held out, each asked what it would have been asked.
//!
//! Twice: held out alone, others of its model and owner known, and held out with all of its model. Whose model is new is told by the
//! second: what others of a model show is much of what is known of the next. An owner's own families count whole, those of strangers as
//! much as strangers are heard in anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::conformal::{Errors, Factors, PSEUDO, SITUATIONS};
use crate::held_out;
use crate::pool::owner;
use crate::population::Member;
use crate::populations::Populations;
use crate::stage::{Family, Stage};
use crate::voices::{Hearing, Voice, heard, shares};

/// Families that are held out.
const HELD_OUT: usize = 32;
/// Families of one model that are asked for one that is held out.
const SIBLINGS: usize = 16;
/// Parts that the families are held out in: of many namespaces, and of few. Among few it matters how many the others are, and each
/// namespace makes every fit longer. (By namespaces, of which a liar has one, not by families, of which it has what it likes.)
const PARTS: (usize, usize) = (2, 6);
const FEW_NAMESPACES: usize = 8;

/// Factors by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calibration {
    /// Of families whose owner ran others of the model.
    beside: ByOwner,
    /// Of families whose model is new to their owner.
    alone: ByOwner,
}

#[derive(Clone, Debug, Default)]
struct ByOwner {
    strangers: Factors,
    homes: BTreeMap<String, Factors>,
}

impl ByOwner {
    fn of(&self, name: &str) -> Factors {
        *self.homes.get(owner(name)).unwrap_or(&self.strangers)
    }
}

impl Calibration {
    /// Of a family by its name; `beside` others of its model and owner, or alone.
    pub fn of(&self, name: &str, beside: bool) -> Factors {
        if beside { self.beside.of(name) } else { self.alone.of(name) }
    }

    /// From the families.
    pub fn fit(stage: &Stage, families: &[Family]) -> Self {
        let mut most: Vec<&Family> = families.iter().filter(|f| f.spots.len() > 1).collect();
        most.sort_by(|a, b| b.spots.len().cmp(&a.spots.len()).then(a.name.cmp(&b.name)));
        let most = fair(most);
        let alone = HeldOut::new(stage, &most, true);
        let alone = alone.by_owner(&ByOwner::default());
        let related: Vec<&Family> = most.into_iter().filter(|f| stage.has_siblings(f)).collect();
        let beside = HeldOut::new(stage, &related, false).by_owner(&alone);
        Self { beside, alone }
    }
}

/// Families that were held out, and the errors of each.
struct HeldOut<'a> {
    found: Vec<(&'a Family, [Vec<f64>; SITUATIONS])>,
    voices: Vec<Voice>,
}

impl<'a> HeldOut<'a> {
    /// Each alone, or with all of its model.
    fn new(stage: &'a Stage, families: &[&'a Family], with_model: bool) -> Self {
        let held = |name: &'a str, model: Option<&'a str>| match model.filter(|_| with_model) {
            Some(model) => (owner(name), model),
            None => (name, ""),
        };
        let owners: BTreeSet<&str> = stage.members.iter().map(|m| owner(&m.name)).collect();
        let count = if owners.len() <= FEW_NAMESPACES { PARTS.1 } else { PARTS.0 };
        // Owners are counted by themselves: who comes or goes moves nobody else.
        let mut next: BTreeMap<&str, usize> = BTreeMap::new();
        let mut parts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for family in families {
            let owner = owner(&family.name);
            parts.entry(held(&family.name, family.model.as_deref())).or_insert_with(|| {
                let next = next.entry(owner).or_insert_with(|| owner.bytes().map(usize::from).sum());
                *next += 1;
                (*next - 1) % count
            });
        }
        let siblings = if with_model { 0 } else { SIBLINGS };
        let mut found = Vec::with_capacity(families.len());
        for part in 0..count {
            let is_held = |name, model| parts.get(&held(name, model)) == Some(&part);
            let others: Vec<&Member> =
                stage.members.iter().filter(|m| !is_held(&m.name, m.model.as_deref())).collect();
            let asked: Vec<&Family> =
                families.iter().copied().filter(|f| is_held(&f.name, f.model.as_deref())).collect();
            if asked.is_empty() {
                continue;
            }
            let asks = |who: &str| asked.iter().any(|f| owner(&f.name) == who);
            let populations = Populations::of_some(stage.quantity, &others, asks);
            let errors = asked.iter().map(|f| {
                let expected = stage.expect_beside(&populations, f, siblings);
                (*f, held_out::ask(stage, expected, f))
            });
            found.extend(errors);
        }
        let voices = shares(&found.iter().map(|(f, _)| (f.namespace.as_str(), 1.0)).collect::<Vec<_>>());
        Self { found, voices }
    }

    /// Factors by owner; `otherwise` where nobody was asked.
    fn by_owner(&self, otherwise: &ByOwner) -> ByOwner {
        let owners: BTreeSet<&str> = self.found.iter().map(|(f, _)| owner(&f.name)).collect();
        let home = |home: &str| (home.to_owned(), self.factors(Some(home), otherwise.of(home)));
        ByOwner {
            homes: owners.into_iter().map(home).collect(),
            strangers: self.factors(None, otherwise.strangers),
        }
    }

    /// Factors for an owner's families, or for those of somebody of whom nothing is known.
    fn factors(&self, home: Option<&str>, otherwise: Factors) -> Factors {
        let mine = |family: &Family| home == Some(owner(&family.name));
        Factors(std::array::from_fn(|situation| {
            let all =
                self.found.iter().zip(&self.voices).filter(|((_, errors), _)| !errors[situation].is_empty());
            let (own, others): (Vec<_>, Vec<_>) = all.partition(|((family, _), _)| mine(family));
            // A table needs nobody else's word.
            let others = if home.is_some_and(str::is_empty) { Vec::new() } else { others };
            let said: Vec<(Voice, f64)> = others.iter().map(|(_, voice)| (**voice, voice.weight)).collect();
            let heard = heard(&said, own.len() as f64 + PSEUDO, Hearing::of_strangers());
            let mut errors = Errors::default();
            for ((_, of), _) in own {
                errors.add(&of[situation], 1.0);
            }
            for (((_, of), voice), heard) in others.into_iter().zip(heard) {
                errors.add_stranger(&of[situation], voice.weight * heard);
            }
            errors.factor().unwrap_or(otherwise.0[situation])
        }))
    }
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
