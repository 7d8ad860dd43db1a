//! Given stored profiles; when models are requested; then no caller waits, and false data has bounded
//! influence.

use std::sync::atomic::{AtomicUsize, Ordering};

use andreas_api::EnergyPolicySpec;
use andreas_api::slim::{SlimTrainingJob, SlimTrainingProfile};
use andreas_cluster::energy::{TypeFacts, Types};
use andreas_cluster::index::ClusterIndex;
use andreas_model::Watts;
use andreas_predictor::GpuModel;
use andreas_runtime::watch::Index;
use serde_json::{Value, json};

use super::*;
use crate::predict::Tables;

fn boards() -> Vec<GpuModel> {
    [("A100", 50.0, 400.0), ("T4", 10.0, 70.0), ("V100", 30.0, 300.0)]
        .into_iter()
        .map(|(name, idle, max)| GpuModel { gpu_type: name.into(), idle: Watts(idle), max: Watts(max) })
        .collect()
}

fn profile(index: &mut ClusterIndex, key: &str, rows: &Value) {
    let (namespace, name) = key.split_once('/').expect("namespace/name");
    // Run times equal the first epoch time, in thousands of seconds.
    let finished: Vec<Value> = (0..8)
        .map(|n| json!({"run": format!("a-{n}"), "seconds": rows[0]["millisPerEpoch"], "at": "2026-01-02T03:04:05Z"}))
        .collect();
    let object = json!({
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"},
        "spec": {"features": {"parametersMillion": 100}},
        "status": {"observations": rows, "finishedRuns": finished},
    });
    index.apply(serde_json::from_value::<SlimTrainingProfile>(object).expect("a profile"));
}

fn row(gpu_type: &str, gpus: u32, millis: i64, claimed: bool) -> Value {
    json!({"run": "a-1", "gpuType": gpu_type, "gpus": gpus, "nodes": 1, "millisPerEpoch": millis, "milliEpochs": 4_000,
        "claimed": claimed, "at": "2026-01-02T03:04:05Z"})
}

fn learner(fitting: impl Fn(FitRequest) -> Model + Send + Sync + 'static) -> Learner {
    Learner::start_with(Arc::new(|_: &Fit| {}), Arc::default(), Arc::new(fitting)).expect("a thread")
}

fn pending(profiles: usize) -> FitRequest {
    let mut index = ClusterIndex::new();
    for n in 0..profiles {
        profile(&mut index, &format!("lab/f{n}"), &json!([row("A100", 1, 60_000, false)]));
    }
    FitRequest::new(&index, boards())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("never {what}");
}

#[test]
fn a_hanging_fit_is_reported_once_and_the_previous_model_stays() {
    // Given a fit that is fast at first and then hangs.
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let learner = learner(move |wanted| {
        if counted.fetch_add(1, Ordering::SeqCst) > 0 {
            loop {
                thread::park();
            }
        }
        wanted.fit()
    });
    let first = learner.latest(pending(1));
    assert!(first.matches(&pending(1)) && first.fit.rows == 1);
    // When others are requested, then no caller waits: the first one is used.
    assert!(Arc::ptr_eq(&learner.latest(pending(2)), &first));
    until("in hand", || learner.shared.state.lock().fitting.is_some());
    assert!(Arc::ptr_eq(&learner.latest(pending(3)), &first));
    // It is logged once.
    let times = [Duration::from_secs(3_600), Duration::ZERO, Duration::ZERO];
    assert_eq!(times.map(|slow| learner.log_fit_slower_than(slow)), [false, true, false]);
}

