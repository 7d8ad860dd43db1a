//! Who is told what: what all namespaces say together (the *world*), and what each owner's own families say beyond it (its *home*).
//!
//! To each other namespaces are strangers: of each single thing one decides a small part at most ([`WeightPolicy::between_tenants`]), so
//! that none can move the others by lies. At home each family counts. A table that somebody brought is one home and needs no world, and so are
//! namespaces that are one party.

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::pool::owner;
use crate::population::{FittedProfile, Population};
use crate::weight_policy::WeightPolicy;

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
    pub fn fit(quantity: Quantity, members: &[&FittedProfile]) -> Self {
        let start = Population::new(quantity);
        let isolated: Vec<&FittedProfile> =
            members.iter().copied().filter(|m| !owner(&m.name).is_empty()).collect();
        // Who is alone has heard from nobody yet, and need not hear himself twice.
        let several = isolated.windows(2).any(|pair| owner(&pair[0].name) != owner(&pair[1].name));
        let capped = if several { isolated.as_slice() } else { &[] };
        let world =
            Population::fit(quantity, &start, capped, |m| &m.namespace, WeightPolicy::between_tenants());
        let mut it = Self { world, homes: BTreeMap::new() };
        let homes = by_owner(members).into_iter();
        it.homes = homes.map(|(owner, own)| (owner.to_owned(), it.home(quantity, owner, &own))).collect();
        it
    }

    /// What an owner's families say, these alone, beyond what all say.
    pub fn home(&self, quantity: Quantity, owner: &str, own: &[&FittedProfile]) -> Population {
        // A table that somebody brought needs nobody else's word.
        if owner.is_empty() {
            return Population::within_tenant(quantity, &Population::new(quantity), own, false);
        }
        Population::within_tenant(quantity, &self.world, own, true)
    }

    /// What each owner's families say by themselves.
    pub fn alone(quantity: Quantity, members: &[&FittedProfile]) -> Self {
        let start = Population::new(quantity);
        let homes = by_owner(members).into_iter();
        let homes = homes
            .map(|(owner, own)| (owner.to_owned(), Population::within_tenant(quantity, &start, &own, false)));
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

fn by_owner<'a>(members: &[&'a FittedProfile]) -> BTreeMap<&'a str, Vec<&'a FittedProfile>> {
    let mut owners: BTreeMap<&str, Vec<&FittedProfile>> = BTreeMap::new();
    for m in members {
        owners.entry(owner(&m.name)).or_default().push(m);
    }
    owners
}
