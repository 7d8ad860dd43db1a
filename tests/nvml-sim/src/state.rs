//! The GPUs as they lie in the shared file, and how time passes for them.
//!
//! Plain integers only: every pattern of bytes is a value, so what another process wrote can never be unsound to read.

use rustix::time::{ClockId, clock_gettime};

use crate::curve;
use crate::power::{self, Load};
use crate::spec::{GpuSpec, Spec};
use crate::{MAX_GPUS, MAX_PROCESSES, TEXT};

/// Clients whose death is noticed.
const MAX_CLIENTS: usize = 32;
/// Says that the file is filled, and in which layout.
pub const MAGIC: u64 = 0x616e_6472_6561_7339;

/// A node.
#[repr(C)]
pub struct Node {
    /// [`MAGIC`] once filled.
    pub magic: u64,
    /// GPUs in use of `gpu`.
    pub gpus: u32,
    /// 1: the kernel module is there.
    pub driver_loaded: u32,
    /// 1: settings need CAP_SYS_ADMIN.
    pub need_admin: u32,
    /// 1: every setting is refused, whoever asks.
    pub deny: u32,
    /// Calls on handles of GPUs so far.
    pub calls: u64,
    /// Process ids that have initialised the library.
    clients: [u32; MAX_CLIENTS],
    /// GPU by NVML's index.
    pub order: [u32; MAX_GPUS],
    /// Version of the driver.
    pub driver: [u8; TEXT],
    /// CUDA version: 1000 x major + 10 x minor.
    pub cuda: u32,
    /// The latest critical Xid error of any GPU; 0: none yet.
    pub xid: u32,
    /// Functions that fail for every GPU, by name, with blanks between.
    pub failing: [u8; TEXT],
    /// What they return.
    pub failing_code: u32,
    /// The GPUs; a GPU keeps its place for ever.
    pub gpu: [Gpu; MAX_GPUS],
}

/// One GPU. mW, MHz, ns, nJ.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Gpu {
    /// UUID.
    pub uuid: [u8; TEXT],
    /// Product.
    pub product: [u8; TEXT],
    /// Number of its device file, `/dev/nvidiaN`; its place on the PCI bus follows from it.
    pub minor: u32,
    /// CUDA compute capability, major and minor.
    pub capability: [u32; 2],
    /// PCI device ID.
    pub pci_device: u32,
    /// 1: the board can be partitioned (MIG).
    pub mig_capable: u32,
    /// Bytes.
    pub memory: u64,
    /// Energy counter, nJ, until `settled`; a reset takes it back to 0.
    pub energy: u64,
    /// Energy drawn since the state was made, nJ, until `settled`.
    pub total: u64,
    /// Monotonic time to which energy is counted, ns.
    pub settled: u64,
    /// Draw without a context.
    pub idle: u32,
    /// Draw with an idle context.
    pub parked: u32,
    /// Largest draw.
    pub max: u32,
    /// Lowest limit.
    pub limit_min: u32,
    /// Highest limit.
    pub limit_max: u32,
    /// Limit after start.
    pub limit_default: u32,
    /// Limit now, as it was requested.
    pub limit: u32,
    /// Limit of a limiter out of band, as a management controller; 0: none.
    pub outer_limit: u32,
    /// The highest limit that a client has set through NVML since the state was made; 0: none.
    pub highest_set: u32,
    /// SM clock without a context.
    pub clock_idle: u32,
    /// Lowest SM clock.
    pub clock_min: u32,
    /// Highest SM clock.
    pub clock_max: u32,
    /// Step between two SM clocks.
    pub clock_step: u32,
    /// Memory clocks, MHz, the highest first; 0 where there is no second one.
    pub clock_memory: [u32; 2],
    /// SM clocks are locked at or below this; 0: not locked.
    pub lock: u32,
    /// Where locked clocks begin.
    pub lock_from: u32,
    /// 1: clocks can be locked.
    pub lockable: u32,
    /// 1: persistence mode.
    pub persistence: u32,
    /// See [`crate::control::Fault`].
    pub fault: u32,
    /// Critical Xid errors so far.
    pub xids: u32,
    /// Milliseconds that every call takes.
    pub slow: u32,
    /// Settings asked for so far, granted or not.
    pub commands: u32,
    /// Processes in use of `process`.
    pub processes: u32,
    /// Processes with a context.
    pub process: [Running; MAX_PROCESSES],
    /// 1: the draw of a parked context follows the clock.
    pub parked_follows_clock: u32,
    /// 1: something beside compute processes keeps its clocks up.
    pub kept_busy: u32,
    /// 1: it has an energy counter.
    pub counter: u32,
    /// Time over which the draw is averaged, ms.
    pub average: u32,
    /// Temperature, degrees Celsius.
    pub temperature: u32,
    /// Uncorrected ECC errors since the driver was loaded.
    pub ecc_volatile: u64,
    /// Uncorrected ECC errors in the life of the board.
    pub ecc_aggregate: u64,
    /// 1: rows are remapped at the next reset.
    pub remap_pending: u32,
    /// 1: a row could not be remapped.
    pub remap_failed: u32,
    /// Clock event reasons beside those that follow from the load, as NVML's bits.
    pub reasons: u64,
    /// Monotonic time at which the curve began, ns.
    pub curve_from: u64,
    /// Length of a step of the curve, ms.
    pub curve_step: u32,
    /// Steps in use of `curve`; 0: none is replayed.
    pub curve_steps: u32,
    /// Draw in each step.
    pub curve: [u32; curve::MAX_STEPS],
}

