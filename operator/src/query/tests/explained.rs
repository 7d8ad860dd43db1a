//! What decided about a job, and what would help it.

use andreas_api::query::{Change, ChangeKind, Explanation, NotTried};
use andreas_model::{GpuCount, Money, Seconds, Watts};
use andreas_planner::Considered;

use super::*;

#[test]
fn an_explanation_has_costs_by_part_what_is_in_the_way_and_what_would_help() {
    let view = view(&contended());
    let hypothetical = Hypothetical::new(Caches::default());
    let shown = explain::explain(&view, &hypothetical, &job(&view, "second"), at(50), false, &|| true)
        .expect("explained");
    let decided = shown.decided.as_ref().expect("decided");
    assert_eq!((decided.decision.as_str(), decided.reason.as_deref()), ("Wait", Some("WaitingForCapacity")));
    assert_eq!(decided.in_the_way.as_ref().map(|ahead| ahead.own), Some(0));
    assert!(shown.candidates.iter().any(|c| c.gpus == 8) && shown.candidates.iter().any(|c| c.gpus == 4));
    for candidate in &shown.candidates {
        assert_eq!(candidate.obstacle, Some(andreas_api::query::Obstacle::Nodes), "{candidate:?}");
        assert!(candidate.cost.energy_cost_micros > 0 && candidate.on_time_percent.is_some());
    }
    assert!(shown.changes.len() <= 3);
    no_name_of_others(&shown);
}

/// A node of eight GPUs of which another namespace holds six for long.
fn six_of_eight_held() -> ClusterIndex {
    let mut index = cluster(1);
    add(&mut index, "rival", "secret", &spec(6, 6, json!({"epochs": 1_000})), running("n0", 6));
    index
}

#[test]
fn a_smaller_minimum_helps_where_a_few_gpus_are_free() {
    let mut index = six_of_eight_held();
    add(&mut index, "team", "waits", &spec(4, 4, json!({})), json!(null));
    let view = view(&index);
    let shown = explain::explain(
        &view,
        &Hypothetical::new(Caches::default()),
        &job(&view, "waits"),
        at(50),
        false,
        &|| true,
    )
    .expect("explained");
    if shown.job.position.is_none() {
        panic!("it does not wait: {shown:?}");
    }
    let smaller =
        shown.changes.iter().find(|change| change.kind == ChangeKind::Minimum).expect("a smaller minimum");
    assert_eq!(smaller.patch, Some(json!({"spec": {"gpus": {"min": 2, "max": 4, "counts": []}}})));
    assert!(smaller.sooner_seconds > 60, "{smaller:?}");
    assert_eq!(smaller.expected.gpus, 2);
    no_name_of_others(&shown);
}

#[test]
fn with_many_jobs_changes_are_tried_when_that_is_asked_and_as_long_as_there_is_time() {
    let mut index = six_of_eight_held();
    add(&mut index, "team", "waits", &spec(4, 4, json!({"weight": 1_000})), json!(null));
    for n in 0..300 {
        let more = json!({"deadlineAfter": "1000h", "weight": 1, "epochs": 1_000});
        add(&mut index, "rival", &format!("j{n}"), &spec(8, 8, more), json!(null));
    }
    let view = view(&index);
    let hypothetical = Hypothetical::new(Caches::default());
    let explained = |always: bool, goes_on: &dyn Fn() -> bool| {
        let shown = explain::explain(&view, &hypothetical, &job(&view, "waits"), at(50), always, goes_on);
        shown.expect("explained")
    };
    let shown = explained(false, &|| true);
    assert_eq!((shown.not_tried, shown.changes.as_slice()), (Some(NotTried::ManyJobs), [].as_slice()));
    let shown = explained(true, &|| true);
    assert_eq!(shown.not_tried, None);
    assert!(shown.changes.iter().any(|change| change.kind == ChangeKind::Minimum), "{:?}", shown.changes);
    // The time is over after the first change, which is the smaller minimum.
    let tried = std::cell::Cell::new(0);
    let shown = explained(true, &|| tried.replace(tried.get() + 1) == 0);
    assert_eq!((tried.get(), shown.not_tried), (2, Some(NotTried::OutOfTime)));
    let kinds: Vec<ChangeKind> = shown.changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [ChangeKind::Minimum]);
    no_name_of_others(&shown);
}

