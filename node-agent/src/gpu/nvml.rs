//! [`Gpu`] implemented with NVML.
//!
//! The library is opened once and never closed: handles borrow it, and closing it during a hung call is
//! unsafe. It is opened again after a driver reload, which NVML reports as `Uninitialized`. The old copy
//! leaks a few kilobytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, PerformanceState};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, SampleValue};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
    NVML_FI_DEV_RETIRED_PENDING,
};
use nvml_wrapper::{Device, EventSet, Nvml};
use parking_lot::Mutex;

use super::{
    ClockEvents, ErrorEvent, ErrorEvents, Facts, Gpu, GpuError, Library, MemoryErrors, PowerLimits, Sample,
};

/// Time for which figures that change slowly, or that only people read, are not read again: limit, clocks, utilization.
const SLOW: Duration = Duration::from_secs(5);
/// The same for errors of memory, which a driver counts in tens of milliseconds.
const MEMORY: Duration = Duration::from_secs(30);
/// Length from which nvml-wrapper's list of SM clocks is not the board's: it asks for 128 and, where there are more (V100, L40),
/// returns as many zeros (`nvml_try_count` in 0.13 takes "insufficient size" for success).
const CUT_CLOCKS: usize = 128;
/// Number that NVML gives a critical Xid error that it does not know (`nvmlEventData_t` in `nvml.h`).
const UNKNOWN_XID: u64 = 999;
/// Most processes of a GPU that are kept.
const MAX_PROCESSES: usize = 256;
/// What is read of memory, in one call.
const MEMORY_FIELDS: [u32; 4] = [
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    NVML_FI_DEV_REMAPPED_PENDING,
    NVML_FI_DEV_REMAPPED_FAILURE,
    NVML_FI_DEV_RETIRED_PENDING,
];

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
            Box::leak(Box::new(Nvml::builder().lib_path(&self.path).init().map_err(|failed| {
                let text = failed.to_string();
                Some(error(failed)).filter(GpuError::is_unreachable).unwrap_or(GpuError::Unreachable(text))
            })?));
        *open = Some(nvml);
        Ok(nvml)
    }

    /// Runs `work`, which opens something. If the driver was unloaded meanwhile, reopens the library and retries once.
    fn with<T>(&self, work: impl Fn(&'static Nvml) -> Result<T, NvmlError>) -> Result<T, GpuError> {
        match work(self.nvml()?) {
            Err(NvmlError::Uninitialized) => {
                *self.open.lock() = None;
                work(self.nvml()?).map_err(opening_error)
            }
            answer => answer.map_err(opening_error),
        }
    }
}

impl Library for NvmlLibrary {
    fn uuids(&self) -> Result<Vec<String>, GpuError> {
        self.with(|nvml| {
            let (mut uuids, mut unreachable) = (Vec::new(), None);
            for index in 0..nvml.device_count()? {
                let device = nvml.device_by_index(index);
                // A lost GPU must not hide the others.
                match device.and_then(|device| device.uuid()) {
                    Ok(uuid) => uuids.push(uuid),
                    Err(NvmlError::Uninitialized) => return Err(NvmlError::Uninitialized),
                    Err(error) => {
                        tracing::warn!(index, %error, "a GPU has no UUID");
                        unreachable = unreachable.or(Some(error).filter(hides_devices));
                    }
                }
            }
            uuids.sort();
            // A container without the devices is no node without GPUs.
            unreachable.filter(|_| uuids.is_empty()).map_or(Ok(uuids), Err)
        })
    }

    fn open(&self, uuid: &str) -> Result<Box<dyn Gpu>, GpuError> {
        let device = self.with(|nvml| nvml.device_by_uuid(uuid))?;
        Ok(Box::new(NvmlGpu { device, counter: true, processes: None, slow: None, memory: None }))
    }

