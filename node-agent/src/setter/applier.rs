//! Validates, records, applies and restores settings.
//!
//! Original values are written to disk before anything is set, and removed only after they are restored. A
//! call that failed or hung leaves the GPU's setting *unknown*. It is then set or restored again until the
//! driver confirms it.
//!
//! # Other writers of power limits
//!
//! A limit of ours never lifts a GPU above its owner's. The *ceiling* is the lowest of the driver's maximum and of the limits requested and
//! enforced before our first one; higher ones are refused. The requested limit is read back every [`READ_BACK`]. One that we did not
//! set is another writer's and counts as the original from then on: it is the new ceiling, and stays when our limit ends. Ours is
//! set again below it, but not against a writer that changes it again within [`REAPPLY`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;

use super::clocks::{self, LockedClocks};
use super::record::{OriginalSettings, Record, is_same_limit};
use crate::gpu::worker::CALL_TIMEOUT;
use crate::gpu::{Facts, Gpu, GpuError, Library, PowerLimits, Worker};
use crate::setting::{Floor, MAX_GPUS, Outcome, Setting, SettingsRequest, SettingsResponse, Uuid};

/// Interval after which locked clocks are applied again: a reloaded driver loses them without notice, and they cannot be read.
const REAPPLY: Duration = Duration::from_secs(60);
/// Interval at which limits in force are read.
const READ_BACK: Duration = Duration::from_secs(5);
/// Refusal: another writer has changed the limit again shortly after.
const OVERRIDDEN: &str = "overridden";
/// Time before a setting is retried that the driver refused permanently.
const REFUSED: Duration = Duration::from_secs(300);

/// State of the node's GPUs.
pub struct Applier {
    nvml: Arc<dyn Library>,
    record: Record,
    /// The record could not be written, which was logged.
    record_failed: bool,
    floor: Floor,
    ttl: Duration,
    locked_clocks: Arc<[LockedClocks]>,
    last_request: Instant,
    reapply: Duration,
    read_back: Duration,
    slots: BTreeMap<Uuid, Slot>,
}

struct Slot {
    worker: Worker<Box<dyn Gpu>>,
    facts: Option<Facts>,
    /// Setting in force; `None`: unknown.
    applied: Option<Setting>,
    /// Time since which it is in force.
    since: Instant,
    /// When the limits in force were read last; `None`: they are to be read at once.
    read: Option<Instant>,
    /// Highest limit that is accepted, mW; `None` while it is not known.
    ceiling_mw: Option<u32>,
    /// When another writer changed a limit of ours last.
    overridden: Option<Instant>,
    /// A setting that the driver refused permanently, with time and reason.
    given_up: Option<(Setting, Instant, String)>,
    refused: Option<String>,
    /// The last logged failure, so that a lasting one is logged once.
    logged: Option<GpuError>,
}

impl Applier {
    /// Creates the applier without setting or opening anything. GPUs in `record` count as unknown and are
    /// restored first.
    #[must_use]
    pub fn new(library: Arc<dyn Library>, record: Record, floor: Floor, ttl: Duration) -> Self {
        let mut this = Self {
            nvml: library,
            record,
            record_failed: false,
            floor,
            ttl,
            locked_clocks: Arc::default(),
            last_request: Instant::now(),
            reapply: REAPPLY,
            read_back: READ_BACK,
            slots: BTreeMap::new(),
        };
        this.slots_of_record();
        this
    }

    /// Time since the last request of the agent process.
    #[must_use]
    pub fn since_last_request(&self) -> Duration {
        self.last_request.elapsed()
    }

