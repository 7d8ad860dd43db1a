//! Functions that read. They need no privilege.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlReturn_t};

use super::{INVALID, SUCCESS, TOO_SMALL, gpu, put};
use crate::state::Gpu;

/// Functions that give one number of a GPU.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in `nvml.h`: the place for the answer can be written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: nvmlDevice_t, answer: *mut $type) -> nvmlReturn_t {
            let value: fn(&mut Gpu) -> $type = $value;
            // SAFETY: passed on from the caller.
            gpu(device, |gpu| unsafe { put(answer, value(gpu)) })
        }
    )*};
}

numbers! {
    /// Draw, mW.
    nvmlDeviceGetPowerUsage: c_uint = |gpu| gpu.reading();
    /// Power limit that is enforced, mW.
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |gpu| gpu.enforced_limit();
    /// Power limit that was set, mW.
    nvmlDeviceGetPowerManagementLimit: c_uint = |gpu| gpu.limit;
    /// Power limit after start, mW.
    nvmlDeviceGetPowerManagementDefaultLimit: c_uint = |gpu| gpu.limit_default;
    /// Persistence mode.
    nvmlDeviceGetPersistenceMode: sys::nvmlEnableState_t = |gpu| gpu.persistence;
    /// P-state: 0 with a context; without one 8, but for boards since Hopper, which stay in 0.
    nvmlDeviceGetPerformanceState: sys::nvmlPstates_t =
        |gpu| if gpu.processes > 0 || gpu.capability[0] >= 9 { 0 } else { 8 };
    /// Use, per cent.
    nvmlDeviceGetUtilizationRates: sys::nvmlUtilization_t = |gpu| {
        let use_of = (gpu.util() * 100.0) as c_uint;
        sys::nvmlUtilization_t { gpu: use_of, memory: use_of / 2 }
    };
    /// Memory, bytes.
    nvmlDeviceGetMemoryInfo: sys::nvmlMemory_t = |gpu| {
        let used = gpu.running().iter().map(|process| process.memory).sum::<u64>().min(gpu.memory);
        sys::nvmlMemory_t { total: gpu.memory, free: gpu.memory - used, used }
    };
}

/// Energy since the driver was loaded, mJ; not on boards before Volta.
///
/// # Safety
/// As in `nvml.h`: `energy` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: nvmlDevice_t,
    energy: *mut c_ulonglong,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        if gpu.counter == 0 {
            return super::NOT_SUPPORTED;
        }
        gpu.add_energy();
        // SAFETY: passed on from the caller.
        unsafe { put(energy, gpu.energy / 1_000_000) }
    })
}

/// Lowest and highest power limit, mW.
///
/// # Safety
/// As in `nvml.h`: both places can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    lowest: *mut c_uint,
    highest: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| match unsafe { put(lowest, gpu.limit_min) } {
        // SAFETY: passed on from the caller.
        SUCCESS => unsafe { put(highest, gpu.limit_max) },
        wrong => wrong,
    })
}

/// Clock now, MHz.
///
/// # Safety
/// As in `nvml.h`: `clock` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    kind: sys::nvmlClockType_t,
    clock: *mut c_uint,
) -> nvmlReturn_t {
    gpu(device, |gpu| match kind {
        // SAFETY: passed on from the caller.
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => unsafe { put(clock, gpu.clock_memory[0]) },
        // SAFETY: passed on from the caller.
        _ => unsafe { put(clock, gpu.draw().1 as c_uint) },
    })
}

/// Highest clock, MHz.
///
/// # Safety
/// As in `nvml.h`: `clock` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: nvmlDevice_t,
    kind: sys::nvmlClockType_t,
    clock: *mut c_uint,
) -> nvmlReturn_t {
    gpu(device, |gpu| match kind {
        // SAFETY: passed on from the caller.
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => unsafe { put(clock, gpu.clock_memory[0]) },
        // SAFETY: passed on from the caller.
        _ => unsafe { put(clock, gpu.clock_max) },
    })
}

/// Fills a caller's list: its room is in `count`, which then says how many there are.
///
/// # Safety
/// `count` can be read and written; `list` is null or has room for `count` items.
unsafe fn put_list<T>(count: *mut c_uint, list: *mut T, items: &[T]) -> nvmlReturn_t
where
    T: Copy,
{
    if count.is_null() {
        return INVALID;
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let room = unsafe { count.replace(items.len() as c_uint) };
    if (room as usize) < items.len() {
        return TOO_SMALL;
    }
    if list.is_null() {
        return if items.is_empty() { SUCCESS } else { INVALID };
    }
    // SAFETY: the room is large enough.
    unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), list, items.len()) };
    SUCCESS
}

/// Memory clocks, highest first.
///
/// # Safety
/// As in `nvml.h`: `count` says how much room `clocks` has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    device: nvmlDevice_t,
    count: *mut c_uint,
    clocks: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| unsafe { put_list(count, clocks, gpu.memory_clocks()) })
}

/// SM clocks, highest first.
///
/// # Safety
/// As in `nvml.h`: `count` says how much room `clocks` has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: nvmlDevice_t,
    memory: c_uint,
    count: *mut c_uint,
    clocks: *mut c_uint,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        if !gpu.memory_clocks().contains(&memory) {
            return super::NOT_FOUND;
        }
        let step = gpu.clock_step.max(1) as usize;
        let mut all: Vec<c_uint> = (gpu.clock_min..=gpu.clock_max).step_by(step).collect();
        all.reverse();
        // SAFETY: passed on from the caller.
        unsafe { put_list(count, clocks, &all) }
    })
}

/// Lowest and highest clock of a P-state, MHz. This one knows those of the fastest alone.
///
/// # Safety
/// As in `nvml.h`: both places can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinMaxClockOfPState(
    device: nvmlDevice_t,
    kind: sys::nvmlClockType_t,
    state: sys::nvmlPstates_t,
    lowest: *mut c_uint,
    highest: *mut c_uint,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        if state != 0 {
            return sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN;
        }
        let (from, to) = match kind {
            sys::nvmlClockType_enum_NVML_CLOCK_MEM => (gpu.clock_memory[0], gpu.clock_memory[0]),
            _ => (gpu.clock_min, gpu.clock_max),
        };
        // SAFETY: passed on from the caller.
        match unsafe { put(lowest, from) } {
            // SAFETY: passed on from the caller.
            SUCCESS => unsafe { put(highest, to) },
            wrong => wrong,
        }
    })
}

/// Processes with a context.
///
/// # Safety
/// As in `nvml.h`: `count` says how much room `processes` has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    processes: *mut sys::nvmlProcessInfo_t,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        let of = |process: &crate::state::Running| sys::nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.memory,
            gpuInstanceId: c_uint::MAX,
            computeInstanceId: c_uint::MAX,
        };
        let all: Vec<sys::nvmlProcessInfo_t> = gpu.running().iter().map(of).collect();
        // SAFETY: passed on from the caller.
        unsafe { put_list(count, processes, &all) }
    })
}