    fn error_events(&self, uuids: &[String]) -> Result<Box<dyn ErrorEvents>, GpuError> {
        let (set, mut left_out) = self.with(|nvml| {
            let mut refused: BTreeMap<String, GpuError> = BTreeMap::new();
            'set: loop {
                let mut set = nvml.create_event_set()?;
                let mut left_out = refused.clone();
                for uuid in uuids.iter().filter(|uuid| !refused.contains_key(*uuid)) {
                    let device = nvml.device_by_uuid(uuid.as_str()).and_then(|device| {
                        let types = device.supported_event_types()?;
                        Ok(types.contains(EventTypes::CRITICAL_XID_ERROR).then_some(device))
                    });
                    let device = match device {
                        Ok(Some(device)) => device,
                        Ok(None) => continue,
                        Err(NvmlError::Uninitialized) => return Err(NvmlError::Uninitialized),
                        // A board that is lost or hidden from this process must not keep the others from being watched.
                        Err(failed) => {
                            left_out.insert(uuid.clone(), error(failed));
                            continue;
                        }
                    };
                    match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                        Ok(registered) => set = registered,
                        Err(failed) => {
                            // The set is gone with the error: a new one without this board.
                            let last = refused.len() + 1 == uuids.len();
                            if last || matches!(failed.error, NvmlError::Uninitialized) {
                                return Err(failed.error);
                            }
                            refused.insert(uuid.clone(), error(failed.error));
                            continue 'set;
                        }
                    }
                }
                return Ok((set, left_out));
            }
        })?;
        // A board that is too old stays so.
        left_out.retain(|_, why| *why != GpuError::NotSupported);
        Ok(Box::new(NvmlEvents { set, left_out }))
    }

    fn parent(&self, partition: &str) -> Result<String, GpuError> {
        self.with(|nvml| {
            let device = nvml.device_by_uuid(partition)?;
            device.mig_parent_device()?.uuid()
        })
    }
}

struct NvmlEvents {
    set: EventSet<'static>,
    left_out: BTreeMap<String, GpuError>,
}

impl ErrorEvents for NvmlEvents {
    fn wait(&mut self, timeout: Duration) -> Result<Option<ErrorEvent>, GpuError> {
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        match self.set.wait(milliseconds) {
            Ok(event) => {
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    Some(XidError::Unknown) => UNKNOWN_XID,
                    None => return Ok(None),
                };
                match event.device.uuid() {
                    Ok(uuid) => Ok(Some(ErrorEvent { uuid, xid })),
                    // Then its reads fail too, which is reported.
                    Err(unnamed) => {
                        tracing::warn!(xid, error = %unnamed, "an Xid error of a GPU without a UUID");
                        Ok(None)
                    }
                }
            }
            Err(NvmlError::Timeout) => Ok(None),
            Err(other) => Err(error(other)),
        }
    }

    fn left_out(&self) -> &BTreeMap<String, GpuError> {
        &self.left_out
    }
}

struct NvmlGpu {
    device: Device<'static>,
    /// Whether the GPU has an energy counter: until it says that it has none.
    counter: bool,
    /// Processes of the last sample.
    processes: Option<Vec<u32>>,
    /// Figures that are read every [`SLOW`], and when they were. A sample with nothing else in it.
    slow: Option<(Instant, Sample)>,
    /// Errors of memory, read every [`MEMORY`].
    memory: Option<(Instant, MemoryErrors, Unread)>,
}

/// NVML's names of calls that failed where the GPU has the figure.
type Unread = BTreeSet<&'static str>;

/// A figure, or `None`: the GPU does not have it, or the call failed, which `unread` notes. One figure says nothing about the GPU, and
/// a driver may deprecate any call.
///
/// # Errors
/// The GPU is lost or to be reset, or there is no driver.
fn figure<T>(
    unread: &mut Unread,
    call: &'static str,
    answer: Result<T, NvmlError>,
) -> Result<Option<T>, GpuError> {
    match answer.map_err(error) {
        Ok(value) => Ok(Some(value)),
        Err(GpuError::NotSupported) => Ok(None),
        Err(fatal @ (GpuError::Lost | GpuError::ResetRequired | GpuError::NoDriver(_))) => Err(fatal),
        Err(failed) => {
            tracing::debug!(call, %failed, "a figure cannot be read");
            unread.insert(call);
            Ok(None)
        }
    }
}

impl NvmlGpu {
    /// Whether a GPU of which figures cannot be read is there at all: its UUID can.
    fn is_there(&self, unread: &Unread) -> Result<(), GpuError> {
        if unread.is_empty() { Ok(()) } else { self.device.uuid().map(drop).map_err(error) }
    }

