//! A pod template that is shared: jobs of a sweep hold the same one once.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Volume};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest template that is kept and used, bytes as JSON. What is larger belongs into a ConfigMap or into the image.
pub const MAX_TEMPLATE: usize = 64 << 10;

/// A `PodTemplateSpec` that clones cheaply; in JSON and in the schema it is nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTemplate {
    template: Arc<PodTemplateSpec>,
    left_out: LeftOut,
}

/// What is left of a template that was given up: one for all, since even an empty one takes a kilobyte.
static EMPTY: LazyLock<Arc<PodTemplateSpec>> = LazyLock::new(Arc::default);

/// Whether a template was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftOut {
    /// It was.
    No,
    /// It is too large.
    TooLarge,
    /// There was no room for it.
    NoRoom,
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

    /// Whether the template was too large to be kept: only the names of its containers are left.
    pub fn is_too_large(&self) -> bool {
        self.left_out == LeftOut::TooLarge
    }

    /// Whether there was no room to keep the template: nothing of it is left.
    pub fn has_no_room(&self) -> bool {
        self.left_out == LeftOut::NoRoom
    }

    /// Gives the template up, for want of room.
    pub fn leave_out(&mut self) {
        self.left_out = LeftOut::NoRoom;
        self.forget();
    }

    /// Forgets what is left of a template that was given up, of a job that no run is judged by.
    pub fn forget(&mut self) {
        self.template = Arc::clone(&EMPTY);
    }

    /// About how many bytes of memory it takes, from its JSON: never less by much, whatever a user has written. Each object
    /// becomes a struct with all fields that it may have.
    pub fn held_bytes(&self, json: &[u8]) -> usize {
        let volumes = self.template.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).count();
        let spec = self.template.spec.as_ref();
        let containers = spec.map_or(0, |spec| {
            spec.containers.len() + spec.init_containers.iter().map(Vec::len).sum::<usize>()
        });
        STRING_FACTOR * json.len()
            + OBJECT_BYTES * objects(json)
            + size_of::<Volume>() * volumes
            + size_of::<Container>() * containers
    }

    /// Its JSON. A template whose JSON has more than [`MAX_TEMPLATE`] bytes is given up: `None`.
    pub fn json_or_leave_out(&mut self) -> Option<Vec<u8>> {
        let mut json = Bounded(Vec::new());
        if self.left_out != LeftOut::No {
            return None;
        }
        // Writing fails at the bound alone, so a large template costs no more than one at the bound.
        if serde_json::to_writer(&mut json, &*self.template).is_err() {
            self.template = Arc::new(names_only(&self.template));
            self.left_out = LeftOut::TooLarge;
            return None;
        }
        Some(json.0)
    }
}

/// Bytes in memory of a byte of JSON: a short string takes 24 bytes and an allocation.
const STRING_FACTOR: usize = 4;
/// Bytes of a struct of a pod's specification, but for volumes and containers.
const OBJECT_BYTES: usize = 384;

/// Objects in a JSON text.
fn objects(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// Takes [`MAX_TEMPLATE`] bytes.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEMPLATE {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
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
        Self { template: Arc::new(template), left_out: LeftOut::No }
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
        assert_eq!(small.json_or_leave_out(), serde_json::to_vec(&small).ok());
        assert!(!small.is_too_large() && small == template("x"));
        let around = small.json_or_leave_out().map_or(0, |json| json.len()) - 1;
        let mut largest = template(&"x".repeat(MAX_TEMPLATE - around));
        assert_eq!(largest.json_or_leave_out().map(|json| json.len()), Some(MAX_TEMPLATE));
        let mut large = template(&"x".repeat(MAX_TEMPLATE - around + 1));
        assert_eq!((large.json_or_leave_out(), large.is_too_large()), (None, true));
        let containers = large.spec.as_ref().map(|spec| spec.containers.clone()).unwrap_or_default();
        assert_eq!((containers.len(), containers[0].name.as_str(), &containers[0].image), (1, "t", &None));
        // Given up is given up: it does not become small again.
        assert_eq!((large.json_or_leave_out(), large.is_too_large()), (None, true));
    }

    #[test]
    fn memory_counts_what_short_json_becomes() {
        let held = |spec: serde_json::Value| {
            let template: SharedTemplate =
                serde_json::from_value(serde_json::json!({ "spec": spec })).expect("a template");
            let json = serde_json::to_vec(&template).expect("JSON");
            (template.held_bytes(&json), json.len())
        };
        let volumes: Vec<_> = (0..256).map(|n| serde_json::json!({"name": n.to_string()})).collect();
        let (bytes, json) = held(serde_json::json!({"containers": [], "volumes": volumes}));
        assert!(bytes > 256 * size_of::<Volume>() && json < 6_000, "{bytes} for {json}");
        // Braces in a script are no objects.
        let script =
            held(serde_json::json!({"containers": [{"name": "t", "args": ["{\\\"{".repeat(1_000)]}]}));
        assert!(script.0 < 8 * script.1, "{script:?}");
    }
}
