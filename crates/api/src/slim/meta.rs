//! The parts of metadata that are kept. A user that may write an object may fill its metadata up to the API server's limit of 1.5 MB;
//! what is not used is skipped while it is read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::names::{ANNOTATION_SLURM_PREFIX, GROUP};

/// Annotation in which `kubectl apply` keeps the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Owners and finalizers kept, beside those that mean something here.
const MAX_OTHER_ITEMS: usize = 16;

/// Which labels and annotations are kept.
trait KeyFilter {
    fn keeps(key: &str) -> bool;
}

/// All but a copy of the whole object.
struct All;
impl KeyFilter for All {
    fn keeps(key: &str) -> bool {
        key != LAST_APPLIED
    }
}

/// Those of our own group, without the programs that pods carry.
struct GroupKeys;
impl KeyFilter for GroupKeys {
    fn keeps(key: &str) -> bool {
        key.strip_prefix(GROUP).is_some_and(|rest| rest.starts_with('/'))
            && !key.starts_with(ANNOTATION_SLURM_PREFIX)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "K: KeyFilter")]
struct SlimMeta<K: KeyFilter> {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    #[serde(default = "none")]
    labels: FilteredMap<K>,
    #[serde(default = "none")]
    annotations: FilteredMap<K>,
    #[serde(default)]
    owner_references: Bounded<OwnerReference>,
    #[serde(default)]
    finalizers: Bounded<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
}

fn none<K>() -> FilteredMap<K> {
    FilteredMap(None, PhantomData)
}

/// Decodes metadata with all labels and annotations, without `managedFields` and without what `kubectl apply` keeps: for objects
/// that administrators write. For `#[serde(deserialize_with)]`.
///
/// # Errors
/// Where a field that is used has the wrong type.
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    SlimMeta::<All>::deserialize(deserializer).map(Into::into)
}

/// Decodes metadata with the labels and annotations of our own group only: for objects that tenants write. Of owners and
/// finalizers the first 16 are kept, and those that decide something: the controller, and what the garbage collector reads.
///
/// # Errors
/// Where a field that is used has the wrong type.
pub fn own_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    SlimMeta::<GroupKeys>::deserialize(deserializer).map(Into::into)
}

impl<K: KeyFilter> From<SlimMeta<K>> for ObjectMeta {
    fn from(slim: SlimMeta<K>) -> Self {
        Self {
            name: slim.name,
            generate_name: slim.generate_name,
            namespace: slim.namespace,
            uid: slim.uid,
            resource_version: slim.resource_version,
            generation: slim.generation,
            labels: slim.labels.0,
            annotations: slim.annotations.0,
            owner_references: slim.owner_references.0,
            finalizers: slim.finalizers.0,
            creation_timestamp: slim.creation_timestamp,
            deletion_timestamp: slim.deletion_timestamp,
            deletion_grace_period_seconds: slim.deletion_grace_period_seconds,
            ..Self::default()
        }
    }
}

/// A map of strings, without the keys that the filter drops.
struct FilteredMap<K>(Option<BTreeMap<String, String>>, PhantomData<K>);

impl<'de, K: KeyFilter> Deserialize<'de> for FilteredMap<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<K>(PhantomData<K>);
        impl<'de, K: KeyFilter> Visitor<'de> for MapVisitor<K> {
            type Value = FilteredMap<K>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(none())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(Text(key)) = map.next_key::<Text<'_>>()? {
                    if K::keeps(&key) {
                        kept.insert(key.into_owned(), map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(FilteredMap(Some(kept), PhantomData))
            }
        }
        deserializer.deserialize_any(MapVisitor(PhantomData))
    }
}

/// A text that is borrowed where it can be.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Items that are kept wherever they stand in a list.
trait Required {
    fn is_required(&self) -> bool;
}

impl Required for OwnerReference {
    fn is_required(&self) -> bool {
        self.controller == Some(true)
    }
}