/// A process with a context.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Running {
    /// Process id on the host.
    pub pid: u32,
    /// Use, thousandths.
    pub util: u32,
    /// Bytes of GPU memory.
    pub memory: u64,
}

/// Monotonic time of the machine, ns: the same in every process.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

fn milli(value: f64) -> u32 {
    (value * 1000.0).round() as u32
}

/// A text in such a field.
pub fn text(value: &str) -> [u8; TEXT] {
    let mut bytes = [0; TEXT];
    let length = value.len().min(TEXT - 1);
    bytes[..length].copy_from_slice(&value.as_bytes()[..length]);
    bytes
}

/// The text in such a field.
#[must_use]
pub fn read_text(bytes: &[u8; TEXT]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(TEXT);
    &bytes[..end]
}

impl Node {
    /// Fills a node by its spec.
    pub fn fill(&mut self, spec: &Spec) {
        self.gpus = spec.gpus.len() as u32;
        self.driver_loaded = 1;
        self.need_admin = u32::from(spec.settings_need_admin);
        self.deny = 0;
        self.calls = 0;
        self.clients = [0; MAX_CLIENTS];
        self.driver = text(&spec.driver_version);
        self.cuda = spec.cuda_version.0 * 1000 + spec.cuda_version.1 * 10;
        self.xid = 0;
        for (index, gpu) in spec.gpus.iter().enumerate() {
            self.order[index] = index as u32;
            self.gpu[index].fill(gpu, index as u32);
        }
        self.magic = MAGIC;
    }

    /// The GPUs that the spec named.
    pub fn gpus(&mut self) -> &mut [Gpu] {
        let count = (self.gpus as usize).min(MAX_GPUS);
        &mut self.gpu[..count]
    }

    /// Place of the GPU with this UUID.
    pub fn find(&mut self, uuid: &[u8]) -> Option<usize> {
        self.gpus().iter().position(|gpu| read_text(&gpu.uuid) == uuid)
    }

    /// A process initialises the library.
    pub fn enter(&mut self, pid: u32) {
        self.forget_if_deserted();
        if let Some(free) = self.clients.iter_mut().find(|client| **client == 0) {
            *free = pid;
        }
    }

    /// A process shuts the library down.
    pub fn leave(&mut self, pid: u32) {
        if let Some(own) = self.clients.iter_mut().find(|client| **client == pid) {
            *own = 0;
        }
        self.forget_if_deserted();
    }

    /// Without persistence mode the driver lets go of a GPU with its last client, and settings are lost.
    pub fn forget_if_deserted(&mut self) {
        if self.gpus().iter().all(|gpu| gpu.persistence == 1) {
            return;
        }
        for client in &mut self.clients {
            if *client != 0 && !std::path::Path::new(&format!("/proc/{client}")).exists() {
                *client = 0;
            }
        }
        if self.clients.iter().any(|client| *client != 0) {
            return;
        }
        for gpu in self.gpus() {
            if gpu.persistence == 0 && gpu.processes == 0 {
                gpu.add_energy();
                gpu.limit = gpu.limit_default;
                gpu.lock = 0;
            }
        }
    }
}

impl Gpu {
    /// Fills it by its spec; the rest of the file was zero before.
    fn fill(&mut self, spec: &GpuSpec, minor: u32) {
        *self = Self {
            uuid: text(&spec.uuid),
            product: text(&spec.product),
            minor,
            capability: spec.compute_capability.into(),
            pci_device: spec.pci_device.into(),
            mig_capable: u32::from(spec.mig_capable),
            memory: spec.memory_mib * 1024 * 1024,
            energy: 0,
            total: 0,
            settled: now(),
            idle: milli(spec.idle_watts),
            parked: milli(spec.parked_watts),
            max: milli(spec.max_watts),
            limit_min: milli(spec.limit_min_watts),
            limit_max: milli(spec.limit_max_watts),
            limit_default: milli(spec.limit_default_watts),
            limit: milli(spec.limit_default_watts),
            outer_limit: 0,
            highest_set: 0,
            clock_idle: spec.clock_idle_mhz,
            clock_min: spec.clock_min_mhz,
            clock_max: spec.clock_max_mhz,
            clock_step: spec.clock_step_mhz,
            clock_memory: [spec.memory_clock_mhz, spec.low_memory_clock_mhz],
            lock: 0,
            lock_from: 0,
            lockable: u32::from(spec.lockable),
            persistence: u32::from(spec.persistence),
            fault: 0,
            xids: 0,
            slow: 0,
            commands: 0,
            processes: 0,
            process: [Running::default(); MAX_PROCESSES],
            parked_follows_clock: u32::from(spec.parked_follows_clock),
            kept_busy: u32::from(spec.kept_busy),
            counter: u32::from(spec.energy_counter),
            average: spec.power_average_ms,
            temperature: 35,
            ecc_volatile: 0,
            ecc_aggregate: 0,
            remap_pending: 0,
            remap_failed: 0,
            reasons: 0,
            curve_from: 0,
            curve_step: 0,
            curve_steps: 0,
            curve: self.curve,
        };
    }