    fn slow(&mut self) -> Result<Sample, GpuError> {
        if let Some((_, slow)) = self.slow.as_ref().filter(|(at, _)| at.elapsed() < SLOW) {
            return Ok(slow.clone());
        }
        let (device, mut unread) = (&self.device, Unread::new());
        let reasons = device.current_throttle_reasons();
        let reasons = figure(&mut unread, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons)?;
        let (limit, clock) = (device.enforced_power_limit(), device.clock_info(Clock::SM));
        let limit = figure(&mut unread, "nvmlDeviceGetEnforcedPowerLimit", limit)?;
        let clock = figure(&mut unread, "nvmlDeviceGetClockInfo", clock)?;
        let rates = figure(&mut unread, "nvmlDeviceGetUtilizationRates", device.utilization_rates())?;
        let slow = Sample {
            limit_mw: limit.filter(|limit| *limit > 0),
            clock_mhz: clock.filter(|clock| *clock > 0),
            util_percent: rates.map(|rates| rates.gpu),
            clock_events: reasons.map(clock_events).unwrap_or_default(),
            unread,
            ..Sample::default()
        };
        self.slow = Some((Instant::now(), slow.clone()));
        Ok(slow)
    }

    fn memory(&mut self, unread: &mut Unread) -> Result<MemoryErrors, GpuError> {
        if let Some((_, memory, missing)) = self.memory.as_ref().filter(|(at, ..)| at.elapsed() < MEMORY) {
            unread.extend(missing);
            return Ok(memory.clone());
        }
        let (fields, mut missing) = (MEMORY_FIELDS.map(FieldId), Unread::new());
        let values = self.device.field_values_for(&fields);
        let values = figure(&mut missing, "nvmlDeviceGetFieldValues", values)?.unwrap_or_default();
        // A field that the GPU does not have fails for itself.
        let mut values = values.into_iter().map(|value| match value.ok()?.value.ok()? {
            SampleValue::U32(value) => Some(u64::from(value)),
            SampleValue::U64(value) => Some(value),
            SampleValue::I64(value) => u64::try_from(value).ok(),
            SampleValue::F64(_) => None,
        });
        let mut next = || values.next().flatten();
        let memory = MemoryErrors {
            uncorrected: next(),
            remap_pending: next().map(|value| value > 0),
            remap_failed: next().map(|value| value > 0),
            retirement_pending: next().map(|value| value > 0),
        };
        unread.extend(&missing);
        self.memory = Some((Instant::now(), memory.clone(), missing));
        Ok(memory)
    }
}

/// Lowest and highest of a board's clocks, MHz; `None` if the list is cut off or has gaps.
fn clock_range(clocks: &[u32]) -> Option<(u32, u32)> {
    let whole = clocks.len() < CUT_CLOCKS && !clocks.contains(&0);
    clocks.iter().min().copied().zip(clocks.iter().max().copied()).filter(|_| whole)
}

fn clock_events(reasons: ThrottleReasons) -> ClockEvents {
    let any = |of: ThrottleReasons| reasons.intersects(of);
    ClockEvents {
        thermal: any(ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN),
        power_brake: any(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
        hardware: any(ThrottleReasons::HW_SLOWDOWN),
    }
}

/// Maps "not supported" to `None`. Of what a setting depends on, all else is an error: then nothing is set.
fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, GpuError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(failed) => {
            Some(error(failed)).filter(|failed| *failed != GpuError::NotSupported).map_or(Ok(None), Err)
        }
    }
}

impl Gpu for NvmlGpu {
    fn facts(&mut self) -> Result<Facts, GpuError> {
        let (device, mut unread) = (&self.device, Unread::new());
        let limits = device.power_management_limit_constraints();
        let limits = figure(&mut unread, "nvmlDeviceGetPowerManagementLimitConstraints", limits)?;
        let clocks =
            figure(&mut unread, "nvmlDeviceGetSupportedMemoryClocks", device.supported_memory_clocks())?;
        let listed = match clocks.and_then(|clocks| clocks.into_iter().max()) {
            Some(memory) => {
                let listed = device.supported_graphics_clocks(memory);
                figure(&mut unread, "nvmlDeviceGetSupportedGraphicsClocks", listed)?
            }
            None => None,
        };
        let clock_mhz = match listed.as_deref() {
            None | Some([]) => None,
            Some(listed) => match clock_range(listed) {
                Some(ends) => Some(ends),
                // The list is not known: the range of the fastest P-state is that of the list.
                None => match device.min_max_clock_of_pstate(Clock::SM, PerformanceState::Zero) {
                    Err(NvmlError::InvalidArg) => None,
                    range => figure(&mut unread, "nvmlDeviceGetMinMaxClockOfPState", range)?
                        .filter(|(lowest, highest)| 0 < *lowest && lowest < highest),
                },
            },
        };
        let product = figure(&mut unread, "nvmlDeviceGetName", device.name())?.unwrap_or_default();
        let minor = figure(&mut unread, "nvmlDeviceGetMinorNumber", device.minor_number())?;
        self.is_there(&unread)?;
        let limit_mw = limits.map(|limits| (limits.min_limit, limits.max_limit));
        Ok(Facts { product, limit_mw, clock_mhz, minor, unread })
    }

