//! The driver interface to one GPU.
//!
//! # What it holds
//!
//! [`Gpu`]: the driver calls that are used, with units in their names. [`nvml`]: the implementation for
//! NVIDIA. [`worker`]: the thread that owns a handle. [`events`]: the thread that waits for errors. [`module`]: the loaded
//! kernel module. [`reach`]: whether the driver can be reached at all. Another vendor would be a second implementation of [`Gpu`] and [`Library`].
//!
//! # What must never be here
//!
//! Async code that calls a driver: a call may block forever (a hung driver leaves an unkillable thread in
//! state D). GPU indices: they change when a GPU is lost.

pub mod events;
pub mod module;
pub mod nvml;
pub mod reach;
pub mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use worker::{Opener, Worker};

/// Seconds without a driver after which the agent and its setters end. A container sees the devices and the library of when it was created,
/// and no library works with another version's kernel module: only a new container sees those of a driver installed since, or
/// devices that it has lost. Loading a driver again takes less, installing one more; and the kubelet's back-off between restarts is as long. They end sooner where the kernel
/// says that another version is loaded ([`module::replaced`]).
pub const DRIVER_PATIENCE: u64 = 300;

/// An error of a driver call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The call timed out, or an earlier call still hangs.
    #[error("the driver does not answer")]
    Hung,
    /// The GPU has fallen off the bus (Xid 79).
    #[error("the GPU is lost")]
    Lost,
    /// The GPU needs a reset.
    #[error("the GPU needs a reset")]
    ResetRequired,
    /// Permission denied: CAP_SYS_ADMIN is missing.
    #[error("no permission (CAP_SYS_ADMIN)")]
    NoPermission,
    /// Not supported by this GPU or driver.
    #[error("not supported")]
    NotSupported,
    /// The value is outside the driver's range.
    #[error("the driver refuses the value")]
    InvalidValue,
    /// No GPU has this UUID, or no longer.
    #[error("there is no such GPU")]
    NotFound,
    /// The library or the kernel module is missing or was unloaded.
    #[error("the driver is not loaded: {0}")]
    NoDriver(String),
    /// This process cannot reach the driver, which may be loaded: its container has lost the devices, or may not open them.
    #[error("the driver cannot be reached from this container: {0}")]
    Unreachable(String),
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl GpuError {
    /// The reason as one word, for metrics, conditions and the setter's responses.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Hung => "hung",
            Self::Lost => "gpu_lost",
            Self::ResetRequired => "reset_required",
            Self::NoPermission => "no_permission",
            Self::NotSupported => "not_supported",
            Self::InvalidValue => "invalid_value",
            Self::NotFound => "not_found",
            Self::NoDriver(_) => "no_driver",
            Self::Unreachable(_) => "unreachable",
            Self::Other(_) => "driver_error",
        }
    }

    /// Whether retrying is useless: the GPU does not support it.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::NotSupported | Self::InvalidValue | Self::NoPermission)
    }

    /// Whether no call of this process can succeed until the driver is loaded, or its container made anew.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::NoDriver(_) | Self::Unreachable(_))
    }

    /// Whether the handle must be reopened after this error.
    #[must_use]
    pub fn ends_handle(&self) -> bool {
        self.is_unreachable() || matches!(self, Self::NotFound | Self::Lost)
    }
}

/// Properties that are constant while a driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Product name, for example `NVIDIA A100-SXM4-80GB`; empty if it cannot be read.
    pub product: String,
    /// Lowest and highest settable power limit, mW; `None` if limits are not supported.
    pub limit_mw: Option<(u32, u32)>,
    /// Lowest and highest SM clock, MHz; `None` if the driver lists none.
    pub clock_mhz: Option<(u32, u32)>,
    /// Number in the name of its device file (`/dev/nvidia0`); `None` if not supported.
    pub minor: Option<u32>,
    /// The driver's calls that failed: what they would say is missing here, and may be there later.
    pub unread: BTreeSet<&'static str>,
}

/// Power limits in force on a GPU, mW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerLimits {
    /// What a client requested last, else the board's default.
    pub requested_mw: u32,
    /// What the driver enforces: the lowest of all limiters, those out of band included; `None` if not supported.
    pub enforced_mw: Option<u32>,
    /// Whether heat or an external brake slows the GPU.
    pub braked: bool,
}

impl PowerLimits {
    /// The limit in force, mW.
    #[must_use]
    pub fn in_force_mw(&self) -> u32 {
        self.enforced_mw.map_or(self.requested_mw, |enforced| enforced.min(self.requested_mw))
    }

    /// Whether the limit in force may be low for a moment only: a braked GPU is held below the requested limit. Such a reading is nobody's
    /// wish, and would outlast its cause if it were recorded.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        self.braked && self.in_force_mw() < self.requested_mw
    }
}

