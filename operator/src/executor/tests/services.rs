//! Given a Service that has the name of a gang's; when the gang is made; then it uses the job's own, and waits for any other.

use super::*;

const NAME: &str = "bert-gang-j1";

fn service(owners: &Value) -> Value {
    json!({"metadata": {"name": NAME, "namespace": "team", "uid": "s1", "resourceVersion": "15",
        "ownerReferences": owners}})
}

#[tokio::test]
async fn a_service_that_is_there_is_the_jobs_own_or_in_the_way() {
    let own = json!([testing::owner("bert", "j1")]);
    // Of an earlier job of that name, and of a user.
    let (earlier, users) = (json!([testing::owner("bert", "j0")]), json!([]));
    // A full quota is said before the name is compared.
    let full = failure(403, "services \"bert-gang-j1\" is forbidden: exceeded quota: q");
    for (code, refusal) in [(409, exists(NAME)), (403, full)] {
        for owners in [&own, &earlier, &users] {
            let world = World::new(vec![
                (Method::POST, "/services", code, refusal.clone()),
                (Method::GET, "/bert-gang-j1", 200, service(owners)),
                (Method::POST, "/pods", 201, pod(0, 20, "j1")),
            ]);
            let wanted = serde_json::from_value(service(&own)).expect("a Service");
            let pods = vec![serde_json::from_value(pod(0, 1, "j1")).expect("a pod")];
            let actions =
                vec![Action::CreateService(Box::new(wanted)), Action::CreatePods { generation: 0, pods }];
            let done = world.do_all(actions).await;
            let expected = if *owners == own {
                (Ok(()), CreationOutcome::Made, 1)
            } else {
                (Err(Requeue::Now), CreationOutcome::NameInUse { name: format!("Service {NAME}") }, 0)
            };
            let pods = world.shared.index.lock().members(&key("bert")).len();
            assert_eq!((done, world.outcome(), pods), expected, "{code} {owners}");
            assert_eq!(known(&world), Some(*owners == own), "for plans: {code} {owners}");
        }
    }
}

/// Whether the job's Service is there, for plans.
fn known(world: &World) -> Option<bool> {
    world.shared.ledger.lock().get(&key("bert")).and_then(|memory| memory.admission().service)
}

#[tokio::test]
async fn a_service_that_is_refused_is_known_not_to_be_there() {
    let full = failure(403, "services \"bert-gang-j1\" is forbidden: exceeded quota: q");
    let world = World::new(vec![
        (Method::POST, "/services", 403, full),
        (Method::GET, "/bert-gang-j1", 404, failure(404, "not found")),
    ]);
    assert_eq!(known(&world), None, "nobody has asked");
    let wanted = serde_json::from_value(service(&json!([testing::owner("bert", "j1")]))).expect("a Service");
    let done = world.do_all(vec![Action::CreateService(Box::new(wanted))]).await;
    assert_eq!((done, known(&world)), (Err(Requeue::Now), Some(false)));
}
