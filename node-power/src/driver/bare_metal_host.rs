//! Metal3: its operator switches the machine, softly by default; this writes `spec.online` and reads `status.poweredOn`.
//!
//! What was written stays the wish of that operator, which may carry it out at any later time.

use andreas_api::node_power::{BareMetalHostSpec, PowerReading};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use serde_json::json;

use super::{PowerSwitch, Request, Trouble};

/// One BareMetalHost.
pub struct BareMetalHost {
    api: Api<DynamicObject>,
    name: String,
}

impl BareMetalHost {
    /// By its namespace and name.
    pub fn new(client: Client, spec: &BareMetalHostSpec) -> Self {
        let kind = GroupVersionKind::gvk("metal3.io", "v1alpha1", "BareMetalHost");
        let resource = ApiResource::from_gvk_with_plural(&kind, "baremetalhosts");
        Self { api: Api::namespaced_with(client, &spec.namespace, &resource), name: spec.name.clone() }
    }

    async fn set(&self, online: bool) -> Result<(), Trouble> {
        let host = self.api.get(&self.name).await.map_err(trouble)?;
        if !online && host.data["spec"]["disablePowerOff"] == true {
            return Err(Trouble::Refused("the BareMetalHost has disablePowerOff".into()));
        }
        let patch = Patch::Merge(json!({"spec": {"online": online}}));
        self.api.patch(&self.name, &PatchParams::default(), &patch).await.map(drop).map_err(trouble)
    }
}

fn trouble(error: Error) -> Trouble {
    match error {
        Error::Api(status) if status.code == 404 => {
            Trouble::Misconfigured(format!("spec.bareMetalHost: {}", status.message))
        }
        Error::Api(status) if (400..500).contains(&status.code) => Trouble::Refused(status.message),
        error => Trouble::Unreachable(error.to_string()),
    }
}

impl PowerSwitch for BareMetalHost {
    async fn read(&self) -> Result<PowerReading, Trouble> {
        let host = self.api.get(&self.name).await.map_err(trouble)?;
        let Some(powered) = host.data["status"]["poweredOn"].as_bool() else {
            return Err(Trouble::Unreachable("the BareMetalHost has no status.poweredOn".into()));
        };
        Ok(if powered { PowerReading::On } else { PowerReading::Off })
    }

    async fn ask(&self, request: Request) -> Result<(), Trouble> {
        match self.set(request != Request::Off).await {
            // A host that is gone has no wish.
            Err(Trouble::Misconfigured(_)) if request == Request::StayOn => Ok(()),
            result => result,
        }
    }
}
