//! What a GPU says of its health: temperature, why clocks are low, errors of memory.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use sys::field_id::{
    NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_FI_DEV_REMAPPED_FAILURE,
    NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_RETIRED_PENDING,
};
use sys::{nvmlDevice_t, nvmlFieldValue_t, nvmlReturn_t};

use super::{INVALID, NOT_SUPPORTED, SUCCESS, gpu, put};
use crate::state::Gpu;

/// Temperature of the GPU's die, degrees Celsius.
///
/// # Safety
/// As in `nvml.h`: `degrees` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    _sensor: sys::nvmlTemperatureSensors_t,
    degrees: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| unsafe { put(degrees, gpu.temperature) })
}

fn reasons(gpu: &Gpu) -> c_ulonglong {
    let idle = if gpu.processes == 0 { sys::nvmlClocksThrottleReasonGpuIdle } else { 0 };
    let (draw, clock) = gpu.draw();
    let ceiling = if gpu.lock > 0 { gpu.lock } else { gpu.clock_max };
    let limited = gpu.processes > 0 && clock + 1.0 < f64::from(ceiling) && draw > 0.0;
    let limited = if limited { sys::nvmlClocksThrottleReasonSwPowerCap } else { 0 };
    c_ulonglong::from(idle | limited) | gpu.reasons
}

/// Why clocks are below the highest, as bits.
///
/// # Safety
/// As in `nvml.h`: `answer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: nvmlDevice_t,
    answer: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |gpu| unsafe { put(answer, reasons(gpu)) })
}

/// Some fields in one call; one that this library does not know says `NOT_SUPPORTED` for itself.
///
/// # Safety
/// As in `nvml.h`: `values` has room for `count` items, whose `fieldId` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    let Ok(count) = usize::try_from(count) else { return INVALID };
    if values.is_null() || count == 0 {
        return INVALID;
    }
    gpu(device, |gpu| {
        // SAFETY: not null, and the caller vouches for the length.
        let values = unsafe { std::slice::from_raw_parts_mut(values, count) };
        for value in values {
            let found = match value.fieldId {
                NVML_FI_DEV_ECC_DBE_VOL_TOTAL => Some(gpu.ecc_volatile),
                NVML_FI_DEV_ECC_DBE_AGG_TOTAL => Some(gpu.ecc_aggregate),
                // Rows are remapped since Ampere, pages retired before.
                NVML_FI_DEV_REMAPPED_PENDING if gpu.capability[0] >= 8 => Some(gpu.remap_pending.into()),
                NVML_FI_DEV_REMAPPED_FAILURE if gpu.capability[0] >= 8 => Some(gpu.remap_failed.into()),
                NVML_FI_DEV_RETIRED_PENDING if gpu.capability[0] < 8 => Some(gpu.remap_pending.into()),
                _ => None,
            };
            value.nvmlReturn = if found.is_some() { SUCCESS } else { NOT_SUPPORTED };
            value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            value.value.ullVal = found.unwrap_or(0);
        }
        SUCCESS
    })
}
