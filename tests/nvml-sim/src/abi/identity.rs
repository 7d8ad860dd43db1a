//! What a GPU is and where: names, PCI bus, compute capability, MIG, links to others. It never changes.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlReturn_t};

use super::{NOT_SUPPORTED, SUCCESS, gpu, on_gpu, put, put_text};
use crate::pci;
use crate::state::read_text;

/// UUID. The driver keeps it of a GPU that it has lost: the device plug-in names by it the one GPU of an Xid 79.
///
/// # Safety
/// As in `nvml.h`: `text` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    text: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    on_gpu(device, true, |gpu| unsafe { put_text(text, length, read_text(&gpu.uuid)) })
}

/// Product.
///
/// # Safety
/// As in `nvml.h`: `text` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    text: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| unsafe { put_text(text, length, read_text(&gpu.product)) })
}

/// Number of the device file, `/dev/nvidiaN`.
///
/// # Safety
/// As in `nvml.h`: `minor` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| unsafe { put(minor, gpu.minor) })
}

/// Place on the PCI bus.
///
/// # Safety
/// As in `nvml.h`: `info` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    info: *mut sys::nvmlPciInfo_t,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| unsafe { put(info, pci::info(gpu)) })
}

/// CUDA compute capability.
///
/// # Safety
/// As in `nvml.h`: both places can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        let [of_major, of_minor] = gpu.capability.map(|part| part as c_int);
        // SAFETY: passed on from the caller.
        match unsafe { put(major, of_major) } {
            // SAFETY: passed on from the caller.
            SUCCESS => unsafe { put(minor, of_minor) },
            wrong => wrong,
        }
    })
}

/// Architecture, by the compute capability.
///
/// # Safety
/// As in `nvml.h`: `architecture` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetArchitecture(
    device: nvmlDevice_t,
    architecture: *mut sys::nvmlDeviceArchitecture_t,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        let of = match gpu.capability {
            [7, 0..5] => sys::NVML_DEVICE_ARCH_VOLTA,
            [7, _] => sys::NVML_DEVICE_ARCH_TURING,
            [8, 0..9] => sys::NVML_DEVICE_ARCH_AMPERE,
            [8, _] => sys::NVML_DEVICE_ARCH_ADA,
            [9, _] => sys::NVML_DEVICE_ARCH_HOPPER,
            [10 | 12, _] => sys::NVML_DEVICE_ARCH_BLACKWELL,
            _ => sys::NVML_DEVICE_ARCH_UNKNOWN,
        };
        // SAFETY: passed on from the caller.
        unsafe { put(architecture, of) }
    })
}

/// MIG mode, now and after the next reset: off, on boards that have it.
///
/// # Safety
/// As in `nvml.h`: both places can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        if gpu.mig_capable == 0 {
            return NOT_SUPPORTED;
        }
        // SAFETY: passed on from the caller.
        match unsafe { put(now, sys::NVML_DEVICE_MIG_DISABLE) } {
            // SAFETY: passed on from the caller.
            SUCCESS => unsafe { put(pending, sys::NVML_DEVICE_MIG_DISABLE) },
            wrong => wrong,
        }
    })
}

/// Most MIG devices: none where the mode is off.
///
/// # Safety
/// As in `nvml.h`: `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |_| unsafe { put(count, 0) })
}

/// How two GPUs reach each other: all of a node hang on one CPU.
///
/// # Safety
/// As in `nvml.h`: `level` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    level: *mut sys::nvmlGpuTopologyLevel_t,
) -> nvmlReturn_t {
    match gpu(first, |_| SUCCESS) {
        // SAFETY: passed on from the caller.
        SUCCESS => gpu(second, |_| unsafe { put(level, sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE) }),
        wrong => wrong,
    }
}

/// Functions of features that these boards do not have.
macro_rules! unsupported {
    ($($(#[$doc:meta])* $name:ident($($argument:ty),*);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, $(_: $argument),*) -> nvmlReturn_t {
            gpu(device, |_| NOT_SUPPORTED)
        }
    )*};
}

unsupported! {
    /// NVLink.
    nvmlDeviceGetNvLinkState(c_uint, *mut sys::nvmlEnableState_t);
    /// NVLink.
    nvmlDeviceGetNvLinkRemotePciInfo_v2(c_uint, *mut sys::nvmlPciInfo_t);
    /// NVLink across machines.
    nvmlDeviceGetGpuFabricInfo(*mut sys::nvmlGpuFabricInfo_t);
    /// MIG profiles: the mode cannot be turned on here.
    nvmlDeviceGetGpuInstanceProfileInfo(c_uint, *mut sys::nvmlGpuInstanceProfileInfo_t);
}
