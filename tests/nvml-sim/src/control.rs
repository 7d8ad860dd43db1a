//! The other side of a simulated node: who runs where, which faults there are, what was set.

use std::path::Path;

use crate::curve::Curve;
use crate::shared::Shared;
use crate::state::{Gpu, Node, Running, read_text, text};
use crate::{MAX_PROCESSES, SimError};

/// A simulated node, driven from outside. Any number of processes may have it open.
pub struct Sim {
    shared: Shared,
}

/// A process with a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// Process id on the host.
    pub pid: u32,
    /// Use of the GPU, 0 to 1.
    pub util: f64,
    /// Memory in use, MiB.
    pub memory_mib: u64,
}

/// What is wrong with a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Fallen off the bus (Xid 79): every call but that for its UUID says `GPU_IS_LOST`.
    Lost,
    /// Every call hangs until the fault is taken away.
    Hang,
    /// A double bit ECC error (Xid 48): every call but that for its UUID says `RESET_REQUIRED`.
    ResetRequired,
    /// Taken from the container's devices, as `systemctl daemon-reload` does it: the library cannot be initialised where that is so of
    /// every GPU, and every call on the GPU says `UNKNOWN`.
    Unknown,
}

/// What a GPU looks like from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuView {
    /// UUID.
    pub uuid: String,
    /// Draw, W.
    pub watts: f64,
    /// Energy drawn since the state was made, J.
    pub joules: f64,
    /// SM clock, MHz.
    pub clock_mhz: f64,
    /// Power limit, W.
    pub limit_watts: f64,
    /// Power limit that is enforced, W: below the other one where a limiter out of band is lower.
    pub enforced_watts: f64,
    /// The highest power limit that a client has set so far, W; `None`: none was set.
    pub highest_set_watts: Option<f64>,
    /// Whether the limit is the default one.
    pub limit_is_default: bool,
    /// SM clocks are locked at or below this, MHz.
    pub locked_mhz: Option<u32>,
    /// They are locked at or above this, MHz.
    pub locked_from_mhz: Option<u32>,
    /// Settings asked for so far, granted or not.
    pub commands: u32,
}

/// What a GPU says of its memory's errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryErrors {
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected: u64,
    /// Uncorrected ECC errors in its life.
    pub uncorrected_ever: u64,
    /// Rows are remapped at the next reset.
    pub remap_pending: bool,
    /// A row could not be remapped.
    pub remap_failed: bool,
}

impl GpuView {
    /// Default limit and no locked clocks.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.limit_is_default && self.locked_mhz.is_none()
    }
}

impl Fault {
    /// The fault in a number of the shared state.
    #[must_use]
    pub fn of(number: u32) -> Self {
        match number {
            1 => Self::Lost,
            2 => Self::Hang,
            3 => Self::ResetRequired,
            4 => Self::Unknown,
            _ => Self::None,
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Lost => 1,
            Self::Hang => 2,
            Self::ResetRequired => 3,
            Self::Unknown => 4,
        }
    }

    /// The critical Xid error that the driver reports with it, by NVIDIA's "Xid Errors".
    fn xid(self) -> Option<u32> {
        match self {
            Self::Lost => Some(79),
            Self::ResetRequired => Some(48),
            Self::None | Self::Hang | Self::Unknown => None,
        }
    }
}

impl Sim {
    /// Opens the node of the spec at `path`, and makes it when nobody has yet.
    ///
    /// # Errors
    /// When the spec is wrong or its files cannot be used.
    pub fn open(path: &Path) -> Result<Self, SimError> {
        Ok(Self { shared: Shared::open(path)? })
    }

