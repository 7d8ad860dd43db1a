//! A container's environment, command and arguments: literal values, references and `$(NAME)`.

use std::collections::BTreeMap;

use andreas_api::quantity;
use k8s_openapi::api::core::v1::{Container, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::objects::PodView;
use crate::shared::Shared;

/// `CreateContainerConfigError` and its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigProblem(pub String);

/// Facts about the pod that only its kubelet knows.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub pod_ip: String,
    pub host_ip: String,
}

/// The whole environment in order of definition, later ones winning, and expanded command and arguments.
pub(crate) async fn resolve(
    shared: &Shared,
    pod: &PodView,
    container: &Container,
    place: &Place,
    given: Vec<(String, String)>,
) -> Result<Environment, ConfigProblem> {
    let mut values: BTreeMap<String, String> = given.into_iter().collect();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let optional = reference.optional.unwrap_or(false);
            let found = shared.config_map(pod.namespace(), &reference.name).await.map_err(ConfigProblem)?;
            let map = required(found, optional, "configmap", &reference.name)?;
            let data = map.map(|map| map.data).unwrap_or_default();
            values.extend(data.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
        }
        if let Some(reference) = &source.secret_ref {
            let optional = reference.optional.unwrap_or(false);
            let found = shared.secret(pod.namespace(), &reference.name).await.map_err(ConfigProblem)?;
            let secret = required(found, optional, "secret", &reference.name)?;
            let data = secret.map(|secret| secret.data).unwrap_or_default();
            let text = |bytes: k8s_openapi::ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
            values.extend(data.into_iter().map(|(name, bytes)| (format!("{prefix}{name}"), text(bytes))));
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) => Some(expand(value, &values)),
            (None, Some(source)) => referenced(shared, pod, container, place, source).await?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            values.insert(variable.name.clone(), value);
        }
    }
    let expanded =
        |list: &Option<Vec<String>>| list.iter().flatten().map(|text| expand(text, &values)).collect();
    let (command, args) = (expanded(&container.command), expanded(&container.args));
    Ok(Environment { values, command, args })
}

/// What [`resolve`] gives.
#[derive(Debug)]
pub(crate) struct Environment {
    pub values: BTreeMap<String, String>,
    pub command: Vec<String>,
    pub args: Vec<String>,
}

fn required<T>(found: Option<T>, optional: bool, kind: &str, name: &str) -> Result<Option<T>, ConfigProblem> {
    if found.is_none() && !optional {
        return Err(ConfigProblem(format!("{kind} \"{name}\" not found")));
    }
    Ok(found)
}

async fn referenced(
    shared: &Shared,
    pod: &PodView,
    container: &Container,
    place: &Place,
    source: &EnvVarSource,
) -> Result<Option<String>, ConfigProblem> {
    if let Some(field) = &source.field_ref {
        return field_value(pod, place, field).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        return Ok(Some(resource_value(container, field)));
    }
    let namespace = pod.namespace();
    if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional.unwrap_or(false);
        let found = shared.config_map(namespace, &reference.name).await.map_err(ConfigProblem)?;
        let Some(map) = required(found, optional, "configmap", &reference.name)? else { return Ok(None) };
        let value = map.data.get(&reference.key).cloned();
        if value.is_none() && !optional {
            let (key, name) = (&reference.key, &reference.name);
            return Err(ConfigProblem(format!("couldn't find key {key} in ConfigMap {namespace}/{name}")));
        }
        return Ok(value);
    }
    if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional.unwrap_or(false);
        let found = shared.secret(namespace, &reference.name).await.map_err(ConfigProblem)?;
        let Some(secret) = required(found, optional, "secret", &reference.name)? else { return Ok(None) };
        let value =
            secret.data.get(&reference.key).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        if value.is_none() && !optional {
            let (key, name) = (&reference.key, &reference.name);
            return Err(ConfigProblem(format!("couldn't find key {key} in Secret {namespace}/{name}")));
        }
        return Ok(value);
    }
    Ok(None)
}

/// The downward API's fields.
pub(crate) fn field_value(
    pod: &PodView,
    place: &Place,
    field: &ObjectFieldSelector,
) -> Result<String, ConfigProblem> {
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let subscript = |path: &str, map: &BTreeMap<String, String>| {
        let key = path.split_once("['")?.1.strip_suffix("']")?;
        Some(map.get(key).cloned().unwrap_or_default())
    };
    let lines = |map: &BTreeMap<String, String>| {
        map.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join("\n")
    };
    let value = match field.field_path.as_str() {
        "metadata.name" => Some(pod.name().to_owned()),
        "metadata.namespace" => Some(pod.namespace().to_owned()),
        "metadata.uid" => Some(pod.uid().to_owned()),
        "metadata.labels" => Some(lines(labels)),
        "metadata.annotations" => Some(lines(annotations)),
        "spec.nodeName" => Some(pod.spec.node_name.clone()),
        "spec.serviceAccountName" => Some(pod.spec.service_account_name.clone()),
        "status.podIP" | "status.podIPs" => Some(place.pod_ip.clone()),
        "status.hostIP" | "status.hostIPs" => Some(place.host_ip.clone()),
        path if path.starts_with("metadata.labels[") => subscript(path, labels),
        path if path.starts_with("metadata.annotations[") => subscript(path, annotations),
        _ => None,
    };
    value.ok_or_else(|| ConfigProblem(format!("unsupported fieldPath: {}", field.field_path)))
}

/// A container's request or limit in units of the divisor, rounded up; an absent limit is 0.
pub(crate) fn resource_value(container: &Container, field: &ResourceFieldSelector) -> String {
    let resources = container.resources.clone().unwrap_or_default();
    let (from, name) = field.resource.split_once('.').unwrap_or(("limits", &field.resource));
    let map = if from == "requests" { resources.requests } else { resources.limits };
    let milli = |quantity: &Quantity| quantity::milli(&quantity.0);
    let amount = map.and_then(|map| milli(map.get(name)?)).unwrap_or(0);
    let divisor = field.divisor.as_ref().and_then(milli).filter(|divisor| *divisor > 0);
    amount.div_ceil(divisor.unwrap_or(1_000)).to_string()
}

/// `$(NAME)` by the value defined before, `$$` by `$`, anything else as it stands.
pub(crate) fn expand(text: &str, values: &BTreeMap<String, String>) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match values.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_expand_as_kubernetes_expands_them() {
        let values = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in [
            ("x$(A)y", "x1y"),
            ("$$(A)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$", "$"),
            ("$(A", "$(A"),
            ("a$b", "a$b"),
        ] {
            assert_eq!(expand(text, &values), expected);
        }
    }
}