    /// Whether every GPU has its original settings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.left().is_empty()
    }

    /// GPUs that may not have their original settings: those not restored, and those of the record that have no slot.
    fn left(&self) -> Vec<Uuid> {
        let clean = Some(Setting::default());
        let failed = self.slots.iter().filter(|(_, slot)| slot.applied != clean).map(|(uuid, _)| uuid);
        let unopened = self.record.gpus().keys().filter(|uuid| !self.slots.contains_key(*uuid));
        failed.chain(unopened).cloned().collect()
    }

    /// The administrator's locked clocks, which GPUs get back.
    #[must_use]
    pub fn with_locked_clocks(mut self, clocks: Vec<LockedClocks>) -> Self {
        self.locked_clocks = clocks.into();
        self
    }

    /// Applies the desired settings; restores GPUs that are not in them.
    pub async fn apply(&mut self, request: &SettingsRequest) -> SettingsResponse {
        self.last_request = Instant::now();
        for uuid in request.settings.keys() {
            self.slot(uuid);
        }
        self.reconcile(&request.settings).await;
        // Time spent in a slow driver must not count as time without a request.
        self.last_request = Instant::now();
        let outcome = |slot: &Slot| Outcome {
            setting: slot.applied,
            ceiling_mw: slot.ceiling_mw,
            refused: slot.refused.clone(),
        };
        SettingsResponse {
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            floor_limit_mw: self.floor.limit_mw,
            floor_clock_mhz: self.floor.clock_mhz,
            gpus: self.slots.iter().map(|(uuid, slot)| (uuid.clone(), outcome(slot))).collect(),
        }
    }

    /// Restores every GPU; returns those that failed.
    pub async fn restore_all(&mut self) -> Vec<Uuid> {
        self.reconcile(&BTreeMap::new()).await;
        self.left()
    }

    /// Opens slots for the GPUs of the record. For want of a thread some may stay without.
    fn slots_of_record(&mut self) {
        let recorded: Vec<Uuid> = self.record.gpus().keys().cloned().collect();
        for uuid in recorded {
            self.slot(&uuid);
        }
    }

    /// The slot of the GPU with that UUID, even if the driver does not know it. What the record names counts as unknown.
    fn slot(&mut self, uuid: &str) -> Option<&mut Slot> {
        if !self.slots.contains_key(uuid) {
            if self.slots.len() >= MAX_GPUS {
                return None;
            }
            let (library, name) = (Arc::clone(&self.nvml), uuid.to_owned());
            let worker = Worker::start("gpu-set", CALL_TIMEOUT, Box::new(move || library.open(&name)));
            let worker = worker.inspect_err(|error| tracing::error!(%error, "no thread for a GPU")).ok()?;
            let slot = Slot {
                worker,
                facts: None,
                applied: (!self.record.gpus().contains_key(uuid)).then(Setting::default),
                since: Instant::now(),
                read: None,
                ceiling_mw: None,
                overridden: None,
                given_up: None,
                refused: None,
                logged: None,
            };
            self.slots.insert(uuid.to_owned(), slot);
        }
        self.slots.get_mut(uuid)
    }

    async fn reconcile(&mut self, wanted: &BTreeMap<Uuid, Setting>) {
        self.slots_of_record();
        let (floor, reapply, read_back) = (self.floor, self.reapply, self.read_back);
        let before = self.record.gpus().clone();
        // Target settings, and original values read before the change.
        let targets = join_all(self.slots.iter_mut().map(|(uuid, slot)| {
            let wanted = wanted.get(uuid).copied().unwrap_or_default();
            let recorded = before.get(uuid).cloned().unwrap_or_default();
            async move {
                slot.refused = None;
                let recorded = slot.read_back(wanted, recorded, read_back).await;
                if let Some((setting, at, reason)) = &slot.given_up
                    && *setting == wanted
                    && at.elapsed() < REFUSED
                {
                    slot.refused = Some(reason.clone());
                    return (uuid.clone(), Setting::default(), recorded);
                }
                if slot.applied.is_some_and(|applied| applied.clock_mhz.is_some())
                    && slot.since.elapsed() >= reapply
                {
                    slot.applied = None;
                }
                if slot.applied == Some(wanted) {
                    return (uuid.clone(), wanted, recorded);
                }
                match slot.prepare(wanted, recorded.clone(), floor).await {
                    Ok(before) => (uuid.clone(), wanted, before),
                    Err(refusal) => {
                        slot.refused = Some(refusal);
                        (uuid.clone(), Setting::default(), recorded)
                    }
                }
            }
        }))
        .await;
        let mut targets: BTreeMap<Uuid, (Setting, OriginalSettings)> =
            targets.into_iter().map(|(uuid, setting, before)| (uuid, (setting, before))).collect();
        let touched = targets.iter().filter(|(_, (_, before))| *before != OriginalSettings::default());
        let touched = touched.map(|(uuid, (_, before))| (uuid, before));
        let unopened = before.iter().filter(|(uuid, _)| !targets.contains_key(*uuid));
        let after = touched.chain(unopened).map(|(uuid, before)| (uuid.clone(), before.clone())).collect();
        if !self.write_record(after) {
            for (uuid, (target, recorded)) in &mut targets {
                if !target.is_default() && before.get(uuid) != Some(recorded) {
                    (*target, *recorded) =
                        (Setting::default(), before.get(uuid).cloned().unwrap_or_default());
                    if let Some(slot) = self.slots.get_mut(uuid) {
                        slot.refused = Some("record".into());
                    }
                }
            }
        }
        let locked = &self.locked_clocks;
        join_all(self.slots.iter_mut().filter_map(|(uuid, slot)| {
            let (target, before) = targets.get(uuid)?;
            Some(slot.set(uuid, *target, before.clone(), Arc::clone(locked)))
        }))
        .await;
        // What is confirmed needs no more of its record than that, and what is restored none.
        let mut left = self.record.gpus().clone();
        for (uuid, original) in &mut left {
            if let Some(applied) = self.slots.get(uuid).and_then(|slot| slot.applied) {
                original.confirm(applied);
            }
        }
        left.retain(|_, original| *original != OriginalSettings::default());
        // Where that fails it says more than is set; restoring twice does no harm.
        self.write_record(left);
    }

    /// Replaces the record; `false`: the old one stays. A failure is logged once: a request comes each second, and the log may be on
    /// the same full disk.
    fn write_record(&mut self, gpus: BTreeMap<Uuid, OriginalSettings>) -> bool {
        if *self.record.gpus() == gpus {
            return true;
        }
        let failed = self.record.replace(gpus).err();
        let before = std::mem::replace(&mut self.record_failed, failed.is_some());
        match &failed {
            Some(error) if !before => {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "the record cannot be written: nothing is set without it"
                );
            }
            None if before => tracing::info!("the record can be written again"),
            _ => {}
        }
        failed.is_none()
    }
}

