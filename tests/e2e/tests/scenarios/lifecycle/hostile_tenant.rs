//! A tenant with an ordinary `edit` account does its worst, one thing after the other. Each time a job of another namespace runs
//! within a minute, and is not failed, and operator and extender keep within the memory that the chart gives them.
//!
//! With `ANDREAS_LONG=1` (`make long WHAT=hostile`) every attack has its full size. `ATTACKS="many_jobs ..."` makes some of them alone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use andreas_api::names::progress_audience;
use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::api;
use andreas_e2e::cluster::{A100, Cluster, Options, a100, short_runs};
use andreas_e2e::job::{Job, TRAINER_IMAGE, job, measured, profile};
use andreas_e2e::keeper::{at_full_length, full_or, peak_mib};
use andreas_e2e::pages;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::tenant::{Tenant, at_least, silent_connections};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Within this time another namespace's job runs.
const RUNS_WITHIN: Duration = Duration::from_secs(60);

const FINALIZER: &str = "example.com/never-removed";
/// The namespace that is left in peace, as far as our programs can help it.
const OTHER: &str = "calm";

/// What goes on until it is dropped.
type Ongoing = JoinSet<()>;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_tenant_does_another_namespaces_job_runs_within_a_minute() -> Result<()> {
    let mut policy = short_runs();
    // At full length an installation's default.
    policy["placementTimeout"] = json!(full_or("2m", "80s"));
    scenario(Options { groups: vec![a100(2)], policy, heavy: true, ..Options::default() }, async |c| {
        c.collect_garbage().await?;
        c.make_namespace(OTHER).await?;
        let mut tenants = Tenants(0);
        let wanted = std::env::var("ATTACKS").unwrap_or_default();
        let is_wanted =
            |attack: &str| wanted.is_empty() || wanted.split_whitespace().any(|name| name == attack);
        macro_rules! attacks {
            ($($attack:ident),* $(,)?) => {$(if is_wanted(stringify!($attack)) {
                let tenant = tenants.next(c).await?;
                let began = Instant::now();
                let ongoing = $attack(c, &tenant).await.context(stringify!($attack))?;
                println!("{} for {:.1?}", stringify!($attack), began.elapsed());
                anothers_job_runs(c, stringify!($attack)).await.context(stringify!($attack))?;
                within_memory(c, stringify!($attack))?;
                drop(ongoing);
                tenants.leaves(c, &tenant).await?;
            })*};
        }
        attacks![
            finalizers_on_jobs_and_pods,
            an_affinity_that_nothing_meets,
            watts_of_one,
            lies_about_progress,
            labels_of_other_systems,
            pods_for_our_scheduler,
            pages_of_all_namespaces,
            tokens_of_a_bystander,
            a_storm_of_edits,
            labels_that_change_all_the_time,
            silence_on_every_port,
            many_jobs,
            objects_at_the_limit_of_size,
            templates_just_below_the_limit_of_size,
            names_of_resources_that_nobody_has,
            jobs_that_each_demand_other_nodes,
            jobs_that_fit_nowhere_in_many_ways,
        ];
        Ok(())
    })
    .await
}

/// A tenant for each attack: some leave behind what cannot be removed.
struct Tenants(usize);

impl Tenants {
    async fn next(&mut self, c: &Cluster) -> Result<Tenant> {
        self.0 += 1;
        Tenant::new(c, &format!("hostile-{}", self.0)).await
    }

    /// Its jobs go, as far as they do.
    async fn leaves(&self, c: &Cluster, tenant: &Tenant) -> Result<()> {
        c.kubectl(&format!("delete trainingjobs --all -n {} --wait=false", tenant.namespace)).await?;
        Ok(())
    }
}

