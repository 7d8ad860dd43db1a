//! Given jobs that have ended; when what they cost is compared with what they could have cost; then the difference is what
//! waiting, lost work or a dear hour cost, and jobs that ran at their best have none.

use andreas_api::slim::{SlimEnergyPolicy, SlimNode, SlimTrainingJob, SlimTrainingProfile};
use andreas_runtime::watch::Index;
use serde_json::{Value, json};

use super::*;
use crate::index::ClusterIndex;
use crate::testing::{at, gpu_node};

const GPU: &str = "NVIDIA-A100-SXM4-80GB";
/// When the figures are made, s.
const NOW: i64 = 20_000;

/// One node of eight GPUs, and a profile of 100 s an epoch on one GPU and 20 s on eight.
fn cluster() -> ClusterIndex {
    let mut index = ClusterIndex::new();
    index.apply(serde_json::from_value::<SlimNode>(gpu_node("n1", GPU, 8)).expect("a node"));
    let profile = json!({"metadata": {"name": "bert", "namespace": "team", "resourceVersion": "2"},
        "spec": {"measurements": [
            {"gpuType": GPU, "gpus": 1, "millisPerEpoch": 100_000, "watts": 300},
            {"gpuType": GPU, "gpus": 8, "millisPerEpoch": 20_000, "watts": 2_400}]}});
    index.apply(serde_json::from_value::<SlimTrainingProfile>(profile).expect("a profile"));
    index
}

/// An attempt that ran from one second to another.
fn attempt(number: usize, (from, to): (i64, i64), gpus: i64) -> Value {
    json!({"attempt": number, "outcome": "Finished", "reason": "Completed", "gpuType": GPU, "gpus": gpus, "placement": "n1",
        "started": at(from), "ended": at(to)})
}

/// A job that was submitted at that second and succeeded with the last of its runs. On one GPU or eight it is 100 epochs long; a GPU
/// costs 22 millionths a second, and the share of a host 14.
fn job(name: &str, submitted: i64, runs: &[(i64, i64)], gpus: i64) -> Value {
    let seconds: i64 = runs.iter().map(|(from, to)| to - from).sum();
    let history: Vec<Value> =
        runs.iter().enumerate().map(|(number, run)| attempt(number + 1, *run, gpus)).collect();
    json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "3", "creationTimestamp": at(submitted)},
        "spec": {"epochs": 100, "profile": "bert", "gpus": {"min": gpus, "max": 8, "counts": [1, 8]},
            "template": {"spec": {"containers": []}}},
        "status": {"phase": "Succeeded", "attempts": runs.len(), "history": history,
            "completionTime": runs.last().map(|(_, to)| at(*to)),
            "consumption": {"energyMicros": seconds * gpus * 22, "hostMicros": seconds * gpus * 14}},
    })
}

/// The figures of these jobs.
fn figures(mut index: ClusterIndex, jobs: &[Value]) -> Option<Hindsight> {
    for job in jobs {
        index.apply(serde_json::from_value::<SlimTrainingJob>(job.clone()).expect("a job"));
    }
    hindsight(ended::known_jobs(&index, &mut Tables::default(), at(NOW))?)
}

fn regret(jobs: &[Value]) -> f64 {
    let found = figures(cluster(), jobs).expect("figures");
    assert_eq!(found.jobs, jobs.len());
    found.regret
}

#[test]
fn a_job_that_ran_alone_at_once_on_its_cheapest_configuration_has_no_regret() {
    // At the weight of ten, seven GPUs more cost more than the time that they save.
    let alone = regret(&[job("a", 0, &[(0, 10_000)], 1)]);
    assert!((-1e-4..0.01).contains(&alone), "{alone}");
    // The other way round it has the difference.
    let mut dear = job("a", 0, &[(0, 2_000)], 8);
    dear["spec"]["gpus"]["min"] = 1.into();
    let dear = regret(&[dear]);
    assert!((0.2..0.6).contains(&dear), "{dear}");
}

#[test]
fn a_job_that_waited_without_need_has_regret() {
    // Seven GPUs were free while it waited for the first job's end.
    let jobs = [job("a", 0, &[(0, 7_200)], 1), job("b", 0, &[(7_200, 17_200)], 1)];
    let waited = regret(&jobs);
    assert!((0.03..0.1).contains(&waited), "{waited}");
    // Where both need all of them it waited with need.
    let jobs = [job("a", 0, &[(0, 7_200)], 8), job("b", 0, &[(7_200, 17_200)], 8)];
    let with_need = regret(&jobs);
    assert!(with_need > -1e-4 && with_need < waited, "{with_need}");
}

