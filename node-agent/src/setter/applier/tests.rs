use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use parking_lot::Mutex;

/// A fake driver that logs calls and fails on demand.
#[derive(Default)]
struct Driver {
    calls: Mutex<Vec<String>>,
    fails: Mutex<Option<GpuError>>,
}

struct FakeGpu {
    driver: Arc<Driver>,
    uuid: String,
    limit: u32,
}

impl FakeGpu {
    fn call(&self, what: String) -> Result<(), GpuError> {
        self.driver.calls.lock().push(format!("{} {what}", self.uuid));
        self.driver.fails.lock().clone().map_or(Ok(()), Err)
    }
}

impl Gpu for FakeGpu {
    fn facts(&mut self) -> Result<Facts, GpuError> {
        Ok(Facts {
            product: "FakeGpu".into(),
            limit_mw: Some((100_000, 400_000)),
            default_limit_mw: Some(400_000),
            clock_mhz: Some((210, 1410)),
            minor: Some(0),
        })
    }
    fn sample(&mut self) -> Result<crate::gpu::Sample, GpuError> {
        Ok(crate::gpu::Sample::default())
    }
    fn limit_mw(&mut self) -> Result<u32, GpuError> {
        Ok(self.limit)
    }
    fn set_limit_mw(&mut self, limit: u32) -> Result<(), GpuError> {
        self.call(format!("limit {limit}"))?;
        self.limit = limit;
        Ok(())
    }
    fn lock_clocks_mhz(&mut self, highest: u32) -> Result<(), GpuError> {
        self.call(format!("lock {highest}"))
    }
    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.call("reset".into())
    }
}

struct FakeLibrary(Arc<Driver>);

impl Library for FakeLibrary {
    fn uuids(&self) -> Result<Vec<String>, GpuError> {
        Ok(vec!["a".into(), "b".into()])
    }
    fn open(&self, uuid: &str) -> Result<Box<dyn Gpu>, GpuError> {
        if !["a", "b"].contains(&uuid) {
            return Err(GpuError::NotFound);
        }
        // The administrator's original limit is 350 W.
        Ok(Box::new(FakeGpu { driver: Arc::clone(&self.0), uuid: uuid.to_owned(), limit: 350_000 }))
    }
    fn error_events(&self, _: &[String]) -> Result<Box<dyn crate::gpu::ErrorEvents>, GpuError> {
        Err(GpuError::NotSupported)
    }
    fn parent(&self, _: &str) -> Result<String, GpuError> {
        Err(GpuError::NotFound)
    }
    fn calls(&self) -> u64 {
        self.0.calls.lock().len() as u64
    }
}

struct Node {
    driver: Arc<Driver>,
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { driver: Arc::default(), folder: tempfile::tempdir().unwrap() }
    }

    fn setter(&self) -> Applier {
        let record = Record::open(self.folder.path()).unwrap();
        let floor = Floor { limit_mw: 150_000, clock_mhz: 0 };
        Applier::new(Arc::new(FakeLibrary(Arc::clone(&self.driver))), record, floor, Duration::from_secs(30))
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.driver.calls.lock())
    }
}

fn want(settings: &[(&str, Option<u32>, Option<u32>)]) -> SettingsRequest {
    let of = |(uuid, limit_mw, clock_mhz): &(&str, Option<u32>, Option<u32>)| {
        ((*uuid).to_owned(), Setting { limit_mw: *limit_mw, clock_mhz: *clock_mhz })
    };
    SettingsRequest { settings: settings.iter().map(of).collect() }
}

#[tokio::test]
async fn what_is_wanted_is_set_once_and_what_is_not_gets_back_what_it_had() {
    let node = Node::new();
    let mut setter = node.setter();
    let both = want(&[("a", Some(200_000), None), ("b", None, Some(210))]);
    let done = setter.apply(&both).await;
    assert_eq!(done.gpus["a"].setting, Some(both.settings["a"]));
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["a limit 200000", "b lock 210"]);
    setter.apply(&both).await;
    assert!(node.calls().is_empty(), "no call where nothing changes");

    setter.apply(&want(&[("a", Some(250_000), None)])).await;
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["a limit 250000", "b reset"]);
    assert!(setter.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 350000"], "what the administrator had set, not the factory's");
    assert!(setter.is_clean() && setter.record.gpus().is_empty());
}