    fn curve(&self) -> Option<&[u32]> {
        let steps = (self.curve_steps as usize).min(curve::MAX_STEPS);
        (steps > 0).then(|| &self.curve[..steps])
    }

    /// Replays a curve from now on; an empty one ends that.
    pub fn replay(&mut self, step_ms: u32, milliwatts: &[u32]) {
        let steps = milliwatts.len().min(curve::MAX_STEPS);
        self.curve[..steps].copy_from_slice(&milliwatts[..steps]);
        (self.curve_steps, self.curve_step, self.curve_from) = (steps as u32, step_ms, now());
    }

    /// Draw as the driver says it, mW: the mean of its averaging time.
    #[must_use]
    pub fn reading(&self) -> u32 {
        let Some(curve) = self.curve().filter(|_| self.average > 0) else { return self.draw().0 as u32 };
        let to = now().saturating_sub(self.curve_from);
        let window = u64::from(self.average) * 1_000_000;
        let from = to.saturating_sub(window);
        let energy = curve::energy_between(curve, self.curve_step, from, to);
        (energy as f64 * 1000.0 / (to - from).max(1) as f64) as u32
    }

    /// What a reset of the GPU does: its state is that of a start, and what it remembers of errors for its whole life stays.
    pub fn reset(&mut self) {
        self.add_energy();
        self.energy = 0;
        (self.limit, self.lock, self.fault) = (self.limit_default, 0, 0);
        (self.ecc_volatile, self.remap_pending, self.reasons) = (0, 0, 0);
    }

    /// The limit that is enforced: the lowest of all limiters, mW.
    #[must_use]
    pub fn enforced_limit(&self) -> u32 {
        if self.outer_limit == 0 { self.limit } else { self.limit.min(self.outer_limit) }
    }

    /// Processes with a context.
    #[must_use]
    pub fn running(&self) -> &[Running] {
        &self.process[..(self.processes as usize).min(MAX_PROCESSES)]
    }

    /// Use, 0 to 1.
    #[must_use]
    pub fn util(&self) -> f64 {
        let sum: u64 = self.running().iter().map(|process| u64::from(process.util)).sum();
        (sum.min(1000) as f64) / 1000.0
    }

    /// Memory clocks that it lists, MHz, highest first.
    pub fn memory_clocks(&self) -> &[u32] {
        if self.clock_memory[1] == 0 { &self.clock_memory[..1] } else { &self.clock_memory }
    }

    /// Draw, mW, and SM clock, MHz, now.
    #[must_use]
    pub fn draw(&self) -> (f64, f64) {
        if let Some(curve) = self.curve() {
            let time = now().saturating_sub(self.curve_from);
            let power = curve::power_at(curve, self.curve_step, time);
            return (f64::from(power), f64::from(self.clock_max));
        }
        power::draw(&Load {
            idle_mw: f64::from(self.idle),
            parked_mw: f64::from(self.parked),
            max_mw: f64::from(self.max),
            clock_idle: f64::from(self.clock_idle),
            clock_min: f64::from(self.clock_min),
            clock_max: f64::from(self.clock_max),
            parked_follows_clock: self.parked_follows_clock == 1,
            clock_lock: (self.lock > 0).then_some(f64::from(self.lock)),
            limit_mw: f64::from(self.enforced_limit()),
            context: self.processes > 0 || self.kept_busy == 1,
            util: self.util(),
        })
    }

    /// Counts the energy up to now. Call it before anything that changes the draw.
    pub fn add_energy(&mut self) {
        let time = now();
        let passed = time.saturating_sub(self.settled);
        let drawn = match self.curve() {
            Some(curve) => {
                let since = |at: u64| at.saturating_sub(self.curve_from);
                curve::energy_between(curve, self.curve_step, since(self.settled), since(time))
            }
            None => (self.draw().0 * passed as f64 / 1000.0) as u64,
        };
        self.energy = self.energy.wrapping_add(drawn);
        self.total = self.total.wrapping_add(drawn);
        self.settled = time;
    }
}
