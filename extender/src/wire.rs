//! The scheduler's messages.
//!
//! Go structs without JSON tags (`k8s.io/kube-scheduler/extender/v1`): keys are written capitalised exactly as here, and read in any
//! case, because Go's decoder does. `null` and absent are the same. The Pod and Node objects inside are ordinary camelCase JSON; of
//! the pod only the metadata is read, of whole nodes only the name, and the nodes are handed back as they came.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use andreas_api::slim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Declares a struct with Go's habits: keys written as given, read in any case, `null` as the default.
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
    /// Asks for a filter or for priorities.
    ExtenderArgs {
        /// The pod to be placed.
        pod: PodView = "Pod",
        /// The nodes themselves, from a scheduler whose configuration lacks `nodeCacheCapable`.
        nodes: Option<NodeList> = "Nodes",
        /// The nodes' names, with `nodeCacheCapable`.
        node_names: Option<Vec<String>> = "NodeNames",
    }
);

go_struct!(
    /// Which nodes are left.
    ExtenderFilterResult {
        /// Those left, if nodes were sent.
        nodes: Option<NodeList> = "Nodes",
        /// Those left, if names were sent. A name that was not sent is an error and makes the scheduler spin.
        node_names: Option<Vec<String>> = "NodeNames",
        /// Those left out, where removing other pods might help.
        failed_nodes: BTreeMap<String, String> = "FailedNodes",
        /// Those left out, where nothing helps but another decision.
        failed_and_unresolvable_nodes: BTreeMap<String, String> = "FailedAndUnresolvableNodes",
        /// Not empty: no answer could be given; the scheduler tries the pod again after a back-off.
        error: String = "Error",
    }
);

go_struct!(
    /// One node's score.
    HostPriority {
        /// Its name.
        host: String = "Host",
        /// 0 to 10.
        score: i64 = "Score",
    }
);

go_struct!(
    /// Asks for a pod to be bound.
    ExtenderBindingArgs {
        /// Its name.
        pod_name: String = "PodName",
        /// Its namespace.
        pod_namespace: String = "PodNamespace",
        /// Its UID.
        pod_uid: String = "PodUID",
        /// The node that the scheduler chose.
        node: String = "Node",
    }
);

go_struct!(
    /// Whether it was bound.
    ExtenderBindingResult {
        /// Empty: it is bound to that node.
        error: String = "Error",
    }
);

/// A pod as far as it is read: who it is. `spec.nodeName` is only there in answers of the API server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PodView {
    /// Without `managedFields`.
    #[serde(default, deserialize_with = "slim::metadata")]
    pub metadata: ObjectMeta,
    /// Where it is.
    #[serde(default)]
    pub spec: PodSpecView,
}

/// The part of a pod's spec that is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// The node that it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// Whole nodes, handed back unread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeList {
    /// Raw Node objects.
    #[serde(default)]
    pub items: Vec<Box<RawValue>>,
}

impl NodeList {
    /// The name of each node; empty where it has none.
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
    /// The names of the nodes that were sent, in whichever form.
    #[must_use]
    pub fn names(&self) -> Cow<'_, [String]> {
        match (&self.node_names, &self.nodes) {
            (Some(names), _) => Cow::Borrowed(names),
            (None, Some(nodes)) => Cow::Owned(nodes.names()),
            (None, None) => Cow::Borrowed(&[]),
        }
    }
}
