//! A node's GPUs as their driver sees them: a simulated NVML library.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nvidia_ml::{GpuSpec, GpuView, Process, Sim, SimError, Spec};
use serde::{Deserialize, Serialize};

use crate::config::NodeGroup;
use crate::objects::PodView;

/// Where a container finds the library and the spec of its node.
pub(crate) const IN_CONTAINER: &str = "/.pretend/nvidia";
/// Name under which programs load NVIDIA's management library.
const LIBRARY: &str = "libnvidia-ml.so.1";
const SPEC: &str = "node.json";
/// Use of a GPU by a training process that says nothing else.
const USE: f64 = 0.9;
/// Share of a GPU's memory that a training process takes.
const MEMORY_SHARE: f64 = 0.6;
/// A pod's annotation: a JSON object of the draw of each GPU by product, W, without limits.
pub const GPU_WATTS: &str = "testbed.andreas.dev/gpu-watts";

/// What a training process looks like to the driver of such GPUs. `watts`: the pod's annotation [`GPU_WATTS`]; a GPU is in use by
/// nine tenths where it says nothing of the product.
#[must_use]
pub fn training_process(pid: u32, gpu: &GpuSpec, product: &str, watts: Option<&str>) -> Process {
    let said = watts.and_then(|text| serde_json::from_str::<BTreeMap<String, f64>>(text).ok());
    let span = (gpu.max_watts - gpu.parked_watts).max(1.0);
    let util = said.and_then(|said| Some(((said.get(product)? - gpu.parked_watts) / span).clamp(0.0, 1.0)));
    let memory_mib = (gpu.memory_mib as f64 * MEMORY_SHARE) as u64;
    Process { pid, util: util.unwrap_or(USE), memory_mib }
}

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
    /// What each of them is.
    each: GpuSpec,
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
        let gpus = uuids.iter().map(|uuid| GpuSpec {
            kept_busy: group.gpus_kept_busy,
            ..GpuSpec::of_product(&group.gpu, uuid, group.gpu_memory_mib)
        });
        let spec = Spec { gpus: gpus.collect(), settings_need_admin: true, ..Spec::of(&[]) };
        let path = folder.join(SPEC);
        spec.write(&path)?;
        let each = spec.gpus.first().cloned().unwrap_or_default();
        Ok(Self { sim: Sim::open(&path)?, folder, each, product: group.gpu.clone() })
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
        let process = pid
            .and_then(|pid| u32::try_from(pid).ok())
            .map(|pid| training_process(pid, &self.each, &self.product, pod.annotation(GPU_WATTS)));
        for gpu in gpus {
            if let Err(error) = self.sim.set_processes(gpu, process.as_slice()) {
                tracing::warn!(%error, "processes of a GPU");
            }
        }
    }

    /// Breaks a GPU in the driver's eyes, or mends it.
    pub fn fault(&self, uuid: &str, fault: nvidia_ml::Fault) -> Result<(), String> {
        self.sim.set_fault(uuid, fault).map_err(|error| error.to_string())
    }
}
