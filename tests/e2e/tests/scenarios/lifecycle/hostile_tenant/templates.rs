//! Attacks by what templates say.

use andreas_api::phase::Reason;
use andreas_e2e::cluster::Cluster;
use andreas_e2e::job::{Job, TRAINER_IMAGE, job};
use andreas_e2e::keeper::full_or;
use andreas_e2e::tenant::Tenant;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::Ongoing;

/// Creates these jobs; none is refused by the API server.
async fn create(tenant: &Tenant, jobs: impl Iterator<Item = Job>) -> Result<Ongoing> {
    let refused = tenant.create_all(jobs.map(|tj| tj.build())).await?;
    ensure!(refused.is_empty(), "{}: {}", refused.len(), refused[0].message);
    Ok(Ongoing::new())
}

/// Required node affinity with these expressions.
fn affinity(expressions: Value) -> Value {
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

/// Jobs with templates of 58 kB that are all different, and that no node meets: they wait, and are all held in memory.
pub async fn templates_just_below_the_limit_of_size(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let large = |n: usize| {
        let values = |e: usize| (0..256).map(|v| format!("{n:04}-{e:02}-{v:03}")).collect::<Vec<_>>();
        let expressions: Vec<Value> =
            (0..16).map(|e| json!({"key": "x", "operator": "In", "values": values(e)})).collect();
        job(&format!("below-{n}")).namespace(&tenant.namespace).pod("affinity", affinity(json!(expressions)))
    };
    create(tenant, (0..full_or(2_000, 400)).map(large)).await
}

/// Jobs that ask for thousands of resources by name, and others for as many as are allowed, each for names of its own.
pub async fn names_of_resources_that_nobody_has(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let asking = |name: &str, n: usize, containers: usize, each: usize| {
        let container = |at: usize| {
            let limits: serde_json::Map<String, Value> =
                (0..each).map(|name| (format!("a.b/{n}-{at}-{name}"), json!("1"))).collect();
            json!({"name": format!("c{at}"), "image": TRAINER_IMAGE, "resources": {"limits": limits}})
        };
        let containers: Vec<Value> = (0..containers).map(container).collect();
        job(&format!("{name}-{n}")).namespace(&tenant.namespace).pod("containers", json!(containers))
    };
    let many = (0..full_or(60, 6)).map(|n| asking("names", n, 32, 64));
    drop(create(tenant, many.chain((0..full_or(500, 20)).map(|n| asking("allowed", n, 1, 32)))).await?);
    c.wait_for_reason(&asking("names", 0, 1, 1), Reason::TemplateRejected).await?;
    c.wait_for_reason(&asking("allowed", 0, 1, 1), Reason::NoFeasibleNode).await?;
    Ok(Ongoing::new())
}

/// Jobs whose demands on nodes all differ. Each has the least weight: they take the planner's time, and are not preferred to a job of
/// four GPUs as that many ordinary ones may be.
pub async fn jobs_that_each_demand_other_nodes(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let other = |n: usize| {
        let expressions = json!([{"key": "x", "operator": "NotIn", "values": [n.to_string()]}]);
        job(&format!("other-{n}"))
            .namespace(&tenant.namespace)
            .spec("weight", json!(1))
            .pod("affinity", affinity(expressions))
    };
    create(tenant, (0..full_or(5_000, 200)).map(other)).await
}

/// Jobs with as many configurations as there can be and more memory than any node has, each with another amount.
pub async fn jobs_that_fit_nowhere_in_many_ways(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let counts: Vec<i32> = (1..=64).collect();
    let gpus = json!({"min": 1, "max": 64, "maxNodes": 64, "counts": counts});
    let large = |n: usize| {
        let requests = json!({"memory": (1_u64 << 50) + n as u64});
        let container =
            json!({"name": "trainer", "image": TRAINER_IMAGE, "resources": {"requests": requests}});
        let tj =
            job(&format!("nowhere-{n}")).namespace(&tenant.namespace).pod("containers", json!([container]));
        tj.spec("gpus", gpus.clone())
    };
    create(tenant, (0..full_or(3_000, 100)).map(large)).await
}