    fn sample(&mut self) -> Result<Sample, GpuError> {
        let mut unread = Unread::new();
        // In MIG mode only a privileged caller may see those of all partitions.
        let processes = match self.device.running_compute_processes() {
            Err(NvmlError::NoPermission) => None,
            answer => figure(&mut unread, Sample::PROCESSES, answer)?,
        };
        let ids = |all: Vec<ProcessInfo>| -> Vec<u32> {
            // In any order.
            let mut ids: Vec<u32> = all.into_iter().map(|process| process.pid).collect();
            ids.sort_unstable();
            ids.truncate(MAX_PROCESSES);
            ids
        };
        let processes = processes.map(ids);
        // The clock of a GPU whose process has ended says whether it is at rest.
        if self.processes != processes {
            (self.processes, self.slow) = (processes.clone(), None);
        }
        let slow = self.slow()?;
        unread.extend(&slow.unread);
        let memory = self.memory(&mut unread)?;
        let mut energy_mj = None;
        if self.counter {
            let (call, answer) =
                ("nvmlDeviceGetTotalEnergyConsumption", self.device.total_energy_consumption());
            energy_mj = figure(&mut unread, call, answer)?;
            self.counter = energy_mj.is_some() || unread.contains(call);
        }
        // No board that works draws nothing: some virtual ones say 0.
        let power = figure(&mut unread, "nvmlDeviceGetPowerUsage", self.device.power_usage())?;
        self.is_there(&unread)?;
        Ok(Sample {
            power_mw: power.filter(|power| *power > 0),
            energy_mj,
            processes,
            memory,
            unread,
            ..slow
        })
    }

    fn power_limits(&mut self) -> Result<PowerLimits, GpuError> {
        let device = &self.device;
        let requested_mw = device.power_management_limit().map_err(error)?;
        let enforced = optional(device.enforced_power_limit())?.filter(|enforced| *enforced > 0);
        let mut limits = PowerLimits { requested_mw, enforced_mw: enforced, braked: false };
        if limits.in_force_mw() < requested_mw {
            let events = optional(device.current_throttle_reasons())?.map(clock_events);
            limits.braked =
                events.is_some_and(|events| events.thermal || events.power_brake || events.hardware);
        }
        Ok(limits)
    }

    fn set_limit_mw(&mut self, limit: u32) -> Result<(), GpuError> {
        self.device.set_power_management_limit(limit).map_err(error)
    }

    fn lock_clocks_mhz(&mut self, lowest: u32, highest: u32) -> Result<(), GpuError> {
        // 0 stands for the lowest clock and may be refused; it is never meant here.
        if highest == 0 {
            return Err(GpuError::InvalidValue);
        }
        let range = GpuLockedClocksSetting::Numeric { min_clock_mhz: lowest, max_clock_mhz: highest };
        self.device.set_gpu_locked_clocks(range).map_err(error)
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.device.reset_gpu_locked_clocks().map_err(error)
    }
}

/// Whether a call that opens something says that this container has not, or no longer, the devices of the GPU. Of a GPU that is open,
/// these codes are the GPU's own.
fn hides_devices(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Unknown | NvmlError::OperatingSystem | NvmlError::NoPermission)
}

fn opening_error(failed: NvmlError) -> GpuError {
    if hides_devices(&failed) { GpuError::Unreachable(failed.to_string()) } else { error(failed) }
}

fn error(error: NvmlError) -> GpuError {
    match error {
        NvmlError::GpuLost => GpuError::Lost,
        NvmlError::ResetRequired => GpuError::ResetRequired,
        NvmlError::NoPermission => GpuError::NoPermission,
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            GpuError::NotSupported
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_clocks_that_was_cut_says_nothing() {
        assert_eq!(clock_range(&[1410, 1395, 210]), Some((210, 1410)));
        assert_eq!(clock_range(&[]), None);
        assert_eq!(clock_range(&[0; CUT_CLOCKS]), None, "more than the wrapper has asked for");
        assert_eq!(clock_range(&[1410, 0]), None);
    }
}
