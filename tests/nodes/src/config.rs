//! The configuration file: which nodes there are and how their containers run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::file::{self, FileError};
use crate::quantity;
use crate::recorded::Recorded;

/// The file given by `--config`, YAML or JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodesConfig {
    /// The nodes, by group of equal ones.
    pub nodes: Vec<NodeGroup>,
    /// Processes (the default) or simulated.
    #[serde(default)]
    pub containers: Containers,
    /// Programs that stand for images.
    #[serde(default)]
    pub images: Vec<Image>,
    /// Addresses inside that lead to places outside.
    #[serde(default)]
    pub forwards: Vec<Forward>,
    /// The simulated `libnvidia-ml` of nodes with GPUs, loaded by containers that ask for the driver; without it they have none.
    #[serde(default)]
    pub nvml_library: Option<PathBuf>,
    /// Folders of the machine that containers see read-only.
    #[serde(default)]
    pub host_paths: Vec<PathBuf>,
    /// Seconds between two renewals of a node's Lease (kubelet: 10).
    #[serde(default = "ten")]
    pub lease_renew_seconds: u64,
    /// `leaseDurationSeconds` of a node's Lease (kubelet: 40).
    #[serde(default = "forty")]
    pub lease_seconds: i32,
    /// Seconds between two reports of an unchanged node status (kubelet: 300).
    #[serde(default = "three_hundred")]
    pub status_seconds: u64,
    /// Most writes to the API server under way at one time, leases apart.
    #[serde(default = "sixteen")]
    pub writes_in_flight: usize,
    /// Seconds from binding to Running of a simulated pod.
    #[serde(default = "fifth")]
    pub simulated_start_seconds: f64,
}

fn ten() -> u64 {
    10
}
fn forty() -> i32 {
    40
}
fn three_hundred() -> u64 {
    300
}
fn sixteen() -> usize {
    16
}
fn fifth() -> f64 {
    0.2
}

/// How containers run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Containers {
    /// As processes in private namespaces.
    #[default]
    Processes,
    /// Not at all: states by the clock, for thousands of nodes.
    Simulated,
}

/// Equal nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeGroup {
    /// Nodes are named `<prefix><number from 0>`.
    pub name_prefix: String,
    /// How many.
    pub count: usize,
    /// The name of its only node, whose object somebody else made: a cloud.
    #[serde(default)]
    pub name: Option<String>,
    /// A recorded label set by its name (a file of `labels`): its labels and GPU resources instead of the default ones.
    #[serde(default)]
    pub recorded: Option<String>,
    /// What is recorded under that name.
    #[serde(skip)]
    pub set: Option<Recorded>,
    /// Value of `nvidia.com/gpu.product`, for example `NVIDIA-A100-SXM4-80GB`.
    #[serde(default)]
    pub gpu: String,
    /// GPUs of each node; 0 for a node without.
    #[serde(default)]
    pub gpus: usize,
    /// Memory of each GPU, MiB.
    #[serde(default, rename = "gpuMemoryMiB")]
    pub gpu_memory_mib: u64,
    /// Whether something beside compute processes keeps their clocks up, so that agents put idle ones to rest.
    #[serde(default)]
    pub gpus_kept_busy: bool,
    /// CPUs, as a quantity.
    #[serde(default = "cpu")]
    pub cpu: String,
    /// Memory, as a quantity.
    #[serde(default = "memory")]
    pub memory: String,
    /// Pod slots.
    #[serde(default = "pods")]
    pub pods: u32,
    /// Labels besides those of kubelet and GPU feature discovery; they win.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints, `key[=value]:effect`.
    #[serde(default)]
    pub taints: Vec<String>,
}

