//! Workers that are tried before their job has GPUs.

use super::*;

#[tokio::test]
async fn a_worker_that_was_accepted_a_moment_ago_is_not_tried_again_until_the_rules_change() {
    let world = World::new(vec![
        (Method::POST, "/pods", 201, pod(0, 20, "j1")),
        (Method::POST, "/pods", 403, failure(403, "no account")),
    ]);
    let dry = || {
        let pod = serde_json::from_value::<Pod>(pod(0, 1, "j1")).expect("a pod");
        vec![Action::DryRun { gpus: 1, pod: Box::new(pod), smaller: Vec::new() }]
    };
    let refusal = || {
        let ledger = world.shared.ledger.lock();
        ledger
            .get(&key("bert"))
            .and_then(|memory| memory.admission().dry_run.clone())
            .map(|dry_run| dry_run.refusal)
    };
    for _ in 0..2 {
        assert_eq!(world.do_all(dry()).await, Ok(()));
        assert_eq!(refusal(), Some(None));
    }
    assert_eq!(world.sent(Method::POST).len(), 1);
    world.executor.dry_runs.forget("team");
    assert_eq!(world.do_all(dry()).await, Ok(()));
    assert_eq!(refusal(), Some(Some((Reason::TemplateRejected, "no account".into()))));
}

#[tokio::test(start_paused = true)]
async fn each_size_that_is_tried_for_a_refused_worker_counts_in_its_namespace() {
    let refused = || (Method::POST, "/pods", 403, failure(403, "no account"));
    // Given a job of which every size of a worker is refused; when the largest accepted one is looked for without end,
    let world = World::new((0..200).map(|_| refused()).collect());
    let dry = || {
        let pod = serde_json::from_value::<Pod>(pod(0, 1, "j1")).expect("a pod");
        vec![Action::DryRun { gpus: 8, pod: Box::new(pod), smaller: vec![4, 2, 1] }]
    };
    let mut rounds = 0;
    while world.do_all(dry()).await.is_ok() && rounds < 200 {
        rounds += 1;
    }
    // then the API server is asked a hundred times at once, in which both the worker and its smallest size count.
    let asked = world.sent(Method::POST).len();
    assert!((90..=110).contains(&asked), "asked {asked} times in {rounds} rounds");
}
