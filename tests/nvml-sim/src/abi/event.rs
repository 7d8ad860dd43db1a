//! Sets of events that a client waits for. The one event here is a critical Xid error.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;
use parking_lot::Mutex;
use sys::{nvmlDevice_t, nvmlEventSet_t, nvmlReturn_t};

use super::{INVALID, NOT_SUPPORTED, SUCCESS, gpu, handle_of, node, place_of, put};

/// The events that can be asked for.
const SUPPORTED: c_ulonglong = sys::nvmlEventTypeXidCriticalError as c_ulonglong;
/// Time between two checks of the state, which no process is notified of.
const CHECK: Duration = Duration::from_millis(50);
/// The GPU and compute instance of an event that concerns the whole GPU.
const WHOLE_GPU: c_uint = c_uint::MAX;

/// A GPU of a set, by its place, and the number of its Xid errors that were delivered or came before.
type Seen = BTreeMap<usize, u32>;

/// The sets of this process by their handle, which is never 0.
static SETS: Mutex<BTreeMap<usize, Seen>> = Mutex::new(BTreeMap::new());

/// `nvmlEventSetCreate`.
///
/// # Safety
/// As in `nvml.h`: `set` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    match node(|_| SUCCESS) {
        SUCCESS => {}
        wrong => return wrong,
    }
    let mut sets = SETS.lock();
    let handle = sets.last_key_value().map_or(1, |(last, _)| last + 1);
    // SAFETY: passed on from the caller.
    let written = unsafe { put(set, std::ptr::without_provenance_mut(handle)) };
    if written == SUCCESS {
        sets.insert(handle, Seen::new());
    }
    written
}

/// `nvmlEventSetFree`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    if SETS.lock().remove(&(set as usize)).is_some() { SUCCESS } else { INVALID }
}

/// `nvmlDeviceGetSupportedEventTypes`.
///
/// # Safety
/// As in `nvml.h`: `types` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    gpu(device, |_| unsafe { put(types, SUPPORTED) })
}

/// `nvmlDeviceRegisterEvents`: events from now on.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    let mut before = 0;
    let known = gpu(device, |gpu| {
        before = gpu.xids;
        if types & !SUPPORTED == 0 { SUCCESS } else { NOT_SUPPORTED }
    });
    match (known, SETS.lock().get_mut(&(set as usize))) {
        (SUCCESS, Some(seen)) => {
            if types != 0 {
                seen.entry(place_of(device)).or_insert(before);
            }
            SUCCESS
        }
        (SUCCESS, None) => INVALID,
        (wrong, _) => wrong,
    }
}

/// `nvmlEventSetWait_v2`. Each event tells the latest error of any GPU, whichever error made it.
///
/// # Safety
/// As in `nvml.h`: `data` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut sys::nvmlEventData_t,
    milliseconds: c_uint,
) -> nvmlReturn_t {
    let until = Instant::now() + Duration::from_millis(milliseconds.into());
    loop {
        let mut news = None;
        {
            let mut sets = SETS.lock();
            let Some(seen) = sets.get_mut(&(set as usize)) else { return INVALID };
            let state = node(|node| {
                let xid = node.xid;
                news = seen.iter_mut().find_map(|(place, seen)| {
                    let gpu = node.gpus().get(*place).filter(|gpu| gpu.xids != *seen)?;
                    *seen = gpu.xids;
                    Some((*place, xid))
                });
                SUCCESS
            });
            if state != SUCCESS {
                return state;
            }
        }
        if let Some((place, xid)) = news {
            let event = sys::nvmlEventData_t {
                device: handle_of(place),
                eventType: SUPPORTED,
                eventData: xid.into(),
                gpuInstanceId: WHOLE_GPU,
                computeInstanceId: WHOLE_GPU,
            };
            // SAFETY: passed on from the caller.
            return unsafe { put(data, event) };
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT;
        }
        std::thread::sleep(left.min(CHECK));
    }
}
