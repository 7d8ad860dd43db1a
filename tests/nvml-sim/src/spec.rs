//! The file that says which GPUs a node has. JSON; watts and MHz.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::{MAX_GPUS, SimError, TEXT};

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Its GPUs, in the order of NVML's indices. None is a node whose driver finds no GPU.
    pub gpus: Vec<GpuSpec>,
    /// Settings need CAP_SYS_ADMIN, as with the real kernel module. Off for tests that are not root.
    #[serde(default = "yes")]
    pub settings_need_admin: bool,
    /// What `nvmlSystemGetDriverVersion` says.
    #[serde(default = "driver")]
    pub driver_version: String,
    /// Newest CUDA version that the driver supports, major and minor.
    #[serde(default = "cuda")]
    pub cuda_version: (u32, u32),
}

/// One GPU. The defaults are those of an A100 SXM4 80 GB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GpuSpec {
    /// `GPU-...`.
    pub uuid: String,
    /// Product name, as `nvmlDeviceGetName` says it.
    pub product: String,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// PCI device ID; the vendor is NVIDIA.
    pub pci_device: u16,
    /// Whether the board can be partitioned (MIG). The mode itself is off.
    pub mig_capable: bool,
    /// Draw without any context, W.
    pub idle_watts: f64,
    /// Draw with a context that does nothing, W.
    pub parked_watts: f64,
    /// Draw at full use and highest clock, W.
    pub max_watts: f64,
    /// Lowest power limit that can be set, W.
    pub limit_min_watts: f64,
    /// Highest power limit that can be set, W.
    pub limit_max_watts: f64,
    /// Power limit after start, W.
    pub limit_default_watts: f64,
    /// SM clock without any context, MHz.
    pub clock_idle_mhz: u32,
    /// Lowest SM clock that can be locked, MHz.
    pub clock_min_mhz: u32,
    /// Highest SM clock, MHz.
    pub clock_max_mhz: u32,
    /// Step between two SM clocks, MHz.
    pub clock_step_mhz: u32,
    /// Memory clock, MHz.
    pub memory_clock_mhz: u32,
    /// A lower memory clock, MHz; 0 for boards that have one alone.
    pub low_memory_clock_mhz: u32,
    /// Persistence mode. When off, settings are forgotten with the last client.
    pub persistence: bool,
    /// Whether SM clocks can be locked (Volta and newer).
    pub lockable: bool,
    /// Whether the extra draw of a parked context follows the SM clock, so that low clocks take it back. Boards differ.
    pub parked_follows_clock: bool,
    /// Whether it counts its energy (Volta and newer).
    pub energy_counter: bool,
    /// Whether something beside compute processes keeps its clocks up, as a display or another monitor: without a process it
    /// draws as with an idle context, and NVML names no process.
    pub kept_busy: bool,
    /// Time over which `nvmlDeviceGetPowerUsage` averages, ms: 1000 on Ampere but GA100 and newer, 0 on others. Only curves
    /// are averaged.
    pub power_average_ms: u32,
}

impl Default for GpuSpec {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            product: "NVIDIA A100-SXM4-80GB".into(),
            memory_mib: 81_920,
            compute_capability: (8, 0),
            pci_device: 0x20b2,
            mig_capable: true,
            idle_watts: 53.7,
            parked_watts: 80.0,
            max_watts: 400.0,
            limit_min_watts: 100.0,
            limit_max_watts: 400.0,
            limit_default_watts: 400.0,
            clock_idle_mhz: 210,
            clock_min_mhz: 210,
            clock_max_mhz: 1410,
            clock_step_mhz: 15,
            memory_clock_mhz: 1593,
            low_memory_clock_mhz: 0,
            persistence: true,
            lockable: true,
            parked_follows_clock: true,
            energy_counter: true,
            kept_busy: false,
            power_average_ms: 0,
        }
    }
}

