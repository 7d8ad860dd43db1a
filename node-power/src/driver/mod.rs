//! Power switches. What flows in: the driver's part of a NodePower. What flows out: a reading, or a trouble.
//!
//! Every call may be repeated. The reading decides, never the answer to a request: a BMC may accept a shutdown that the
//! operating system ignores. Nothing here can force a machine off.

mod bare_metal_host;
mod http;
mod redfish;
mod webhook;

use andreas_api::node_power::{NodePowerSpec, PowerReading};
use kube::Client;

use crate::secrets::Secrets;

/// What a power switch is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The operating system shuts down.
    Off,
    /// The power comes on; a machine that is on stays so.
    On,
    /// An `Off` that was asked for counts no longer. Only a switch that keeps a wish and carries it out later does something.
    StayOn,
}

/// Switches one machine.
#[allow(async_fn_in_trait, reason = "used in this crate alone")]
pub trait PowerSwitch {
    /// Reads the power.
    async fn read(&self) -> Result<PowerReading, Trouble>;
    /// Asks for something.
    async fn ask(&self, request: Request) -> Result<(), Trouble>;
}

/// Why a call of a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No answer, or none that can be used.
    #[error("{0}")]
    Unreachable(String),
    /// The switch refuses.
    #[error("{0}")]
    Refused(String),
    /// The switch does not accept the credentials.
    #[error("credentials: {0}")]
    Denied(String),
    /// The object or a Secret must be changed; the text begins with the field.
    #[error("{0}")]
    Misconfigured(String),
}

impl Trouble {
    /// Reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "Unreachable",
            Self::Refused(_) => "Refused",
            Self::Denied(_) | Self::Misconfigured(_) => "Misconfigured",
        }
    }
}

/// The driver of one machine.
pub enum Driver {
    /// A BMC.
    Redfish(redfish::Redfish),
    /// A host of Metal3.
    BareMetalHost(Box<bare_metal_host::BareMetalHost>),
    /// A server of the site.
    Webhook(webhook::Webhook),
}

impl Driver {
    /// The driver that the object names, with the Secrets as they are now.
    ///
    /// # Errors
    /// [`Trouble::Misconfigured`] where a Secret is missing or unusable.
    pub async fn open(
        node: &str,
        spec: &NodePowerSpec,
        secrets: &Secrets,
        client: &Client,
    ) -> Result<Self, Trouble> {
        match (&spec.redfish, &spec.bare_metal_host, &spec.webhook) {
            (Some(spec), None, None) => Ok(Self::Redfish(redfish::Redfish::open(spec, secrets).await?)),
            (None, Some(host), None) => {
                Ok(Self::BareMetalHost(Box::new(bare_metal_host::BareMetalHost::new(client.clone(), host))))
            }
            (None, None, Some(hook)) => Ok(Self::Webhook(webhook::Webhook::open(node, hook, secrets).await?)),
            _ => Err(Trouble::Misconfigured("spec: give one of redfish, bareMetalHost and webhook".into())),
        }
    }
}

impl PowerSwitch for Driver {
    async fn read(&self) -> Result<PowerReading, Trouble> {
        match self {
            Self::Redfish(driver) => driver.read().await,
            Self::BareMetalHost(driver) => driver.read().await,
            Self::Webhook(driver) => driver.read().await,
        }
    }

    async fn ask(&self, request: Request) -> Result<(), Trouble> {
        match self {
            Self::Redfish(driver) => driver.ask(request).await,
            Self::BareMetalHost(driver) => driver.ask(request).await,
            Self::Webhook(driver) => driver.ask(request).await,
        }
    }
}

/// The server that a machine is reached by (one request at a time), and the machine there (one NodePower each).
pub fn address(node: &str, spec: &NodePowerSpec) -> (String, String) {
    match (&spec.redfish, &spec.bare_metal_host, &spec.webhook) {
        (Some(spec), ..) => (spec.endpoint.to_lowercase(), spec.system.clone().unwrap_or_default()),
        (_, Some(host), _) => (format!("{}/{}", host.namespace, host.name), String::new()),
        (.., Some(hook)) => (hook.url.clone(), node.to_owned()),
        _ => (node.to_owned(), String::new()),
    }
}
