//! A fit of the predictor: from the profiles of a moment to a model.
//!
//! Equal profiles give equal models, in any order and at any time. Rows are bounded, in total and per
//! namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use andreas_api::slim::SlimTrainingProfile;
use andreas_cluster::index::ClusterIndex;
use andreas_predictor::{GpuModel, Predictor, Profile};
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;

/// Maximum rows per namespace that a fit reads, and in total: the most recently observed profiles. The fit
/// itself uses fewer.
const NAMESPACE_ROWS: usize = 1_024;
const ALL_ROWS: usize = 65_536;

/// Input of a model: equal input, equal model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Basis {
    models: Vec<GpuModel>,
    versions: Vec<(ObjectKey, Option<String>)>,
}

/// A request for a model.
#[derive(Clone, Debug, Default)]
pub struct FitRequest {
    pub(super) basis: Basis,
    profiles: Vec<(ObjectKey, Arc<SlimTrainingProfile>)>,
}

/// The profiles that a fit reads, and the number of rows left out.
#[derive(Default)]
struct Population {
    profiles: Vec<Profile>,
    rows: usize,
    /// Self-reported rows and rows above the limit, by namespace.
    refused: BTreeMap<String, u64>,
}

impl FitRequest {
    /// From the current profiles and the cluster's GPU types. Profiles without observations contribute nothing.
    pub fn new(index: &ClusterIndex, models: Vec<GpuModel>) -> Self {
        let seen = |profile: &SlimTrainingProfile| {
            profile.status.as_ref().is_some_and(|status| !status.observations.is_empty())
        };
        let profiles: Vec<_> = index
            .profiles()
            .iter()
            .filter(|(_, profile)| seen(profile))
            .map(|(key, profile)| (key.clone(), Arc::clone(profile)))
            .collect();
        let versions =
            profiles.iter().map(|(key, profile)| (key.clone(), profile.resource_version())).collect();
        Self { basis: Basis { models, versions }, profiles }
    }

    /// The same GPU types without any profile.
    pub(super) fn bare(&self) -> Self {
        let basis = Basis { versions: Vec::new(), ..self.basis.clone() };
        Self { basis, profiles: Vec::new() }
    }

    fn population(&self) -> Population {
        let newest = |profile: &SlimTrainingProfile| {
            let rows = profile.status.iter().flat_map(|status| &status.observations);
            rows.map(|row| row.at.0).max()
        };
        let mut order: Vec<_> =
            self.profiles.iter().map(|(key, profile)| (newest(profile), key, profile)).collect();
        order.sort_by(|(a, x, _), (b, y, _)| b.cmp(a).then(x.cmp(y)));
        let mut all = Population::default();
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, key, profile) in order {
            let rows = profile.status.as_ref().map_or(0, |status| status.observations.len());
            let of_namespace = taken.entry(&key.namespace).or_default();
            if *of_namespace + rows > NAMESPACE_ROWS || all.rows + rows > ALL_ROWS {
                *all.refused.entry(key.namespace.clone()).or_default() += rows as u64;
                continue;
            }
            *of_namespace += rows;
            all.rows += rows;
            let converted = andreas_cluster::profiles::to_predictor_profile(
                key.to_string(),
                &profile.spec,
                profile.status.as_ref(),
            );
            let claimed = converted.observations.iter().filter(|row| row.claimed).count() as u64;
            if claimed > 0 {
                *all.refused.entry(key.namespace.clone()).or_default() += claimed;
            }
            all.profiles.push(converted);
        }
        all
    }

    /// Fits the model. The time grows with the rows, up to a bound.
    pub fn fit(self) -> Model {
        let population = self.population();
        let predictor = Predictor::fit(&self.basis.models, &population.profiles);
        let mut refused = population.refused;
        for (namespace, reasons) in predictor.refused() {
            *refused.entry(namespace.to_owned()).or_default() += reasons.values().sum::<u64>();
        }
        let fit = Fit { profiles: population.profiles.len(), rows: population.rows, refused };
        Model { basis: self.basis, predictor, fit }
    }
}

/// Statistics of a fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fit {
    /// Profiles read.
    pub profiles: usize,
    /// Their rows.
    pub rows: usize,
    /// Rows that were not pooled, by namespace.
    pub refused: BTreeMap<String, u64>,
}

/// A fitted predictor.
#[derive(Debug)]
pub struct Model {
    /// Its input.
    pub basis: Basis,
    /// For predictions.
    pub predictor: Predictor,
    /// Statistics of the fit.
    pub fit: Fit,
}

impl Model {
    /// Whether it was fitted for this request.
    pub fn matches(&self, wanted: &FitRequest) -> bool {
        self.basis == wanted.basis
    }
}
