//! Messages of kube-scheduler.
//!
//! Go structs without JSON tags (`k8s.io/kube-scheduler/extender/v1`). Keys are written capitalised exactly
//! as here and read in any case, like Go's decoder. `null` and absent are equal. Pod and Node objects inside
//! are ordinary camelCase JSON. Of a pod only the metadata is read, of a whole node only the name; nodes are
//! returned unchanged.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use andreas_api::slim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Declares a struct with Go's JSON rules: keys written as given, read in any case, `null` as the default.
macro_rules! go_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $key:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Serialize)]
        pub struct $name {
            $($(#[$field_doc])* #[serde(rename = $key)] pub $field: $type,)*
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct AnyCase;
                impl<'de> Visitor<'de> for AnyCase {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(stringify!($name))
                    }
                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut value = $name::default();
                        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                            $(if key.eq_ignore_ascii_case($key) {
                                value.$field = map.next_value::<Option<$type>>()?.unwrap_or_default();
                                continue;
                            })*
                            map.next_value::<IgnoredAny>()?;
                        }
                        Ok(value)
                    }
                }
                deserializer.deserialize_map(AnyCase)
            }
        }
    };
}

go_struct!(
    /// Arguments of filter and prioritize.
    ExtenderArgs {
        /// The pod to place.
        pod: PodView = "Pod",
        /// Whole nodes, from a scheduler configured without `nodeCacheCapable`.
        nodes: Option<NodeList> = "Nodes",
        /// Node names, with `nodeCacheCapable`.
        node_names: Option<Vec<String>> = "NodeNames",
    }
);

go_struct!(
    /// Result of filter.
    ExtenderFilterResult {
        /// Remaining nodes, if nodes were sent.
        nodes: Option<NodeList> = "Nodes",
        /// Remaining names, if names were sent. A name that was not sent is an error and makes kube-scheduler
        /// retry in a loop.
        node_names: Option<Vec<String>> = "NodeNames",
        /// Rejected nodes where preemption might help.
        failed_nodes: BTreeMap<String, String> = "FailedNodes",
        /// Rejected nodes where preemption cannot help.
        failed_and_unresolvable_nodes: BTreeMap<String, String> = "FailedAndUnresolvableNodes",
        /// If not empty: no result; kube-scheduler retries the pod after a back-off.
        error: String = "Error",
    }
);

go_struct!(
    /// Score of one node.
    HostPriority {
        /// Node name.
        host: String = "Host",
        /// Score, 0 to 10.
        score: i64 = "Score",
    }
);

go_struct!(
    /// Arguments of bind.
    ExtenderBindingArgs {
        /// Pod name.
        pod_name: String = "PodName",
        /// Pod namespace.
        pod_namespace: String = "PodNamespace",
        /// Pod UID.
        pod_uid: String = "PodUID",
        /// The node chosen by kube-scheduler.
        node: String = "Node",
    }
);

go_struct!(
    /// Result of bind.
    ExtenderBindingResult {
        /// Empty: the pod is bound to that node.
        error: String = "Error",
    }
);

/// The fields of a pod that are read. `spec.nodeName` is only present in responses of the API server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PodView {
    /// Without `managedFields`.
    #[serde(default, deserialize_with = "slim::metadata")]
    pub metadata: ObjectMeta,
    /// Holds the node name.
    #[serde(default)]
    pub spec: PodSpecView,
}

/// The fields of a pod's spec that are read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// The node that the pod is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// Whole nodes, returned unread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeList {
    /// Raw Node objects.
    #[serde(default)]
    pub items: Vec<Box<RawValue>>,
}

impl NodeList {
    /// Name of each node; empty if it has none.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Named {
            metadata: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            #[serde(default)]
            name: String,
        }
        let name = |raw: &RawValue| serde_json::from_str::<Named>(raw.get()).map(|node| node.metadata.name);
        self.items.iter().map(|raw| name(raw).unwrap_or_default()).collect()
    }
}

impl ExtenderArgs {
    /// Names of the nodes sent, in either form.
    #[must_use]
    pub fn names(&self) -> Cow<'_, [String]> {
        match (&self.node_names, &self.nodes) {
            (Some(names), _) => Cow::Borrowed(names),
            (None, Some(nodes)) => Cow::Owned(nodes.names()),
            (None, None) => Cow::Borrowed(&[]),
        }
    }
}
