//! Shares of the namespaces in fair-share policies.

use std::collections::BTreeMap;

use andreas_model::NamespaceName;
use serde::{Deserialize, Serialize};

/// Share of the GPU time by namespace, relative to other namespaces, > 0; 1 for those without an entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tickets(pub BTreeMap<NamespaceName, f64>);

impl Tickets {
    /// Tickets of a namespace.
    pub fn for_namespace(&self, namespace: &NamespaceName) -> f64 {
        self.0.get(namespace).copied().unwrap_or(1.0)
    }
}
