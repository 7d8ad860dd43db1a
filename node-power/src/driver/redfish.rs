//! Redfish: three calls with basic authentication. Sessions are not used: BMCs have few, and leak them.

use andreas_api::node_power::{PowerReading, RedfishSpec};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::http::{Server, Trust};
use super::{PowerSwitch, Request, Trouble};
use crate::secrets::Secrets;

const SYSTEMS: &str = "/redfish/v1/Systems";

/// One system of a BMC.
pub struct Redfish {
    server: Server,
    system: Option<String>,
}

impl Redfish {
    /// Reads the Secrets.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] where one is missing or unusable.
    pub async fn open(spec: &RedfishSpec, secrets: &Secrets) -> Result<Self, Trouble> {
        let field = "spec.redfish.credentials";
        let secret = secrets.read(field, &spec.credentials).await?;
        let (user, password) = (secret.text("username")?, secret.text("password")?);
        let trust = match (&spec.fingerprint, &spec.ca_secret) {
            (Some(fingerprint), _) => Trust::Fingerprint(fingerprint.clone()),
            (None, Some(name)) => {
                let field = "spec.redfish.caSecret";
                Trust::Authority(secrets.read(field, name).await?.bytes("ca.crt")?, field)
            }
            (None, None) => Trust::System,
        };
        let authorization = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        Ok(Self { server: Server::new(&spec.endpoint, authorization, trust)?, system: spec.system.clone() })
    }

    /// Path of the system: the named one, or the only one, as the BMC writes it.
    async fn path(&self) -> Result<String, Trouble> {
        if let Some(system) = &self.system {
            return Ok(format!("{SYSTEMS}/{system}"));
        }
        let systems = self.server.get(SYSTEMS).await?;
        let paths: Vec<&str> = systems["Members"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|member| member["@odata.id"].as_str())
            .filter(|path| path.starts_with("/redfish/"))
            .collect();
        match paths[..] {
            [path] => Ok(path.to_owned()),
            [] => Err(Trouble::Unreachable(format!("{SYSTEMS} has no members"))),
            _ => {
                let names = paths.iter().filter_map(|path| path.trim_end_matches('/').rsplit('/').next());
                let names = names.take(8).collect::<Vec<_>>().join(", ");
                let message = format!("spec.redfish.system: the BMC has several, name one: {names}");
                Err(Trouble::Misconfigured(message))
            }
        }
    }

    async fn reset(&self, types: &[&str]) -> Result<(), Trouble> {
        let path = self.path().await?;
        let system = self.server.get(&path).await?;
        let action = &system["Actions"]["#ComputerSystem.Reset"];
        let allowed = self.allowed(action).await;
        // Where the BMC does not say what it allows, the first is tried.
        let allows = |wanted: &&&str| allowed.is_empty() || allowed.iter().any(|one| one == **wanted);
        let Some(wanted) = types.iter().find(allows) else {
            let (allowed, wanted) = (allowed.join(", "), types.join(" or "));
            return Err(Trouble::Refused(format!("the BMC allows {allowed}, not {wanted}")));
        };
        let target = action["target"].as_str().filter(|target| target.starts_with("/redfish/"));
        let usual = format!("{}/Actions/ComputerSystem.Reset", path.trim_end_matches('/'));
        self.server.post(target.unwrap_or(&usual), &json!({"ResetType": wanted})).await
    }

    /// Allowed kinds of reset, from the system or its ActionInfo; empty where neither says.
    async fn allowed(&self, action: &Value) -> Vec<String> {
        let texts = |value: &Value| Vec::<String>::deserialize(value).unwrap_or_default();
        let here = texts(&action["ResetType@Redfish.AllowableValues"]);
        let info = action["@Redfish.ActionInfo"].as_str().filter(|path| path.starts_with("/redfish/"));
        match info {
            Some(path) if here.is_empty() => {
                let info = self.server.get(path).await.unwrap_or_default();
                let parameters = info["Parameters"].as_array().into_iter().flatten();
                let reset = parameters.into_iter().find(|parameter| parameter["Name"] == "ResetType");
                reset.map(|parameter| texts(&parameter["AllowableValues"])).unwrap_or_default()
            }
            _ => here,
        }
    }
}

impl PowerSwitch for Redfish {
    async fn read(&self) -> Result<PowerReading, Trouble> {
        let system = self.server.get(&self.path().await?).await?;
        match system["PowerState"].as_str() {
            Some("On") => Ok(PowerReading::On),
            Some("Off") => Ok(PowerReading::Off),
            Some("PoweringOn" | "PoweringOff" | "Paused") => Ok(PowerReading::Changing),
            _ => Err(Trouble::Unreachable("the system has no PowerState".into())),
        }
    }

    async fn ask(&self, request: Request) -> Result<(), Trouble> {
        match request {
            Request::Off => self.reset(&["GracefulShutdown"]).await,
            Request::On => self.reset(&["On", "ForceOn"]).await,
            Request::StayOn => Ok(()),
        }
    }
}
