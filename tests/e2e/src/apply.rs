//! Any object, applied.

use anyhow::{Context as _, Result, bail};
use kube::api::{Api, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::Value;

/// Server-side apply of any object.
///
/// # Errors
/// What the API server says.
pub async fn apply(client: &kube::Client, object: &Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object.clone()).context("not an object")?;
    let types = object.types.clone().context("an object needs apiVersion and kind")?;
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    let (resource, capabilities) = kube::discovery::pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match (&capabilities.scope, &object.metadata.namespace) {
        (kube::discovery::Scope::Namespaced, namespace) => {
            Api::namespaced_with(client.clone(), namespace.as_deref().unwrap_or("default"), &resource)
        }
        (kube::discovery::Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.clone().context("an object needs a name")?;
    if name.is_empty() {
        bail!("an object needs a name");
    }
    Ok(api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&object)).await?)
}
