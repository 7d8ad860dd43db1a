//! Every job starts at last, and ends, at any load.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/starvation.rs"]
mod every_method;
mod methods;
mod scenarios;

use andreas_model::Time;
use andreas_planner::{Job, Namespace, Preemption, Worker};
use scenarios::{HOUR, cluster, job, place, running};

#[test]
fn room_for_a_job_without_quota_is_used_by_others_until_its_namespace_has_quota() {
    // Given a job of half the GPUs for 30 hours that uses up its namespace's quota, and a fully aged one that needs it,
    let (now, mut snapshot) = (Time(1000.0 * HOUR), cluster(1));
    snapshot.now = now;
    snapshot.namespaces = vec![Namespace { name: "team".into(), quota: [("gpus".into(), 4)].into() }];
    let counted = Worker { quota_per_gpu: [("gpus".into(), 1)].into(), ..Worker::default() };
    let of_team = |job: Job| Job { worker: counted.clone(), ..job };
    let never =
        |job: Job, gpus| running(Job { preemption: Preemption::Never, ..of_team(job) }, &["n0"], gpus);
    let new = |job: Job, epochs_left: f64| Job { submit: now, epochs_left, ..job };
    let old = Job { submit: Time(0.0), ..of_team(job("old", 4)) };
    snapshot.jobs = vec![never(new(job("long", 4), 300.0), 4), old];
    for method in methods::all() {
        // then another namespace has the idle ones for as long as that, but not for longer.
        for (epochs_left, runs) in [(10.0, true), (290.0, true), (310.0, false)] {
            let mut snapshot = snapshot.clone();
            let other = Job { namespace: "other".into(), ..new(job("new", 4), epochs_left) };
            snapshot.jobs.push(other);
            let plan = methods::decide(&snapshot, method);
            assert_eq!(place(&plan, "team/new").is_some(), runs, "{method}, {epochs_left}");
            assert_eq!(place(&plan, "team/old"), None, "{method}");
        }
    }
    // And the quota that comes back is for that job alone.
    snapshot.jobs[0] = never(new(job("short", 1), 10.0), 1);
    snapshot.jobs.push(of_team(new(job("younger", 1), 20.0)));
    for method in methods::all() {
        let plan = methods::decide(&snapshot, method);
        assert_eq!(place(&plan, "team/younger"), None, "{method}");
    }
}

#[test]
fn a_younger_job_does_not_stay_on_what_an_older_one_was_given() {
    // Given two fully aged jobs, the younger of which runs on all that the older one needs: GPUs, or quota,
    let mut gpus = cluster(1);
    gpus.now = Time(1000.0 * HOUR);
    let counted = Worker { quota_per_gpu: [("gpus".into(), 1)].into(), ..Worker::default() };
    let of_team =
        |name: &str, hour: f64| Job { submit: Time(hour * HOUR), worker: counted.clone(), ..job(name, 8) };
    gpus.jobs = vec![of_team("older", 0.0), running(of_team("younger", 1.0), &["n0"], 8)];
    let mut quota = gpus.clone();
    quota.nodes.extend(cluster(2).nodes.pop());
    quota.namespaces = vec![Namespace { name: "team".into(), quota: [("gpus".into(), 8)].into() }];
    quota.jobs[0].forbidden = vec!["n0".into()];
    for snapshot in [gpus, quota] {
        for method in methods::all() {
            let plan = methods::decide(&snapshot, method);
            // then one of the two has them.
            let both = ["team/older", "team/younger"].map(|job| place(&plan, job).is_some());
            assert!(both[0] != both[1], "{method}: {both:?}");
        }
    }
}
