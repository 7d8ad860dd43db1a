//! One GPU, as the agent sees it.
//!
//! # What it holds
//!
//! [`Gpu`], the calls that are used, with their units in the names; [`nvml`], NVIDIA's library behind it; [`worker`], the thread
//! that owns a handle. Another vendor's library would be a second implementation of [`Gpu`] and [`Library`].
//!
//! # What must never be here
//!
//! Async code that calls a driver: such calls may block for ever (a hung driver leaves a thread in state D that nothing ends).
//! GPUs by index: indices change when a GPU is lost.

pub mod nvml;
pub mod worker;

pub use worker::{Opener, Worker};

/// What a driver said instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The call did not come back in time, or an earlier one still has not.
    #[error("the driver does not answer")]
    Hung,
    /// Fallen off the bus (Xid 79).
    #[error("the GPU is lost")]
    Lost,
    /// The GPU must be reset before it works again.
    #[error("the GPU needs a reset")]
    ResetRequired,
    /// Not root enough: CAP_SYS_ADMIN is missing.
    #[error("no permission (CAP_SYS_ADMIN)")]
    NoPermission,
    /// This GPU or driver cannot do that.
    #[error("not supported")]
    NotSupported,
    /// The value is outside what the driver takes.
    #[error("the driver refuses the value")]
    InvalidValue,
    /// No GPU has this UUID (any more).
    #[error("there is no such GPU")]
    NotFound,
    /// The library or the kernel module is not there, or was unloaded.
    #[error("the driver is not loaded: {0}")]
    NoDriver(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl GpuError {
    /// A word for metrics, conditions and the setter's answers.
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
            Self::Other(_) => "driver_error",
        }
    }

    /// Whether trying again cannot help: the GPU will never do this.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::NotSupported | Self::InvalidValue | Self::NoPermission)
    }

    /// Whether a handle is worthless after this and must be opened again.
    #[must_use]
    pub fn ends_handle(&self) -> bool {
        matches!(self, Self::NoDriver(_) | Self::NotFound | Self::Lost)
    }
}

/// What does not change while a driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Product, for example `NVIDIA A100-SXM4-80GB`.
    pub product: String,
    /// Lowest and highest power limit that can be set, mW; `None` when limits are not supported.
    pub limit_mw: Option<(u32, u32)>,
    /// Lowest and highest SM clock, MHz; `None` when the driver lists none.
    pub clock_mhz: Option<(u32, u32)>,
    /// Persistence mode: without it settings and counters are lost whenever no client is left.
    pub persistent: bool,
}

/// One look at a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Draw, mW (mean of the last second on Ampere other than GA100 and on newer ones).
    pub power_mw: u32,
    /// Energy since the driver was loaded, mJ; `None` before Volta.
    pub energy_mj: Option<u64>,
    /// Enforced power limit, mW; 0 when not supported.
    pub limit_mw: u32,
    /// SM clock, MHz; 0 when not supported.
    pub clock_mhz: u32,
    /// Use, per cent.
    pub util_percent: u32,
    /// Processes with a compute context.
    pub processes: u32,
}

/// One GPU. Calls may block for any time: only a [`Worker`] makes them.
pub trait Gpu: Send {
    /// What does not change.
    ///
    /// # Errors
    /// As the driver says. What is merely not supported is left out.
    fn facts(&mut self) -> Result<Facts, GpuError>;
    /// One look.
    ///
    /// # Errors
    /// As the driver says. What is merely not supported is left out.
    fn sample(&mut self) -> Result<Sample, GpuError>;
    /// The power limit that is set, mW.
    ///
    /// # Errors
    /// As the driver says.
    fn limit_mw(&mut self) -> Result<u32, GpuError>;
    /// Sets the power limit, mW.
    ///
    /// # Errors
    /// As the driver says.
    fn set_limit_mw(&mut self, limit: u32) -> Result<(), GpuError>;
    /// Locks SM clocks at or below `highest`, MHz.
    ///
    /// # Errors
    /// As the driver says.
    fn lock_clocks_mhz(&mut self, highest: u32) -> Result<(), GpuError>;
    /// Frees SM clocks.
    ///
    /// # Errors
    /// As the driver says.
    fn reset_clocks(&mut self) -> Result<(), GpuError>;
}

/// A vendor's library. Calls may block for any time.
pub trait Library: Send + Sync + 'static {
    /// UUIDs of the GPUs that are there.
    ///
    /// # Errors
    /// When there is no driver.
    fn uuids(&self) -> Result<Vec<String>, GpuError>;
    /// Opens a GPU.
    ///
    /// # Errors
    /// When there is no driver or no such GPU.
    fn open(&self, uuid: &str) -> Result<Box<dyn Gpu>, GpuError>;
}
