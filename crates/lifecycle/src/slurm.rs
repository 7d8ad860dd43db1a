//! A worker that runs a batch script of Slurm: variables, and programs as files of a volume.
//!
//! The pod carries the programs in annotations, as it does the CA of the progress endpoint: no image, no ConfigMap and no right in a
//! tenant's namespace is needed, and requests and security contexts stay the user's.

use std::collections::BTreeMap;

use andreas_api::{names, quantity};
use andreas_workloads::slurm::{BATCH, FOLDER, PROGRAMS, Program};
use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EnvVar, ObjectFieldSelector, PodSpec, Volume,
    VolumeMount,
};

pub use andreas_workloads::slurm::Place;

const VOLUME: &str = "andreas-slurm";
/// Read and run by all.
const MODE: i32 = 0o555;

/// Adds variables, volume and annotations, and starts the container's command as a batch script.
pub fn prepare(
    spec: &mut PodSpec,
    annotations: &mut BTreeMap<String, String>,
    trains: Option<&str>,
    place: &Place,
) {
    let Some(container) = spec.containers.iter_mut().find(|c| Some(c.name.as_str()) == trains) else {
        return;
    };
    let env = container.env.get_or_insert_default();
    let ours = {
        let given = |name: &str| env.iter().find(|e| e.name == name)?.value.as_deref();
        andreas_workloads::slurm::environment(place, cpus(container.resources.as_ref()), given)
    };
    env.retain(|e| ours.iter().all(|(name, _)| e.name != *name));
    let ours = ours.into_iter().map(|(name, value)| EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    });
    // Ours first, so that the user's may refer to them as $(NAME).
    env.splice(0..0, ours);
    start_as_batch_script(container);
    annotations.extend(PROGRAMS.iter().map(|program| (annotation(program), program.text())));
    spec.volumes.get_or_insert_default().push(Volume {
        name: VOLUME.into(),
        downward_api: Some(DownwardAPIVolumeSource {
            default_mode: Some(MODE),
            items: Some(PROGRAMS.iter().map(file).collect()),
        }),
        ..Volume::default()
    });
}

fn start_as_batch_script(container: &mut Container) {
    container.volume_mounts.get_or_insert_default().push(VolumeMount {
        name: VOLUME.into(),
        mount_path: FOLDER.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    // Without a command the image starts its own program; admission refuses that.
    if let Some(command) = container.command.as_mut().filter(|command| !command.is_empty()) {
        command.splice(0..0, ["/bin/sh".to_owned(), format!("{FOLDER}/{BATCH}")]);
    }
}

fn annotation(program: &Program) -> String {
    format!("{}{}", names::ANNOTATION_SLURM_PREFIX, program.name)
}

fn file(program: &Program) -> DownwardAPIVolumeFile {
    DownwardAPIVolumeFile {
        path: program.name.into(),
        field_ref: Some(ObjectFieldSelector {
            api_version: Some("v1".into()),
            field_path: format!("metadata.annotations['{}']", annotation(program)),
        }),
        ..DownwardAPIVolumeFile::default()
    }
}

/// Whole CPUs that a container asks for, at least one.
fn cpus(resources: Option<&k8s_openapi::api::core::v1::ResourceRequirements>) -> u32 {
    let amount = |map: &Option<BTreeMap<String, _>>| map.as_ref()?.get("cpu").map(quantity::thousandths);
    let milli = resources.and_then(|r| amount(&r.requests).or_else(|| amount(&r.limits))).unwrap_or(0);
    u32::try_from(milli / 1_000).unwrap_or(u32::MAX).max(1)
}
