//! What a GPU is and where: names, PCI bus, compute capability, MIG, links to others. It never changes.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlReturn_t};

use super::{INVALID, NOT_FOUND, NOT_SUPPORTED, SUCCESS, gpu, on_gpu, put, put_text};
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

/// Brand: boards since Ampere are NVIDIA's, those before Tesla's.
///
/// # Safety
/// As in `nvml.h`: `brand` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetBrand(
    device: nvmlDevice_t,
    brand: *mut sys::nvmlBrandType_t,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        let of = if gpu.capability[0] >= 8 {
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA
        } else {
            sys::nvmlBrandType_enum_NVML_BRAND_TESLA
        };
        // SAFETY: passed on from the caller.
        unsafe { put(brand, of) }
    })
}

/// Whether a handle is that of a MIG device: there are none, as the mode is off.
///
/// # Safety
/// As in `nvml.h`: `answer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(
    device: nvmlDevice_t,
    answer: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |_| unsafe { put(answer, 0) })
}

/// A MIG device of a GPU: there are none.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    _index: c_uint,
    _partition: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    gpu(device, |_| NOT_FOUND)
}

/// The GPU of a MIG device: no handle is one.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    partition: nvmlDevice_t,
    _device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    gpu(partition, |_| INVALID)
}

/// What a GPU could be partitioned into: seven times one slice.
///
/// # Safety
/// As in `nvml.h`: `info` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    profile: c_uint,
    info: *mut sys::nvmlGpuInstanceProfileInfo_t,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        if gpu.mig_capable == 0 || profile != sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE {
            return NOT_SUPPORTED;
        }
        let slices = 7;
        let of = sys::nvmlGpuInstanceProfileInfo_t {
            id: profile,
            isP2pSupported: 0,
            sliceCount: 1,
            instanceCount: slices,
            multiprocessorCount: 0,
            copyEngineCount: 1,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: (gpu.memory >> 20) / u64::from(slices + 1),
        };
        // SAFETY: passed on from the caller.
        unsafe { put(info, of) }
    })
}

/// NVLink across machines: boards since Hopper answer that they are in no fabric.
///
/// # Safety
/// As in `nvml.h`: `info` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfo(
    device: nvmlDevice_t,
    info: *mut sys::nvmlGpuFabricInfo_t,
) -> nvmlReturn_t {
    gpu(device, |gpu| {
        if gpu.capability[0] < 9 {
            return NOT_SUPPORTED;
        }
        let state = sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as sys::nvmlGpuFabricState_t;
        let none = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: SUCCESS, cliqueId: 0, state };
        // SAFETY: passed on from the caller.
        unsafe { put(info, none) }
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
    /// What a MIG device has.
    nvmlDeviceGetAttributes_v2(*mut sys::nvmlDeviceAttributes_t);
}
