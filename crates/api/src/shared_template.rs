//! A pod template that is shared: jobs of a sweep hold the same one once.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest template that is kept and used, bytes as JSON. What is larger belongs into a ConfigMap or into the image.
pub const MAX_TEMPLATE: usize = 64 << 10;

/// A `PodTemplateSpec` that clones cheaply; in JSON and in the schema it is nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTemplate {
    template: Arc<PodTemplateSpec>,
    /// Its size, where it was too large to be kept.
    left_out: Option<usize>,
}

impl SharedTemplate {
    /// Holds what `other` holds, where both are equal: the memory of this one is free then. `true`: they were equal.
    pub fn share(&mut self, other: &Self) -> bool {
        let equal = self.is_shared_with(other) || self == other;
        if equal {
            self.template = Arc::clone(&other.template);
        }
        equal
    }

    /// Holds the very same memory as `other`.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.template, &other.template)
    }

    /// How many hold it.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.template)
    }

    /// Its size as JSON, bytes, where it was too large to be kept: of the template only the names of its containers are left.
    pub fn left_out(&self) -> Option<usize> {
        self.left_out
    }

    /// Gives a template up whose JSON has more than [`MAX_TEMPLATE`] bytes. `true`: it was too large.
    pub fn leave_out_if_too_large(&mut self) -> bool {
        let mut size = Size(0);
        // Writing to a counter cannot fail.
        if self.left_out.is_none()
            && serde_json::to_writer(&mut size, &*self.template).is_ok()
            && size.0 > MAX_TEMPLATE
        {
            self.template = Arc::new(names_only(&self.template));
            self.left_out = Some(size.0);
        }
        self.left_out.is_some()
    }
}

/// Counts what is written.
struct Size(usize);

impl std::io::Write for Size {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a run of an earlier release is still judged by.
fn names_only(template: &PodTemplateSpec) -> PodTemplateSpec {
    let names = |containers: &[Container]| {
        containers
            .iter()
            .map(|c| Container { name: c.name.clone(), ..Container::default() })
            .collect::<Vec<_>>()
    };
    let spec = template.spec.as_ref().map(|spec| PodSpec {
        containers: names(&spec.containers),
        init_containers: spec.init_containers.as_deref().map(names),
        ..PodSpec::default()
    });
    PodTemplateSpec { metadata: None, spec }
}

impl Deref for SharedTemplate {
    type Target = PodTemplateSpec;
    fn deref(&self) -> &PodTemplateSpec {
        &self.template
    }
}

impl From<PodTemplateSpec> for SharedTemplate {
    fn from(template: PodTemplateSpec) -> Self {
        Self { template: Arc::new(template), left_out: None }
    }
}

impl Serialize for SharedTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.template.serialize(serializer)
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

    #[test]
    fn a_template_that_is_too_large_leaves_the_names_of_its_containers() {
        let mut small = template("x");
        assert!(!small.leave_out_if_too_large() && small == template("x"));
        let mut large = template(&"x".repeat(MAX_TEMPLATE));
        assert!(large.leave_out_if_too_large());
        assert!(large.left_out().is_some_and(|size| (MAX_TEMPLATE..MAX_TEMPLATE + 100).contains(&size)));
        let containers = large.spec.as_ref().map(|spec| spec.containers.clone()).unwrap_or_default();
        assert_eq!((containers.len(), containers[0].name.as_str(), &containers[0].image), (1, "t", &None));
        // Given up is given up: it does not become small again.
        assert!(large.leave_out_if_too_large());
    }
}
