//! The demo's workload is what it says it is.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::{TrainingJob, TrainingProfile};
use andreas_e2e::workload::{self, A100, Manifests, T4, TimeScale, V100, WorkloadJob, jobs, manifest, trace};

fn demo() -> Vec<WorkloadJob> {
    jobs(TimeScale::DEMO).unwrap()
}

#[test]
fn forty_consecutive_rows_in_order_of_submission() {
    let rows = trace().unwrap();
    assert_eq!(rows.len(), 40);
    assert!(
        rows.windows(2).all(|w| w[1].job == w[0].job + 1 && w[1].submission_time >= w[0].submission_time)
    );
    // The trace's own arithmetic: on an A100 table, iterations and duration agree with seconds per epoch of models.json.
    let scale = TimeScale(1.0);
    for (row, job) in rows.iter().zip(jobs(scale).unwrap()) {
        if let Some(run) = job.run_s(A100, row.num_gpu) {
            let half_an_epoch = run / f64::from(job.epochs) / 2.0;
            assert!(
                (run - row.duration as f64).abs() <= half_an_epoch + 0.02 * run,
                "{}: {run} {}",
                job.name,
                row.duration
            );
        }
    }
}

#[test]
fn the_same_every_time_and_smaller_jobs_at_a_larger_scale() {
    assert_eq!(demo(), demo());
    let half = jobs(TimeScale(TimeScale::DEMO.0 * 2.0)).unwrap();
    for (a, b) in demo().iter().zip(&half) {
        assert_eq!((&a.name, a.epochs, a.weight, &a.gpus), (&b.name, b.epochs, b.weight, &b.gpus));
        assert!((a.submit_offset_s / 2.0 - b.submit_offset_s).abs() < 0.002);
        let (t, g, _) = a.configurations()[0];
        assert!((a.run_s(t, g).unwrap() / 2.0 - b.run_s(t, g).unwrap()).abs() < 0.001 * f64::from(a.epochs));
    }
    assert!(jobs(TimeScale(0.0)).is_err() && jobs(TimeScale(f64::NAN)).is_err());
}

#[test]
fn it_has_the_mix_that_the_demo_is_to_show() {
    let jobs = demo();
    let count = |f: &dyn Fn(&WorkloadJob) -> bool| jobs.iter().filter(|j| f(j)).count();
    assert_eq!(jobs.iter().map(|j| j.model.as_str()).collect::<BTreeSet<_>>().len(), 6);
    // Gangs that must span two nodes of each kind, and more that may.
    let must = |t: &'static str| jobs.iter().any(|j| j.configurations().iter().all(|c| c.0 == t && c.2 == 2));
    assert!(must(A100) && must(V100));
    assert!(count(&|j| j.gpus.max_nodes == 2) >= 3);
    assert!(count(&|j| j.gpus.max == 8 && j.gpus.max_nodes == 1) >= 8);
    assert!(count(&|j| j.configurations().iter().any(|c| c.0 == T4)) >= 20);
    let weights: BTreeSet<u32> = jobs.iter().map(|j| j.weight).collect();
    assert!(weights.iter().all(|w| (1..=1000).contains(w)) && weights.len() >= 5, "{weights:?}");
    assert_eq!(jobs.iter().map(|j| &j.name).collect::<BTreeSet<_>>().len(), 40);
}

#[test]
fn manifests_are_objects_of_the_api() {
    let mut profiles: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    for job in demo() {
        let Manifests { profile, claim, job: object } = manifest(&job);
        let typed: TrainingJob = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(typed.spec.deadline_after.as_ref().unwrap().seconds(), Some(job.deadline_after_s as i64));
        assert_eq!(typed.spec.gpus.totals(), job.gpus.counts.iter().map(|g| *g as i32).collect::<Vec<_>>());
        assert_eq!(typed.spec.checkpoint.unwrap().claim_name.as_deref(), claim["metadata"]["name"].as_str());
        assert!(job.name.len() <= andreas_api::names::MAX_JOB_NAME);
        assert!(job.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        // The trainer's table is the job's.
        let env = &typed.spec.template.spec.as_ref().unwrap().containers[0].env.as_ref().unwrap();
        let value = |name: &str| env.iter().find(|e| e.name == name).and_then(|e| e.value.clone()).unwrap();
        let table: workload::Table = serde_json::from_str(&value("TRAINER_SECONDS_PER_EPOCH")).unwrap();
        assert_eq!(table, job.seconds_per_epoch);
        assert_eq!(value("TRAINER_EPOCHS"), typed.spec.epochs.to_string());
        // What is applied comes back: no field that the types do not know.
        let typed: TrainingProfile = serde_json::from_value(profile.clone()).unwrap();
        assert!(!typed.spec.measurements.is_empty());
        assert_eq!(serde_json::to_value(&typed.spec).unwrap(), profile["spec"], "{}", job.profile);
        if let Some(same) = profiles.insert(job.profile.clone(), profile.clone()) {
            assert_eq!(same, profile, "{} differs between its jobs", job.profile);
        }
    }
}