#[test]
fn with_few_jobs_the_time_is_limited_too() {
    let mut index = six_of_eight_held();
    add(&mut index, "team", "waits", &spec(4, 4, json!({})), json!(null));
    let view = view(&index);
    let hypothetical = Hypothetical::new(Caches::default());
    let tried = std::cell::Cell::new(0);
    let once = || tried.replace(tried.get() + 1) == 0;
    let shown = explain::explain(&view, &hypothetical, &job(&view, "waits"), at(50), false, &once)
        .expect("explained");
    assert_eq!((tried.get(), shown.not_tried), (2, Some(NotTried::OutOfTime)));
}

/// What would help the job `team/waits`, by kind.
fn help(index: &ClusterIndex, kind: ChangeKind) -> Option<Change> {
    let view = view(index);
    let shown = explain::explain(
        &view,
        &Hypothetical::new(Caches::default()),
        &job(&view, "waits"),
        at(50),
        false,
        &|| true,
    )
    .expect("explained");
    no_name_of_others(&shown);
    shown.changes.into_iter().find(|change| change.kind == kind)
}

#[test]
fn explain_suggests_another_gpu_type() {
    let mut index = cluster(1);
    index.apply(object::<SlimNode>(gpu_node("t0", "Tesla-T4", 8)));
    index.apply(object::<SlimTrainingProfile>(json!({
        "metadata": {"name": "known", "namespace": "team", "resourceVersion": "2"},
        "spec": {"measurements": [
            {"gpuType": GPU, "gpus": 8, "millisPerEpoch": 20_000, "watts": 2_400},
            {"gpuType": "Tesla-T4", "gpus": 8, "millisPerEpoch": 40_000, "watts": 500}]},
    })));
    add(&mut index, "rival", "secret", &spec(8, 8, json!({"epochs": 1_000})), running("n0", 8));
    let mut waits = spec(8, 8, json!({"deadlineAfter": "1h"}));
    waits["gpus"]["types"] = json!([GPU]);
    add(&mut index, "team", "waits", &waits, json!(null));
    let types = help(&index, ChangeKind::Types).expect("another type");
    assert_eq!(types.patch, Some(json!({"spec": {"gpus": {"types": [GPU, "Tesla-T4"]}}})));
    assert!(types.sooner_seconds > 60 && types.expected.gpu_type == "Tesla-T4", "{types:?}");
}

#[test]
fn the_planned_configuration_is_listed_however_many_are_cheaper() {
    let energies = |planned: u32| -> Vec<f64> {
        let one = |n: u32| Considered {
            gpu_type: GPU.into(),
            gpus: GpuCount(1),
            nodes: 1,
            limit: None,
            time: Seconds(1.0),
            power: Watts(1.0),
            budgeted_with: Watts(1.0),
            energy: Money(f64::from(n)),
            lateness: Money(0.0),
            turnaround: Money(0.0),
            on_time: 1.0,
            obstacle: None,
            planned: n == planned,
        };
        let considered: Vec<Considered> = (0..80).map(one).collect();
        explain::listed(&considered).map(|c| c.energy.0).collect()
    };
    let cheapest: Vec<f64> = (0..64).map(f64::from).collect();
    assert_eq!(energies(5), cheapest);
    assert_eq!(energies(63), cheapest);
    assert_eq!(energies(70), [&cheapest[..63], &[70.0]].concat());
}