impl Slot {
    /// Reads the limits in force where that is due, and the ceiling with them. Returns what remains recorded: a limit that is not ours any
    /// more is another writer's.
    async fn read_back(
        &mut self,
        wanted: Setting,
        mut recorded: OriginalSettings,
        interval: Duration,
    ) -> OriginalSettings {
        if wanted.limit_mw.is_none() {
            // The next limit is another matter.
            self.overridden = None;
            self.given_up.take_if(|(_, _, reason)| reason == OVERRIDDEN);
        }
        if self.read.is_some_and(|at| at.elapsed() < interval) {
            return recorded;
        }
        self.read = Some(Instant::now());
        let limits = match self.limits().await {
            Ok(limits) => limits,
            Err(error) => {
                if error.ends_handle() {
                    (self.facts, self.ceiling_mw) = (None, recorded.limit_mw);
                    // A GPU that was reset, and a driver that was loaded again, have lost what was set.
                    self.applied = self.applied.filter(Setting::is_default);
                }
                return recorded;
            }
        };
        if recorded.limit_mw.is_some() && !recorded.may_be_ours(limits.requested_mw) {
            (recorded.limit_mw, recorded.set_mw) = (None, Vec::new());
            if let Some(applied) = self.applied.as_mut().filter(|applied| applied.limit_mw.is_some()) {
                tracing::warn!(limit_mw = limits.requested_mw, "another writer has changed the power limit");
                applied.limit_mw = None;
                if self.overridden.is_some_and(|at| at.elapsed() < REAPPLY) {
                    self.given_up = Some((wanted, Instant::now(), OVERRIDDEN.to_owned()));
                }
                self.overridden = Some(Instant::now());
            }
        }
        self.ceiling_mw = recorded.limit_mw.or_else(|| self.in_force(limits).ok());
        recorded
    }

    /// Reads the limits in force, and the facts where they are not known.
    async fn limits(&mut self) -> Result<PowerLimits, GpuError> {
        self.read_facts().await?;
        self.worker.call(|gpu| gpu.power_limits()).await
    }

    async fn read_facts(&mut self) -> Result<(), GpuError> {
        if self.facts.as_ref().is_none_or(|facts| !facts.unread.is_empty()) {
            self.facts = Some(self.worker.call(|gpu| gpu.facts()).await?);
        }
        Ok(())
    }