/// A job on the four GPUs of a node, of the weight of the long runs that hold them, with a deadline that is near.
async fn anothers_job_runs(c: &mut Cluster, attack: &str) -> Result<()> {
    let name = format!("beside-{}", attack.replace('_', "-"));
    let tj = job(&name).namespace(OTHER).gpus(4, 1).epochs(4, 0.3).spec("deadlineAfter", json!("30s"));
    let (key, began) = (tj.key(), Instant::now());
    c.submit(&tj).await?;
    let runs = |phase| matches!(phase, Phase::Running | Phase::Succeeded);
    c.observer.until(&format!("{key} runs"), RUNS_WITHIN, |s| runs(s.phase(&key))).await?;
    println!("{attack}: runs after {:.1?}", began.elapsed());
    c.observer
        .until(&format!("{key} succeeded"), DEFAULT_TIMEOUT, |s| s.phase(&key) == Phase::Succeeded)
        .await?;
    let status = c.observer.seen().status(&key);
    let failed = [Outcome::UserFailure, Outcome::ClusterFailure];
    ensure!(status.history.iter().all(|record| !failed.contains(&record.outcome)), "{:?}", status.history);
    Ok(())
}

/// Nobody has taken more memory than the chart's limits, or in the short form than a quarter of the operator's.
fn within_memory(c: &Cluster, attack: &str) -> Result<()> {
    let operators =
        c.operators.iter().map(|operator| ("operator", operator.process.as_ref(), full_or(1_024.0, 256.0)));
    let extender = c.extender.iter().map(|process| ("extender", process, 256.0));
    for (program, process, most) in operators.chain(extender) {
        let peak = peak_mib(process)?;
        println!("{attack}: {program} {peak:.0} MiB");
        ensure!(peak < most, "{attack}: {program} took {peak:.0} MiB");
    }
    Ok(())
}

/// Two jobs that hold all GPUs for long.
async fn hold_all(c: &mut Cluster, tenant: &Tenant, change: impl Fn(Job) -> Job) -> Result<Vec<Job>> {
    let long = |n| {
        let tj = job(&format!("long-{n}")).namespace(&tenant.namespace).gpus(4, 1).epochs(2_000, 0.5);
        change(tj.spec("deadlineAfter", json!("10h")))
    };
    let jobs: Vec<Job> = (0..2).map(long).collect();
    let refused = tenant.create_all(jobs.iter().map(Job::build)).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    for tj in &jobs {
        let key = tj.key();
        c.observer
            .until(&format!("{key} has GPUs"), DEFAULT_TIMEOUT, |s| s.status(&key).allocation.is_some())
            .await?;
    }
    Ok(jobs)
}

/// All GPUs are held by jobs that are deleted and cannot go, and neither can their pods.
async fn finalizers_on_jobs_and_pods(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let jobs = hold_all(c, tenant, |tj| tj).await?;
    for tj in &jobs {
        c.wait_for_phase(tj, Phase::Running).await?;
        let object = tj.build();
        let change = json!({"metadata": {"finalizers": [FINALIZER]}});
        api::patch(&tenant.client, &object, &change, false).await?.accepted()?;
        let name = format!("{}-1-0", object["metadata"]["name"].as_str().unwrap_or_default());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": tenant.namespace}});
        // The policies may forbid that; then it does no harm either.
        drop(api::patch(&tenant.client, &pod, &change, false).await?);
    }
    let account = format!("--as=system:serviceaccount:{0}:tenant -n {0}", tenant.namespace);
    c.kubectl(&format!("delete trainingjobs --all --wait=false {account}")).await?;
    Ok(Ongoing::new())
}

/// All GPUs are held by pods that no scheduler can bind.
async fn an_affinity_that_nothing_meets(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let nowhere = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"no": "such-pod"}}}]}});
    hold_all(c, tenant, |tj| tj.pod("affinity", nowhere.clone())).await?;
    Ok(Ongoing::new())
}

/// Profiles that say that jobs draw 1 W and take no time.
async fn watts_of_one(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let mut modest = profile("modest", &[1, 2, 4].map(|gpus| measured(A100, gpus, 1, 1)));
    modest["metadata"]["namespace"] = json!(tenant.namespace);
    let refused = tenant.create_all(std::iter::once(modest)).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    hold_all(c, tenant, |tj| tj.profile("modest")).await?;
    Ok(Ongoing::new())
}

