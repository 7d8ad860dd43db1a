//! API of the predictor: fit on the population, then query configurations.

use std::collections::BTreeMap;

use andreas_model::{Configuration, GpuType};

use crate::analytic_prior::AnalyticPrior;
use crate::pool::{Pooled, owner, pool, run_spreads};
use crate::runs::RunSpread;
use crate::screen::Refused;
use crate::tenant::Tenant;
use crate::{GpuModel, LeaveOneOutErrors, Prediction, Prior, Profile, Query};

/// Fitted model of all tenants. Cheap to keep; fitted again when an attempt has ended.
#[derive(Clone, Debug)]
pub struct Predictor {
    tenants: BTreeMap<String, Tenant>,
    /// For tenants without profiles.
    start: Tenant,
    refused: BTreeMap<String, Refused>,
}

impl Predictor {
    /// Fits each tenant on its own profiles; their order has no effect. Only measurements by the
    /// system are pooled, not self-reported rows ([`Observation::claimed`](crate::Observation)).
    pub fn fit(gpus: &[GpuModel], population: &[Profile]) -> Self {
        let law = AnalyticPrior::new(gpus);
        let mut refused = BTreeMap::new();
        let mut owners: BTreeMap<&str, Vec<Pooled<'_>>> = BTreeMap::new();
        let spreads = run_spreads(population);
        for pooled in pool(population, &spreads, &mut refused) {
            owners.entry(owner(&pooled.profile.name)).or_default().push(pooled);
        }
        let spread = |owner: &str| spreads.get(owner).copied().unwrap_or_default();
        let fit = |(owner, own): (&&str, &Vec<Pooled<'_>>)| {
            ((*owner).to_owned(), Tenant::fit(&law, own, spread(owner)))
        };
        let start = Tenant::fit(&law, &[], RunSpread::default());
        Self { tenants: owners.iter().map(fit).collect(), start, refused }
    }

    /// Refused observations, by namespace and reason.
    pub fn refused(&self) -> &BTreeMap<String, Refused> {
        &self.refused
    }

    /// Times and watts of a profile on the given configurations, in their order. Finite on every
    /// input.
    pub fn predict(&self, profile: &Profile, prior: &Prior, asked: &[Configuration]) -> Vec<Prediction> {
        let queries: Vec<Query> =
            asked.iter().map(|c| Query { configuration: c.clone(), gpus: None, batch: None }).collect();
        self.answer(profile, Some(prior), &queries)
    }

    /// The same for configurations with their own batches. Without a prior, an unknown profile is
    /// assumed to be like the tenant's others.
    pub fn answer(&self, profile: &Profile, prior: Option<&Prior>, asked: &[Query]) -> Vec<Prediction> {
        self.tenant(profile).answer(profile, prior, asked)
    }

    /// Relative leave-one-out errors (0.1 = 10 %) of epoch time and power for each row of the
    /// profile, by GPU type.
    pub fn leave_one_out_errors(&self, profile: &Profile) -> BTreeMap<GpuType, LeaveOneOutErrors> {
        self.tenant(profile).leave_one_out_errors(profile)
    }

    fn tenant(&self, profile: &Profile) -> &Tenant {
        self.tenants.get(owner(&profile.name)).unwrap_or(&self.start)
    }
}
