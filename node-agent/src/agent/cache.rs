//! State watched at the API server: this node's GpuNode, the EnergyPolicy, the operator's leader Lease.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::EnergyPolicySpec;
use andreas_api::energy_policy::{Limits, Switch};
use andreas_api::names::DEFAULT_POLICY;
use andreas_api::slim::{SlimEnergyPolicy, SlimGpuNode, metadata};
use andreas_runtime::watch::{Index, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::decide::{DesiredSettings, Policy};
use super::health::ANNOTATION_CLEARED;

/// Annotation of a GpuNode: `Off` keeps the node's GPUs awake.
pub const ANNOTATION_REST: &str = "andreas.dev/rest";

/// The fields of a Lease that are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlimLease {
    /// Its name, without `managedFields`.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Holder and times.
    #[serde(default)]
    pub spec: SlimLeaseSpec,
}

/// The fields that a renewal changes. Only compared, never read as times: machines' clocks differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimLeaseSpec {
    holder_identity: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

andreas_api::resource_like!(SlimLease, Lease);

/// The last known state of the watched objects.
#[derive(Debug, Default)]
pub struct ObjectCache {
    node: Option<SlimGpuNode>,
    policy: Option<EnergyPolicySpec>,
    lease: Option<SlimLeaseSpec>,
    /// When the leader Lease was last seen renewed.
    renewed: Option<Instant>,
    spec_changed: Arc<Notify>,
}

impl ObjectCache {
    /// This node's GpuNode.
    #[must_use]
    pub fn node(&self) -> Option<&SlimGpuNode> {
        self.node.as_ref()
    }

    /// A receiver that is notified when the spec of this GpuNode changes.
    #[must_use]
    pub fn spec_changed(&self) -> Arc<Notify> {
        Arc::clone(&self.spec_changed)
    }

    /// Stores the answer to a status write, unless the watch has shown a later state by then, another object of this name, or
    /// that it is gone.
    pub fn store_written(&mut self, node: SlimGpuNode) {
        let Some(known) = &self.node else { return };
        if known.metadata.uid == node.metadata.uid && version(known) <= version(&node) {
            self.node = Some(node);
        }
    }

    /// Time since the leader Lease was last seen renewed; `None` if never. A single observation is no
    /// renewal.
    #[must_use]
    pub fn lease_age(&self) -> Option<Duration> {
        self.renewed.map(|at| at.elapsed())
    }

    /// The operator's desired settings; none for a node that is being deleted.
    #[must_use]
    pub fn desired_settings(&self) -> Option<DesiredSettings> {
        let node = self.node.as_ref().filter(|node| node.metadata.deletion_timestamp.is_none())?;
        let limits = node.spec.limits.iter();
        Some(DesiredSettings {
            generation: node.metadata.generation.unwrap_or(0),
            wake: node.spec.wake_generation,
            limits: limits.map(|limit| (limit.pod.clone(), limit.watts.max(0).unsigned_abs())).collect(),
        })
    }

    /// Until when Xid errors count no more, by the administrator.
    #[must_use]
    pub fn xids_cleared_at(&self) -> Option<Timestamp> {
        self.node.as_ref()?.metadata.annotations.as_ref()?.get(ANNOTATION_CLEARED)?.parse().ok()
    }

    /// The administrator's policy for this node.
    #[must_use]
    pub fn policy(&self, rest_parked: bool) -> Policy {
        let defaults = EnergyPolicySpec::default();
        let spec = self.policy.as_ref().unwrap_or(&defaults);
        let seconds = |duration| Duration::from_secs(spec.seconds(duration).unsigned_abs());
        // GPUs outside planning belong to other workloads.
        let excluded = self.node.as_ref().is_some_and(|node| node.spec.excluded.is_some());
        let off = self.node.as_ref().and_then(|node| node.metadata.annotations.as_ref());
        let off = off.and_then(|all| all.get(ANNOTATION_REST)).is_some_and(|mode| mode == "Off");
        let rest_after = seconds(|spec| &spec.rest.after);
        Policy {
            rest: spec.rest.mode == Switch::On && !off && !excluded,
            rest_after,
            // A placement may take this long to start its pods.
            awake_for: rest_after.max(seconds(|spec| &spec.placement_timeout)),
            limits: spec.limits != Limits::Off,
            rest_parked,
        }
    }
}

/// The resource version as a number, which Kubernetes 1.35 and later guarantee (KEP-5504); `None` if it is not one.
fn version(node: &SlimGpuNode) -> Option<u64> {
    node.metadata.resource_version.as_deref()?.parse().ok()
}

