//! A node's GPUs as their driver sees them: a simulated NVML library.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nvidia_ml::{GpuSpec, GpuView, Process, Sim, SimError, Spec};
use serde::{Deserialize, Serialize};

use crate::config::NodeGroup;
use crate::objects::{ANNOTATIONS, PodView};

/// Where a container finds the library and the spec of its node.
pub(crate) const IN_CONTAINER: &str = "/.pretend/nvidia";
/// Name under which programs load NVIDIA's management library.
const LIBRARY: &str = "libnvidia-ml.so.1";
const SPEC: &str = "node.json";
/// Use of a GPU by a training process that says nothing else.
const USE: f64 = 0.9;
/// Share of a GPU's memory that a training process takes.
const MEMORY_SHARE: f64 = 0.6;

/// One GPU as its driver sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuHardware {
    /// UUID.
    pub uuid: String,
    /// Draw, W.
    pub watts: f64,
    /// Energy drawn since the node began, J.
    pub joules: f64,
    /// Power limit, W.
    pub limit_watts: f64,
    /// SM clocks are locked at or below this, MHz.
    pub locked_mhz: Option<u32>,
    /// Default power limit and free clocks.
    pub at_defaults: bool,
}

impl From<GpuView> for GpuHardware {
    fn from(gpu: GpuView) -> Self {
        Self {
            at_defaults: gpu.is_default(),
            uuid: gpu.uuid,
            watts: gpu.watts,
            joules: gpu.joules,
            limit_watts: gpu.limit_watts,
            locked_mhz: gpu.locked_mhz,
        }
    }
}

/// The simulated GPUs of a node.
pub(crate) struct Hardware {
    sim: Sim,
    /// Folder with library and spec, mounted into containers.
    pub folder: PathBuf,
    memory_mib: u64,
    /// Draw of a GPU with a parked context and at full use, W.
    span: (f64, f64),
    product: String,
}

impl Hardware {
    /// Makes the GPUs of a node of that group below `host`, the folder that stands for the node's file system.
    pub fn new(group: &NodeGroup, uuids: &[String], host: &Path, library: &Path) -> Result<Self, SimError> {
        let folder = host.join("nvidia");
        let io = |source: io::Error| SimError::Io { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(io)?;
        let place = folder.join(LIBRARY);
        if !place.exists() {
            std::fs::hard_link(library, &place)
                .or_else(|_| std::fs::copy(library, &place).map(drop))
                .map_err(io)?;
        }
        let gpus = uuids.iter().map(|uuid| GpuSpec::of_product(&group.gpu, uuid, group.gpu_memory_mib));
        let spec = Spec { gpus: gpus.collect(), settings_need_admin: true, ..Spec::of(&[]) };
        let path = folder.join(SPEC);
        spec.write(&path)?;
        let first = spec.gpus.first().cloned().unwrap_or_default();
        Ok(Self {
            sim: Sim::open(&path)?,
            folder,
            memory_mib: group.gpu_memory_mib,
            span: (first.parked_watts, first.max_watts),
            product: group.gpu.clone(),
        })
    }

    /// The path of the spec as a container sees it.
    pub fn spec_in_container() -> String {
        format!("{IN_CONTAINER}/{SPEC}")
    }

    pub fn gpus(&self) -> Vec<GpuHardware> {
        self.sim.gpus().into_iter().map(GpuHardware::from).collect()
    }

    /// A container's process has these GPUs; none when it has ended.
    pub fn runs(&self, gpus: &[String], pid: Option<i32>, pod: &PodView) {
        let util = self.util(pod).unwrap_or(USE);
        let process = pid.and_then(|pid| u32::try_from(pid).ok()).map(|pid| Process {
            pid,
            util,
            memory_mib: (self.memory_mib as f64 * MEMORY_SHARE) as u64,
        });
        for gpu in gpus {
            if let Err(error) = self.sim.set_processes(gpu, process.as_slice()) {
                tracing::warn!(%error, "processes of a GPU");
            }
        }
    }

    /// Use of a GPU by what the pod's annotation `testbed.andreas.dev/gpu-watts` says of this product: a JSON object of the draw of
    /// each GPU, W, without limits.
    fn util(&self, pod: &PodView) -> Option<f64> {
        let said: BTreeMap<String, f64> =
            serde_json::from_str(pod.annotation(&format!("{ANNOTATIONS}/gpu-watts"))?).ok()?;
        let (parked, most) = self.span;
        Some(((said.get(&self.product)? - parked) / (most - parked).max(1.0)).clamp(0.0, 1.0))
    }

    /// Breaks a GPU in the driver's eyes, or mends it.
    pub fn fault(&self, uuid: &str, fault: nvidia_ml::Fault) -> Result<(), String> {
        self.sim.set_fault(uuid, fault).map_err(|error| error.to_string())
    }
}
