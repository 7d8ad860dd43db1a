//! Where the bound volumes of a worker are reachable.
//!
//! A bound claim restricts the worker to the nodes that its volume's node affinity admits (and, for drivers
//! before CSI, its zone labels). The rules are the scheduler's VolumeBinding and VolumeZone. An unbound claim
//! restricts nothing. With `WaitForFirstConsumer` the volume is created where the worker goes; otherwise the
//! pod waits for it anywhere.

use std::sync::Arc;

use andreas_api::slim::{SlimNode, SlimPersistentVolume};
use andreas_api::training_job::TrainingJobSpec;
use andreas_cluster::index::ClusterIndex;
use andreas_lifecycle::Admitted;
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;

use super::admits;

/// Zone labels set by drivers before CSI; several values are joined by two underscores.
const ZONES: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Volumes bound to a worker's claims that are not reachable everywhere.
#[derive(Default)]
pub struct Volumes<'a>(Vec<&'a Arc<SlimPersistentVolume>>);

impl<'a> Volumes<'a> {
    /// From the claims of a job's workers: the template's and the checkpoint's, and those that admission adds.
    pub fn from_spec(
        index: &'a ClusterIndex,
        namespace: &str,
        spec: &TrainingJobSpec,
        admitted: Option<&Admitted>,
    ) -> Self {
        let added = admitted.iter().flat_map(|admitted| &admitted.kept.claims);
        let added = added.filter_map(|volume| Some(&volume.persistent_volume_claim.as_ref()?.claim_name));
        let mut bound: Vec<_> = claims(spec)
            .map(|(_, name)| name)
            .chain(added)
            .filter_map(|name| {
                let key = ObjectKey { namespace: namespace.to_owned(), name: name.clone() };
                let name = index.storage().claims.get(&key)?.spec.volume_name.clone();
                index.storage().volumes.get(&ObjectKey { namespace: String::new(), name })
            })
            .filter(|volume| {
                let zoned = ZONES.iter().any(|zone| volume.labels().contains_key(*zone));
                volume.spec.node_affinity.is_some() || zoned
            })
            .collect();
        bound.sort_unstable_by_key(|volume| volume.name_any());
        bound.dedup_by_key(|volume| volume.name_any());
        Self(bound)
    }

    /// The node reaches all of them.
    pub fn admit(&self, node: &SlimNode) -> bool {
        self.0.iter().all(|volume| {
            let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
            required.is_none_or(|selector| admits::selects(selector, node)) && same_zone(volume, node)
        })
    }

    /// Names with versions: equal for workers with the same volumes, as long as these do not change.
    pub fn versions(&self) -> Vec<(Option<&str>, Option<&str>)> {
        let metadata = self.0.iter().map(|volume| &volume.metadata);
        metadata.map(|metadata| (metadata.name.as_deref(), metadata.resource_version.as_deref())).collect()
    }
}

/// The claims of a job's workers, each with its field.
fn claims(spec: &TrainingJobSpec) -> impl Iterator<Item = (&'static str, &String)> {
    let checkpoint =
        spec.checkpoint.iter().filter_map(|c| Some(("checkpoint.claimName", c.claim_name.as_ref()?)));
    let volumes = spec.template.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let others = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    checkpoint.chain(others.map(|claim| ("template.spec.volumes", &claim.claim_name)))
}

/// A claim of the job's workers that only one node at a time can mount, as text with its field. A gang over
/// several nodes could never start with it.
pub fn single_node_claim(index: &ClusterIndex, namespace: &str, spec: &TrainingJobSpec) -> Option<String> {
    let narrow = |name: &String| {
        let key = ObjectKey { namespace: namespace.to_owned(), name: name.clone() };
        let modes = index
            .storage()
            .claims
            .get(&key)
            .map(|claim| claim.spec.access_modes.as_slice())
            .unwrap_or_default();
        !modes.is_empty() && modes.iter().all(|mode| mode.starts_with("ReadWriteOnce"))
    };
    let (field, name) = claims(spec).find(|(_, name)| narrow(name))?;
    Some(format!("{field}: claim {name} is ReadWriteOnce, so only one node at a time can mount it"))
}