#[test]
fn work_that_was_lost_is_regret_and_a_restart_from_a_checkpoint_is_little() {
    let with_progress = |runs: &[(i64, i64)], begun: i64| {
        let mut job = job("a", 0, runs, 1);
        job["status"]["progress"] = json!({"milliPercent": 100_000, "text": "100%", "attempt": 2, "attemptStart": begun, "at": at(NOW)});
        regret(&[job])
    };
    let resumed = with_progress(&[(0, 5_000), (5_100, 10_100)], 50_000);
    assert!((-1e-4..0.02).contains(&resumed), "{resumed}");
    // Half of the second run's cost once more.
    let lost = with_progress(&[(0, 5_000), (5_100, 15_100)], 0);
    assert!((0.4..0.6).contains(&lost), "{lost}");
}

#[test]
fn a_job_that_could_have_run_by_night_has_regret() {
    let ran_by_day = |weight: i64| {
        // It is eight in the morning, and a night costs half as much.
        let night = json!({"windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.1"}]});
        let policy = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy",
            "metadata": {"name": "default", "resourceVersion": "1"},
            "spec": {"prices": {"energyPerKWh": "0.2", "tariff": night}}});
        let mut index = cluster();
        index.apply(serde_json::from_value::<SlimEnergyPolicy>(policy).expect("a policy"));
        let mut job = job("a", 0, &[(0, 10_000)], 1);
        job["spec"]["weight"] = weight.into();
        figures(index, &[job]).expect("figures").regret
    };
    assert!(ran_by_day(1) > 0.4, "{}", ran_by_day(1));
    // At the weight of ten, fourteen hours cost more than the night saves.
    assert!((-1e-4..0.01).contains(&ran_by_day(10)), "{}", ran_by_day(10));
}

#[test]
fn gpus_of_nodes_that_are_gone_count_as_far_as_they_were_used() {
    // Two jobs on eight GPUs each ran side by side, and one of their nodes was removed. The bound is not above their cost.
    let jobs = [job("a", 0, &[(0, 10_000)], 8), job("b", 0, &[(0, 10_000)], 8)];
    let found = regret(&jobs);
    assert!((-1e-4..0.01).contains(&found), "{found}");
}

#[test]
fn only_jobs_that_succeeded_in_the_last_day_and_show_all_attempts_count() {
    assert_eq!(figures(cluster(), &[]), None);
    let counts = |change: &dyn Fn(&mut Value)| {
        let mut job = job("a", 0, &[(0, 10_000)], 1);
        change(&mut job);
        figures(cluster(), &[job]).is_some()
    };
    assert!(counts(&|_| {}));
    assert!(!counts(&|job| job["status"]["phase"] = "Failed".into()));
    assert!(!counts(&|job| job["status"]["phase"] = "Running".into()));
    assert!(!counts(&|job| job["status"]["completionTime"] = json!(at(NOW - 86_401))));
    assert!(!counts(&|job| job["status"]["attempts"] = 2.into()));
    assert!(!counts(&|job| job["status"]["history"][0]["started"] = Value::Null), "it never ran");
    let other_gpus = |job: &mut Value| job["status"]["history"][0]["gpuType"] = "Tesla-T4".into();
    assert!(!counts(&other_gpus), "no node has them any more");
}

#[test]
fn the_jobs_that_cost_most_count() {
    let mut index = cluster();
    for number in 0..=ended::MAX_JOBS {
        let to = 10_000 + i64::try_from(number).expect("small");
        let job = job(&format!("j{number}"), 0, &[(0, to)], 1);
        index.apply(serde_json::from_value::<SlimTrainingJob>(job).expect("a job"));
    }
    let (known, cost) = ended::known_jobs(&index, &mut Tables::default(), at(NOW)).expect("jobs");
    assert_eq!(known.jobs.len(), ended::MAX_JOBS);
    // Each costs at least its energy of 10,001 s.
    assert!(cost.0 > 1_000.0 * 10_001.0 * 36e-6, "{cost}");
}
