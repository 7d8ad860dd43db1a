//! Selects rows for a pooled fit, with bounds per profile, per namespace and in total. Impossible
//! rows are refused and counted. No namespace can displace the others.

use std::collections::BTreeMap;

use crate::physics::Quantity;
use crate::runs::RunSpread;
use crate::samples::{AggregatedSample, observed, run_spread};
use crate::screen::{Refusal, Refused, screen};
use crate::spread::spread;
use crate::{Observation, Profile};

/// Most profiles of one fit.
const MAX_PROFILES: usize = 2048;
/// Most aggregated samples of one profile, of one namespace and in total, newest profiles first.
const PROFILE_CELLS: usize = 64;
const NAMESPACE_CELLS: usize = 512;
const ALL_CELLS: usize = 4096;

/// One profile in a pooled fit.
pub(crate) struct Pooled<'a> {
    pub profile: &'a Profile,
    pub namespace: &'a str,
    pub times: Vec<AggregatedSample>,
    pub watts: Vec<AggregatedSample>,
}

/// Namespace of `namespace/name`; a name without one is its own namespace.
pub(crate) fn namespace(name: &str) -> &str {
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

/// Tenant of a profile: its namespace, or empty for names without a namespace (an offline table). Self-reported features (model name, size) are used only within a
/// tenant.
pub(crate) fn owner(name: &str) -> &str {
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}

/// Differences between runs of one profile, by tenant.
pub(crate) fn run_spreads(population: &[Profile]) -> BTreeMap<&str, RunSpread> {
    let mut spreads: BTreeMap<&str, RunSpread> = BTreeMap::new();
    for profile in by_name(population) {
        let own = run_spread(measured(profile), profile.features.batch);
        let known = spreads.entry(owner(&profile.name)).or_default();
        *known = known.and(own);
    }
    spreads
}

fn by_name(population: &[Profile]) -> Vec<&Profile> {
    let mut profiles: Vec<&Profile> = population.iter().collect();
    profiles.sort_by(|a, b| a.name.cmp(&b.name));
    profiles.dedup_by(|a, b| a.name == b.name);
    profiles
}

fn measured(profile: &Profile) -> impl Iterator<Item = &Observation> {
    profile.observations.iter().filter(|row| !row.claimed)
}

/// Profiles and rows for a pooled fit, by name; the rest is counted.
pub(crate) fn pool<'a>(
    population: &'a [Profile],
    spreads: &BTreeMap<&str, RunSpread>,
    refused: &mut BTreeMap<String, Refused>,
) -> Vec<Pooled<'a>> {
    let profiles = by_name(population);
    let mut pooled: Vec<(f64, Pooled<'a>)> = Vec::new();
    for profile in profiles {
        let namespace = namespace(&profile.name);
        for row in &profile.observations {
            if let Err(refusal) = screen(row) {
                *refused.entry(namespace.to_owned()).or_default().entry(refusal).or_default() += 1;
            }
        }
        let batch = profile.features.batch;
        let usual = spreads.get(owner(&profile.name)).copied().unwrap_or_default().usual();
        let runs = run_spread(measured(profile), batch).variance(usual);
        let of = |quantity| {
            let runs = if quantity == Quantity::Time { runs } else { 0.0 };
            spread(&observed(measured(profile), quantity, batch, runs), PROFILE_CELLS)
        };
        let (times, watts) = (of(Quantity::Time), of(Quantity::Power));
        let newest = times.iter().chain(&watts).map(|c| c.at).fold(f64::NEG_INFINITY, f64::max);
        if newest > f64::NEG_INFINITY {
            pooled.push((newest, Pooled { profile, namespace, times, watts }));
        }
    }
    pooled.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.profile.name.cmp(&y.profile.name)));
    let (mut by_namespace, mut all): (BTreeMap<&str, usize>, usize) = (BTreeMap::new(), 0);
    let mut kept: Vec<Pooled<'a>> = Vec::new();
    for (_, entry) in pooled {
        let cells = entry.times.len().max(entry.watts.len());
        let taken = by_namespace.entry(entry.namespace).or_default();
        if *taken + cells > NAMESPACE_CELLS || all + cells > ALL_CELLS || kept.len() >= MAX_PROFILES {
            let count = refused.entry(entry.namespace.to_owned()).or_default();
            *count.entry(Refusal::TooMany).or_default() += cells as u64;
            continue;
        }
        *taken += cells;
        all += cells;
        kept.push(entry);
    }
    kept.sort_by(|a, b| a.profile.name.cmp(&b.profile.name));
    kept
}