/// A node without any such label is in all zones.
fn same_zone(volume: &SlimPersistentVolume, node: &SlimNode) -> bool {
    if !ZONES.iter().any(|zone| node.labels().contains_key(*zone)) {
        return true;
    }
    let labels = ZONES.iter().filter_map(|zone| Some((zone, volume.labels().get(*zone)?)));
    labels.into_iter().all(|(zone, values)| {
        node.labels().get(*zone).is_some_and(|held| values.split("__").any(|value| value == held))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::slim::SlimPersistentVolumeClaim;
    use andreas_runtime::watch::Index;
    use serde_json::{Value, json};

    fn index(volume: Value) -> ClusterIndex {
        let mut index = ClusterIndex::new();
        let claim = |name: &str, volume: Value| -> SlimPersistentVolumeClaim {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "team", "resourceVersion": "1"},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": volume}, "status": {"phase": "Bound"}}))
            .expect("a claim")
        };
        index.apply(claim("data", json!("pv")));
        index.apply(
            serde_json::from_value::<SlimPersistentVolumeClaim>(json!({
            "metadata": {"name": "unbound", "namespace": "team", "resourceVersion": "1"},
            "spec": {"storageClassName": "local"}, "status": {"phase": "Pending"}}))
            .expect("a claim"),
        );
        index.apply(serde_json::from_value::<SlimPersistentVolume>(volume).expect("a volume"));
        index
    }

    fn admitted(index: &ClusterIndex, claim: &str, labels: Value) -> bool {
        let spec: TrainingJobSpec = serde_json::from_value(json!({"template": {"spec": {
            "containers": [], "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}}}))
        .expect("a spec");
        let node: SlimNode =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}})).expect("a node");
        Volumes::from_spec(index, "team", &spec, None).admit(&node)
    }

    #[test]
    fn a_bound_volume_is_reached_from_the_nodes_of_its_affinity_only() {
        let index = index(json!({
            "metadata": {"name": "pv", "resourceVersion": "1"},
            "spec": {"capacity": {"storage": "1Gi"}, "csi": {"driver": "x", "volumeHandle": "y"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]},
                    {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]}}}}));
        assert!(admitted(&index, "data", json!({"kubernetes.io/hostname": "n1"})));
        assert!(admitted(&index, "data", json!({"kubernetes.io/hostname": "n2", "rack": "7"})));
        assert!(!admitted(&index, "data", json!({"kubernetes.io/hostname": "n2"})));
        assert!(
            admitted(&index, "unbound", json!({"kubernetes.io/hostname": "n2"})),
            "made where the worker goes"
        );
        assert!(admitted(&index, "not-there", json!({})), "the scheduler says what is missing");
    }

    #[test]
    fn a_claim_that_one_node_can_mount_is_named_with_its_field() {
        let mut index = index(json!({"metadata": {"name": "pv", "resourceVersion": "1"}, "spec": {}}));
        for (name, modes) in
            [("shared", json!(["ReadWriteOnce", "ReadWriteMany"])), ("pod", json!(["ReadWriteOncePod"]))]
        {
            let claim = json!({"metadata": {"name": name, "namespace": "team", "resourceVersion": "2"}, "spec": {"accessModes": modes}});
            index.apply(serde_json::from_value::<SlimPersistentVolumeClaim>(claim).expect("a claim"));
        }
        let message = |checkpoint: &str, volume: &str| {
            let spec = json!({"checkpoint": {"claimName": checkpoint}, "template": {"spec": {"containers": [],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}]}}});
            single_node_claim(&index, "team", &serde_json::from_value(spec).expect("a spec"))
        };
        let words = message("data", "shared");
        assert_eq!(
            words.as_deref(),
            Some(
                "checkpoint.claimName: claim data is ReadWriteOnce, so only one node at a time can mount it"
            )
        );
        assert!(
            message("shared", "pod")
                .is_some_and(|words| words.starts_with("template.spec.volumes: claim pod"))
        );
        // A missing or unbound claim is unknown.
        assert_eq!((message("shared", "missing"), message("unbound", "shared")), (None, None));
    }

    #[test]
    fn a_volume_with_zone_labels_is_reached_from_those_zones() {
        let index = index(json!({
            "metadata": {"name": "pv", "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "a__b", "team": "x"}}, "spec": {}}));
        assert!(admitted(&index, "data", json!({"topology.kubernetes.io/zone": "b"})));
        assert!(!admitted(&index, "data", json!({"topology.kubernetes.io/zone": "c"})));
        assert!(admitted(&index, "data", json!({})), "of a node that is in no zone nothing is known");
    }
}
