//! Functions that set. They need CAP_SYS_ADMIN, as the kernel module asks (`NV_IS_SUSER` in its open sources).

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use rustix::thread::{CapabilitySet, capabilities};
use sys::{nvmlDevice_t, nvmlReturn_t};

use super::{INVALID, SUCCESS, gpu, node};
use crate::state::Gpu;

/// Whether the calling thread may set anything on this node.
fn allowed() -> nvmlReturn_t {
    node(|node| {
        let admin = || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        if node.deny == 1 || (node.need_admin == 1 && !admin()) {
            return sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION;
        }
        SUCCESS
    })
}

/// One command: counted, checked, then done.
fn command(device: nvmlDevice_t, work: impl FnOnce(&mut Gpu) -> nvmlReturn_t) -> nvmlReturn_t {
    let counted = gpu(device, |gpu| {
        gpu.commands = gpu.commands.wrapping_add(1);
        SUCCESS
    });
    match (counted, allowed()) {
        (SUCCESS, SUCCESS) => gpu(device, |gpu| {
            gpu.add_energy();
            work(gpu)
        }),
        (SUCCESS, refused) => refused,
        (broken, _) => broken,
    }
}

/// Power limit, mW.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetPowerManagementLimit(device: nvmlDevice_t, limit: c_uint) -> nvmlReturn_t {
    command(device, |gpu| {
        if !(gpu.limit_min..=gpu.limit_max).contains(&limit) {
            return INVALID;
        }
        gpu.limit = limit;
        gpu.highest_set = gpu.highest_set.max(limit);
        SUCCESS
    })
}

/// Locks SM clocks between two values, MHz; 0 and 1 stand for the lowest and the highest.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetGpuLockedClocks(
    device: nvmlDevice_t,
    lowest: c_uint,
    highest: c_uint,
) -> nvmlReturn_t {
    command(device, |gpu| {
        if gpu.lockable == 0 {
            return super::NOT_SUPPORTED;
        }
        if lowest > highest || highest == 0 {
            return INVALID;
        }
        gpu.lock = highest.clamp(gpu.clock_min, gpu.clock_max);
        gpu.lock_from = lowest.clamp(gpu.clock_min, gpu.clock_max);
        SUCCESS
    })
}

/// Unlocks SM clocks.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceResetGpuLockedClocks(device: nvmlDevice_t) -> nvmlReturn_t {
    command(device, |gpu| {
        if gpu.lockable == 0 {
            return super::NOT_SUPPORTED;
        }
        gpu.lock = 0;
        SUCCESS
    })
}

/// Persistence mode.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetPersistenceMode(
    device: nvmlDevice_t,
    mode: sys::nvmlEnableState_t,
) -> nvmlReturn_t {
    command(device, |gpu| {
        if mode > 1 {
            return INVALID;
        }
        gpu.persistence = mode;
        SUCCESS
    })
}
