//! [`Gpu`] implemented with NVML.
//!
//! The library is opened once and never closed: handles borrow it, and closing it during a hung call is
//! unsafe. It is opened again after a driver reload, which NVML reports as `Uninitialized`. The old copy
//! leaks a few kilobytes.

use std::ffi::OsString;

use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::GpuLockedClocksSetting;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use parking_lot::Mutex;

use super::{Facts, Gpu, GpuError, Library, Sample};

/// NVML, opened by path or name.
pub struct NvmlLibrary {
    path: OsString,
    open: Mutex<Option<&'static Nvml>>,
}

impl NvmlLibrary {
    /// `path` is passed to `dlopen`, for example `libnvidia-ml.so.1`. Opens nothing yet.
    #[must_use]
    pub fn new(path: impl Into<OsString>) -> Self {
        Self { path: path.into(), open: Mutex::new(None) }
    }

    fn nvml(&self) -> Result<&'static Nvml, GpuError> {
        let mut open = self.open.lock();
        if let Some(nvml) = *open {
            return Ok(nvml);
        }
        let nvml: &'static Nvml =
            Box::leak(Box::new(Nvml::builder().lib_path(&self.path).init().map_err(error)?));
        *open = Some(nvml);
        Ok(nvml)
    }

    /// Runs `work`. If the driver was unloaded meanwhile, reopens the library and retries once.
    fn with<T>(&self, work: impl Fn(&'static Nvml) -> Result<T, NvmlError>) -> Result<T, GpuError> {
        match work(self.nvml()?) {
            Err(NvmlError::Uninitialized) => {
                *self.open.lock() = None;
                work(self.nvml()?).map_err(error)
            }
            answer => answer.map_err(error),
        }
    }
}

impl Library for NvmlLibrary {
    fn uuids(&self) -> Result<Vec<String>, GpuError> {
        self.with(|nvml| {
            let mut uuids = Vec::new();
            for index in 0..nvml.device_count()? {
                // A lost GPU must not hide the others.
                match nvml.device_by_index(index).and_then(|device| device.uuid()) {
                    Ok(uuid) => uuids.push(uuid),
                    Err(NvmlError::Uninitialized) => return Err(NvmlError::Uninitialized),
                    Err(error) => tracing::warn!(index, %error, "a GPU has no UUID"),
                }
            }
            uuids.sort();
            Ok(uuids)
        })
    }

    fn open(&self, uuid: &str) -> Result<Box<dyn Gpu>, GpuError> {
        let device = self.with(|nvml| nvml.device_by_uuid(uuid))?;
        Ok(Box::new(NvmlGpu { device, counter: true }))
    }
}

struct NvmlGpu {
    device: Device<'static>,
    /// Whether the GPU has an energy counter; read once.
    counter: bool,
}

/// Maps "not supported" to `None`.
fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, GpuError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(other) => Err(error(other)),
    }
}

impl Gpu for NvmlGpu {
    fn facts(&mut self) -> Result<Facts, GpuError> {
        let device = &self.device;
        let limits = optional(device.power_management_limit_constraints())?;
        let clocks = optional(device.supported_memory_clocks())?;
        let clock_mhz = match clocks.and_then(|clocks| clocks.into_iter().max()) {
            Some(memory) => optional(device.supported_graphics_clocks(memory))?
                .and_then(|clocks| Some((*clocks.iter().min()?, *clocks.iter().max()?))),
            None => None,
        };
        Ok(Facts {
            product: device.name().map_err(error)?,
            limit_mw: limits.map(|limits| (limits.min_limit, limits.max_limit)),
            clock_mhz,
            persistent: optional(device.is_in_persistent_mode())?.unwrap_or(false),
        })
    }

    fn sample(&mut self) -> Result<Sample, GpuError> {
        let device = &self.device;
        let energy_mj = if self.counter { optional(device.total_energy_consumption())? } else { None };
        self.counter = energy_mj.is_some();
        let processes = optional(device.running_compute_processes())?.map_or(0, |list| list.len());
        Ok(Sample {
            power_mw: device.power_usage().map_err(error)?,
            energy_mj,
            limit_mw: optional(device.enforced_power_limit())?.unwrap_or(0),
            clock_mhz: optional(device.clock_info(Clock::SM))?.unwrap_or(0),
            util_percent: optional(device.utilization_rates())?.map_or(0, |rates| rates.gpu),
            processes: u32::try_from(processes).unwrap_or(u32::MAX),
        })
    }

    fn limit_mw(&mut self) -> Result<u32, GpuError> {
        self.device.power_management_limit().map_err(error)
    }

    fn set_limit_mw(&mut self, limit: u32) -> Result<(), GpuError> {
        self.device.set_power_management_limit(limit).map_err(error)
    }

    fn lock_clocks_mhz(&mut self, highest: u32) -> Result<(), GpuError> {
        // A range from 0 allows the driver to go lower if it needs to.
        let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: 0, max_clock_mhz: highest };
        self.device.set_gpu_locked_clocks(range).map_err(error)
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.device.reset_gpu_locked_clocks().map_err(error)
    }
}

fn error(error: NvmlError) -> GpuError {
    match error {
        NvmlError::GpuLost => GpuError::Lost,
        NvmlError::ResetRequired => GpuError::ResetRequired,
        NvmlError::NoPermission => GpuError::NoPermission,
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) => GpuError::NotSupported,
        NvmlError::InvalidArg => GpuError::InvalidValue,
        NvmlError::NotFound => GpuError::NotFound,
        NvmlError::Uninitialized
        | NvmlError::DriverNotLoaded
        | NvmlError::LibRmVersionMismatch
        | NvmlError::LibraryNotFound
        | NvmlError::LibloadingError(_) => GpuError::NoDriver(error.to_string()),
        other => GpuError::Other(other.to_string()),
    }
}
