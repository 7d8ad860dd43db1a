//! A pod template that is shared: jobs of a sweep hold the same one once.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A `PodTemplateSpec` that clones cheaply; in JSON and in the schema it is nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTemplate(Arc<PodTemplateSpec>);

impl SharedTemplate {
    /// Holds what `other` holds, where both are equal: the memory of this one is free then. `true`: they were equal.
    pub fn share(&mut self, other: &Self) -> bool {
        let equal = Arc::ptr_eq(&self.0, &other.0) || self == other;
        if equal {
            self.0 = Arc::clone(&other.0);
        }
        equal
    }

    /// Holds the very same memory as `other`.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// How many hold it.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl Deref for SharedTemplate {
    type Target = PodTemplateSpec;
    fn deref(&self) -> &PodTemplateSpec {
        &self.0
    }
}

impl From<PodTemplateSpec> for SharedTemplate {
    fn from(template: PodTemplateSpec) -> Self {
        Self(Arc::new(template))
    }
}

impl Serialize for SharedTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SharedTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PodTemplateSpec::deserialize(deserializer).map(Self::from)
    }
}

impl JsonSchema for SharedTemplate {
    fn inline_schema() -> bool {
        PodTemplateSpec::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        PodTemplateSpec::schema_name()
    }
    fn schema_id() -> Cow<'static, str> {
        PodTemplateSpec::schema_id()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        PodTemplateSpec::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> SharedTemplate {
        serde_json::from_value(serde_json::json!({"spec": {"containers": [{"name": "t", "image": image}]}}))
            .expect("a template")
    }

    #[test]
    fn equal_templates_are_held_once() {
        let (first, mut second, mut other) = (template("x"), template("x"), template("y"));
        assert!(second.share(&first) && second.is_shared_with(&first));
        assert!(!other.share(&first) && !other.is_shared_with(&first));
        assert_eq!(serde_json::to_string(&first).ok(), serde_json::to_string(&template("x")).ok());
    }
}