#[test]
fn more_weight_helps_where_a_heavier_job_is_ahead() {
    let mut index = cluster(1);
    add(&mut index, "rival", "secret", &spec(8, 8, json!({})), running("n0", 8));
    for n in 0..3 {
        add(&mut index, "rival", &format!("hidden-{n}"), &spec(8, 8, json!({"weight": 20})), json!(null));
    }
    add(&mut index, "team", "waits", &spec(8, 8, json!({"weight": 10})), json!(null));
    let weight = help(&index, ChangeKind::Weight).expect("more weight");
    assert_eq!(weight.patch, Some(json!({"spec": {"weight": 40}})));
    assert!(weight.sooner_seconds > 60, "{weight:?}");
}

#[test]
fn a_later_deadline_is_named_where_the_deadline_cannot_be_met() {
    let mut index = cluster(1);
    add(&mut index, "rival", "secret", &spec(8, 8, json!({})), running("n0", 8));
    add(&mut index, "team", "waits", &spec(8, 8, json!({"deadlineAfter": "3m"})), json!(null));
    let later = help(&index, ChangeKind::Deadline).expect("a later deadline");
    let deadline = later.patch.expect("a patch")["spec"]["deadline"].as_str().expect("a time").to_owned();
    // 150 s until the run ahead has ended, 200 s for its own.
    let deadline: jiff::Timestamp = deadline.parse().expect("a time");
    assert!((at(350)..at(700)).contains(&deadline), "{deadline}");
    assert!(later.expected.on_time_percent.is_some_and(|percent| percent >= 90), "{:?}", later.expected);
    // A job that is in time needs none.
    let mut index = cluster(1);
    add(&mut index, "team", "waits", &spec(8, 8, json!({"deadlineAfter": "2h"})), json!(null));
    assert_eq!(help(&index, ChangeKind::Deadline), None);
}

/// Two nodes under a power budget.
fn under_budget(watts: i64) -> ClusterIndex {
    let mut index = cluster(2);
    index.apply(object::<SlimEnergyPolicy>(json!({
        "metadata": {"name": "default", "resourceVersion": "1"}, "spec": {"powerBudget": {"watts": watts}},
    })));
    index
}

#[test]
fn a_larger_power_budget_is_named_where_the_budget_is_in_the_way() {
    let under = |watts: i64| {
        let mut index = under_budget(watts);
        add(&mut index, "rival", "secret", &spec(8, 8, json!({"epochs": 1_000})), running("n0", 8));
        add(&mut index, "team", "waits", &spec(8, 8, json!({"deadlineAfter": "1h"})), json!(null));
        index
    };
    let budget = help(&under(7_000), ChangeKind::Budget).expect("a larger budget");
    assert!(budget.text.ends_with(" kW") && budget.patch.is_none(), "{budget:?}");
    assert!(budget.sooner_seconds > 60, "{budget:?}");
    // What it names is enough, and 300 W less are not.
    let named: f64 = budget.text.split(' ').rev().nth(1).and_then(|kw| kw.parse().ok()).expect("kW");
    let position = |watts: i64| {
        let view = view(&under(watts));
        jobs::queue(&view, "team", &[job(&view, "waits")], 1, at(50)).jobs[0].position
    };
    let named = (named * 1e3) as i64;
    assert_eq!((position(named), position(named - 300)), (None, Some(1)), "{named} W");
}

#[test]
fn a_larger_power_budget_is_named_where_it_does_not_even_cover_idle_nodes() {
    let under = |watts: i64| {
        let mut index = under_budget(watts);
        add(&mut index, "team", "waits", &spec(8, 8, json!({"deadlineAfter": "1h"})), json!(null));
        index
    };
    let shown = |watts: i64| {
        let view = view(&under(watts));
        jobs::queue(&view, "team", &[job(&view, "waits")], 1, at(50)).jobs[0].clone()
    };
    assert_eq!(shown(500).reason.as_deref(), Some("BudgetInfeasible"), "{:?}", shown(500));
    let budget = help(&under(500), ChangeKind::Budget).expect("a larger budget");
    let named: f64 = budget.text.split(' ').rev().nth(1).and_then(|kw| kw.parse().ok()).expect("kW");
    assert_eq!(shown((named * 1e3) as i64).position, None, "{budget:?}");
}

