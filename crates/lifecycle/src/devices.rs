//! Which GPUs containers see.

use k8s_openapi::api::core::v1::{EnvVar, PodSpec};

/// The variable by which NVIDIA's container runtime chooses a container's GPUs. The device plug-in sets it where GPUs are requested.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Hides GPUs from all containers but the one that trains: images of CUDA ask for all of the node.
pub(super) fn hide(spec: &mut PodSpec, trains: Option<&str>) {
    let others = spec.containers.iter_mut().filter(|c| Some(c.name.as_str()) != trains);
    for container in others.chain(spec.init_containers.iter_mut().flatten()) {
        let env = container.env.get_or_insert_default();
        env.retain(|e| e.name != VISIBLE_DEVICES);
        env.push(EnvVar { name: VISIBLE_DEVICES.into(), value: Some("void".into()), ..EnvVar::default() });
    }
}