/// Jobs that hold all GPUs and say that they are nearly done, with the tokens of their own pods.
async fn lies_about_progress(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let jobs = hold_all(c, tenant, |tj| tj.env("TRAINER_NO_PROGRESS", 1)).await?;
    let mut reports = Ongoing::new();
    for tj in &jobs {
        c.wait_for_phase(tj, Phase::Running).await?;
        let (url, uid) = (status_url(c, tj)?, uid(c, tj)?);
        let pod = format!("{}-1-0", tj.key().rsplit('/').next().unwrap_or_default());
        let token = tenant.token_of_pod(&pod, &progress_audience(&uid)).await?;
        let agent = pages::agent(c.testbed.pki().ca_file())?;
        let lie =
            json!({"trainerStatus": {"progressPercentage": 98, "estimatedRemainingSeconds": 1}}).to_string();
        let post = move || agent.post(&url).header("Authorization", format!("Bearer {token}")).send(&lie);
        let code = tokio::task::spawn_blocking(post.clone()).await??.status().as_u16();
        ensure!(code < 300, "a member's report is not heard: {code}");
        reports.spawn(async move {
            loop {
                drop(tokio::task::spawn_blocking(post.clone()).await);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    Ok(reports)
}

fn uid(c: &Cluster, tj: &Job) -> Result<String> {
    c.observer.seen().job(&tj.key()).and_then(|job| job.metadata.uid.clone()).context("a UID")
}

fn status_url(c: &Cluster, tj: &Job) -> Result<String> {
    let key = tj.key();
    let (namespace, name) = key.split_once('/').context("namespace/name")?;
    let path = format!("apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status");
    Ok(format!("{}/{path}", pages::url(c)?))
}

/// A pod of the tenant's own, without GPUs.
fn pod(tenant: &Tenant, name: &str, labels: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": tenant.namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": TRAINER_IMAGE, "env": [{"name": "TRAINER_EPOCHS", "value": "1"}]}]},
    });
    api::merge(&mut pod["spec"], spec);
    pod
}

/// Pods and jobs that wear the labels by which the GPU operator and Kueue know theirs.
async fn labels_of_other_systems(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let labels = json!({
        "app": "nvidia-device-plugin-daemonset", "app.kubernetes.io/part-of": "gpu-operator",
        "nvidia.com/gpu.product": A100, "nvidia.com/gpu.present": "true", "nvidia.com/mig.config": "all-1g.10gb",
        "nvidia.com/gpu.deploy.device-plugin": "pod-deletion-required",
        "kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/managed": "true",
        "kueue.x-k8s.io/podset": "main", "kueue.x-k8s.io/prebuilt-workload-name": "mine",
    });
    let gated = json!({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]});
    let mut objects: Vec<Value> =
        (0..50).map(|n| pod(tenant, &format!("labelled-{n}"), &labels, &json!({}))).collect();
    objects.extend((0..50).map(|n| pod(tenant, &format!("gated-{n}"), &labels, &gated)));
    let mut labelled = job("labelled").namespace(&tenant.namespace).epochs(2, 0.3).build();
    labelled["metadata"]["labels"] = labels.clone();
    labelled["spec"]["template"]["metadata"] = json!({"labels": labels});
    objects.push(labelled);
    let refused = tenant.create_all(objects.into_iter()).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(Ongoing::new())
}

/// Thousands of pods in our scheduler's queue, with our priority, and with labels of our pods: none is accepted.
async fn pods_for_our_scheduler(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let many = full_or(6_000, 600);
    let objects = (0..many).map(|n| {
        let (labels, spec) = match n % 3 {
            0 => (json!({}), json!({"schedulerName": "andreas"})),
            1 => (json!({}), json!({"priorityClassName": "andreas-training"})),
            _ => (json!({"andreas.dev/job": "mine"}), json!({"schedulerName": "andreas"})),
        };
        pod(tenant, &format!("pod-{n}"), &labels, &spec)
    });
    let refused = tenant.create_all(objects).await?;
    ensure!(refused.len() == many, "{} of {many} were accepted", many - refused.len());
    Ok(Ongoing::new())
}

