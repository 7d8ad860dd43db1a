//! The exported C functions: library, then `read`, `health`, `identity`, `event` and `set`.
//!
//! Signatures and error codes are those of NVIDIA's `nvml.h` (NVML API reference, r580). A handle is the place of a GPU in the
//! shared state plus one, so it stays with its UUID when indices change.

mod event;
mod health;
mod identity;
mod read;
mod set;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;
use parking_lot::Mutex;
use sys::{nvmlDevice_t, nvmlReturn_t};

use crate::control::Fault;
use crate::shared::Shared;
use crate::state::{Gpu, Node, read_text};

pub(crate) const SUCCESS: nvmlReturn_t = sys::nvmlReturn_enum_NVML_SUCCESS;
pub(crate) const UNINITIALIZED: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
pub(crate) const INVALID: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
pub(crate) const NOT_FOUND: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
pub(crate) const NOT_SUPPORTED: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
pub(crate) const UNKNOWN: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN;
pub(crate) const TOO_SMALL: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;

/// The node of this process, once initialised. Kept after a shutdown: clients may be in a call on another thread.
static NODE: OnceLock<Shared> = OnceLock::new();
/// How often initialised and not shut down; NVML counts too.
static OPEN: Mutex<u32> = Mutex::new(0);

/// Runs `work` on the node; `UNINITIALIZED` before init, after shutdown, and without a driver.
pub(crate) fn node(work: impl FnOnce(&mut Node) -> nvmlReturn_t) -> nvmlReturn_t {
    let Some(shared) = NODE.get().filter(|_| *OPEN.lock() > 0) else { return UNINITIALIZED };
    shared.with(|node| if node.driver_loaded == 1 { work(node) } else { UNINITIALIZED })
}

/// Whether this process has the GPU among its devices no longer.
fn is_hidden(gpu: &Gpu) -> bool {
    Fault::of(gpu.fault) == Fault::Unknown
}

/// The place in the shared state that a handle stands for; none of a GPU where the handle is none.
pub(crate) fn place_of(handle: nvmlDevice_t) -> usize {
    (handle as usize).wrapping_sub(1)
}

/// The handle of the GPU in this place.
pub(crate) fn handle_of(place: usize) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(place + 1)
}

/// Runs `work` on the GPU of a handle, unless a fault forbids it. A hang is waited out here.
pub(crate) fn gpu<F: FnOnce(&mut Gpu) -> nvmlReturn_t>(handle: nvmlDevice_t, work: F) -> nvmlReturn_t {
    on_gpu(handle, false, work)
}

/// Whether the function that made this closure is among those that fail: its name is a part of the closure's type's.
fn fails<F>(node: &Node) -> bool {
    let of = std::any::type_name::<F>();
    let named = |name: &[u8]| !name.is_empty() && of.split("::").any(|part| part.as_bytes() == name);
    read_text(&node.failing).split(|byte| *byte == b' ').any(named)
}

/// Runs `work` on the GPU of a handle; `remembered` is what the driver keeps of a GPU that it has lost.
pub(crate) fn on_gpu<F: FnOnce(&mut Gpu) -> nvmlReturn_t>(
    handle: nvmlDevice_t,
    remembered: bool,
    work: F,
) -> nvmlReturn_t {
    let place = place_of(handle);
    let mut waited = false;
    let counted = node(|node| {
        node.calls = node.calls.wrapping_add(1);
        if fails::<F>(node) { node.failing_code } else { SUCCESS }
    });
    if counted != SUCCESS {
        return counted;
    }
    loop {
        let mut wait = 0;
        let mut fault = SUCCESS;
        let state = node(|node| {
            let Some(gpu) = node.gpus().get(place) else { return INVALID };
            match Fault::of(gpu.fault) {
                Fault::None => wait = if waited { 0 } else { gpu.slow },
                Fault::Hang => wait = 10,
                Fault::Lost | Fault::ResetRequired if remembered => {}
                Fault::Unknown => fault = UNKNOWN,
                Fault::Lost => fault = sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
                Fault::ResetRequired => fault = sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
            }
            SUCCESS
        });
        match (state, fault) {
            (SUCCESS, SUCCESS) if wait > 0 => {
                std::thread::sleep(Duration::from_millis(u64::from(wait)));
                waited = true;
            }
            (SUCCESS, SUCCESS) => break,
            (SUCCESS, fault) => return fault,
            (state, _) => return state,
        }
    }
    node(|node| match node.gpus().get_mut(place) {
        Some(gpu) => work(gpu),
        None => INVALID,
    })
}

