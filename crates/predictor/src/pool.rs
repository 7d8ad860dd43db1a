//! Which rows a fit over all families takes: bounded by family, by namespace and in all, what cannot be true left out and
//! counted, so that no namespace can crowd the others out.

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::samples::{AggregatedSample, observed};
use crate::screen::{Refusal, Refused, screen};
use crate::spread::spread;
use crate::{Observation, Profile};

/// Families read in one fit; more than that teach nothing new.
const MAX_FAMILIES: usize = 2048;
/// Cells of one family, of one namespace and of all that a pooled fit takes, the newest families first.
const FAMILY_CELLS: usize = 64;
const NAMESPACE_CELLS: usize = 512;
const ALL_CELLS: usize = 4096;

/// One profile as a pooled fit takes it.
pub(crate) struct Pooled<'a> {
    pub profile: &'a Profile,
    pub namespace: &'a str,
    pub times: Vec<AggregatedSample>,
    pub watts: Vec<AggregatedSample>,
}

/// Before the names of those that are one party; no namespace is called that.
const TOGETHER: &str = "*/";

/// The name of a family whose namespace is one party with all others that are named so: each is told all that another's families show and
/// say of themselves, and believes it. Bounds on rows stay by namespace.
pub fn together(name: &str) -> String {
    format!("{TOGETHER}{name}")
}

/// The namespace of `namespace/name`; a name without one stands for itself.
pub(crate) fn namespace(name: &str) -> &str {
    let name = name.strip_prefix(TOGETHER).unwrap_or(name);
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

/// Whose family it is: the namespace's, that of all who are one party, or, where names have none, of whoever brought the table. Only
/// families of one owner teach each other by what they say of themselves (a model's name, features): anybody may say anything.
pub(crate) fn owner(name: &str) -> &str {
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// What a pooled fit takes of the profiles, by name; the rest is counted.
pub(crate) fn pool<'a>(
    population: &'a [Profile],
    refused: &mut BTreeMap<String, Refused>,
) -> Vec<Pooled<'a>> {
    let mut families: Vec<&Profile> = population.iter().collect();
    families.sort_by(|a, b| a.name.cmp(&b.name));
    families.dedup_by(|a, b| a.name == b.name);
    let mut pooled: Vec<(f64, Pooled<'a>)> = Vec::new();
    for profile in families {
        let namespace = namespace(&profile.name);
        for row in &profile.observations {
            if let Err(refusal) = screen(row) {
                *refused.entry(namespace.to_owned()).or_default().entry(refusal).or_default() += 1;
            }
        }
        let measured = || profile.observations.iter().filter(|o: &&Observation| !o.claimed);
        let of = |quantity| spread(&observed(measured(), quantity, profile.features.batch), FAMILY_CELLS);
        let (times, watts) = (of(Quantity::Time), of(Quantity::Power));
        let newest = times.iter().chain(&watts).map(|c| c.at).fold(f64::NEG_INFINITY, f64::max);
        if newest > f64::NEG_INFINITY {
            pooled.push((newest, Pooled { profile, namespace, times, watts }));
        }
    }
    pooled.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.profile.name.cmp(&y.profile.name)));
    let (mut by_namespace, mut all): (BTreeMap<&str, usize>, usize) = (BTreeMap::new(), 0);
    let mut kept: Vec<Pooled<'a>> = Vec::new();
    for (_, family) in pooled {
        let cells = family.times.len().max(family.watts.len());
        let taken = by_namespace.entry(family.namespace).or_default();
        if *taken + cells > NAMESPACE_CELLS || all + cells > ALL_CELLS || kept.len() >= MAX_FAMILIES {
            let count = refused.entry(family.namespace.to_owned()).or_default();
            *count.entry(Refusal::TooMany).or_default() += cells as u64;
            continue;
        }
        *taken += cells;
        all += cells;
        kept.push(family);
    }
    kept.sort_by(|a, b| a.profile.name.cmp(&b.profile.name));
    kept
}
