//! Given a cluster that has changed since the last plan; when a question is asked; then its answer is that of the cluster as it is now.

use andreas_api::key_of;
use andreas_api::query::WhatIf;
use andreas_api::slim::{SlimGpuNode, SlimPod};
use andreas_lifecycle::Claim;
use andreas_model::{Time, Watts};
use andreas_planner::{IntendedChange, Job};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::*;
use crate::ledger::Ledger;
use crate::planning::last::LatestPlan;
use crate::predict::sampled::Forecasts;
use crate::query::background::Sources;
use crate::query::live::State;
use crate::shared::Leader;
use crate::testing::{self, ApiServer, key, owner};

/// The cluster as a question at that instant finds it.
pub(super) fn as_of(planned: &View, index: &ClusterIndex, now: Timestamp) -> View {
    let state = State::new(index.for_plan(), stepped(index, now), now);
    Hypothetical::new(Caches::default()).view(state, &planned.latest).expect("a view")
}

/// The same ten seconds after its last plan.
fn now(planned: &View, index: &ClusterIndex) -> View {
    as_of(planned, index, at(60))
}

fn what_if_posted(view: &View, extra: Value) -> WhatIf {
    let job = JobObject { metadata: Default::default(), spec: spec(8, 8, extra) };
    let asked = WhatIfRequest { job: Some(job), ..WhatIfRequest::default() };
    what_if::what_if(view, &Hypothetical::new(Caches::default()), "team", &asked).expect("an answer")
}

/// Seconds from the question to the median start of the posted job, and from there to its median end.
fn wait_and_run(answer: &WhatIf) -> (i64, i64) {
    let expected = answer.job.as_ref().and_then(|job| job.expected.as_ref()).expect("expected");
    let (start, end) = (expected.start.p50.0, expected.finish.p50.0);
    (start.duration_since(answer.at.0).as_secs(), end.duration_since(start).as_secs())
}

#[test]
fn a_profile_that_was_applied_after_the_last_plan_is_known() {
    let mut index = cluster(1);
    let planned = view(&index);
    index.apply(object::<SlimTrainingProfile>(json!({
        "metadata": {"name": "fresh", "namespace": "team", "resourceVersion": "2"},
        "spec": {"measurements": [
            {"gpuType": GPU, "gpus": 1, "millisPerEpoch": 30_000, "watts": 300},
            {"gpuType": GPU, "gpus": 8, "millisPerEpoch": 6_000, "watts": 2_400}]},
    })));
    let run = |view: &View| wait_and_run(&what_if_posted(view, json!({"profileRef": {"name": "fresh"}}))).1;
    let (of_plan, of_now) = (run(&planned), run(&now(&planned, &index)));
    // Nothing is known of the former; ten epochs of 6 s.
    assert!(of_plan > 1_000 && (45..80).contains(&of_now), "{of_plan} {of_now}");
}

#[test]
fn jobs_that_were_submitted_after_the_last_plan_are_ahead() {
    let mut index = cluster(1);
    add(&mut index, "rival", "secret", &spec(8, 8, json!({})), running("n0", 8));
    let planned = view(&index);
    let urgent = spec(8, 8, json!({"deadlineAfter": "12m", "weight": 1_000}));
    for (namespace, name) in [("team", "first"), ("rival", "hidden")] {
        add(&mut index, namespace, name, &urgent, json!(null));
    }
    let ask = |view: &View| what_if_posted(view, json!({"weight": 1}));
    let (of_plan, of_now) = (ask(&planned), ask(&now(&planned, &index)));
    let wait = |answer: &WhatIf| wait_and_run(answer).0;
    // Each of the two takes 200 s.
    assert!(wait(&of_now) - wait(&of_plan) > 300, "{of_plan:?} {of_now:?}");
    let posted = of_now.job.as_ref().expect("the job");
    let ahead = posted.ahead.as_ref().expect("it waits");
    assert_eq!((posted.position, ahead.own, ahead.others), (Some(3), 1, 1));
    assert_eq!(ahead.names, ["first"]);
    no_name_of_others(&of_now);
}

#[test]
fn a_run_that_ended_after_the_last_plan_holds_nothing() {
    let mut index = cluster(1);
    let long = spec(8, 8, json!({"epochs": 1_000}));
    add(&mut index, "rival", "secret", &long, running("n0", 8));
    let planned = view(&index);
    index.apply(object::<SlimTrainingJob>(json!({
        "metadata": {"name": "secret", "namespace": "rival", "uid": "rival-secret", "resourceVersion": "2",
                     "creationTimestamp": at(0)},
        "spec": long, "status": {"phase": "Succeeded"},
    })));
    let wait = |view: &View| wait_and_run(&what_if_posted(view, json!({}))).0;
    let (of_plan, of_now) = (wait(&planned), wait(&now(&planned, &index)));
    assert!(of_plan > 10_000 && of_now < 60, "{of_plan} {of_now}");
}