/// Writes `value` where a caller wants it.
///
/// # Safety
/// `to` is null or valid for a write of `T`, as `nvml.h` asks of callers.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> nvmlReturn_t {
    if to.is_null() {
        return INVALID;
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { to.write(value) };
    SUCCESS
}

/// Writes a text with its final 0.
///
/// # Safety
/// `to` is null or valid for writes of `length` bytes.
pub(crate) unsafe fn put_text(to: *mut c_char, length: c_uint, text: &[u8]) -> nvmlReturn_t {
    if to.is_null() {
        return INVALID;
    }
    if text.len() + 1 > length as usize {
        return TOO_SMALL;
    }
    // SAFETY: the text and its end fit into `length` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), to, text.len());
        to.add(text.len()).write(0);
    }
    SUCCESS
}

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    let mut open = OPEN.lock();
    if NODE.get().is_none() {
        let Some(path) = std::env::var_os(crate::ENV_SPEC) else {
            return sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
        };
        match Shared::open(Path::new(&path)) {
            Ok(shared) => drop(NODE.set(shared)),
            Err(error) => {
                eprintln!("simulated NVML: {error}");
                return sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
            }
        }
    }
    let Some(shared) = NODE.get() else { return UNKNOWN };
    let entered = shared.with(|node| {
        let gpus = node.gpus();
        if !gpus.is_empty() && gpus.iter().all(is_hidden) {
            return UNKNOWN;
        }
        if node.driver_loaded == 0 {
            return sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED;
        }
        node.enter(std::process::id());
        SUCCESS
    });
    if entered == SUCCESS {
        *open += 1;
    }
    entered
}

/// `nvmlInitWithFlags`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    nvmlInit_v2()
}

/// `nvmlShutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    let mut open = OPEN.lock();
    if *open == 0 {
        return UNINITIALIZED;
    }
    *open -= 1;
    if let Some(shared) = NODE.get() {
        shared.with(|node| node.leave(std::process::id()));
    }
    SUCCESS
}

/// `nvmlSystemGetDriverVersion`.
///
/// # Safety
/// As in `nvml.h`: `version` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    node(|node| {
        let text = node.driver;
        // SAFETY: passed on from the caller.
        unsafe { put_text(version, length, read_text(&text)) }
    })
}

/// `nvmlSystemGetCudaDriverVersion`.
///
/// # Safety
/// As in `nvml.h`: `version` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    node(|node| unsafe { put(version, node.cuda as c_int) })
}

/// `nvmlSystemGetCudaDriverVersion_v2`: there is one driver, so it is the same.
///
/// # Safety
/// As in `nvml.h`: `version` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}

/// `nvmlErrorString`, for the codes that this library returns.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text: &'static CStr = match result {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        TOO_SMALL => c"Insufficient Size",
        sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => c"Insufficient Permissions",
        sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => c"GPU requires reset",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// `nvmlDeviceGetCount_v2`.
///
/// # Safety
/// As in `nvml.h`: `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: passed on from the caller.
    node(|node| unsafe { put(count, node.gpus) })
}

/// `nvmlDeviceGetHandleByIndex_v2`.
///
/// # Safety
/// As in `nvml.h`: `device` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    node(|node| {
        let count = node.gpus().len();
        let place = node.order[..count].get(index as usize).map(|place| *place as usize);
        match place.filter(|place| *place < count) {
            Some(place) if is_hidden(&node.gpu[place]) => UNKNOWN,
            // SAFETY: passed on from the caller.
            Some(place) => unsafe { put(device, handle_of(place)) },
            None => INVALID,
        }
    })
}

/// `nvmlDeviceGetHandleByUUID`.
///
/// # Safety
/// As in `nvml.h`: `uuid` is a text with its final 0, `device` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    if uuid.is_null() {
        return INVALID;
    }
    // SAFETY: a text with its final 0, as the caller vouches.
    let wanted = unsafe { std::ffi::CStr::from_ptr(uuid) };
    node(|node| match node.find(wanted.to_bytes()) {
        Some(place) if is_hidden(&node.gpu[place]) => UNKNOWN,
        // SAFETY: passed on from the caller.
        Some(place) => unsafe { put(device, handle_of(place)) },
        None => NOT_FOUND,
    })
}