    /// Sets the processes that have a context on a GPU, in place of those before; at most [`MAX_PROCESSES`] are kept.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_processes(&self, uuid: &str, processes: &[Process]) -> Result<(), SimError> {
        self.change(uuid, |gpu| {
            gpu.processes = processes.len().min(MAX_PROCESSES) as u32;
            for (place, process) in gpu.process.iter_mut().zip(processes) {
                *place = Running {
                    pid: process.pid,
                    util: (process.util.clamp(0.0, 1.0) * 1000.0) as u32,
                    memory: process.memory_mib * 1024 * 1024,
                };
            }
        })
    }

    /// Breaks a GPU, or mends it. Only a reset mends one that was lost or needs it.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_fault(&self, uuid: &str, fault: Fault) -> Result<(), SimError> {
        if let Some(xid) = fault.xid() {
            self.raise_xid(uuid, xid)?;
        }
        self.change(uuid, |gpu| {
            if matches!(Fault::of(gpu.fault), Fault::Lost | Fault::ResetRequired) && fault == Fault::None {
                gpu.reset();
            }
            gpu.fault = fault.number();
        })
    }

    /// Reports a critical Xid error of a GPU; nothing else about it changes. Errors that a client has not waited for yet take its
    /// number, as with NVML.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn raise_xid(&self, uuid: &str, xid: u32) -> Result<(), SimError> {
        self.shared.with(|node| {
            let place = place_of(node, uuid)?;
            node.xid = xid;
            let xids = &mut node.gpu[place].xids;
            *xids = xids.wrapping_add(1);
            Ok(())
        })
    }

    /// Resets a GPU, as `nvidia-smi --gpu-reset` does: faults, settings and counters since the driver's start are gone.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn reset(&self, uuid: &str) -> Result<(), SimError> {
        self.change(uuid, Gpu::reset)
    }

    /// Sets the errors of a GPU's memory.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_memory_errors(&self, uuid: &str, errors: MemoryErrors) -> Result<(), SimError> {
        self.change(uuid, |gpu| {
            (gpu.ecc_volatile, gpu.ecc_aggregate) = (errors.uncorrected, errors.uncorrected_ever);
            (gpu.remap_pending, gpu.remap_failed) = (errors.remap_pending.into(), errors.remap_failed.into());
        })
    }

    /// Sets temperature, degrees Celsius, and clock event reasons, as NVML's bits, beside those that follow from the load.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_heat(&self, uuid: &str, degrees: u32, reasons: u64) -> Result<(), SimError> {
        self.change(uuid, |gpu| (gpu.temperature, gpu.reasons) = (degrees, reasons))
    }

    /// Another client sets the power limit, W.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_limit(&self, uuid: &str, watts: f64) -> Result<(), SimError> {
        self.change(uuid, |gpu| gpu.limit = (watts * 1000.0).round() as u32)
    }

    /// A limiter out of band takes the enforced limit down to this, W; `None`: no longer.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_outer_limit(&self, uuid: &str, watts: Option<f64>) -> Result<(), SimError> {
        self.change(uuid, |gpu| gpu.outer_limit = watts.map_or(0, |watts| (watts * 1000.0).round() as u32))
    }

    /// Another client locks SM clocks between two values, MHz; `None` unlocks them.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn lock_clocks(&self, uuid: &str, range: Option<(u32, u32)>) -> Result<(), SimError> {
        self.change(uuid, |gpu| (gpu.lock_from, gpu.lock) = range.unwrap_or((0, 0)))
    }

    /// Replays a curve on a GPU from now on, in place of the law of power; `None` ends that.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn replay(&self, uuid: &str, curve: Option<&Curve>) -> Result<(), SimError> {
        let (step_ms, milliwatts) = curve.map_or((1, &[][..]), |curve| (curve.step_ms, &curve.milliwatts));
        self.change(uuid, |gpu| gpu.replay(step_ms, milliwatts))
    }

    /// Calls on handles of GPUs so far, of all processes.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.shared.with(|node| node.calls)
    }

    /// Lets every call on a GPU take this long, ms.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn set_slow(&self, uuid: &str, milliseconds: u32) -> Result<(), SimError> {
        self.change(uuid, |gpu| gpu.slow = milliseconds)
    }

    /// Lets these functions fail with this code of NVML, for every GPU, in place of those before: names as in `nvml.h`, with blanks between.
    pub fn set_failing(&self, functions: &str, code: u32) {
        self.shared.with(|node| (node.failing, node.failing_code) = (text(functions), code));
    }

    /// Refuses every setting with `NO_PERMISSION`, or no longer.
    pub fn set_denied(&self, denied: bool) {
        self.shared.with(|node| node.deny = u32::from(denied));
    }

    /// Loads or unloads the kernel module: without it the library cannot be initialised, and each call says `UNINITIALIZED`.
    /// Unloading brings limits and clocks back to their defaults, and energy counters to 0.
    pub fn set_driver_loaded(&self, loaded: bool) {
        self.shared.with(|node| {
            node.driver_loaded = u32::from(loaded);
            for gpu in node.gpus().iter_mut().filter(|_| !loaded) {
                gpu.add_energy();
                (gpu.limit, gpu.lock, gpu.energy) = (gpu.limit_default, 0, 0);
            }
        });
    }

    /// Turns NVML's indices round, as a new enumeration of the bus may.
    pub fn reverse_indices(&self) {
        self.shared.with(|node| {
            let count = node.gpus as usize;
            if let Some(order) = node.order.get_mut(..count) {
                order.reverse();
            }
        });
    }

    /// One GPU.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn gpu(&self, uuid: &str) -> Result<GpuView, SimError> {
        self.with_gpu(uuid, view)
    }

    /// All GPUs, in the order of the spec.
    #[must_use]
    pub fn gpus(&self) -> Vec<GpuView> {
        self.shared.with(|node| {
            node.forget_if_deserted();
            node.gpus().iter_mut().map(view).collect()
        })
    }

    fn change(&self, uuid: &str, change: impl FnOnce(&mut Gpu)) -> Result<(), SimError> {
        self.with_gpu(uuid, |gpu| {
            gpu.add_energy();
            change(gpu);
        })
    }

    fn with_gpu<T>(&self, uuid: &str, work: impl FnOnce(&mut Gpu) -> T) -> Result<T, SimError> {
        self.shared.with(|node: &mut Node| {
            node.forget_if_deserted();
            let place = place_of(node, uuid)?;
            Ok(work(&mut node.gpu[place]))
        })
    }
}

fn place_of(node: &mut Node, uuid: &str) -> Result<usize, SimError> {
    node.find(uuid.as_bytes()).ok_or_else(|| SimError::NoGpu(uuid.to_owned()))
}

fn view(gpu: &mut Gpu) -> GpuView {
    gpu.add_energy();
    let (milliwatts, clock) = gpu.draw();
    GpuView {
        uuid: String::from_utf8_lossy(read_text(&gpu.uuid)).into_owned(),
        watts: milliwatts / 1000.0,
        joules: gpu.total as f64 / 1e9,
        clock_mhz: clock,
        limit_watts: f64::from(gpu.limit) / 1000.0,
        enforced_watts: f64::from(gpu.enforced_limit()) / 1000.0,
        highest_set_watts: (gpu.highest_set > 0).then(|| f64::from(gpu.highest_set) / 1000.0),
        limit_is_default: gpu.limit == gpu.limit_default,
        locked_mhz: (gpu.lock > 0).then_some(gpu.lock),
        locked_from_mhz: (gpu.lock > 0).then_some(gpu.lock_from),
        commands: gpu.commands,
    }
}
