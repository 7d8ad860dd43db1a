//! Writes of many GpuNodes.

use std::sync::Arc;

use andreas_runtime::watch::ObjectKey;
use serde_json::{Value, json};

use crate::shared::Shared;

/// Maximum GpuNodes created in one pass, so that other writes get their turn.
pub(super) const AT_ONCE: usize = 32;

/// Patches the specs of GpuNodes.
pub(super) async fn patch_specs(shared: &Arc<Shared>, specs: Vec<(String, Value)>, not_written: &str) {
    let writes = specs.into_iter().map(|(name, spec)| async move {
        let key = ObjectKey { namespace: String::new(), name };
        match shared.writer.patch("node", &key, &json!({ "spec": spec })).await {
            Ok(answer) => shared.index.lock().wrote_gpu_node(answer),
            Err(error) => {
                tracing::warn!(node = key.name, error = &error as &dyn std::error::Error, "{not_written}");
            }
        }
    });
    futures::future::join_all(writes).await;
}
