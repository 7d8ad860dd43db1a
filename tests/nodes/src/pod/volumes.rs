//! A pod's volumes as folders on the machine: tokens, ConfigMaps, Secrets, downward API, scratch space, claims.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, ServiceAccount, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::env::{Place, field_value, resource_value};
use crate::file::replace;
use crate::objects::PodView;
use crate::shared::Shared;

/// Why a volume cannot be mounted yet.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {message}")]
pub(crate) struct MountProblem {
    pub volume: String,
    pub message: String,
}

/// The pod's volumes by name, and how long their tokens are good for.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    pub folders: BTreeMap<String, PathBuf>,
    /// Time until the first token should be renewed.
    pub renew_after: Option<Duration>,
}

/// Files by path below the volume.
type Files = BTreeMap<String, Vec<u8>>;

/// Makes or refreshes all volumes of the pod below `dir`.
pub(crate) async fn prepare(
    shared: &Shared,
    pod: &PodView,
    place: &Place,
    dir: &Path,
) -> Result<Volumes, MountProblem> {
    let mut volumes = Volumes::default();
    for volume in &pod.spec.volumes {
        let problem = |message: String| MountProblem { volume: volume.name.clone(), message };
        let fixed = match &volume.persistent_volume_claim {
            Some(claim) => {
                Some(claim_folder(shared, pod.namespace(), &claim.claim_name).await.map_err(problem)?)
            }
            None => fixed_folder(shared, pod, volume, dir),
        };
        let folder = match fixed {
            Some(folder) => folder,
            None => {
                let (files, lifetime) = contents(shared, pod, place, volume).await.map_err(problem)?;
                let renew = lifetime.map(|lifetime| lifetime.mul_f64(0.8));
                volumes.renew_after = [volumes.renew_after, renew].into_iter().flatten().min();
                let folder = dir.join(&volume.name);
                let mode = volume.downward_api.as_ref().and_then(|downward| downward.default_mode);
                let mode = mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
                write_all(&folder, &files, mode).map_err(|error| problem(error.to_string()))?;
                folder
            }
        };
        std::fs::create_dir_all(&folder).map_err(|error| problem(error.to_string()))?;
        volumes.folders.insert(volume.name.clone(), folder);
    }
    Ok(volumes)
}

/// One folder per claim for all pods of its namespace. A claim that was deleted and made again is another volume; one that
/// has no object is a folder by its name.
async fn claim_folder(shared: &Shared, namespace: &str, name: &str) -> Result<PathBuf, String> {
    let claims = shared.data_dir.join("claims").join(namespace);
    let claim = shared.claim(namespace, name).await?;
    let uid =
        claim.and_then(|claim| claim.metadata.uid).map(|uid| format!(".{:.8}", uid)).unwrap_or_default();
    Ok(claims.join(format!("{name}{uid}")))
}

/// Host folder of an ephemeral, `hostPath` or `emptyDir` volume; `None` for other kinds.
fn fixed_folder(shared: &Shared, pod: &PodView, volume: &Volume, dir: &Path) -> Option<PathBuf> {
    if volume.ephemeral.is_some() {
        let claim = format!("{}-{}", pod.name(), volume.name);
        return Some(shared.data_dir.join("claims").join(pod.namespace()).join(claim));
    }
    if let Some(host) = &volume.host_path {
        let below = Path::new(&host.path).components().filter(|part| matches!(part, Component::Normal(_)));
        return Some(below.fold(shared.host(&pod.spec.node_name), |path, part| path.join(part)));
    }
    volume.empty_dir.as_ref().map(|_| dir.join(&volume.name))
}

async fn contents(
    shared: &Shared,
    pod: &PodView,
    place: &Place,
    volume: &Volume,
) -> Result<(Files, Option<Duration>), String> {
    let mut sources = Vec::new();
    let one = VolumeProjection::default;
    if let Some(projected) = &volume.projected {
        sources.clone_from(projected.sources.as_ref().unwrap_or(&Vec::new()));
    } else if let Some(map) = &volume.config_map {
        let (name, items, optional) = (map.name.clone(), map.items.clone(), map.optional);
        let source = k8s_openapi::api::core::v1::ConfigMapProjection { name, items, optional };
        sources.push(VolumeProjection { config_map: Some(source), ..one() });
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        let (items, optional) = (secret.items.clone(), secret.optional);
        let source = k8s_openapi::api::core::v1::SecretProjection { name, items, optional };
        sources.push(VolumeProjection { secret: Some(source), ..one() });
    } else if let Some(downward) = &volume.downward_api {
        let source = k8s_openapi::api::core::v1::DownwardAPIProjection { items: downward.items.clone() };
        sources.push(VolumeProjection { downward_api: Some(source), ..one() });
    } else {
        return Err("this kind of volume is not played by pretend kubelets".to_owned());
    }
    let (mut files, mut lifetime) = (Files::new(), None);
    for source in &sources {
        let (more, limit) = projection(shared, pod, place, source).await?;
        files.extend(more);
        lifetime = [lifetime, limit].into_iter().flatten().min();
    }
    Ok((files, lifetime))
}