/// Asks for pages that name jobs of all namespaces, without end, with a token that may not.
async fn pages_of_all_namespaces(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let token = pages::token(c, &tenant.namespace, "tenant").await?;
    let asked = Arc::new(AtomicUsize::new(0));
    let mut asking = Ongoing::new();
    let path = "/snapshot";
    for _ in 0..4 {
        let (code, text) = pages::get(c, path, Some(&token)).await?;
        ensure!(code == 403 && !text.contains(OTHER), "{path}: {code}: {text}");
        let (agent, url) = (pages::agent(c.testbed.pki().ca_file())?, format!("{}{path}", pages::url(c)?));
        let (token, asked) = (format!("Bearer {token}"), Arc::clone(&asked));
        let get = move || agent.get(&url).header("Authorization", &token).call().map(|a| a.status().as_u16());
        asking.spawn(async move {
            while tokio::task::spawn_blocking(get.clone())
                .await
                .is_ok_and(|code| code.is_ok_and(|c| c >= 400))
            {
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    until("a flood of requests", Duration::from_secs(60), async || Ok(asked.load(Ordering::Relaxed) > 20))
        .await?;
    Ok(asking)
}

/// A pod that is no member of a job posts reports for it without end, with a good token.
async fn tokens_of_a_bystander(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let busy = job("busy").namespace(&tenant.namespace).epochs(400, 0.5);
    let bystander = pod(tenant, "bystander", &json!({}), &json!({"nodeSelector": {"no": "such-node"}}));
    let refused = tenant.create_all([busy.build(), bystander].into_iter()).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    c.wait_for_phase(&busy, Phase::Running).await?;
    let (url, uid) = (status_url(c, &busy)?, uid(c, &busy)?);
    let token = tenant.token_of_pod("bystander", &progress_audience(&uid)).await?;
    let mut posting = Ongoing::new();
    for _ in 0..8 {
        let agent = pages::agent(c.testbed.pki().ca_file())?;
        let (url, token) = (url.clone(), format!("Bearer {token}"));
        let post =
            move || agent.post(&url).header("Authorization", &token).send("{}").map(|a| a.status().as_u16());
        let code = tokio::task::spawn_blocking(post.clone()).await??;
        ensure!(code == 403, "{code}");
        posting.spawn(async move { while tokio::task::spawn_blocking(post.clone()).await.is_ok() {} });
    }
    Ok(posting)
}

/// Jobs that are edited as fast as the API server takes it.
async fn a_storm_of_edits(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let waits = |n: usize| {
        let types = json!({"min": 1, "types": ["NVIDIA-B300"]});
        job(&format!("stormy-{n}")).namespace(&tenant.namespace).spec("gpus", types)
    };
    let jobs: Vec<Job> = (0..4).map(waits).collect();
    let refused = tenant.create_all(jobs.iter().map(Job::build)).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    c.wait_for_reason(&jobs[0], Reason::NoFeasibleGpuType).await?;
    let mut storm = Ongoing::new();
    for tj in &jobs {
        let (client, object) = (tenant.client.clone(), tj.build());
        storm.spawn(async move {
            for weight in (1..1_000).cycle() {
                drop(api::patch(&client, &object, &json!({"spec": {"weight": weight}}), false).await);
            }
        });
    }
    Ok(storm)
}

/// All GPUs are held by jobs that are relabelled without end: whatever would stop one of them is about an older version.
async fn labels_that_change_all_the_time(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let mut storm = Ongoing::new();
    for tj in hold_all(c, tenant, |tj| tj).await? {
        c.wait_for_phase(&tj, Phase::Running).await?;
        for label in 0..8 {
            let (client, object, label) = (tenant.client.clone(), tj.build(), format!("label-{label}"));
            storm.spawn(async move {
                for count in 0_u64.. {
                    let change = json!({"metadata": {"labels": {&label: count.to_string()}}});
                    drop(api::patch(&client, &object, &change, false).await);
                }
            });
        }
    }
    Ok(storm)
}

/// More connections than there are places on every port of operator and extender, on which nothing is said.
async fn silence_on_every_port(c: &mut Cluster, _: &Tenant) -> Result<Ongoing> {
    let operator = c.operators.first().context("an operator")?;
    let mut ports: Vec<SocketAddr> = vec![operator.progress, operator.admin, operator.probes];
    ports.extend([c.extender_listen, c.extender_admin, c.extender_probes].into_iter().flatten());
    ensure!(ports.len() == 6, "an extender");
    let (mut silent, opened) = (Ongoing::new(), Arc::new(AtomicUsize::new(0)));
    // In the short form fewer: another scenario holds thousands.
    let counts: &[usize] = if at_full_length() { &[64, 1_024, 2_000] } else { &[64, 256] };
    for &count in counts {
        silent.shutdown().await;
        opened.store(0, Ordering::Relaxed);
        for port in &ports {
            silent_connections(&mut silent, *port, count, &opened);
        }
        at_least(&opened, count * ports.len(), "silent connections", DEFAULT_TIMEOUT).await?;
        anothers_job_runs(c, &format!("{count}-silent-connections")).await?;
    }
    Ok(silent)
}

/// Jobs that nobody can run: for a GPU type that is not there, and with an account that is not there.
async fn many_jobs(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let many = full_or(20_000, 500);
    let objects = (0..many).map(|n| {
        let tj = job(&format!("many-{n}")).namespace(&tenant.namespace);
        if n % 2 == 0 {
            tj.pod("serviceAccountName", json!("missing")).build()
        } else {
            tj.spec("gpus", json!({"min": 1, "types": ["NVIDIA-B300"]})).build()
        }
    });
    let refused = tenant.create_all(objects).await?;
    ensure!(
        refused.len() * 100 <= many,
        "{} of {many} were refused, one with {:?}",
        refused.len(),
        refused[0]
    );
    Ok(Ongoing::new())
}

/// Jobs and pods of 1.3 MB.
async fn objects_at_the_limit_of_size(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let many = full_or(300, 5);
    // A variable has 32 kB at most.
    let text = "x".repeat(32_000);
    let env: Vec<Value> = (0..40).map(|n| json!({"name": format!("T{n}"), "value": text})).collect();
    let spec = json!({"schedulerName": "nobody", "containers": [{"name": "c", "image": "x", "env": env}]});
    let jobs = (0..many).map(|n| {
        let mut tj = job(&format!("large-{n}")).namespace(&tenant.namespace).build();
        tj["spec"]["template"]["spec"] = json!({"containers": spec["containers"]});
        tj
    });
    let pods = (0..many).map(|n| pod(tenant, &format!("large-{n}"), &json!({}), &spec));
    let refused = tenant.create_all(jobs.chain(pods)).await?;
    ensure!(refused.is_empty(), "{} of {}: {}", refused.len(), 2 * many, refused[0].message);
    Ok(Ongoing::new())
}

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
async fn templates_just_below_the_limit_of_size(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let large = |n: usize| {
        let values = |e: usize| (0..256).map(|v| format!("{n:04}-{e:02}-{v:03}")).collect::<Vec<_>>();
        let expressions: Vec<Value> =
            (0..16).map(|e| json!({"key": "x", "operator": "In", "values": values(e)})).collect();
        job(&format!("below-{n}")).namespace(&tenant.namespace).pod("affinity", affinity(json!(expressions)))
    };
    create(tenant, (0..full_or(2_000, 400)).map(large)).await
}

/// Jobs that ask for thousands of resources by name, and others for as many as are allowed, each for names of its own.
async fn names_of_resources_that_nobody_has(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
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
async fn jobs_that_each_demand_other_nodes(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
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
async fn jobs_that_fit_nowhere_in_many_ways(_: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
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