impl Index<SlimGpuNode> for ObjectCache {
    fn apply(&mut self, node: SlimGpuNode) {
        if self.node.as_ref().is_none_or(|old| old.spec != node.spec) {
            self.spec_changed.notify_one();
        }
        self.node = Some(node);
    }
    fn delete(&mut self, _: &ObjectKey, _: Option<SlimGpuNode>) {
        self.node = None;
    }
    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        if present.is_empty() {
            self.node = None;
        }
    }
}

impl Index<SlimEnergyPolicy> for ObjectCache {
    fn apply(&mut self, policy: SlimEnergyPolicy) {
        if policy.metadata.name.as_deref() == Some(DEFAULT_POLICY) {
            self.policy = Some(policy.spec);
        }
    }
    fn delete(&mut self, key: &ObjectKey, _: Option<SlimEnergyPolicy>) {
        if key.name == DEFAULT_POLICY {
            self.policy = None;
        }
    }
    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        if !present.iter().any(|key| key.name == DEFAULT_POLICY) {
            self.policy = None;
        }
    }
}

impl Index<SlimLease> for ObjectCache {
    fn apply(&mut self, lease: SlimLease) {
        let led = lease.spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty());
        if self.lease.as_ref().is_some_and(|last| *last != lease.spec) && led {
            self.renewed = Some(Instant::now());
        }
        self.lease = Some(lease.spec);
    }
    fn delete(&mut self, _: &ObjectKey, _: Option<SlimLease>) {
        (self.lease, self.renewed) = (None, None);
    }
    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        if present.is_empty() {
            (self.lease, self.renewed) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed: &str) -> SlimLease {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "andreas-operator", "namespace": "andreas-system"},
            "spec": {"holderIdentity": holder, "renewTime": renewed, "leaseTransitions": 1},
        }))
        .unwrap()
    }

    #[test]
    fn the_answer_to_a_write_takes_back_nothing_that_the_watch_has_shown_since() {
        let node = |uid: &str, version: &str, wake: i64| -> SlimGpuNode {
            let metadata = serde_json::json!({"name": "n1", "uid": uid, "resourceVersion": version});
            serde_json::from_value(
                serde_json::json!({"metadata": metadata, "spec": {"wakeGeneration": wake}}),
            )
            .unwrap()
        };
        let wake = |cache: &ObjectCache| cache.node().map(|node| node.spec.wake_generation);
        let mut cache = ObjectCache::default();
        cache.apply(node("a", "9", 0));
        cache.store_written(node("a", "10", 0));
        assert_eq!(cache.node().and_then(version), Some(10), "numbers, not texts");
        cache.apply(node("a", "12", 1));
        cache.store_written(node("a", "11", 0));
        assert_eq!(wake(&cache), Some(1));
        // Deleted, and made again.
        cache.apply(node("b", "14", 2));
        cache.store_written(node("a", "15", 0));
        assert_eq!(wake(&cache), Some(2));
        Index::<SlimGpuNode>::reset(&mut cache, &HashSet::new());
        cache.store_written(node("b", "16", 2));
        assert!(cache.node().is_none(), "it is gone");
    }

    #[test]
    fn no_gpu_rests_on_a_node_that_is_excluded() {
        let mut cache = ObjectCache::default();
        let node = |spec: serde_json::Value| -> SlimGpuNode {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "n1"}, "spec": spec})).unwrap()
        };
        cache.apply(node(serde_json::json!({})));
        assert!(cache.policy(false).rest);
        cache.apply(node(serde_json::json!({"excluded": {"reason": "MigInUse", "message": ""}})));
        assert!(!cache.policy(false).rest);
    }

    #[test]
    fn a_lease_is_renewed_when_it_is_seen_to_change() {
        let mut cache = ObjectCache::default();
        cache.apply(lease("one", "2026-01-01T00:00:00.000000Z"));
        assert_eq!(cache.lease_age(), None, "it may be years old");
        cache.apply(lease("one", "2026-01-01T00:00:00.000000Z"));
        assert_eq!(cache.lease_age(), None, "listed again");
        cache.apply(lease("one", "2026-01-01T00:00:02.000000Z"));
        assert!(cache.lease_age().is_some());
        // Released: the leader has ended in order, and nothing leads.
        let mut cache = ObjectCache::default();
        cache.apply(lease("one", "2026-01-01T00:00:00.000000Z"));
        cache.apply(lease("", "2026-01-01T00:00:02.000000Z"));
        assert_eq!(cache.lease_age(), None);
    }
}
