//! Given a job of the cluster; when its reader asks what another spec would do; then it keeps what it has done and holds, and the answer
//! says what is expected with the change and without it.

use andreas_api::query::{ChangedJob, WhatIf};

use super::*;

fn ask(view: &View, name: &str, patch: Value) -> Result<WhatIf, QueryError> {
    let changed = Some(ChangedJob { name: name.into(), patch });
    let asked = WhatIfRequest { changed, ..WhatIfRequest::default() };
    what_if::what_if(view, &Hypothetical::new(Caches::default()), "team", &asked)
}

#[test]
fn a_larger_weight_lets_a_job_start_sooner_and_moves_the_other() {
    let answer = ask(&view(&contended()), "second", json!({"weight": 1_000})).expect("an answer");
    let (before, then) = (answer.before.as_ref().expect("before"), answer.job.as_ref().expect("the job"));
    let then = then.expected.as_ref().expect("expected");
    assert!(then.start.p50.0 < before.start.p50.0, "{before:?} {then:?}");
    let moved = |name: &str| answer.affected.iter().find(|job| job.name == name).map(|job| job.later_seconds);
    assert!(moved("second").is_some_and(|later| later < 0), "{answer:?}");
    assert!(answer.own + answer.others.later >= 2, "{answer:?}");
    no_name_of_others(&answer);
}

#[test]
fn a_running_job_with_another_deadline_goes_on_as_it_is() {
    let mut index = cluster(1);
    add(&mut index, "team", "runs", &spec(8, 8, json!({"deadlineAfter": "100s"})), running("n0", 8));
    let view = view(&index);
    let answer = ask(&view, "runs", json!({"deadlineAfter": "10h"})).expect("an answer");
    let (before, job) = (answer.before.expect("before"), answer.job.expect("the job"));
    let then = job.expected.expect("expected");
    assert_eq!((job.phase, then.finish.p50), (andreas_api::Phase::Running, before.finish.p50));
    assert_eq!((before.on_time_percent, then.on_time_percent), (Some(0), Some(100)));
    assert_eq!(job.deadline.map(|due| due.0), Some(at(36_000)));
}

#[test]
fn what_a_change_may_not_say_is_refused_with_its_field() {
    let view = view(&contended());
    let field = |patch: Value| match ask(&view, "first", patch) {
        Err(QueryError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(json!({"template": {}})), "changed.patch.template");
    assert_eq!(field(json!("text")), "changed.patch");
    assert_eq!(field(json!({"weight": 0})), "spec.weight");
    assert_eq!(field(json!({"gpus": {"min": 9_000}})), "spec.gpus");
    assert_eq!(ask(&view, "secret", json!({"weight": 1})), Err(QueryError::NoSuchJob("secret".into())));
}