    /// The ceiling by limits of others, mW.
    ///
    /// # Errors
    /// A metric reason: the GPU takes no limits, or they may be low for a moment only.
    fn in_force(&self, limits: PowerLimits) -> Result<u32, &'static str> {
        let (_, highest) = self.facts.as_ref().and_then(|facts| facts.limit_mw).ok_or("not_supported")?;
        if limits.is_momentary() {
            return Err("braked");
        }
        Ok(limits.in_force_mw().min(highest))
    }

    /// Validates a setting and returns what must be recorded before applying it.
    ///
    /// # Errors
    /// A metric reason: `not_supported`, `out_of_range`, `above_ceiling`, `braked`, or [`GpuError::reason`].
    async fn prepare(
        &mut self,
        wanted: Setting,
        recorded: OriginalSettings,
        floor: Floor,
    ) -> Result<OriginalSettings, String> {
        if wanted.is_default() {
            return Ok(recorded);
        }
        let reason = |error: GpuError| error.reason().to_owned();
        self.read_facts().await.map_err(reason)?;
        let facts = self.facts.clone().unwrap_or_default();
        if let Some(limit) = wanted.limit_mw {
            let (lowest, highest) = facts.limit_mw.ok_or("not_supported")?;
            if !(lowest.max(floor.limit_mw)..=highest).contains(&limit) {
                return Err("out_of_range".into());
            }
        }
        if let Some(clock) = wanted.clock_mhz {
            let (lowest, highest) = facts.clock_mhz.ok_or("not_supported")?;
            if !(lowest.max(floor.clock_mhz)..=highest).contains(&clock) {
                return Err("out_of_range".into());
            }
        }
        let mut before = recorded;
        before.clocks |= wanted.clock_mhz.is_some();
        if let Some(limit) = wanted.limit_mw {
            let ceiling = match before.limit_mw {
                Some(ceiling) => ceiling,
                None => {
                    let limits = self.limits().await.map_err(reason)?;
                    self.in_force(limits)?
                }
            };
            (before.limit_mw, self.ceiling_mw) = (Some(ceiling), Some(ceiling));
            if limit > ceiling {
                return Err("above_ceiling".into());
            }
            before.add_limit(limit);
        }
        Ok(before)
    }

    /// Applies a setting; calls the driver only for what changes.
    async fn set(
        &mut self,
        uuid: &str,
        target: Setting,
        before: OriginalSettings,
        locked: Arc<[LockedClocks]>,
    ) {
        let had = self.applied;
        if had == Some(target) {
            return;
        }
        self.applied = None;
        let done = self.worker.call(move |gpu| {
            let unknown = had.is_none();
            let had = had.unwrap_or_default();
            let mut in_force = true;
            match target.limit_mw {
                Some(limit) if unknown || had.limit_mw != Some(limit) => {
                    gpu.set_limit_mw(limit)?;
                    in_force = is_same_limit(gpu.power_limits()?.requested_mw, limit);
                }
                None if unknown || had.limit_mw.is_some() => restore_limit(gpu.as_mut(), &before)?,
                _ => {}
            }
            match target.clock_mhz {
                Some(clock) if unknown || had.clock_mhz != Some(clock) => gpu.lock_clocks_mhz(0, clock)?,
                None if had.clock_mhz.is_some() || (unknown && before.clocks) => {
                    restore_clocks(gpu.as_mut(), &locked)?
                }
                _ => {}
            }
            Ok(in_force)
        });
        match done.await {
            Ok(true) => {
                tracing::info!(uuid, limit_mw = target.limit_mw, clock_mhz = target.clock_mhz, "set");
                (self.applied, self.since, self.logged) = (Some(target), Instant::now(), None);
            }
            // Whose limit it is shows at the next request.
            Ok(false) => {
                (self.applied, self.since, self.read) = (Some(target), Instant::now(), None);
                self.refused = Some(OVERRIDDEN.to_owned());
            }
            Err(error) => {
                if self.logged.as_ref() != Some(&error) {
                    tracing::warn!(uuid, %error, "not set");
                    self.logged = Some(error.clone());
                }
                // What is in force is not known: whose limit it is shows at the next request.
                self.read = None;
                // The driver refused the only change: original settings stand.
                let single = target.limit_mw.is_none() || target.clock_mhz.is_none();
                if error.is_final() && had == Some(Setting::default()) && single {
                    self.applied = had;
                    self.given_up = Some((target, Instant::now(), error.reason().to_owned()));
                }
                self.refused = Some(error.reason().to_owned());
                if error.ends_handle() {
                    self.facts = None;
                }
            }
        }
    }
}

/// Gives a GPU back the limit that it had, unless another writer has changed ours. A limiter out of band that is lower now stays lower: on
/// some machines a limit set in band takes its place.
fn restore_limit(gpu: &mut dyn Gpu, before: &OriginalSettings) -> Result<(), GpuError> {
    let Some(original) = before.limit_mw else { return Ok(()) };
    let limits = gpu.power_limits()?;
    if !before.may_be_ours(limits.requested_mw) {
        return Ok(());
    }
    let in_force = limits.in_force_mw();
    if in_force < limits.requested_mw.min(original) && !limits.is_momentary() {
        let lowest = gpu.facts()?.limit_mw.map_or(in_force, |(lowest, _)| lowest);
        return gpu.set_limit_mw(in_force.max(lowest));
    }
    gpu.set_limit_mw(original)
}

/// Gives a GPU back the administrator's locked clocks, else unlocks them.
fn restore_clocks(gpu: &mut dyn Gpu, locked: &[LockedClocks]) -> Result<(), GpuError> {
    let range = if locked.is_empty() {
        None
    } else {
        let product = gpu.facts()?.product;
        if product.is_empty() {
            return Err(GpuError::Other("its product cannot be read".into()));
        }
        clocks::of_product(locked, &product)
    };
    if let Some((lowest, highest)) = range {
        match gpu.lock_clocks_mhz(lowest, highest) {
            Err(GpuError::InvalidValue | GpuError::NotSupported) => {
                tracing::error!(lowest, highest, "the driver refuses the administrator's locked clocks");
            }
            answer => return answer,
        }
    }
    match gpu.reset_clocks() {
        // Then they were never locked.
        Err(GpuError::NotSupported) => Ok(()),
        answer => answer,
    }
}

#[cfg(test)]
mod tests;
