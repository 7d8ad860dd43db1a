//! The API server's lists and watch lines, split into raw objects.

use kube::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::ObjectKey;

/// A page of a list without its items.
#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    pub(super) metadata: PageMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMeta {
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default, rename = "continue")]
    pub(super) next: String,
}

/// One line of a watch.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// The identifying fields, readable even if the rest is not.
#[derive(Deserialize)]
pub(super) struct Identity {
    metadata: IdentityMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMeta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    resource_version: String,
}

impl Identity {
    pub(super) fn read(raw: &[u8]) -> Option<Self> {
        serde_json::from_slice(raw).ok()
    }

    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.metadata.namespace.clone(), name: self.metadata.name.clone() }
    }

    pub(super) fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// Status of an ERROR line. All fields are optional; it only decides how to continue.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ErrorStatus {
    #[serde(default)]
    pub(super) code: u16,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) message: String,
}

/// An object, or the decoding error.
pub(super) enum Decoded<T> {
    Good(T),
    Bad { identity: Option<Identity>, error: String },
}

pub(super) fn decode<T: DeserializeOwned + Resource>(raw: &[u8]) -> Decoded<T> {
    match serde_json::from_slice(raw) {
        Ok(object) => Decoded::Good(object),
        Err(error) => Decoded::Bad { identity: Identity::read(raw), error: error.to_string() },
    }
}
