//! A tenant with an ordinary `edit` account does its worst, one thing after the other. Each time a job of another namespace runs
//! within a minute, and is not failed, and operator and extender keep within the memory that the chart gives them.
//!
//! With `ANDREAS_LONG=1` (`make long WHAT=hostile`) every attack has its full size. `ATTACKS="many_jobs ..."` makes some of them alone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use andreas_api::names::{ANNOTATION_MAX_WEIGHT, progress_audience};
use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_api::query::path;
use andreas_e2e::api;
use andreas_e2e::cluster::{A100, Cluster, Options, a100, short_runs};
use andreas_e2e::job::{Job, TRAINER_IMAGE, job, measured, profile};
use andreas_e2e::keeper::{at_full_length, full_or, peak_mib};
use andreas_e2e::pages;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::seen::ClusterHistory;
use andreas_e2e::tenant::{Tenant, at_least, silent_connections};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

mod templates;

use templates::{
    jobs_that_each_demand_other_nodes, jobs_that_fit_nowhere_in_many_ways,
    names_of_resources_that_nobody_has, templates_just_below_the_limit_of_size,
};

/// Within this time another namespace's job runs.
const RUNS_WITHIN: Duration = Duration::from_secs(60);

const FINALIZER: &str = "example.com/never-removed";
/// The namespace that is left in peace, as far as our programs can help it.
const OTHER: &str = "calm";

/// The chart's bound on weights: five times a job's default.
const BOUND: u16 = 50;

/// What goes on until it is dropped.
type Ongoing = JoinSet<()>;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_tenant_does_another_namespaces_job_runs_within_a_minute() -> Result<()> {
    let mut policy = short_runs();
    // At full length an installation's default.
    policy["placementTimeout"] = json!(full_or("2m", "80s"));
    let options =
        Options { groups: vec![a100(2)], policy, max_weight: BOUND, heavy: true, ..Options::default() };
    scenario(options, async |c| {
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
            weights_and_near_deadlines,
            lies_about_progress,
            labels_of_other_systems,
            pods_for_our_scheduler,
            pages_of_all_namespaces,
            tokens_of_a_bystander,
            forged_tokens_and_many_accounts,
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

/// A job on the four GPUs of a node, of default weight like most of the attackers, with a deadline that is near.
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

/// Many jobs of the largest weight, with deadlines that cannot be met, in a namespace whose quota is half of the GPUs. More weight is to
/// be had neither for a job nor for the namespace.
async fn weights_and_near_deadlines(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    c.kubectl(&format!("create quota half --hard=requests.nvidia.com/gpu=4 -n {}", tenant.namespace)).await?;
    let read = format!("get quota half -o jsonpath={{.status.hard}} -n {}", tenant.namespace);
    until("the quota is in force", DEFAULT_TIMEOUT, async || Ok(!c.kubectl(&read).await?.is_empty())).await?;
    let heavier = (0..50).map(|n| {
        let tj = job(&format!("heavier-{n}")).namespace(&tenant.namespace).spec("weight", json!(1_000));
        tj.spec("deadlineAfter", json!("30s")).build()
    });
    let refused = tenant.create_all(heavier).await?;
    let words = format!("above {BOUND}");
    let by_the_bound = refused.iter().filter(|status| status.message.contains(&words)).count();
    ensure!(by_the_bound == 50, "{by_the_bound} of 50 are refused: {:?}", refused.first());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant.namespace}});
    let more = json!({"metadata": {"annotations": {ANNOTATION_MAX_WEIGHT: "1000"}}});
    api::patch(&tenant.client, &namespace, &more, false).await?.refused()?;
    let urgent = |n: usize| {
        let tj = job(&format!("urgent-{n}")).namespace(&tenant.namespace).gpus(4, 1).epochs(2_000, 0.5);
        tj.spec("weight", json!(BOUND)).spec("deadlineAfter", json!("30s"))
    };
    let jobs: Vec<Job> = (0..20).map(urgent).collect();
    let refused = tenant.create_all(jobs.iter().map(Job::build)).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    let one_runs = |seen: &ClusterHistory| jobs.iter().any(|tj| seen.phase(&tj.key()) == Phase::Running);
    c.observer.until("one of them runs", DEFAULT_TIMEOUT, one_runs).await?;
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

/// Forged tokens, and good ones of as many accounts as the tenant likes to make, ask about its jobs without end, all from one address as
/// through the API server's proxy. The first question of somebody else about another namespace is answered all the same.
async fn forged_tokens_and_many_accounts(c: &mut Cluster, tenant: &Tenant) -> Result<Ongoing> {
    let names: Vec<String> = (0..40).map(|n| format!("account-{n}")).collect();
    let account = |name: &String| {
        let metadata = json!({"name": name, "namespace": tenant.namespace});
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    };
    let refused = tenant.create_all(names.iter().map(account)).await?;
    ensure!(refused.is_empty(), "{refused:?}");
    let url = format!("{}{}", pages::url(c)?, path::queue(&tenant.namespace));
    let (mut asking, asked) = (Ongoing::new(), Arc::new(AtomicUsize::new(0)));
    for name in names {
        let token = pages::token(c, &tenant.namespace, &name).await?;
        let (agent, url, asked) = (pages::agent(c.testbed.pki().ca_file())?, url.clone(), Arc::clone(&asked));
        asking.spawn(async move {
            for count in 0_u64.. {
                let forged = format!("{name}-{count}");
                let shown = format!("Bearer {}", if count % 4 == 0 { &token } else { &forged });
                let request = agent.get(&url).header("Authorization", shown);
                drop(tokio::task::spawn_blocking(move || request.call()).await);
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
    }
    // More than the operator has reviewed for one address.
    at_least(&asked, 1_000, "questions", DEFAULT_TIMEOUT).await?;
    c.kubectl(&format!("create serviceaccount asks -n {OTHER}")).await?;
    c.kubectl(&format!(
        "create rolebinding asks -n {OTHER} --clusterrole=view --serviceaccount={OTHER}:asks"
    ))
    .await?;
    let token = pages::token(c, OTHER, "asks").await?;
    let (code, text) = pages::get(c, &path::queue(OTHER), Some(&token)).await?;
    ensure!(code == 200, "{code}: {text}");
    Ok(asking)
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
            for weight in (1..=BOUND).cycle() {
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
