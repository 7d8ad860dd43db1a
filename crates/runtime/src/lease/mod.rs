//! Leader election on a `coordination.k8s.io/v1` Lease.
//!
//! # What it holds
//!
//! [`campaign`] waits until this process is the leader and returns [`Held`]: a [`Leadership`] for everybody who writes, and the
//! task that renews. [`LeaseStore`] is the door to the API server, so that the rules can be tested without one.
//!
//! # The rules
//!
//! * **Every write has a precondition.** The Lease is replaced with the `resourceVersion` that was read: of two challengers one
//!   gets 409 Conflict, and a slow one cannot erase a faster one's claim.
//! * **Expiry is observed, not read.** A challenger counts from the moment when *it* saw the record change, on its own monotonic
//!   clock. `renewTime` is for people; wrong wall clocks change nothing.
//! * **The leader gives up first.** It stops at [`LeaseConfig::renew_deadline`] after the *start* of its last successful renewal;
//!   others take over no sooner than [`LeaseConfig::duration`] after they saw the result of it.
//! * **Writers check.** [`Leadership::is_current`] looks at the clock, so it says no even when the renewing task itself is starved;
//!   a partitioned leader stops believing without having been told.
//! * **Loss is final.** The task ends and the process should too: memory filled as a leader is not to be trusted afterwards.
//!   At a shutdown the Lease is released, and the next leader need not wait.
//!
//! # What must never be here
//!
//! What a leader does.

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
    /// Who we are: unique among all that run at the same time, for example the pod's name.
    pub identity: String,
    /// Others may take over this long after they saw the last renewal. Whole seconds are written to the Lease.
    pub duration: Duration,
    /// The leader stops this long after its last successful renewal began. Shorter than `duration`.
    pub renew_deadline: Duration,
    /// Time between renewals and between a challenger's looks. Shorter than `renew_deadline`.
    pub retry: Duration,
}

impl LeaseConfig {
    /// 15 s, 10 s and 2 s.
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
    /// When the times are not `1 s <= retry < renew_deadline < duration`, or there is no identity.
    pub fn validate(&self) -> Result<(), LeaseError> {
        let ordered = self.retry < self.renew_deadline && self.renew_deadline < self.duration;
        let sized = self.retry >= Duration::from_millis(100) && self.duration >= Duration::from_secs(1);
        if ordered && sized && !self.identity.is_empty() {
            return Ok(());
        }
        Err(LeaseError::Config)
    }
}

/// A Lease as far as an election needs it; `managedFields` are neither read nor written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Name and version, and what a replacement would otherwise wipe.
    pub metadata: LeaseMeta,
    /// Holder and times.
    #[serde(default)]
    pub spec: LeaseSpec,
}

/// Metadata that survives a replacement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseMeta {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID; a precondition too, so that a Lease made anew is not taken for the old one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The precondition of every write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_references: Option<Vec<OwnerReference>>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finalizers: Option<Vec<String>>,
}

/// What can go wrong with a Lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else wrote first (409: changed, or exists already).
    #[error("the lease was changed by another")]
    Conflict,
    /// There is no such Lease.
    #[error("there is no such lease")]
    NotFound,
    /// The configured times contradict each other.
    #[error("lease times must be 0.1 s <= retry < renew deadline < duration, with an identity")]
    Config,
    /// Anything else; tried again.
    #[error("the API server could not be asked")]
    Api(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One Lease in an API server.
pub trait LeaseStore: Send + Sync + 'static {
    /// Reads it, consistently.
    fn get(&self) -> impl Future<Output = Result<LeaseRecord, LeaseError>> + Send;
    /// Makes it; [`LeaseError::Conflict`] when it exists.
    fn create(&self, spec: LeaseSpec) -> impl Future<Output = Result<LeaseRecord, LeaseError>> + Send;
    /// Replaces it if it is still at `record`'s version, else [`LeaseError::Conflict`].
    fn replace(&self, record: &LeaseRecord) -> impl Future<Output = Result<LeaseRecord, LeaseError>> + Send;
}
