//! What the API server itself says of our objects: definitions, rules in CEL, admission policies.
//!
//! In: a test bed with the chart's objects ([`crate::chart::install`]), manifests as YAML or JSON. Out: what became of a
//! request ([`Verdict`]). What must never be here: our own programs. These tests are about what holds without them.

use std::time::Duration;

use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::Value;

/// Requests in flight where many objects are made.
const AT_A_TIME: usize = 8;

/// What became of a request.
#[derive(Debug)]
pub enum Verdict {
    /// The object as it is, or would be, stored.
    Accepted(Box<DynamicObject>),
    /// The API server's words.
    Refused(Box<Status>),
}

impl Verdict {
    /// The object.
    ///
    /// # Errors
    /// With the refusal's words.
    pub fn accepted(self) -> Result<DynamicObject> {
        match self {
            Self::Accepted(object) => Ok(*object),
            Self::Refused(status) => bail!("refused: {}", status.message),
        }
    }

    /// The refusal.
    ///
    /// # Errors
    /// When the request was accepted.
    pub fn refused(self) -> Result<Status> {
        match self {
            Self::Accepted(object) => {
                bail!("accepted: {}", serde_json::to_string(&object).unwrap_or_default())
            }
            Self::Refused(status) => Ok(*status),
        }
    }
}

/// The causes of a refusal, each a field and a message; the message alone where there are none.
pub fn causes(status: &Status) -> Vec<String> {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    if causes.is_empty() {
        return vec![status.message.clone()];
    }
    causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

/// YAML as a value.
///
/// # Errors
/// When it is not YAML.
pub fn yaml(text: &str) -> Result<Value> {
    if text.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_saphyr::from_str(text).with_context(|| format!("not YAML: {text}"))
}

/// JSON merge patch (RFC 7396).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

/// The kind and namespace of an object decide where it goes.
pub fn endpoint(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let text = |name: &str| object[name].as_str().with_context(|| format!("no {name} in {object}"));
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind == "EnergyPolicy" {
        resource.plural = "energypolicies".into();
    }
    Ok(if matches!(kind, "EnergyPolicy" | "GpuNode" | "NodePower" | "Node" | "Namespace") {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(
            client.clone(),
            object["metadata"]["namespace"].as_str().unwrap_or("default"),
            &resource,
        )
    })
}

fn verdict(answer: kube::Result<DynamicObject>) -> Result<Verdict> {
    match answer {
        Ok(object) => Ok(Verdict::Accepted(Box::new(object))),
        Err(kube::Error::Api(status)) => Ok(Verdict::Refused(status)),
        Err(other) => Err(other).context("no answer of the API server"),
    }
}

/// Creates an object, or with `dry_run` only asks.
///
/// # Errors
/// When there is no answer.
pub async fn create(client: &Client, object: &Value, dry_run: bool) -> Result<Verdict> {
    let api = endpoint(client, object)?;
    let body: DynamicObject = serde_json::from_value(object.clone())?;
    verdict(api.create(&PostParams { dry_run, ..PostParams::default() }, &body).await)
}

/// Creates all of these, some at a time; the refusals, in any order.
///
/// # Errors
/// When one is not answered.
pub async fn create_all(client: &Client, objects: impl Iterator<Item = Value>) -> Result<Vec<Status>> {
    let answers = objects.map(|object| async move { create(client, &object, false).await });
    let verdicts: Vec<Verdict> = stream::iter(answers).buffer_unordered(AT_A_TIME).try_collect().await?;
    let refused = verdicts.into_iter().filter_map(|verdict| match verdict {
        Verdict::Refused(status) => Some(*status),
        Verdict::Accepted(_) => None,
    });
    Ok(refused.collect())
}

/// Merge-patches an object, or with `dry_run` only asks. `object` names it.
///
/// # Errors
/// When there is no answer.
pub async fn patch(client: &Client, object: &Value, change: &Value, dry_run: bool) -> Result<Verdict> {
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let params = PatchParams { dry_run, ..PatchParams::default() };
    verdict(endpoint(client, object)?.patch(name, &params, &Patch::Merge(change)).await)
}

/// Merge-patches the status of an object.
///
/// # Errors
/// When there is no answer.
pub async fn patch_status(client: &Client, object: &Value, change: &Value) -> Result<Verdict> {
    let name = object["metadata"]["name"].as_str().context("a name")?;
    verdict(
        endpoint(client, object)?.patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await,
    )
}

/// Deletes an object and waits until it is gone.
///
/// # Errors
/// When it does not go within a minute.
pub async fn delete(client: &Client, object: &Value) -> Result<()> {
    let (api, name) = (endpoint(client, object)?, object["metadata"]["name"].as_str().context("a name")?);
    api.delete(name, &DeleteParams::default().grace_period(0)).await?;
    let gone = async || Ok(api.get_opt(name).await?.is_none());
    until(&format!("{name} is gone"), Duration::from_secs(60), gone).await?;
    Ok(())
}
