//! Secrets with credentials of power switches, in the namespace of this program. They are read for each call, so a rotated
//! one counts at once, and none is kept.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, Error};

use crate::driver::Trouble;

/// The Secrets of one namespace.
#[derive(Clone)]
pub struct Secrets {
    api: Api<Secret>,
    namespace: String,
}

/// One Secret, and the field that names it.
pub struct NamedSecret {
    secret: Secret,
    source: String,
}

impl Secrets {
    /// Those of this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), namespace: namespace.to_owned() }
    }

    /// Reads the Secret that `field` names.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] if there is none.
    pub async fn read(&self, field: &str, name: &str) -> Result<NamedSecret, Trouble> {
        let source = format!("{field}: Secret {}/{name}", self.namespace);
        match self.api.get(name).await {
            Ok(secret) => Ok(NamedSecret { secret, source }),
            Err(Error::Api(status)) if (400..500).contains(&status.code) => {
                Err(Trouble::Misconfigured(format!("{source} cannot be read: {}", status.message)))
            }
            Err(error) => Err(Trouble::Unreachable(format!("{source} cannot be read: {error}"))),
        }
    }
}

impl NamedSecret {
    /// The bytes of a key.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] if it is missing.
    pub fn bytes(&self, key: &str) -> Result<Vec<u8>, Trouble> {
        let value = self.secret.data.as_ref().and_then(|data| data.get(key));
        let missing = || Trouble::Misconfigured(format!("{} has no key {key}", self.source));
        value.map(|value| value.0.clone()).ok_or_else(missing)
    }

    /// A key as one line of text.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] if it is missing, or has other characters.
    pub fn text(&self, key: &str) -> Result<String, Trouble> {
        let text = String::from_utf8(self.bytes(key)?).unwrap_or_default();
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(Trouble::Misconfigured(format!("{}: {key} is not one line of text", self.source)));
        }
        Ok(text.to_owned())
    }
}