/// Errors of a GPU's memory. `None` where the GPU does not count them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryErrors {
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Rows are remapped at the next reset (Ampere and newer).
    pub remap_pending: Option<bool>,
    /// A row could not be remapped: the board is to be replaced (Ampere and newer).
    pub remap_failed: Option<bool>,
    /// Pages are retired at the next reset (before Ampere).
    pub retirement_pending: Option<bool>,
}

/// Why clocks are below the highest, of the reasons that point to a fault of cooling or supply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockEvents {
    /// The GPU or its memory is too hot (software or hardware slowdown).
    pub thermal: bool,
    /// An external brake, as of the machine's power supply.
    pub power_brake: bool,
    /// The hardware halved the clocks, for any reason.
    pub hardware: bool,
}

/// One sample of a GPU. Its first three figures are read each time, the others at most every few seconds. What cannot be read is `None`,
/// never 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Power draw, mW (mean of the last second on Ampere other than GA100, and on newer GPUs); `None` in many virtual GPUs.
    pub power_mw: Option<u32>,
    /// Energy since the driver was loaded, mJ; `None` before Volta.
    pub energy_mj: Option<u64>,
    /// Enforced power limit, mW.
    pub limit_mw: Option<u32>,
    /// SM clock, MHz.
    pub clock_mhz: Option<u32>,
    /// Utilization, per cent; `None` if not supported, as in MIG mode.
    pub util_percent: Option<u32>,
    /// Process ids with a compute context, in the caller's process namespace; `None` if unknown: not supported, not
    /// permitted, or the caller's namespace holds no pods' processes.
    pub processes: Option<Vec<u32>>,
    /// Why clocks are low.
    pub clock_events: ClockEvents,
    /// Errors of its memory.
    pub memory: MemoryErrors,
    /// The driver's calls that failed: what they would say is missing here.
    pub unread: BTreeSet<&'static str>,
}

impl Sample {
    /// NVML's call for processes.
    pub const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses";

    /// Number of processes with a compute context; `None` if unknown.
    #[must_use]
    pub fn contexts(&self) -> Option<u32> {
        self.processes.as_ref().map(|processes| u32::try_from(processes.len()).unwrap_or(u32::MAX))
    }
}

/// A critical error that the driver reported of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorEvent {
    /// UUID of the GPU.
    pub uuid: String,
    /// Number of the Xid error.
    pub xid: u64,
}

/// A subscription to the critical errors of some GPUs.
pub trait ErrorEvents {
    /// Waits for the next error, at most for `timeout`; `None` if none came.
    ///
    /// # Errors
    /// When the subscription has ended.
    fn wait(&mut self, timeout: Duration) -> Result<Option<ErrorEvent>, GpuError>;
    /// GPUs that it should cover and does not, by UUID, and why: they did not answer when it was made.
    fn left_out(&self) -> &BTreeMap<String, GpuError>;
}

/// One GPU. Calls may block for any time, so only a [`Worker`] makes them.
pub trait Gpu: Send {
    /// Reads the constant properties.
    ///
    /// # Errors
    /// Errors of the driver. Unsupported properties are left out instead.
    fn facts(&mut self) -> Result<Facts, GpuError>;
    /// Takes a sample.
    ///
    /// # Errors
    /// Errors of the driver. Unsupported readings are left out instead.
    fn sample(&mut self) -> Result<Sample, GpuError>;
    /// Reads the power limits in force.
    ///
    /// # Errors
    /// Errors of the driver.
    fn power_limits(&mut self) -> Result<PowerLimits, GpuError>;
    /// Sets the power limit, mW.
    ///
    /// # Errors
    /// Errors of the driver.
    fn set_limit_mw(&mut self, limit: u32) -> Result<(), GpuError>;
    /// Locks SM clocks between two values, MHz.
    ///
    /// # Errors
    /// Errors of the driver.
    fn lock_clocks_mhz(&mut self, lowest: u32, highest: u32) -> Result<(), GpuError>;
    /// Unlocks SM clocks.
    ///
    /// # Errors
    /// Errors of the driver.
    fn reset_clocks(&mut self) -> Result<(), GpuError>;
}

/// A vendor's management library. Calls may block for any time.
pub trait Library: Send + Sync + 'static {
    /// UUIDs of the GPUs present.
    ///
    /// # Errors
    /// When there is no driver.
    fn uuids(&self) -> Result<Vec<String>, GpuError>;
    /// Opens a GPU.
    ///
    /// # Errors
    /// When there is no driver or no such GPU.
    fn open(&self, uuid: &str) -> Result<Box<dyn Gpu>, GpuError>;
    /// Subscribes to the critical errors of these GPUs, from now on. Those that never report any are passed over.
    ///
    /// # Errors
    /// When there is no driver.
    fn error_events(&self, uuids: &[String]) -> Result<Box<dyn ErrorEvents>, GpuError>;
    /// UUID of the GPU that a partition (MIG device) is part of.
    ///
    /// # Errors
    /// When there is no such partition.
    fn parent(&self, partition: &str) -> Result<String, GpuError>;
}
