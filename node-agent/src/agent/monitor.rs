//! Reads the node's GPUs through NVML: one thread per GPU, GPUs identified by UUID, health of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;

use crate::gpu::events::ErrorWatch;
use crate::gpu::worker::CALL_TIMEOUT;
use crate::gpu::{ErrorEvent, Facts, Gpu, GpuError, Library, Sample, Worker};
use crate::setting::{MAX_GPUS, Uuid};

/// Interval of the search for GPUs; shorter while they cannot be listed.
const SEARCH: Duration = Duration::from_secs(30);
/// A GPU that fails for this long is unhealthy. A lost one is unhealthy at once.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(8);

/// Interval at which facts are read again that could not be read.
const FACTS: Duration = Duration::from_secs(30);

/// Most partitions of a node: seven of each GPU.
const MAX_PARTITIONS: usize = 7 * MAX_GPUS;

/// All GPUs of the node.
pub struct GpuMonitor {
    nvml: Arc<dyn Library>,
    /// Whether the driver names processes of pods to this process.
    processes_visible: bool,
    search: Worker<Arc<dyn Library>>,
    searched: Option<Instant>,
    list_result: Result<(), GpuError>,
    /// Since when there has been no driver.
    gone: Option<Instant>,
    gpus: BTreeMap<Uuid, GpuHandle>,
    errors: ErrorWatch,
    /// The GPU of each partition that was looked up; `None`: it has none that is known.
    parents: BTreeMap<String, Option<Uuid>>,
}

/// One GPU and its thread.
pub struct GpuHandle {
    worker: Worker<Box<dyn Gpu>>,
    /// Facts that do not change while the driver is loaded.
    facts: Option<Facts>,
    /// When they were read.
    facts_at: Instant,
    /// The last product that was read; it stays that of a GPU that is lost.
    product: Option<String>,
    /// The last number of its device file that was read; it stays that of a GPU that is lost.
    minor: Option<u32>,
    /// The last sample; `None` if it failed.
    sample: Option<Sample>,
    failing: Option<(Instant, GpuError)>,
    /// It has failed since with an error that only a reset or a newly loaded driver ends.
    broken: bool,
    /// It answered now after an error that only a reset or a newly loaded driver ends.
    reset: bool,
}

impl GpuHandle {
    fn new(worker: Worker<Box<dyn Gpu>>) -> Self {
        Self {
            worker,
            facts: None,
            facts_at: Instant::now(),
            product: None,
            minor: None,
            sample: None,
            failing: None,
            broken: false,
            reset: false,
        }
    }

    /// Facts that do not change while the driver is loaded; `None` before they were read.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The last product that was read; it stays that of a GPU that is lost.
    #[must_use]
    pub fn product(&self) -> Option<&str> {
        self.product.as_deref()
    }

    /// The last sample; `None` if it failed.
    #[must_use]
    pub fn sample(&self) -> Option<&Sample> {
        self.sample.as_ref()
    }

    /// Whether it answered now after an error that only a reset or a newly loaded driver ends.
    #[must_use]
    pub fn was_reset(&self) -> bool {
        self.reset
    }

    /// Why the GPU must not be used; `None` while it is healthy, or has failed only briefly.
    #[must_use]
    pub fn fault(&self) -> Option<&GpuError> {
        let (since, error) = self.failing.as_ref()?;
        let at_once = matches!(error, GpuError::Lost | GpuError::ResetRequired);
        (at_once || since.elapsed() >= UNHEALTHY_AFTER).then_some(error)
    }

    /// Why the last sample failed.
    #[must_use]
    pub fn failing(&self) -> Option<&GpuError> {
        self.failing.as_ref().map(|(_, error)| error)
    }

    async fn take_sample(&mut self) {
        let known = self
            .facts
            .as_ref()
            .is_some_and(|facts| facts.unread.is_empty() || self.facts_at.elapsed() < FACTS);
        let answer = self.worker.call(move |gpu| {
            let facts = if known { None } else { Some(gpu.facts()?) };
            Ok((facts, gpu.sample()?))
        });
        match answer.await {
            Ok((facts, sample)) => {
                if let Some(facts) = facts {
                    self.product =
                        Some(facts.product.clone()).filter(|name| !name.is_empty()).or(self.product.take());
                    self.minor = facts.minor.or(self.minor);
                    (self.facts, self.facts_at) = (Some(facts), Instant::now());
                }
                self.sample = Some(sample);
                self.failing = None;
                self.reset = std::mem::take(&mut self.broken);
            }
            Err(error) => {
                self.sample = None;
                if error.ends_handle() {
                    // A newly loaded driver may have other limits.
                    self.facts = None;
                }
                self.reset = false;
                self.broken |=
                    matches!(error, GpuError::Lost | GpuError::ResetRequired | GpuError::NoDriver(_));
                let since = self.failing.take().map_or_else(Instant::now, |(since, _)| since);
                self.failing = Some((since, error));
            }
        }
    }
}