fn explained(index: &ClusterIndex, name: &str) -> Explanation {
    let view = view(index);
    explain::explain(&view, &Hypothetical::new(Caches::default()), &job(&view, name), at(50), false, &|| true)
        .expect("explained")
}

#[test]
fn an_adopted_job_is_changed_by_annotations_of_its_workload_alone() {
    let mut index = cluster(2);
    index.apply(object::<SlimNode>(gpu_node("t0", "Tesla-T4", 8)));
    for n in 0..2 {
        add(
            &mut index,
            "rival",
            &format!("secret-{n}"),
            &spec(8, 8, json!({})),
            running(&format!("n{n}"), 8),
        );
    }
    for n in 0..3 {
        add(&mut index, "rival", &format!("hidden-{n}"), &spec(8, 8, json!({"weight": 20})), json!(null));
    }
    let adopts = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": "u", "pods": 2});
    let mut waits = spec(8, 8, json!({"adopts": adopts, "resourcesPer": "Gpu", "deadlineAfter": "3m"}));
    waits["gpus"]["types"] = json!([GPU]);
    add(&mut index, "team", "waits", &waits, json!(null));
    let view = view(&index);
    let job = job(&view, "waits");
    let hypothetical = Hypothetical::new(Caches::default());
    let shown = explain::explain(&view, &hypothetical, &job, at(50), false, &|| true).expect("explained");
    assert!(shown.job.position.is_some() && shown.not_tried.is_none(), "{shown:?}");
    assert!(shown.changes.iter().all(|change| change.patch.is_none()), "{:?}", shown.changes);
    let tried: Vec<ChangeKind> = explain::to_try(&view, &job).into_iter().map(|one| one.0).collect();
    assert_eq!(tried, [ChangeKind::Types, ChangeKind::Weight]);
    let deadline = shown.changes.iter().find(|change| change.kind == ChangeKind::Deadline);
    let text = &deadline.expect("a later deadline").text;
    let end = " instead of andreas.dev/deadline-after (annotation andreas.dev/deadline of Job tune)";
    assert!(text.starts_with("deadline ") && text.ends_with(end), "{text}");
}

#[test]
fn more_nodes_than_gpus_are_not_suggested() {
    let nodes = |max: i32, max_nodes: i32| {
        let tried = explain::sizes(&object(json!({"max": max, "maxNodes": max_nodes})));
        let (_, _, patch) = tried.into_iter().find(|one| one.0 == ChangeKind::Nodes)?;
        patch["gpus"]["maxNodes"].as_i64()
    };
    assert_eq!(nodes(6, 4), Some(6));
    assert_eq!(nodes(8, 4), Some(8));
    assert_eq!((nodes(4, 4), nodes(1, 1)), (None, None));
}

#[test]
fn an_explanation_says_why_no_change_was_tried() {
    let mut index = cluster(1);
    add(&mut index, "team", "runs", &spec(8, 8, json!({})), running("n0", 8));
    add(&mut index, "team", "held", &spec(8, 8, json!({"suspend": true})), json!({"phase": "Suspended"}));
    add(&mut index, "team", "waits", &spec(8, 8, json!({})), json!(null));
    assert_eq!(explained(&index, "runs").not_tried, Some(NotTried::NotNeeded));
    assert_eq!(explained(&index, "held").not_tried, Some(NotTried::NotPlanned));
    assert_eq!(explained(&index, "waits").not_tried, None);
    for n in 0..299 {
        add(&mut index, "rival", &format!("hidden-{n}"), &spec(8, 8, json!({})), json!(null));
    }
    let many = explained(&index, "waits");
    assert_eq!((many.not_tried, many.changes.len()), (Some(NotTried::ManyJobs), 0), "{:?}", many.changes);
}
