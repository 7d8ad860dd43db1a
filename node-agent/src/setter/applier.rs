//! Validates, records, applies and restores settings.
//!
//! Original values are written to disk before anything is set, and removed only after they are restored. A
//! call that failed or hung leaves the GPU's setting *unknown*. It is then set or restored again until the
//! driver confirms it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;

use super::record::{OriginalSettings, Record};
use crate::gpu::worker::CALL_TIMEOUT;
use crate::gpu::{Facts, Gpu, GpuError, Library, Worker};
use crate::setting::{Floor, MAX_GPUS, Outcome, Setting, SettingsRequest, SettingsResponse, Uuid};

/// Interval after which settings are applied again: a reloaded driver loses them without notice.
const REAPPLY: Duration = Duration::from_secs(60);
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
    last_request: Instant,
    reapply: Duration,
    slots: BTreeMap<Uuid, Slot>,
    /// When this process saw a driver last; its start where it has seen none.
    driver_seen: Instant,
    /// GPUs cannot be set for want of a driver.
    driver_gone: bool,
}

struct Slot {
    worker: Worker<Box<dyn Gpu>>,
    facts: Option<Facts>,
    /// Setting in force; `None`: unknown.
    applied: Option<Setting>,
    /// Time since which it is in force.
    since: Instant,
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
            last_request: Instant::now(),
            reapply: REAPPLY,
            slots: BTreeMap::new(),
            driver_seen: Instant::now(),
            driver_gone: false,
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

    /// The process stands by since then: its container sees the library of that time.
    #[must_use]
    pub fn standing_by_since(mut self, since: Instant) -> Self {
        self.driver_seen = since;
        self
    }

    /// For how long this process has had no driver, where GPUs cannot be set because of that.
    #[must_use]
    pub fn driver_gone_for(&self) -> Option<Duration> {
        self.driver_gone.then(|| self.driver_seen.elapsed())
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
        let outcome = |slot: &Slot| Outcome { setting: slot.applied, refused: slot.refused.clone() };
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
        let (floor, reapply) = (self.floor, self.reapply);
        let before = self.record.gpus().clone();
        // Target settings, and original values read before the change.
        let targets = join_all(self.slots.iter_mut().map(|(uuid, slot)| {
            let wanted = wanted.get(uuid).copied().unwrap_or_default();
            let recorded = before.get(uuid).cloned().unwrap_or_default();
            async move {
                slot.refused = None;
                if let Some((setting, at, reason)) = &slot.given_up
                    && *setting == wanted
                    && at.elapsed() < REFUSED
                {
                    slot.refused = Some(reason.clone());
                    return (uuid.clone(), Setting::default(), recorded);
                }
                if slot.applied.is_some_and(|applied| !applied.is_default())
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
        join_all(self.slots.iter_mut().filter_map(|(uuid, slot)| {
            let (target, before) = targets.get(uuid)?;
            Some(slot.set(uuid, *target, before.clone()))
        }))
        .await;
        let gone = GpuError::NoDriver(String::new());
        self.driver_gone = self.slots.values().any(|slot| slot.refused.as_deref() == Some(gone.reason()));
        if !self.driver_gone && self.slots.values().any(|slot| slot.facts.is_some()) {
            self.driver_seen = Instant::now();
        }
        // Records of restored GPUs are dropped.
        let mut left = self.record.gpus().clone();
        left.retain(|uuid, _| {
            self.slots.get(uuid).is_none_or(|slot| slot.applied != Some(Setting::default()))
        });
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
    /// Validates a setting and returns what must be recorded before applying it.
    ///
    /// # Errors
    /// A metric reason: `not_supported`, `out_of_range`, or [`GpuError::reason`].
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
        if self.facts.is_none() {
            self.facts = Some(self.worker.call(|gpu| gpu.facts()).await.map_err(reason)?);
        }
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
        if wanted.limit_mw.is_some() && before.limit_mw.is_none() {
            before.limit_mw = Some(self.worker.call(|gpu| gpu.limit_mw()).await.map_err(reason)?);
        }
        Ok(before)
    }

    /// Applies a setting; calls the driver only for what changes.
    async fn set(&mut self, uuid: &str, target: Setting, before: OriginalSettings) {
        let had = self.applied;
        if had == Some(target) {
            return;
        }
        self.applied = None;
        let done = self.worker.call(move |gpu| {
            let unknown = had.is_none();
            let had = had.unwrap_or_default();
            let limit = target.limit_mw.or(before.limit_mw);
            if let Some(limit) = limit.filter(|_| unknown || had.limit_mw != target.limit_mw) {
                gpu.set_limit_mw(limit)?;
            }
            match target.clock_mhz {
                Some(clock) if unknown || had.clock_mhz != Some(clock) => gpu.lock_clocks_mhz(clock)?,
                None if had.clock_mhz.is_some() || (unknown && before.clocks) => match gpu.reset_clocks() {
                    // Then they were never locked.
                    Err(GpuError::NotSupported) => {}
                    answer => answer?,
                },
                _ => {}
            }
            Ok(())
        });
        match done.await {
            Ok(()) => {
                tracing::info!(uuid, limit_mw = target.limit_mw, clock_mhz = target.clock_mhz, "set");
                (self.applied, self.since, self.logged) = (Some(target), Instant::now(), None);
            }
            Err(error) => {
                if self.logged.as_ref() != Some(&error) {
                    tracing::warn!(uuid, %error, "not set");
                    self.logged = Some(error.clone());
                }
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

#[cfg(test)]
mod tests;