async fn projection(
    shared: &Shared,
    pod: &PodView,
    place: &Place,
    source: &VolumeProjection,
) -> Result<(Files, Option<Duration>), String> {
    let namespace = pod.namespace();
    if let Some(token) = &source.service_account_token {
        let (text, lifetime) = request_token(shared, pod, token).await?;
        return Ok((Files::from([(token.path.clone(), text.into_bytes())]), Some(lifetime)));
    }
    if let Some(map) = &source.config_map {
        let optional = map.optional.unwrap_or(false);
        let Some(found) = shared.config_map(namespace, &map.name).await? else {
            return if optional {
                Ok(Default::default())
            } else {
                Err(format!("configmap \"{}\" not found", map.name))
            };
        };
        let text = found.data.into_iter().map(|(key, value)| (key, value.into_bytes()));
        let bytes = found.binary_data.into_iter().map(|(key, value)| (key, value.0));
        return Ok((chosen(text.chain(bytes).collect(), map.items.as_deref(), optional)?, None));
    }
    if let Some(secret) = &source.secret {
        let optional = secret.optional.unwrap_or(false);
        let Some(found) = shared.secret(namespace, &secret.name).await? else {
            return if optional {
                Ok(Default::default())
            } else {
                Err(format!("secret \"{}\" not found", secret.name))
            };
        };
        let data = found.data.into_iter().map(|(key, value)| (key, value.0)).collect();
        return Ok((chosen(data, secret.items.as_deref(), optional)?, None));
    }
    if let Some(downward) = &source.downward_api {
        let items = downward.items.iter().flatten();
        let files = items.map(|item| Ok((item.path.clone(), downward_file(pod, place, item)?.into_bytes())));
        return Ok((files.collect::<Result<_, String>>()?, None));
    }
    Err("this kind of projection is not played by pretend kubelets".to_owned())
}

fn downward_file(pod: &PodView, place: &Place, item: &DownwardAPIVolumeFile) -> Result<String, String> {
    if let Some(field) = &item.field_ref {
        return field_value(pod, place, field).map_err(|problem| problem.0);
    }
    let field = item.resource_field_ref.as_ref().ok_or("a downward API file without a source")?;
    let name = field.container_name.as_deref().unwrap_or_default();
    let container = pod.spec.containers.iter().find(|container| container.name == name);
    Ok(resource_value(container.ok_or_else(|| format!("container {name} not found"))?, field))
}

/// `items` picks and renames keys; without it every key is a file.
fn chosen(mut data: Files, items: Option<&[KeyToPath]>, optional: bool) -> Result<Files, String> {
    let Some(items) = items else { return Ok(data) };
    let mut files = Files::new();
    for item in items {
        match data.remove(&item.key) {
            Some(bytes) => drop(files.insert(item.path.clone(), bytes)),
            None if optional => {}
            None => return Err(format!("references non-existent config key: {}", item.key)),
        }
    }
    Ok(files)
}

/// A real token of the pod's account, bound to the pod.
async fn request_token(
    shared: &Shared,
    pod: &PodView,
    token: &ServiceAccountTokenProjection,
) -> Result<(String, Duration), String> {
    let account =
        Some(pod.spec.service_account_name.as_str()).filter(|name| !name.is_empty()).unwrap_or("default");
    let seconds = token.expiration_seconds.unwrap_or(3600);
    let audiences: Vec<&String> = token.audience.iter().filter(|audience| !audience.is_empty()).collect();
    let request: TokenRequest = serde_json::from_value(json!({"metadata": {}, "spec": {
        "audiences": audiences, "expirationSeconds": seconds,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod.name(), "uid": pod.uid()},
    }}))
    .map_err(|error| error.to_string())?;
    let accounts: Api<ServiceAccount> = Api::namespaced(shared.client.clone(), pod.namespace());
    let given = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .map_err(|error| format!("failed to fetch token: {error}"))?;
    let text =
        given.status.and_then(|status| status.token).ok_or("the token request came back without a token")?;
    Ok((text, Duration::from_secs(seconds.unsigned_abs())))
}

/// Replaces each file at once, so that a reader sees the old or the new one.
fn write_all(folder: &Path, files: &Files, mode: u32) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (path, bytes) in files {
        let parts = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
        let target = parts.fold(folder.to_owned(), |path, part| path.join(part));
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        replace(&target, bytes, mode)?;
    }
    Ok(())
}
