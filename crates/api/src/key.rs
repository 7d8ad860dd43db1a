//! The key of an object.

use andreas_model::ObjectKey;
use kube::Resource;

/// Namespace and name of an object; missing metadata gives empty strings.
pub fn key_of(object: &impl Resource) -> ObjectKey {
    let meta = object.meta();
    ObjectKey::of(meta.namespace.as_deref(), meta.name.as_deref())
}