impl GpuSpec {
    /// A GPU of a product, by the name that GPU feature discovery gives it. What the board is comes from [`Board`].
    /// Highest draw, limits and clocks are those of NVIDIA's product briefs; draws at idle and with a parked context
    /// are typical readings, not promises. An unknown product is an A100 by another name, without MIG.
    #[must_use]
    pub fn of_product(product: &str, uuid: &str, memory_mib: u64) -> Self {
        let base = Self {
            uuid: uuid.to_owned(),
            product: product.replacen('-', " ", 1),
            memory_mib,
            mig_capable: false,
            ..Self::default()
        };
        let base = match Board::of_product(product) {
            Some(Board { capability, pci_device, mig, .. }) => {
                Self { compute_capability: capability, pci_device, mig_capable: mig, ..base }
            }
            None => base,
        };
        let base = if product.is_empty() { Self { product: "NVIDIA GPU".to_owned(), ..base } } else { base };
        match product {
            // Limits and clocks as in `recordings`, draws as in `docs/hardware.md`: of these two boards, and not of the smaller
            // ones of their names (PCIe, NVL).
            "NVIDIA-H200" => Self {
                idle_watts: 77.0,
                parked_watts: 120.0,
                memory_clock_mhz: 3201,
                low_memory_clock_mhz: 2201,
                ..base.hopper()
            },
            "NVIDIA-H100-80GB-HBM3" => Self {
                idle_watts: 73.0,
                parked_watts: 126.0,
                memory_clock_mhz: 2619,
                low_memory_clock_mhz: 1593,
                ..base.hopper()
            },
            name if name.contains("V100") => Self {
                idle_watts: 33.0,
                parked_watts: 45.0,
                max_watts: 300.0,
                limit_min_watts: 150.0,
                limit_max_watts: 300.0,
                limit_default_watts: 300.0,
                clock_idle_mhz: 135,
                clock_min_mhz: 135,
                clock_max_mhz: 1530,
                // In truth 7 and 8 in turn; its list is longer than the 128 that clients ask for at first.
                clock_step_mhz: 7,
                memory_clock_mhz: 877,
                ..base
            },
            name if name.contains("T4") => Self {
                idle_watts: 10.0,
                parked_watts: 27.0,
                max_watts: 70.0,
                limit_min_watts: 60.0,
                limit_max_watts: 70.0,
                limit_default_watts: 70.0,
                clock_idle_mhz: 300,
                clock_min_mhz: 300,
                clock_max_mhz: 1590,
                memory_clock_mhz: 5001,
                ..base
            },
            _ => base,
        }
    }
}

impl GpuSpec {
    /// Limits and clocks of boards of 700 W.
    fn hopper(self) -> Self {
        Self {
            max_watts: 700.0,
            limit_min_watts: 200.0,
            limit_max_watts: 700.0,
            limit_default_watts: 700.0,
            clock_idle_mhz: 345,
            clock_min_mhz: 345,
            clock_max_mhz: 1980,
            power_average_ms: 1000,
            ..self
        }
    }
}

fn yes() -> bool {
    true
}

fn driver() -> String {
    "580.95.05".into()
}

fn cuda() -> (u32, u32) {
    (13, 0)
}

impl Spec {
    /// `uuids` as equal GPUs; settings need no capability.
    #[must_use]
    pub fn of(uuids: &[&str]) -> Self {
        let gpu = |uuid: &&str| GpuSpec { uuid: (*uuid).to_owned(), ..GpuSpec::default() };
        Self {
            gpus: uuids.iter().map(gpu).collect(),
            settings_need_admin: false,
            driver_version: driver(),
            cuda_version: cuda(),
        }
    }

    /// Reads a spec and checks it.
    ///
    /// # Errors
    /// When the file cannot be read, or is no spec that makes sense.
    pub fn read(path: &Path) -> Result<Self, SimError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| SimError::Io { path: path.to_owned(), source })?;
        let spec: Self = serde_json::from_str(&text).map_err(|error| SimError::Spec(error.to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// Writes a spec where [`ENV_SPEC`](crate::ENV_SPEC) may point to.
    ///
    /// # Errors
    /// When it makes no sense or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), SimError> {
        self.check()?;
        let text = serde_json::to_vec_pretty(self).map_err(|error| SimError::Spec(error.to_string()))?;
        std::fs::write(path, text).map_err(|source| SimError::Io { path: path.to_owned(), source })
    }

    fn check(&self) -> Result<(), SimError> {
        if self.gpus.len() > MAX_GPUS {
            return Err(SimError::Spec(format!("{} GPUs, at most {MAX_GPUS}", self.gpus.len())));
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            let text = |text: &str| !text.is_empty() && text.len() < TEXT;
            let powers = 0.0 < gpu.idle_watts
                && gpu.idle_watts <= gpu.parked_watts
                && gpu.parked_watts <= gpu.max_watts
                && gpu.max_watts < 100_000.0;
            let limits = 0.0 < gpu.limit_min_watts
                && gpu.limit_min_watts <= gpu.limit_default_watts
                && gpu.limit_default_watts <= gpu.limit_max_watts
                && gpu.limit_max_watts < 100_000.0;
            let clocks = 0 < gpu.clock_step_mhz
                && 0 < gpu.clock_min_mhz
                && gpu.clock_min_mhz <= gpu.clock_idle_mhz
                && gpu.clock_idle_mhz < gpu.clock_max_mhz;
            let twice = self.gpus[..index].iter().any(|other| other.uuid == gpu.uuid);
            if !(text(&gpu.uuid) && text(&gpu.product) && powers && limits && clocks) || twice {
                return Err(SimError::Spec(format!("GPU {index} ({}) has wrong figures", gpu.uuid)));
            }
        }
        Ok(())
    }
}