impl NodeGroup {
    /// Takes GPUs and product from the recorded set, if the group names one.
    fn look_up(&mut self) -> Result<(), ConfigError> {
        let Some(name) = &self.recorded else { return Ok(()) };
        let set = Recorded::named(name)?;
        self.gpus = set.gpus();
        if self.gpu.is_empty() {
            self.gpu = set.planned.clone().unwrap_or_default();
        }
        self.set = Some(set);
        Ok(())
    }
}

fn cpu() -> String {
    "64".to_owned()
}
fn memory() -> String {
    "512Gi".to_owned()
}
fn pods() -> u32 {
    110
}

/// A program that stands for an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// Image name; without a tag it stands for every tag.
    pub image: String,
    /// The program, run where the container gives no command (the image's entry point).
    pub program: PathBuf,
    /// Run the program whatever command the container gives.
    #[serde(default)]
    pub replace_command: bool,
}

/// An address inside that leads to the machine, or one of the machine that leads to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Forward {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// Where connections go.
    pub to: SocketAddr,
    /// Names for the address in every container's `/etc/hosts`.
    #[serde(default)]
    pub names: Vec<String>,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file, or that of a recorded label set.
    #[error(transparent)]
    File(#[from] FileError),
    /// A value out of its range.
    #[error("{field}: {wanted}")]
    Value {
        /// The field.
        field: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A taint that is none.
    #[error("taint {0:?}: wanted key[=value]:effect")]
    Taint(String),
}

impl NodesConfig {
    /// Reads YAML or JSON.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = file::read(path)?;
        config.nodes.iter_mut().try_for_each(NodeGroup::look_up)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field: &str, wanted| Err(ConfigError::Value { field: field.to_owned(), wanted });
        if !(0.0..=1e6).contains(&self.simulated_start_seconds) {
            return wrong("simulatedStartSeconds", "wanted 0 to 1000000");
        }
        for group in &self.nodes {
            for (field, value) in [("cpu", &group.cpu), ("memory", &group.memory)] {
                if quantity(value).is_none_or(|value| value <= 0.0) {
                    return wrong(
                        &format!("{} of {}", field, group.name_prefix),
                        "wanted a quantity above 0",
                    );
                }
            }
        }
        self.nodes.iter().flat_map(|group| &group.taints).try_for_each(|taint| parse_taint(taint).map(drop))
    }

    /// The entry for an image: exact, or by name without tag and digest.
    #[must_use]
    pub fn image(&self, image: &str) -> Option<&Image> {
        let bare = image.split('@').next().unwrap_or(image);
        let untagged = match bare.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => name,
            _ => bare,
        };
        self.images
            .iter()
            .find(|entry| entry.image == image || entry.image == bare || entry.image == untagged)
    }
}

/// `key[=value]:effect` as (key, value, effect).
pub fn parse_taint(taint: &str) -> Result<(&str, &str, &str), ConfigError> {
    let wrong = || ConfigError::Taint(taint.to_owned());
    let (pair, effect) = taint.rsplit_once(':').ok_or_else(wrong)?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(wrong());
    }
    Ok((key, value, effect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_any_tag_and_digest() {
        let config: NodesConfig = serde_saphyr::from_str(
            "nodes: [{namePrefix: a-, count: 1}]\nimages: [{image: andreas.dev/trainer, program: /bin/true}]",
        )
        .unwrap();
        for image in ["andreas.dev/trainer", "andreas.dev/trainer:dev", "andreas.dev/trainer:dev@sha256:00"] {
            assert!(config.image(image).is_some(), "{image}");
        }
        for image in ["andreas.dev/trainers:dev", "andreas.dev:5000/trainer", "busybox"] {
            assert!(config.image(image).is_none(), "{image}");
        }
    }

    #[test]
    fn taints_are_checked_when_the_file_is_read() {
        assert_eq!(
            parse_taint("nvidia.com/gpu=present:NoSchedule").unwrap(),
            ("nvidia.com/gpu", "present", "NoSchedule")
        );
        assert!(parse_taint("nvidia.com/gpu:Never").is_err());
    }
}
