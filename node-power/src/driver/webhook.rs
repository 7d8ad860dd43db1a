//! A server of the site that switches machines by other means: MAAS, wake-on-LAN and ssh, ipmitool, power distribution units.

use andreas_api::node_power::{PowerReading, WebhookSpec};
use serde_json::json;

use super::http::{Server, Trust};
use super::{PowerSwitch, Request, Trouble};
use crate::secrets::Secrets;

/// One machine behind a webhook.
pub struct Webhook {
    server: Server,
    path: String,
}

impl Webhook {
    /// Reads the Secrets.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] where one is missing or unusable.
    pub async fn open(node: &str, spec: &WebhookSpec, secrets: &Secrets) -> Result<Self, Trouble> {
        let token = secrets.read("spec.webhook.credentials", &spec.credentials).await?.text("token")?;
        let trust = match &spec.ca_secret {
            Some(name) => {
                let field = "spec.webhook.caSecret";
                Trust::Authority(secrets.read(field, name).await?.bytes("ca.crt")?, field)
            }
            None => Trust::System,
        };
        let server = Server::new(&spec.url, format!("Bearer {token}"), trust)?;
        Ok(Self { server, path: format!("/{node}") })
    }
}

impl PowerSwitch for Webhook {
    async fn read(&self) -> Result<PowerReading, Trouble> {
        let answer = self.server.get(&self.path).await?;
        match answer["power"].as_str() {
            Some("On") => Ok(PowerReading::On),
            Some("Off") => Ok(PowerReading::Off),
            Some("Changing") => Ok(PowerReading::Changing),
            _ => Err(Trouble::Unreachable("the answer has no power On, Off or Changing".into())),
        }
    }

    async fn ask(&self, request: Request) -> Result<(), Trouble> {
        let power = match request {
            Request::Off => "Off",
            Request::On => "On",
            Request::StayOn => return Ok(()),
        };
        self.server.post(&self.path, &json!({ "power": power })).await
    }
}