impl GpuMonitor {
    /// Creates the monitor; opens nothing yet. `processes_visible`: whether the driver names processes of pods to this
    /// process.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(library: Arc<dyn Library>, processes_visible: bool) -> std::io::Result<Self> {
        let own = Arc::clone(&library);
        let search = Worker::start("gpu-search", CALL_TIMEOUT, Box::new(move || Ok(Arc::clone(&own))))?;
        let errors = ErrorWatch::start(Arc::clone(&library))?;
        let list_result = Err(GpuError::NoDriver("not searched yet".into()));
        let (gpus, parents) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            nvml: library,
            processes_visible,
            search,
            searched: None,
            list_result,
            gone: None,
            gpus,
            errors,
            parents,
        })
    }

    /// Samples all GPUs in parallel; takes as long as the slowest, at most two seconds.
    pub async fn sample(&mut self) {
        // Errors that may be those of all GPUs.
        let common = |error: &GpuError| error.is_unreachable() || matches!(error, GpuError::Other(_));
        let unloaded = |gpu: &GpuHandle| gpu.failing().is_some_and(common);
        let listed = self.list_result.is_ok() && !self.gpus.values().any(unloaded);
        let due = if listed { SEARCH } else { Duration::from_secs(2) };
        if self.searched.is_none_or(|at| at.elapsed() >= due) {
            self.searched = Some(Instant::now());
            self.search().await;
        }
        join_all(self.gpus.values_mut().map(GpuHandle::take_sample)).await;
        let answering = self.gpus.iter().filter(|(_, gpu)| gpu.sample.is_some());
        let hang = self.gpus.values().any(|gpu| gpu.failing() == Some(&GpuError::Hung));
        self.errors.set_reads(answering.map(|(uuid, _)| uuid.clone()).collect(), hang);
        let unlisted = self.list_result.as_ref().is_err_and(common);
        let gone = unlisted && self.gpus.values().all(|gpu| gpu.sample.is_none());
        self.gone = gone.then(|| self.gone.unwrap_or_else(Instant::now));
        if !self.processes_visible {
            self.gpus
                .values_mut()
                .filter_map(|gpu| gpu.sample.as_mut())
                .for_each(|sample| sample.processes = None);
        }
    }

    async fn search(&mut self) {
        let uuids = self.search.call(|library| library.uuids()).await;
        if let (Err(error), true) = (&uuids, self.list_result.is_ok() || self.gpus.is_empty()) {
            tracing::warn!(%error, "GPUs cannot be listed");
        }
        self.list_result = uuids.as_ref().map(|_| ()).map_err(Clone::clone);
        for uuid in uuids.into_iter().flatten() {
            if self.gpus.contains_key(&uuid) || self.gpus.len() >= MAX_GPUS {
                continue;
            }
            let (library, name) = (Arc::clone(&self.nvml), uuid.clone());
            match Worker::start("gpu-read", CALL_TIMEOUT, Box::new(move || library.open(&name))) {
                Ok(worker) => {
                    tracing::info!(uuid, "GPU found");
                    self.gpus.insert(uuid, GpuHandle::new(worker));
                }
                Err(error) => tracing::error!(%error, "no thread for a GPU"),
            }
        }
        self.parents.retain(|_, parent| parent.is_some());
    }

    /// Critical errors that the driver reported since the last call.
    #[must_use]
    pub fn take_errors(&self) -> Vec<ErrorEvent> {
        self.errors.take()
    }

    /// The GPUs that these partitions are parts of. Each is looked up once, until the GPUs are searched again.
    pub async fn parents(&mut self, partitions: BTreeSet<String>) -> BTreeMap<String, Uuid> {
        self.parents.retain(|partition, _| partitions.contains(partition));
        for partition in partitions.into_iter().take(MAX_PARTITIONS) {
            if !self.parents.contains_key(&partition) {
                // The IDs of older drivers name the GPU: MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
                let named = partition.strip_prefix("MIG-").and_then(|rest| rest.split('/').next());
                let parent = match named.filter(|uuid| self.gpus.contains_key(*uuid)) {
                    Some(uuid) => Some(uuid.to_owned()),
                    None => {
                        let id = partition.clone();
                        self.search.call(move |library| library.parent(&id)).await.ok()
                    }
                };
                self.parents.insert(partition, parent);
            }
        }
        let known = self.parents.iter();
        known.filter_map(|(partition, parent)| Some((partition.clone(), parent.clone()?))).collect()
    }

    /// Result of the last listing of GPUs; `Ok` also for an empty list.
    pub fn list_result(&self) -> &Result<(), GpuError> {
        &self.list_result
    }

    /// For how long the driver has listed no GPUs and no GPU has answered. One that hangs may be hanging in the driver that is
    /// loaded, and does not count.
    #[must_use]
    pub fn driver_gone_for(&self) -> Duration {
        self.gone.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// All GPUs seen since the start, including those that have failed since.
    #[must_use]
    pub fn gpus(&self) -> &BTreeMap<Uuid, GpuHandle> {
        &self.gpus
    }

    /// The GPU of each device file's number.
    #[must_use]
    pub fn device_files(&self) -> BTreeMap<u32, Uuid> {
        device_files(&self.gpus)
    }
}

