//! How far off predictions turn out to be, by job: whole families held out, each asked what it would have been asked.
//!
//! Held out of their owner's home, that is: of what all namespaces say one decides a sixtieth at most, so that may stay, and how far off
//! an owner's predictions are is found without the others. Twice: alone, others of its model and owner known, and with all of its
//! model. Whose model is new is told by the second: what others of a model show is much of what is known of the next. An owner's own
//! families count whole, those of strangers as much as strangers are heard in anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::conformal::{Errors, Factors, PSEUDO, SITUATIONS};
use crate::held_out;
use crate::pool::owner;
use crate::population::Member;
use crate::stage::{Family, Stage};
use crate::voices::{Hearing, Voice, heard, shares};

/// Families that are held out, of all owners together: so many count whole, those after them less and less.
const WHOLE: usize = 20;
const HELD_OUT: usize = 32;
/// Families of one model that are asked for one that is held out.
const SIBLINGS: usize = 16;
/// Parts that an owner's families are held out in.
const PARTS: usize = 6;

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
        let alone = HeldOut::new(stage, &most, true).by_owner(&ByOwner::default());
        let related: Vec<Asked<'_>> = most.into_iter().filter(|(f, _)| stage.has_siblings(f)).collect();
        let beside = HeldOut::new(stage, &related, false).by_owner(&alone);
        Self { beside, alone }
    }
}

/// A family that is held out, and how much it counts.
type Asked<'a> = (&'a Family, f64);

/// Families that were held out, how much each counts, and the errors of each.
struct HeldOut<'a> {
    found: Vec<(Asked<'a>, [Vec<f64>; SITUATIONS])>,
    voices: Vec<Voice>,
}

impl<'a> HeldOut<'a> {
    /// Each alone, or with all of its model.
    fn new(stage: &'a Stage, asked: &[Asked<'a>], with_model: bool) -> Self {
        let mut homes: BTreeMap<&str, (Vec<&Member>, Vec<Asked<'a>>)> = BTreeMap::new();
        for family in asked {
            homes.entry(owner(&family.0.name)).or_default().1.push(*family);
        }
        for member in &stage.members {
            if let Some((own, _)) = homes.get_mut(owner(&member.name)) {
                own.push(member);
            }
        }
        let found: Vec<_> =
            homes.into_iter().flat_map(|(owner, home)| of_home(stage, owner, home, with_model)).collect();
        let said: Vec<(&str, f64)> =
            found.iter().map(|((f, counts), _)| (f.namespace.as_str(), *counts)).collect();
        let voices = shares(&said);
        Self { found, voices }
    }

    /// Factors by owner; `otherwise` where nobody was asked.
    fn by_owner(&self, otherwise: &ByOwner) -> ByOwner {
        let owners: BTreeSet<&str> = self.found.iter().map(|((f, _), _)| owner(&f.name)).collect();
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
            let all = self.found.iter().zip(&self.voices);
            let all = all.filter(|((_, errors), _)| !errors[situation].is_empty());
            let (own, others): (Vec<_>, Vec<_>) = all.partition(|(((family, _), _), _)| mine(family));
            // A table needs nobody else's word.
            let others = if home.is_some_and(str::is_empty) { Vec::new() } else { others };
            let said: Vec<(Voice, f64)> =
                others.iter().map(|(((_, counts), _), voice)| (**voice, voice.weight * counts)).collect();
            let known = own.iter().map(|(((_, counts), _), _)| counts).sum::<f64>();
            let heard = heard(&said, known + PSEUDO, Hearing::of_strangers());
            let mut errors = Errors::default();
            for (((_, counts), of), _) in own {
                errors.add(&of[situation], *counts);
            }
            for (((_, of), _), ((_, words), heard)) in others.into_iter().zip(said.iter().zip(heard)) {
                errors.add_stranger(&of[situation], words * heard);
            }
            errors.factor().unwrap_or(otherwise.0[situation])
        }))
    }
}

/// The errors of an owner's families: `own` are all that were observed.
fn of_home<'a>(
    stage: &Stage,
    owner: &str,
    (own, asked): (Vec<&Member>, Vec<Asked<'a>>),
    with_model: bool,
) -> Vec<(Asked<'a>, [Vec<f64>; SITUATIONS])> {
    // With its model, or by itself: also where it says none.
    fn held<'b>(name: &'b str, model: Option<&'b str>, with_model: bool) -> (bool, &'b str) {
        model.filter(|_| with_model).map_or((false, name), |model| (true, model))
    }
    let mut parts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    for (family, _) in &asked {
        let next = parts.len() % PARTS;
        parts.entry(held(&family.name, family.model.as_deref(), with_model)).or_insert(next);
    }
    let part_of = |name: &str, model: Option<&str>| parts.get(&held(name, model, with_model)).copied();
    let siblings = if with_model { 0 } else { SIBLINGS };
    let mut found = Vec::with_capacity(asked.len());
    for part in 0..parts.len().min(PARTS) {
        let others: Vec<&Member> =
            own.iter().copied().filter(|m| part_of(&m.name, m.model.as_deref()) != Some(part)).collect();
        let home = stage.populations.home(stage.quantity, owner, &others);
        let held = asked.iter().filter(|(f, _)| part_of(&f.name, f.model.as_deref()) == Some(part));
        found.extend(held.map(|(f, counts)| {
            let expected = stage.expect_beside(&home, f, siblings);
            ((*f, *counts), held_out::ask(stage, expected, f))
        }));
    }
    found
}

/// Who is held out: the first of every namespace, then the second of each, and so on. Who counts less than whole does so little by
/// little: where one more namespace comes, the others' factors move by little.
fn fair(families: Vec<&Family>) -> Vec<Asked<'_>> {
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, &Family)> = Vec::with_capacity(families.len());
    for family in families {
        let turn = taken.entry(&family.namespace).or_default();
        turns.push((*turn, family));
        *turn += 1;
    }
    turns.sort_by_key(|(turn, _)| *turn);
    let counts = |rank: usize| (HELD_OUT.saturating_sub(rank) as f64 / (HELD_OUT - WHOLE) as f64).min(1.0);
    turns.into_iter().take(HELD_OUT).enumerate().map(|(rank, (_, family))| (family, counts(rank))).collect()
}
