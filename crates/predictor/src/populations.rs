//! Priors by tenant: the *global* prior from all namespaces, and each *tenant's* own prior on top
//! of it.
//!
//! In the global prior each namespace decides at most a small part of any parameter
//! ([`WeightPolicy::between_tenants`]), so false measurements of one hardly move the others. Within
//! a tenant every profile counts. An offline table, or a shared trust domain, is one tenant; a
//! table does not use the global prior.

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::pool::owner;
use crate::population::{FittedProfile, Population};
use crate::weight_policy::WeightPolicy;

/// The global prior, and each tenant's own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Populations {
    world: Population,
    homes: BTreeMap<String, Population>,
}

impl Populations {
    /// The start values.
    pub fn new(quantity: Quantity) -> Self {
        Self { world: Population::new(quantity), homes: BTreeMap::new() }
    }

    /// From all profiles.
    pub fn fit(quantity: Quantity, members: &[&FittedProfile]) -> Self {
        let start = Population::new(quantity);
        let isolated: Vec<&FittedProfile> =
            members.iter().copied().filter(|m| !owner(&m.name).is_empty()).collect();
        // With a single tenant the global prior adds nothing.
        let several = isolated.windows(2).any(|pair| owner(&pair[0].name) != owner(&pair[1].name));
        let capped = if several { isolated.as_slice() } else { &[] };
        let world =
            Population::fit(quantity, &start, capped, |m| &m.namespace, WeightPolicy::between_tenants());
        let mut it = Self { world, homes: BTreeMap::new() };
        let homes = by_owner(members).into_iter();
        it.homes = homes.map(|(owner, own)| (owner.to_owned(), it.home(quantity, owner, &own))).collect();
        it
    }

    /// A tenant's prior from its own profiles, on top of the global prior.
    pub fn home(&self, quantity: Quantity, owner: &str, own: &[&FittedProfile]) -> Population {
        // An offline table does not use other tenants' data.
        if owner.is_empty() {
            return Population::within_tenant(quantity, &Population::new(quantity), own, false);
        }
        Population::within_tenant(quantity, &self.world, own, true)
    }

    /// Each tenant's prior without the global one.
    pub fn alone(quantity: Quantity, members: &[&FittedProfile]) -> Self {
        let start = Population::new(quantity);
        let homes = by_owner(members).into_iter();
        let homes = homes
            .map(|(owner, own)| (owner.to_owned(), Population::within_tenant(quantity, &start, &own, false)));
        Self { homes: homes.collect(), world: start }
    }

    /// Prior of a tenant's next profile.
    pub fn of(&self, owner: &str) -> &Population {
        self.homes.get(owner).unwrap_or(&self.world)
    }

    /// Prior of a tenant without data.
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