#[tokio::test]
async fn a_killed_setter_leaves_a_record_and_the_next_one_restores() {
    let node = Node::new();
    let mut setter = node.setter();
    setter.apply(&want(&[("a", Some(200_000), Some(600))])).await;
    drop(setter);
    node.calls();
    let mut next = node.setter();
    assert!(!next.is_clean());
    assert!(next.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 350000", "a reset"]);
    drop(next);
    assert!(node.setter().is_clean());
}

#[tokio::test]
async fn what_was_set_on_a_gpu_that_cannot_be_opened_stays_in_the_record() {
    let node = Node::new();
    // More than a setter opens, as where the pod may start no more threads.
    let gpus: Vec<Uuid> = (0..=MAX_GPUS).map(|number| format!("x-{number:02}")).collect();
    let original = OriginalSettings { limit_mw: None, clocks: true };
    let recorded: BTreeMap<_, _> = gpus.iter().map(|uuid| (uuid.clone(), original.clone())).collect();
    let mut record = Record::open(node.folder.path()).unwrap();
    record.replace(recorded.clone()).unwrap();
    drop(record);
    let mut setter = node.setter();
    assert_eq!((setter.slots.len(), setter.is_clean()), (MAX_GPUS, false));
    assert_eq!(setter.restore_all().await, gpus);
    assert_eq!(setter.record.gpus(), &recorded);
    // Once there is room it is to be restored, like the others.
    setter.slots.remove("x-00");
    let last = gpus[MAX_GPUS].as_str();
    setter.apply(&want(&[(last, None, None)])).await;
    assert_eq!(setter.slots[last].applied, None);
    assert_eq!(setter.record.gpus(), &recorded);
}

/// Counts what is logged as an error.
#[derive(Clone, Default)]
struct LoggedErrors(Arc<AtomicUsize>);

impl tracing::Subscriber for LoggedErrors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_record_that_cannot_be_written_is_logged_once_and_nothing_is_set_without_it() {
    let node = Node::new();
    let mut setter = node.setter();
    let errors = LoggedErrors::default();
    let _logging = tracing::subscriber::set_default(errors.clone());
    let logged = || errors.0.load(Ordering::Relaxed);
    // As on a full disk, no new record can be made.
    let in_the_way = node.folder.path().join("before.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let wanted = want(&[("a", Some(200_000), None)]);
    for _ in 0..3 {
        let done = setter.apply(&wanted).await;
        assert_eq!(done.gpus["a"].refused.as_deref(), Some("record"));
    }
    assert_eq!((node.calls(), logged()), (vec![], 1));
    std::fs::remove_dir(&in_the_way).unwrap();
    setter.apply(&wanted).await;
    assert_eq!(node.calls(), ["a limit 200000"]);
    // What is restored stays recorded, and that is said once again.
    std::fs::create_dir(&in_the_way).unwrap();
    for _ in 0..3 {
        setter.apply(&want(&[])).await;
    }
    assert_eq!((node.calls(), logged()), (vec!["a limit 350000".to_owned()], 2));
}

#[tokio::test]
async fn nothing_outside_the_drivers_range_or_the_floor_and_no_unknown_gpu() {
    let node = Node::new();
    let mut setter = node.setter();
    for (wanted, why) in [
        (("a", Some(149_999), None), "out_of_range"),
        (("a", Some(400_001), None), "out_of_range"),
        (("a", None, Some(209)), "out_of_range"),
        (("a", Some(0), Some(210)), "out_of_range"),
        (("x", None, Some(210)), "not_found"),
    ] {
        let done = setter.apply(&want(&[wanted])).await;
        assert_eq!(done.gpus[wanted.0].refused.as_deref(), Some(why), "{wanted:?}");
        assert_eq!(done.gpus[wanted.0].setting, Some(Setting::default()));
    }
    assert!(node.calls().is_empty());
    assert!(setter.record.gpus().is_empty());
}

#[tokio::test]
async fn a_failed_restore_is_kept_and_tried_again() {
    let node = Node::new();
    let mut setter = node.setter();
    setter.apply(&want(&[("a", Some(200_000), None)])).await;
    *node.driver.fails.lock() = Some(GpuError::Other("busy".into()));
    assert_eq!(setter.restore_all().await, ["a"]);
    assert_eq!(setter.record.gpus()["a"].limit_mw, Some(350_000));
    *node.driver.fails.lock() = None;
    assert!(setter.restore_all().await.is_empty());
    assert_eq!(node.calls().last().map(String::as_str), Some("a limit 350000"));

    // Without the capability nothing changes, nothing needs restoring, and the driver is not called every
    // second.
    *node.driver.fails.lock() = Some(GpuError::NoPermission);
    node.calls();
    for _ in 0..3 {
        let done = setter.apply(&want(&[("b", None, Some(210))])).await;
        assert_eq!(done.gpus["b"].refused.as_deref(), Some("no_permission"));
        assert_eq!(done.gpus["b"].setting, Some(Setting::default()));
    }
    assert_eq!(node.calls(), ["b lock 210"]);
    assert!(setter.restore_all().await.is_empty() && setter.record.gpus().is_empty());
}

#[tokio::test]
async fn a_setting_is_made_again_because_a_driver_may_have_forgotten_it() {
    let node = Node::new();
    let mut setter = node.setter();
    let wanted = want(&[("a", Some(200_000), None)]);
    setter.apply(&wanted).await;
    setter.reapply = Duration::ZERO;
    setter.apply(&wanted).await;
    assert_eq!(node.calls(), ["a limit 200000", "a limit 200000"]);
    assert_eq!(setter.record.gpus()["a"].limit_mw, Some(350_000), "what was before stays what it was");
    assert!(setter.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 350000"]);
}

#[tokio::test]
async fn a_driver_that_is_not_seen_while_something_is_to_be_set_is_gone() {
    let node = Node::new();
    let mut setter = node.setter();
    let wanted = want(&[("a", Some(200_000), None)]);
    let other = want(&[("a", Some(250_000), None)]);
    setter.apply(&wanted).await;
    assert_eq!(setter.driver_gone_for(), None);
    *node.driver.fails.lock() = Some(GpuError::NoDriver("another version".into()));
    setter.apply(&wanted).await;
    assert_eq!(setter.driver_gone_for(), None, "nothing was to be set");
    setter.apply(&other).await;
    let first = setter.driver_gone_for().expect("gone");
    setter.apply(&other).await;
    assert!(setter.driver_gone_for().expect("gone") > first, "since it was seen last");
    // Another error is a driver's answer.
    *node.driver.fails.lock() = Some(GpuError::Other("busy".into()));
    setter.apply(&other).await;
    assert_eq!(setter.driver_gone_for(), None);
}

const STOOD_BY: Duration = Duration::from_secs(400);

/// A setter that has stood by, in a container made before the present driver was installed.
async fn outdated(node: &Node) -> Applier {
    *node.driver.fails.lock() = Some(GpuError::NoDriver("another version".into()));
    let mut setter = node.setter().standing_by_since(Instant::now() - STOOD_BY);
    setter.apply(&want(&[("a", Some(200_000), None)])).await;
    setter
}

#[tokio::test]
async fn a_setter_that_stood_by_sees_the_library_of_when_it_began_to() {
    let node = Node::new();
    assert!(outdated(&node).await.driver_gone_for() >= Some(STOOD_BY));
    *node.driver.fails.lock() = None;
    let mut setter = node.setter().standing_by_since(Instant::now() - STOOD_BY);
    setter.apply(&want(&[("a", Some(200_000), None)])).await;
    *node.driver.fails.lock() = Some(GpuError::NoDriver("another version".into()));
    setter.apply(&want(&[("a", Some(250_000), None)])).await;
    assert!(setter.driver_gone_for() < Some(STOOD_BY), "it has seen the driver since");
}

#[tokio::test]
async fn the_watch_over_a_setter_ends_once_its_driver_has_been_gone_for_long() {
    let nodes = [Node::new(), Node::new(), Node::new()];
    let (short, long) = (outdated(&nodes[0]).await, outdated(&nodes[1]).await);
    let mut well = nodes[2].setter();
    well.apply(&want(&[("b", Some(200_000), None)])).await;
    // Calls of the driver take real time, the watch does not.
    tokio::time::pause();
    let ends = async |setter: Applier, patience: Duration| {
        let setter = Arc::new(tokio::sync::Mutex::new(setter));
        let watch = super::super::watchdog(setter, Duration::from_secs(1_000), patience);
        tokio::time::timeout(Duration::from_secs(600), watch).await.is_ok()
    };
    assert!(ends(short, STOOD_BY).await);
    assert!(!ends(long, 2 * STOOD_BY).await);
    assert!(!ends(well, Duration::ZERO).await);
}
