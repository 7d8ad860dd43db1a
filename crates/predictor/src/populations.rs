//! Who is told what: what all namespaces say together (the *world*), and what each owner's own families say beyond it (its *home*).
//!
//! To each other namespaces are strangers: of each single thing one decides a small part at most ([`Hearing::of_strangers`]), so
//! that none can move the others by lies. At home each family counts. A table that somebody brought is one home and needs no world, and so are
//! namespaces that are one party.

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::pool::owner;
use crate::population::{Member, Population};
use crate::voices::Hearing;

/// What all namespaces say together, and what each owner's own families say beyond that.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Populations {
    world: Population,
    homes: BTreeMap<String, Population>,
}

impl Populations {
    /// Nothing but what we start from.
    pub fn new(quantity: Quantity) -> Self {
        Self { world: Population::new(quantity), homes: BTreeMap::new() }
    }

    /// From all families, for the next of whomever.
    pub fn fit(quantity: Quantity, members: &[&Member]) -> Self {
        let start = Population::new(quantity);
        let strangers: Vec<&Member> =
            members.iter().copied().filter(|m| !owner(&m.name).is_empty()).collect();
        // Who is alone has heard from nobody yet, and need not hear himself twice.
        let several = strangers.windows(2).any(|pair| owner(&pair[0].name) != owner(&pair[1].name));
        let heard = if several { strangers.as_slice() } else { &[] };
        let world = Population::fit(quantity, &start, heard, |m| &m.namespace, Hearing::of_strangers());
        let mut it = Self { world, homes: BTreeMap::new() };
        let homes = by_owner(members).into_iter();
        it.homes = homes.map(|(owner, own)| (owner.to_owned(), it.home(quantity, owner, &own))).collect();
        it
    }

    /// What an owner's families say, these alone, beyond what all say.
    pub fn home(&self, quantity: Quantity, owner: &str, own: &[&Member]) -> Population {
        // A table that somebody brought needs nobody else's word.
        if owner.is_empty() {
            return Population::at_home(quantity, &Population::new(quantity), own, false);
        }
        Population::at_home(quantity, &self.world, own, true)
    }

    /// What each owner's families say by themselves.
    pub fn alone(quantity: Quantity, members: &[&Member]) -> Self {
        let start = Population::new(quantity);
        let homes = by_owner(members).into_iter();
        let homes =
            homes.map(|(owner, own)| (owner.to_owned(), Population::at_home(quantity, &start, &own, false)));
        Self { homes: homes.collect(), world: start }
    }

    /// What is thought of an owner's next family.
    pub fn of(&self, owner: &str) -> &Population {
        self.homes.get(owner).unwrap_or(&self.world)
    }

    /// What is thought of somebody of whom nothing is known.
    pub fn world(&self) -> &Population {
        &self.world
    }
}

fn by_owner<'a>(members: &[&'a Member]) -> BTreeMap<&'a str, Vec<&'a Member>> {
    let mut owners: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for m in members {
        owners.entry(owner(&m.name)).or_default().push(m);
    }
    owners
}