/// Given a power budget, profiles that draw 250 W for each GPU, and a run that draws 380 W.
#[test]
fn a_posted_job_counts_for_as_many_watts_as_the_same_job_once_it_is_submitted() {
    let mut index = cluster(2);
    index.apply(object::<SlimEnergyPolicy>(json!({
        "apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy",
        "metadata": {"name": "default", "resourceVersion": "1"}, "spec": {"powerBudget": {"watts": 100_000}}})));
    for name in ["f1", "f2", "f3"] {
        index.apply(object::<SlimTrainingProfile>(json!({
            "metadata": {"name": name, "namespace": "team", "resourceVersion": "1"}, "spec": {},
            "status": {"observations": [{"run": "x-1", "gpuType": GPU, "gpus": 4, "nodes": 1, "millisPerEpoch": 60_000,
                "milliEpochs": 20_000, "watts": 1_000, "at": at(0)}]}})));
    }
    add(&mut index, "team", "one", &spec(8, 8, json!({"epochs": 1_000})), running("n0", 8));
    index.apply(object::<SlimPod>(json!({
        "metadata": {"name": "one-1-0", "namespace": "team", "uid": "p", "resourceVersion": "1",
            "labels": {"andreas.dev/job": "one", "andreas.dev/job-uid": "team-one", "andreas.dev/attempt": "1"},
            "ownerReferences": [owner("one", "team-one")]},
        "spec": {"nodeName": "n0", "containers": [{"name": "t", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": "Running"}})));
    let gpu =
        |n: i32| json!({"uuid": format!("GPU-{n}"), "state": "Held", "holder": "team/one-1-0", "watts": 380});
    index.apply(object::<SlimGpuNode>(json!({
        "metadata": {"name": "n0", "resourceVersion": "1"}, "spec": {},
        "status": {"agentVersion": "1", "gpus": (0..8).map(gpu).collect::<Vec<_>>()}})));
    add(&mut index, "team", "waits", &spec(8, 8, json!({})), json!(null));
    let view = as_of(&view(&index), &index, at(1_000));
    let draws = |job: &Job| job.estimates.iter().map(|row| row.draw).collect::<Vec<_>>();
    let id = crate::snapshot::job_id(&key("waits"));
    let submitted = view.snapshot().jobs.iter().find(|job| job.id == id).expect("it is planned");
    let asked = JobObject { metadata: Default::default(), spec: spec(8, 8, json!({})) };
    let hypothetical = Hypothetical::new(Caches::default());
    let posted = hypothetical.posted("team", &asked, view.instant()).expect("a job");
    let id = crate::snapshot::job_id(&key_of(&posted));
    let changed = hypothetical.with_job(&view, posted).expect("it is planned");
    let posted = changed.jobs.iter().find(|job| job.id == id).expect("it is planned");
    // The highest, with the margin of a measurement, is what the boards may draw.
    assert!(draws(submitted).contains(&Some(Watts(3_200.0))), "{submitted:?}");
    assert_eq!(draws(posted), draws(submitted));
}

#[test]
fn an_error_of_the_present_state_names_nobody_and_blames_no_change() {
    let index = contended();
    let options = Options { trials: 10, ..Options::default() };
    let mut latest = planned(&index, &options, at(50));
    // What the planner refuses.
    latest.plan.intended.push(IntendedChange {
        job: crate::snapshot::job_id(&ObjectKey { namespace: "rival".into(), name: "secret".into() }),
        at: Time(f64::NAN),
        gpu_type: GPU.into(),
        nodes: 1,
        gpus_per_node: andreas_model::GpuCount(8),
    });
    let state = State::new(index.for_plan(), stepped(&index, at(60)), at(60));
    let refused = Hypothetical::new(Caches::default()).view(state, &latest).err();
    assert_eq!(refused, Some(QueryError::NotPlanned));
}

#[tokio::test]
async fn the_claims_of_steps_count_and_a_job_that_no_step_has_seen_waits() {
    let mut index = cluster(1);
    for name in ["stepped", "new"] {
        add(&mut index, "team", name, &spec(8, 8, json!({})), json!(null));
    }
    add(&mut index, "team", "held", &spec(8, 8, json!({"suspend": true})), json!(null));
    let mut ledger = Ledger::new(at(0));
    let starting = Claim::Starting { since: at(55) };
    ledger.entry(&key("stepped"), "team-stepped").set_claim(starting.clone());
    // Of an older job of that name.
    ledger.entry(&key("new"), "another").set_claim(Claim::Nothing);
    let shared = testing::shared(Arc::new(Mutex::new(index)), &ApiServer::new(vec![]).client(), at(0));
    *shared.ledger.lock() = ledger;
    let leader = Leader::default();
    let live = Live::new(Arc::clone(&shared.index), leader.clone());
    assert!(!live.leads() && live.state(at(60)).is_none());
    leader.lead(&shared);
    let State { ledger, .. } = live.state(at(60)).expect("it leads");
    let claim = |name: &str| ledger.get(&key(name)).and_then(|memory| memory.claim().cloned());
    assert_eq!(claim("stepped"), Some(starting));
    assert_eq!(claim("new"), Some(Claim::Waiting { not_before: None }));
    assert_eq!(claim("held"), Some(Claim::Nothing));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_plan_is_shown_without_the_pause_between_two_forecasts() {
    let index = cluster(1);
    let options = Options { trials: 10, ..Options::default() };
    let latest = LatestPlan::default();
    let plan = || latest.keep(planned(&index, &options, at(50)));
    plan();
    let sources = Sources { latest: latest.clone(), forecasts: Forecasts::default() };
    let background = Background::start(sources).expect("a thread");
    let newest = || background.newest(Duration::from_secs(10));
    let mut shown = newest().await.expect("a view");
    // The pause is two seconds, each time; a busy machine is as slow now and then.
    let mut took = Vec::new();
    for _ in 0..5 {
        plan();
        let began = Instant::now();
        let latest = loop {
            let view = newest().await.expect("a view");
            if !Arc::ptr_eq(&view.latest, &shown.latest) {
                break view;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        took.push(began.elapsed());
        shown = latest;
    }
    assert!(took.iter().any(|one| *one < Duration::from_millis(1_500)), "{took:?}");
}