impl Required for String {
    fn is_required(&self) -> bool {
        matches!(self.as_str(), "orphan" | "foregroundDeletion")
    }
}

/// The first items of a list, and the required ones among the rest.
struct Bounded<T>(Option<Vec<T>>);

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de> + Required> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Required> Visitor<'de> for Items<T> {
            type Value = Bounded<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Bounded(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut kept: Vec<T> = Vec::new();
                let mut required = 0;
                while let Some(item) = seq.next_element::<T>()? {
                    let is_required = item.is_required() && required < MAX_OTHER_ITEMS;
                    required += usize::from(is_required);
                    if kept.len() - required.min(kept.len()) < MAX_OTHER_ITEMS || is_required {
                        kept.push(item);
                    }
                }
                kept.shrink_to_fit();
                Ok(Bounded(Some(kept)))
            }
        }
        deserializer.deserialize_any(Items(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slim::{SlimNode, SlimPod};
    use serde_json::json;

    #[test]
    fn what_kubectl_apply_keeps_is_not_kept_again() {
        let node: SlimNode = serde_json::from_value(json!({"metadata": {
            "name": "n", "managedFields": [{"manager": "kubectl"}],
            "annotations": {LAST_APPLIED: "{\"kind\": \"Node\"}", "example.org/team": "vision"},
        }}))
        .expect("a node");
        let annotations = node.metadata.annotations.unwrap_or_default();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["example.org/team"]);
        assert_eq!(node.metadata.managed_fields, None);
    }

    #[test]
    fn a_tenants_large_metadata_is_not_kept() {
        let many = |prefix: &str| (0..5_000).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let mut labels: BTreeMap<_, _> =
            many("example.org/l").into_iter().map(|key| (key, "v".to_owned())).collect();
        labels.insert("andreas.dev/job".into(), "bert".into());
        labels.insert("andreas.development/x".into(), "y".into());
        let mut finalizers = many("example.org/f");
        finalizers.push("orphan".into());
        let owner = |n: usize, controller: bool| json!({"apiVersion": "v1", "kind": "K", "name": format!("o{n}"), "uid": format!("u{n}"), "controller": controller});
        let owners: Vec<_> = (0..5_000).map(|n| owner(n, n == 4_000)).collect();
        let pod = json!({"metadata": {
            "name": "p", "labels": labels, "annotations": {"example.org/a": "x".repeat(200_000), "andreas.dev/slurm-srun": "x"},
            "finalizers": finalizers, "ownerReferences": owners,
        }, "spec": {}});
        // As the API server sends it.
        let pod: SlimPod = serde_json::from_str(&pod.to_string()).expect("a pod");
        let meta = pod.metadata;
        assert_eq!(
            meta.labels.map(|kept| kept.into_keys().collect::<Vec<_>>()),
            Some(vec!["andreas.dev/job".into()])
        );
        assert_eq!(meta.annotations.map(|kept| kept.len()), Some(0));
        let finalizers = meta.finalizers.unwrap_or_default();
        assert_eq!(
            (finalizers.len(), finalizers.last().map(String::as_str)),
            (MAX_OTHER_ITEMS + 1, Some("orphan"))
        );
        let owners = meta.owner_references.unwrap_or_default();
        assert_eq!(
            (owners.len(), owners.last().map(|owner| owner.uid.as_str())),
            (MAX_OTHER_ITEMS + 1, Some("u4000"))
        );
    }

    #[test]
    fn metadata_without_lists_and_with_nulls_is_read() {
        for meta in [
            json!({"name": "p"}),
            json!({"name": "p", "labels": null, "finalizers": null, "ownerReferences": null}),
        ] {
            let pod: SlimPod = serde_json::from_value(json!({"metadata": meta, "spec": {}})).expect("a pod");
            assert_eq!((pod.metadata.labels, pod.metadata.finalizers), (None, None));
        }
    }
}
