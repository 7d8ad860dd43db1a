use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use parking_lot::Mutex;

/// A fake driver that logs calls and fails on demand.
#[derive(Default)]
struct Driver {
    calls: Mutex<Vec<String>>,
    fails: Mutex<Option<GpuError>>,
    /// Requested limits, mW; the administrator's original one is 350 W.
    requested: Mutex<BTreeMap<String, u32>>,
    /// Limit of a limiter out of band, mW.
    outer: Mutex<Option<u32>>,
    braked: Mutex<bool>,
}

impl Driver {
    fn requested(&self, uuid: &str) -> u32 {
        self.requested.lock().get(uuid).copied().unwrap_or(350_000)
    }

    /// Another client sets a limit.
    fn override_limit(&self, uuid: &str, limit: u32) {
        self.requested.lock().insert(uuid.to_owned(), limit);
    }
}

struct FakeGpu {
    driver: Arc<Driver>,
    uuid: String,
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
            clock_mhz: Some((210, 1410)),
            ..Facts::default()
        })
    }
    fn sample(&mut self) -> Result<crate::gpu::Sample, GpuError> {
        Ok(crate::gpu::Sample::default())
    }
    fn power_limits(&mut self) -> Result<PowerLimits, GpuError> {
        let requested_mw = self.driver.requested(&self.uuid);
        let enforced_mw = self.driver.outer.lock().map(|outer| outer.min(requested_mw));
        Ok(PowerLimits { requested_mw, enforced_mw, braked: *self.driver.braked.lock() })
    }
    fn set_limit_mw(&mut self, limit: u32) -> Result<(), GpuError> {
        self.call(format!("limit {limit}"))?;
        self.driver.override_limit(&self.uuid, limit);
        Ok(())
    }
    fn lock_clocks_mhz(&mut self, lowest: u32, highest: u32) -> Result<(), GpuError> {
        let range = if lowest == 0 { highest.to_string() } else { format!("{lowest} to {highest}") };
        self.call(format!("lock {range}"))
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
        Ok(Box::new(FakeGpu { driver: Arc::clone(&self.0), uuid: uuid.to_owned() }))
    }
    fn error_events(&self, _: &[String]) -> Result<Box<dyn crate::gpu::ErrorEvents>, GpuError> {
        Err(GpuError::NotSupported)
    }
    fn parent(&self, _: &str) -> Result<String, GpuError> {
        Err(GpuError::NotFound)
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
    let original = OriginalSettings { clocks: true, ..OriginalSettings::default() };
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
async fn nothing_outside_the_drivers_range_the_floor_or_the_ceiling_and_no_unknown_gpu() {
    let node = Node::new();
    let mut setter = node.setter();
    for (wanted, why) in [
        (("a", Some(149_999), None), "out_of_range"),
        (("a", Some(400_001), None), "out_of_range"),
        (("a", Some(350_001), None), "above_ceiling"),
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
    let wanted = want(&[("a", Some(200_000), None), ("b", None, Some(210))]);
    setter.apply(&wanted).await;
    (setter.reapply, setter.read_back) = (Duration::ZERO, Duration::ZERO);
    node.calls();
    // A limit that was forgotten shows; clocks are locked again without a look.
    node.driver.override_limit("a", 350_000);
    setter.apply(&wanted).await;
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["a limit 200000", "b lock 210"]);
    assert_eq!(setter.record.gpus()["a"].limit_mw, Some(350_000));
    assert!(setter.restore_all().await.is_empty());
    let mut calls = node.calls();
    calls.sort();
    assert_eq!(calls, ["a limit 350000", "b reset"]);
}

/// What the setter accepts at most on GPU a.
async fn ceiling(setter: &mut Applier) -> Option<u32> {
    setter.read_back = Duration::ZERO;
    setter.apply(&want(&[("a", None, None)])).await.gpus["a"].ceiling_mw
}

#[tokio::test]
async fn the_ceiling_is_what_others_have_in_force_and_follows_them_until_a_limit_of_ours_is_set() {
    let node = Node::new();
    let mut setter = node.setter();
    assert_eq!(ceiling(&mut setter).await, Some(350_000), "not the driver's 400 W");
    node.driver.override_limit("a", 250_000);
    assert_eq!(ceiling(&mut setter).await, Some(250_000));
    *node.driver.outer.lock() = Some(220_000);
    assert_eq!(ceiling(&mut setter).await, Some(220_000), "as a management controller enforces it");
    let refused = setter.apply(&want(&[("a", Some(230_000), None)])).await;
    assert_eq!(refused.gpus["a"].refused.as_deref(), Some("above_ceiling"));
    let set = setter.apply(&want(&[("a", Some(200_000), None)])).await;
    assert_eq!((set.gpus["a"].ceiling_mw, set.gpus["a"].refused.as_deref()), (Some(220_000), None));
    // Also the next setter knows it while ours is in force, and restores no more than that.
    drop(setter);
    let mut next = node.setter();
    let raised = next.apply(&want(&[("a", Some(250_000), None)])).await;
    assert_eq!(raised.gpus["a"].refused.as_deref(), Some("above_ceiling"));
    assert!(next.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 200000", "a limit 220000"]);
}

#[tokio::test]
async fn a_limit_that_heat_may_have_lowered_for_a_moment_is_nobodys_and_is_waited_out() {
    let node = Node::new();
    let mut setter = node.setter();
    (*node.driver.outer.lock(), *node.driver.braked.lock()) = (Some(180_000), true);
    assert_eq!(ceiling(&mut setter).await, None);
    let wanted = want(&[("a", Some(160_000), None)]);
    let refused = setter.apply(&wanted).await;
    assert_eq!(refused.gpus["a"].refused.as_deref(), Some("braked"));
    (*node.driver.outer.lock(), *node.driver.braked.lock()) = (None, false);
    setter.apply(&wanted).await;
    // The same at the end: it gets back what it had.
    (*node.driver.outer.lock(), *node.driver.braked.lock()) = (Some(120_000), true);
    assert!(setter.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 160000", "a limit 350000"]);
}

#[tokio::test]
async fn a_limiter_out_of_band_that_came_later_is_not_lifted_by_a_restore() {
    let node = Node::new();
    let mut setter = node.setter();
    setter.apply(&want(&[("a", Some(300_000), None)])).await;
    *node.driver.outer.lock() = Some(240_000);
    assert!(setter.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 300000", "a limit 240000"]);
    // One below what can be set is met by the lowest limit.
    setter.apply(&want(&[("a", Some(200_000), None)])).await;
    *node.driver.outer.lock() = Some(60_000);
    assert!(setter.restore_all().await.is_empty());
    assert_eq!(node.calls(), ["a limit 200000", "a limit 100000"]);
}

#[tokio::test]
async fn another_writers_limit_is_the_new_ceiling_and_stays_when_ours_ends() {
    for (theirs, ours_again) in [(250_000, true), (170_000, false), (400_000, true)] {
        let node = Node::new();
        let mut setter = node.setter();
        setter.read_back = Duration::ZERO;
        let wanted = want(&[("a", Some(200_000), None)]);
        setter.apply(&wanted).await;
        node.calls();
        // As a boot unit that runs after us.
        node.driver.override_limit("a", theirs);
        let done = setter.apply(&wanted).await;
        assert_eq!(done.gpus["a"].ceiling_mw, Some(theirs));
        assert_eq!(node.driver.requested("a"), theirs.min(200_000));
        assert_eq!(done.gpus["a"].refused.as_deref(), (!ours_again).then_some("above_ceiling"));
        assert!(setter.restore_all().await.is_empty());
        assert_eq!(node.driver.requested("a"), theirs, "theirs, not what was there before");
        assert!(setter.record.gpus().is_empty());
    }
}

#[tokio::test]
async fn a_restore_leaves_a_limit_that_another_writer_has_set_in_the_meantime() {
    let node = Node::new();
    let wanted = want(&[("a", Some(200_000), None)]);
    for killed in [false, true] {
        let mut setter = node.setter();
        setter.apply(&wanted).await;
        if killed {
            drop(setter);
            setter = node.setter();
        }
        node.calls();
        node.driver.override_limit("a", 180_000);
        assert!(setter.restore_all().await.is_empty());
        assert_eq!((node.calls(), node.driver.requested("a")), (vec![], 180_000));
        node.driver.override_limit("a", 350_000);
    }
}

#[tokio::test]
async fn a_writer_that_changes_the_limit_again_and_again_wins() {
    let node = Node::new();
    let mut setter = node.setter();
    setter.read_back = Duration::ZERO;
    let wanted = want(&[("a", Some(200_000), None)]);
    let overridden = async |setter: &mut Applier| {
        node.driver.override_limit("a", 300_000);
        setter.apply(&wanted).await.gpus["a"].clone()
    };
    setter.apply(&wanted).await;
    assert_eq!(overridden(&mut setter).await.refused, None, "once");
    node.calls();
    let again = overridden(&mut setter).await;
    assert_eq!(again.refused.as_deref(), Some("overridden"));
    assert_eq!((again.setting, again.ceiling_mw), (Some(Setting::default()), Some(300_000)));
    assert!(setter.record.gpus().is_empty() && node.calls().is_empty());
    // The next one is another matter.
    setter.apply(&want(&[("a", None, None)])).await;
    assert_eq!(setter.apply(&wanted).await.gpus["a"].refused, None);
}

#[tokio::test]
async fn a_record_of_limits_knows_every_one_that_may_be_in_force() {
    let node = Node::new();
    let mut setter = node.setter();
    setter.apply(&want(&[("a", Some(200_000), None)])).await;
    // The next one fails, and the setter is killed: either is in force.
    *node.driver.fails.lock() = Some(GpuError::Other("busy".into()));
    setter.apply(&want(&[("a", Some(250_000), None)])).await;
    *node.driver.fails.lock() = None;
    drop(setter);
    assert!(node.setter().restore_all().await.is_empty());
    assert_eq!(node.driver.requested("a"), 350_000);
}

#[tokio::test]
async fn locked_clocks_go_back_to_what_the_administrator_says_and_are_unlocked_where_that_is_refused() {
    let node = Node::new();
    let rest = want(&[("a", None, Some(210))]);
    for (value, expected) in [("FakeGpu=300,1200", "a lock 300 to 1200"), ("Other=300,1200", "a reset")] {
        let mut setter = node.setter().with_locked_clocks(vec![value.parse().unwrap()]);
        setter.apply(&rest).await;
        // Also by a setter that was started again.
        drop(setter);
        let mut setter = node.setter().with_locked_clocks(vec![value.parse().unwrap()]);
        assert!(setter.restore_all().await.is_empty());
        assert_eq!(node.calls(), ["a lock 210", expected]);
        // A GPU whose clocks it did not lock is left alone.
        setter.apply(&want(&[("a", Some(200_000), None), ("b", None, None)])).await;
        assert!(setter.restore_all().await.is_empty());
        assert_eq!(node.calls(), ["a limit 200000", "a limit 350000"]);
    }
}