#[test]
fn before_the_first_model_a_plan_has_one_that_knows_no_family() {
    let learner = learner(|_| {
        loop {
            thread::park();
        }
    });
    let bare = learner.latest_within(pending(2), Duration::from_millis(20));
    assert_eq!((bare.fit.profiles, bare.matches(&pending(2))), (0, false));
    // The next plan does not wait again: it would for a day.
    assert_eq!(learner.latest_within(pending(2), DAY).fit.profiles, 0);
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_first_fit_that_fails_keeps_nobody_waiting() {
    let learner = learner(|_| panic!("it fails"));
    for _ in 0..2 {
        assert_eq!(learner.latest_within(pending(2), DAY).fit.profiles, 0);
    }
}

#[test]
fn the_latest_request_counts_and_a_panic_does_not_end_learning() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let learner = learner(move |wanted| {
        assert!(counted.fetch_add(1, Ordering::SeqCst) > 0, "the first fit fails");
        wanted.fit()
    });
    let bare = learner.latest_within(pending(1), Duration::from_millis(200));
    assert_eq!(bare.fit.profiles, 0);
    for profiles in [2, 3, 4] {
        learner.latest_within(pending(profiles), Duration::ZERO);
    }
    until("the latest", || {
        learner.shared.state.lock().model.as_ref().is_some_and(|m| m.matches(&pending(4)))
    });
    assert!(calls.load(Ordering::SeqCst) <= 3, "what nobody wants any more is not made");
}

#[test]
fn rows_are_bounded_by_namespace_and_what_a_job_says_of_itself_is_not_pooled() {
    let mut index = ClusterIndex::new();
    let many: Vec<Value> = (0..64).map(|n| row("A100", 1 + n % 8, 60_000, false)).collect();
    for n in 0..40 {
        profile(&mut index, &format!("liar/f{n:02}"), &json!(many));
    }
    profile(&mut index, "lab/own", &json!([row("A100", 1, 60_000, false), row("T4", 1, 90_000, true)]));
    let fit = FitRequest::new(&index, boards()).fit().fit;
    assert_eq!((fit.profiles, fit.rows), (17, 1_026));
    assert_eq!(fit.refused["lab"], 1);
    assert!(fit.refused["liar"] >= 24 * 64, "{:?}", fit.refused);
}

/// Twenty namespaces with four profiles each, observed on three configurations: every profile has its own
/// speed and scaling.
fn honest() -> ClusterIndex {
    let types = [("A100", 1.0), ("T4", 2.9), ("V100", 1.35)];
    let mut index = ClusterIndex::new();
    for p in 0..80_usize {
        let seconds = 60.0 * (1.0 + (p * 37 % 23) as f64 / 4.0);
        let serial = 0.1 + 0.01 * (p * 13 % 11) as f64;
        let rows = (0..3).map(|k| {
            let at = (p * 5 + k * 7) % 12;
            let ((gpu_type, slower), gpus) = (types[at % 3], 1_u32 << (at / 3));
            let wobble = 1.0 + 0.03 * ((p + k * 3) % 3) as f64;
            let epoch = seconds * slower * (serial + (1.0 - serial) / f64::from(gpus)) * wobble;
            row(gpu_type, gpus, (epoch * 1_000.0) as i64, false)
        });
        let rows: Vec<Value> = rows.collect();
        profile(&mut index, &format!("lab-{:02}/f{p:02}", p / 4), &json!(rows));
    }
    index
}

/// Predictions for a valid job whose profile was observed once, and for an unknown one.
fn rows_of(index: &ClusterIndex) -> Vec<(f64, f64)> {
    let facts = TypeFacts { gpus: 8, per_node: 8, ..TypeFacts::default() };
    let types: Types = boards().into_iter().map(|board| (board.gpu_type, facts.clone())).collect();
    let mut tables = Tables::default();
    tables.refresh(index, &EnergyPolicySpec::default(), &types);
    let job = |name: &str, profile: &str| -> SlimTrainingJob {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "lab-01", "uid": name},
            "spec": {"epochs": 10, "profileRef": {"name": profile}, "gpus": {"min": 1, "max": 8}, "template": {"spec": {"containers": []}}},
        }))
        .expect("a job")
    };
    [job("seen", "once"), job("unknown", "never")]
        .iter()
        .flat_map(|job| tables.table_of(index, job, &types).expect("a table").rows.to_vec())
        .map(|row| (row.epoch.0, row.power.0))
        .collect()
}