/// The GPU of each device file's number. One that does not answer keeps the number that it had, unless another one has it now.
fn device_files(gpus: &BTreeMap<Uuid, GpuHandle>) -> BTreeMap<u32, Uuid> {
    let of = |read: bool| gpus.iter().filter(move |(_, gpu)| gpu.facts.is_some() == read);
    of(false).chain(of(true)).filter_map(|(uuid, gpu)| Some((gpu.minor?, uuid.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::PowerLimits;
    use parking_lot::Mutex;

    /// What reads of a GPU fail with.
    type Fails = Arc<Mutex<Option<GpuError>>>;

    struct FakeGpu {
        fails: Fails,
        minor: u32,
    }

    impl Gpu for FakeGpu {
        fn facts(&mut self) -> Result<Facts, GpuError> {
            Ok(Facts { minor: Some(self.minor), ..Facts::default() })
        }
        fn sample(&mut self) -> Result<Sample, GpuError> {
            self.fails.lock().clone().map_or_else(|| Ok(Sample::default()), Err)
        }
        fn power_limits(&mut self) -> Result<PowerLimits, GpuError> {
            Err(GpuError::NotSupported)
        }
        fn set_limit_mw(&mut self, _: u32) -> Result<(), GpuError> {
            Err(GpuError::NotSupported)
        }
        fn lock_clocks_mhz(&mut self, _: u32, _: u32) -> Result<(), GpuError> {
            Err(GpuError::NotSupported)
        }
        fn reset_clocks(&mut self) -> Result<(), GpuError> {
            Err(GpuError::NotSupported)
        }
    }

    fn gpu(minor: u32) -> (GpuHandle, Fails) {
        let fails = Fails::default();
        let driver = Arc::clone(&fails);
        let open = move || -> Result<Box<dyn Gpu>, GpuError> {
            Ok(Box::new(FakeGpu { fails: Arc::clone(&driver), minor }))
        };
        let worker = Worker::start("test", CALL_TIMEOUT, Box::new(open)).expect("a thread");
        (GpuHandle::new(worker), fails)
    }

    #[tokio::test]
    async fn a_gpu_that_was_lost_was_reset_whatever_it_answered_before_it_was_well() {
        let (mut gpu, fails) = gpu(0);
        for (errors, reset) in [
            (vec![GpuError::Lost, GpuError::NotFound], true),
            (vec![GpuError::ResetRequired, GpuError::Hung, GpuError::Lost], true),
            (vec![GpuError::NotFound], false),
            (vec![GpuError::Hung], false),
        ] {
            for error in &errors {
                *fails.lock() = Some(error.clone());
                gpu.take_sample().await;
                assert!(!gpu.reset && gpu.failing() == Some(error));
            }
            *fails.lock() = None;
            gpu.take_sample().await;
            assert_eq!(gpu.reset, reset, "{errors:?}");
            gpu.take_sample().await;
            assert!(!gpu.reset, "once");
        }
    }

    #[tokio::test]
    async fn a_lost_gpu_keeps_the_device_file_that_it_had_until_another_one_has_it() {
        let (a, _) = gpu(0);
        let (b, lost) = gpu(1);
        let mut gpus = BTreeMap::from([("GPU-a".to_owned(), a), ("GPU-b".to_owned(), b)]);
        assert!(device_files(&gpus).is_empty(), "nothing was read yet");
        join_all(gpus.values_mut().map(GpuHandle::take_sample)).await;
        let both = BTreeMap::from([(0, "GPU-a".to_owned()), (1, "GPU-b".to_owned())]);
        assert_eq!(device_files(&gpus), both);
        *lost.lock() = Some(GpuError::Lost);
        join_all(gpus.values_mut().map(GpuHandle::take_sample)).await;
        assert!(gpus["GPU-b"].facts.is_none());
        assert_eq!(device_files(&gpus), both);
        gpus.insert("GPU-0".to_owned(), gpu(1).0);
        join_all(gpus.values_mut().map(GpuHandle::take_sample)).await;
        assert_eq!(device_files(&gpus)[&1], "GPU-0", "what is read now counts");
    }
}
