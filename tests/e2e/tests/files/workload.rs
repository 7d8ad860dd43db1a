//! The demo's workload is what it says it is.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::{TrainingJob, TrainingProfile};
use andreas_e2e::workload::{
    self, A100, CLUSTER, Manifests, T4, TimeScale, V100, WorkloadJob, jobs, manifest, trace,
};

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
fn tables_are_sane() {
    let board = BTreeMap::from([(A100, (50.0, 400.0)), (V100, (30.0, 300.0)), (T4, (10.0, 70.0))]);
    for job in demo() {
        assert!(!job.configurations().is_empty(), "{} cannot run anywhere", job.name);
        for (t, counts) in &job.seconds_per_epoch {
            let all: Vec<(u32, f64)> = counts.iter().map(|(g, s)| (*g, *s)).collect();
            for w in all.windows(2) {
                let ratio = f64::from(w[1].0) / f64::from(w[0].0);
                assert!(w[1].1 <= w[0].1 && w[0].1 / w[1].1 <= ratio * 1.01, "{} {t} {all:?}", job.name);
            }
            for (g, watts) in &job.watts[t] {
                let each = watts / f64::from(*g);
                assert!(
                    each > board[t.as_str()].0 && each < board[t.as_str()].1,
                    "{} {t} {g}: {each} W",
                    job.name
                );
            }
        }
    }
}

/// First come, first served, later jobs may pass: each takes the free configuration that ends first, holding its GPUs
/// for `overhead` seconds more than it trains. The end of the last job.
fn makespan(jobs: &[WorkloadJob], overhead: f64) -> f64 {
    let mut free: BTreeMap<&str, Vec<u32>> =
        CLUSTER.iter().map(|(t, n, g)| (*t, vec![*g as u32; *n])).collect();
    let mut waiting: Vec<&WorkloadJob> = Vec::new();
    let mut running: Vec<(f64, &str, u32, Vec<usize>)> = Vec::new();
    let mut arrivals = jobs.iter().peekable();
    let mut now: f64 = 0.0;
    loop {
        waiting.extend(std::iter::from_fn(|| arrivals.next_if(|j| j.submit_offset_s <= now)));
        waiting.retain(|job| {
            let mut fits: Vec<_> = job.configurations();
            fits.retain(|(t, g, n)| free[t].iter().filter(|f| **f >= g / n).count() >= *n as usize);
            let best = fits.into_iter().min_by(|a, b| {
                let run = |c: &(&str, u32, u32)| job.run_s(c.0, c.1).unwrap();
                run(a).total_cmp(&run(b))
            });
            let Some((t, g, n)) = best else { return true };
            let nodes: Vec<usize> =
                (0..free[t].len()).filter(|i| free[t][*i] >= g / n).take(n as usize).collect();
            nodes.iter().for_each(|i| free.get_mut(t).unwrap()[*i] -= g / n);
            running.push((
                now + overhead + job.run_s(t, g).unwrap(),
                CLUSTER.iter().find(|c| c.0 == t).unwrap().0,
                g / n,
                nodes,
            ));
            false
        });
        let ends = running.iter().map(|r| r.0).fold(f64::INFINITY, f64::min);
        let next = arrivals.peek().map_or(ends, |j| j.submit_offset_s.min(ends));
        if next.is_infinite() {
            assert!(waiting.is_empty(), "{} never fit", waiting[0].name);
            return now;
        }
        now = next;
        running.retain(|(end, t, g, nodes)| {
            if *end <= now {
                nodes.iter().for_each(|i| free.get_mut(t).unwrap()[*i] += g);
            }
            *end > now
        });
    }
}

#[test]
fn the_whole_run_takes_about_two_minutes_on_the_demos_cluster() {
    let jobs = demo();
    let run = |j: &WorkloadJob, best: fn(f64, f64) -> f64| {
        j.configurations().iter().map(|(t, g, _)| j.run_s(t, *g).unwrap()).reduce(best).unwrap()
    };
    // No job alone is too long, at its fastest and at its slowest; the last arrives early enough.
    let alone = |best| jobs.iter().map(|j| j.submit_offset_s + run(j, best)).fold(0.0, f64::max);
    let (latest, slowest) = (alone(f64::min), alone(f64::max));
    assert!((60.0..=100.0).contains(&latest), "the longest job alone ends at {latest:.0} s");
    assert!(slowest <= 125.0, "the longest job alone at its slowest ends at {slowest:.0} s");
    assert!(jobs.iter().all(|j| j.submit_offset_s <= 45.0));
    // The work fits: GPU-seconds on the fewest GPUs of each job's fastest type, over all 64 GPUs.
    let gpu_s: f64 = jobs
        .iter()
        .map(|j| {
            f64::from(j.gpus.min)
                * j.gpus.types.iter().filter_map(|t| j.run_s(t, j.gpus.min)).reduce(f64::min).unwrap()
        })
        .sum();
    let gpus: usize = CLUSTER.iter().map(|(_, n, g)| n * g).sum();
    let load = gpu_s / gpus as f64;
    assert!((20.0..=80.0).contains(&load), "{load:.0} s of work for every GPU");
    let (ideal, slow) = (makespan(&jobs, 0.0), makespan(&jobs, 6.0));
    println!(
        "alone {latest:.0} s, at its slowest {slowest:.0} s, load {load:.0} s, list schedule {ideal:.0} s, with 6 s a start {slow:.0} s"
    );
    assert!((75.0..=130.0).contains(&ideal) && (90.0..=130.0).contains(&slow), "{ideal:.0} s, {slow:.0} s");
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