#[test]
fn jobs_of_which_nothing_is_known_share_a_table_and_others_do_not() {
    let facts = TypeFacts { gpus: 8, per_node: 8, ..TypeFacts::default() };
    let types: Types = boards().into_iter().map(|board| (board.gpu_type, facts.clone())).collect();
    let mut index = ClusterIndex::new();
    profile(&mut index, "lab/seen", &json!([row("A100", 2, 90_000, false)]));
    let mut tables = Tables::default();
    tables.refresh(&index, &EnergyPolicySpec::default(), &types);
    let mut table = |namespace: &str, name: &str, epochs: i32| {
        let job: SlimTrainingJob = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "spec": {"epochs": epochs, "gpus": {"min": 1, "max": 8}, "template": {"spec": {"containers": []}}},
        }))
        .expect("a job");
        tables.table_of(&index, &job, &types).expect("a table")
    };
    let one = table("lab", "one", 10);
    assert!(Arc::ptr_eq(&one, &table("lab", "other", 10)));
    for (namespace, name, epochs) in [("lab", "seen", 10), ("lab", "longer", 20), ("else", "one", 10)] {
        assert!(!Arc::ptr_eq(&one, &table(namespace, name, epochs)), "{namespace}/{name}");
    }
}

#[test]
fn false_measurements_of_one_namespace_do_not_move_predictions_of_another() {
    let with = |lies: &dyn Fn(&mut ClusterIndex)| {
        let mut index = honest();
        profile(&mut index, "lab-01/once", &json!([row("A100", 2, 90_000, false)]));
        lies(&mut index);
        rows_of(&index)
    };
    let before = with(&|_| {});
    // Given one namespace whose runs report an epoch of a millisecond, a week, or longer on more GPUs; timed
    // or only self-reported.
    let lie = |index: &mut ClusterIndex, claimed: bool, of: &dyn Fn(u32) -> i64| {
        for n in 0..40 {
            let rows: Vec<Value> = ["A100", "T4", "V100"]
                .into_iter()
                .flat_map(|gpu_type| [1, 2, 4, 8].map(|gpus| row(gpu_type, gpus, of(gpus), claimed)))
                .collect();
            profile(index, &format!("liar/f{n:02}"), &json!(rows));
        }
    };
    let cases: [(&str, &dyn Fn(u32) -> i64); 4] = [
        ("a millisecond", &|_| 1),
        ("a week", &|_| 604_800_000),
        ("slower with more", &|gpus| 60_000 * i64::from(gpus * gpus)),
        ("beyond belief", &|_| 1_000_000_000_000),
    ];
    for (what, of) in cases {
        let timed = with(&|index| lie(index, false, of));
        assert_eq!(before, timed, "{what}");
        let claimed = with(&|index| lie(index, true, of));
        assert_eq!(before, claimed, "{what}, self-reported");
    }
}

#[test]
fn the_same_families_give_the_same_model_in_whatever_order_they_came() {
    let forth = rows_of(&honest());
    let index = honest();
    let mut back = ClusterIndex::new();
    let mut all: Vec<_> = index.profiles().iter().map(|(_, profile)| (**profile).clone()).collect();
    all.reverse();
    all.into_iter().for_each(|profile| back.apply(profile));
    assert_eq!(forth, rows_of(&back));
}

/// Duration of a fit, for `docs/predictor.md`: run it with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "prints times, which say nothing on a busy machine"]
fn how_long_a_fit_takes() {
    for rows in [100_usize, 1_000, 10_000] {
        let mut index = ClusterIndex::new();
        for p in 0..rows / 10 {
            let of = (0..10_u32).map(|n| {
                let (gpu_type, slower) = [("A100", 1.0), ("T4", 2.9), ("V100", 1.35)][n as usize % 3];
                let gpus = 1 << (n % 4);
                let seconds = 60.0 * (1.0 + (p * 37 % 23) as f64 / 4.0) * slower;
                row(gpu_type, gpus, (seconds * 1_000.0 * (0.1 + 0.9 / f64::from(gpus))) as i64, false)
            });
            let of: Vec<Value> = of.collect();
            profile(&mut index, &format!("lab-{:02}/f{p:04}", p % 12), &json!(of));
        }
        let began = Instant::now();
        let wanted = FitRequest::new(&index, boards());
        let requested = began.elapsed();
        let began = Instant::now();
        let fit = wanted.fit().fit;
        println!(
            "{rows} rows: asked for in {requested:?}, {} read, fitted in {:?}",
            fit.rows,
            began.elapsed()
        );
    }
}
