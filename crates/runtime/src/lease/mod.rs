//! Leader election on a `coordination.k8s.io/v1` Lease.
//!
//! # Contents
//!
//! [`campaign`] waits until this process is the leader and returns [`Held`]: a [`Leadership`] for all
//! writers, and the renewing task. [`LeaseStore`] is the API to the server, so the rules can be tested
//! without one.
//!
//! # Rules
//!
//! * **Every write has a precondition.** The Lease is replaced with the `resourceVersion` that was read. Of
//!   two challengers one gets 409 Conflict, and a slow one cannot overwrite a faster claim.
//! * **Expiry is observed, not read.** A challenger measures from the time *it* saw the record change, on its
//!   monotonic clock. `renewTime` is informational; wrong wall clocks have no effect.
//! * **The leader stops first.** It stops [`LeaseConfig::renew_deadline`] after the *start* of its last
//!   successful renewal. Others take over at least [`LeaseConfig::duration`] after they saw that renewal.
//! * **Writers check.** [`Leadership::is_current`] uses the clock, so it is false even if the renewing task
//!   is starved or the leader is partitioned.
//! * **Loss is final.** The task ends and the process should exit: data cached as a leader is no longer
//!   reliable. At shutdown the Lease is released, so the next leader need not wait.
//!
//! # Not allowed
//!
//! The work of a leader.

use std::time::Duration;

mod election;
mod kube_store;

#[cfg(test)]
mod tests;

pub use election::{Ended, Held, Leadership, campaign};
pub use kube_store::KubeLeases;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times of an election. The defaults are those of Kubernetes' own components.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Identity, unique among running candidates, for example the pod's name.
    pub identity: String,
    /// Others may take over this long after they saw the last renewal. Written to the Lease in whole seconds.
    pub duration: Duration,
    /// The leader stops this long after the start of its last successful renewal. Shorter than `duration`.
    pub renew_deadline: Duration,
    /// Time between renewals and between a challenger's reads. Shorter than `renew_deadline`.
    pub retry: Duration,
}

impl LeaseConfig {
    /// Defaults: 15 s, 10 s and 2 s.
    #[must_use]
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }

    /// # Errors
    /// Unless `0.1 s <= retry < renew_deadline < duration` and the identity is set.
    pub fn validate(&self) -> Result<(), LeaseError> {
        let ordered = self.retry < self.renew_deadline && self.renew_deadline < self.duration;
        let sized = self.retry >= Duration::from_millis(100) && self.duration >= Duration::from_secs(1);
        if ordered && sized && !self.identity.is_empty() {
            return Ok(());
        }
        Err(LeaseError::Config)
    }
}

/// The fields of a Lease that an election needs; `managedFields` are neither read nor written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Name, version, and the fields that a replacement must keep.
    pub metadata: LeaseMeta,
    /// Holder and times.
    #[serde(default)]
    pub spec: LeaseSpec,
}

/// Metadata that a replacement keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseMeta {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID; also a precondition, so a recreated Lease is not confused with the old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The precondition of every write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_references: Option<Vec<OwnerReference>>,
    /// Unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finalizers: Option<Vec<String>>,
}

/// Errors of a Lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another process wrote first (409: changed, or exists already).
    #[error("the lease was changed by another")]
    Conflict,
    /// The Lease does not exist.
    #[error("there is no such lease")]
    NotFound,
    /// The configured times are inconsistent.
    #[error("lease times must be 0.1 s <= retry < renew deadline < duration, with an identity")]
    Config,
    /// Any other error; retried.
    #[error("the API server could not be asked")]
    Api(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One Lease in an API server.
pub trait LeaseStore: Send + Sync + 'static {
    /// Reads it consistently.
    fn get(&self) -> impl Future<Output = Result<LeaseRecord, LeaseError>> + Send;
    /// Creates it; [`LeaseError::Conflict`] if it exists.
    fn create(&self, spec: LeaseSpec) -> impl Future<Output = Result<LeaseRecord, LeaseError>> + Send;
    /// Replaces it if it is still at `record`'s version, else [`LeaseError::Conflict`].
    fn replace(&self, record: &LeaseRecord) -> impl Future<Output = Result<LeaseRecord, LeaseError>> + Send;
}
