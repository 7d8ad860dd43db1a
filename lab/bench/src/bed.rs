//! Test beds for measuring, and the load on them.

use std::time::{Duration, Instant};

use andreas_testbed::{Component, SchedulerConfig};
use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use super::say;
use super::trace::{NAMESPACE, Trace};
use super::usage::cpu_seconds;
use andreas_e2e::cluster::{A100, Cluster, Group, Options};

/// Clients that submit at the same time.
const CLIENTS: usize = 16;
/// How often it is looked whether all is done.
const LOOK: Duration = Duration::from_millis(100);
/// No node is given up for its silence.
const GRACE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The API server counts as idle below this part of a core.
const IDLE: f64 = 0.15;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    /// batch/v1 Jobs, the Job controller, and the default scheduler; nothing of ours runs.
    Plain,
    /// TrainingJobs, operator, extender and our scheduler.
    Andreas,
}

impl System {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain Job controller",
            Self::Andreas => "ANDREAS",
        }
    }

    /// For names of files.
    pub fn key(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Andreas => "andreas",
        }
    }
}

/// Nodes and jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Nodes.
    pub nodes: usize,
    /// GPUs of each.
    pub node_gpus: usize,
    /// Jobs.
    pub jobs: usize,
    /// Pods of each.
    pub pods: usize,
    /// GPUs of each pod.
    pub gpus: usize,
    /// Seconds that each pod runs; without end when absent.
    pub run_seconds: Option<f64>,
    /// Whether the jobs differ in their names only. Real ones have labels and arguments of their own.
    pub alike: bool,
}

/// Starts a control plane of its own with simulated nodes whose Leases are not renewed, waits until it is idle, and takes one job
/// through it: the first write of a kind is slow. `api_server`: further flags of that.
///
/// # Errors
/// When a program does not start, or that job is not bound within a minute.
pub(super) async fn start(
    system: System,
    shape: &Shape,
    policy: Value,
    api_server: &[&str],
) -> Result<Cluster> {
    let ours = system == System::Andreas;
    let limits = ["--kube-api-qps=5000", "--kube-api-burst=10000", "--concurrent-job-syncs=20"];
    let flags = |component, flags: &[&str]| -> Vec<(Component, String)> {
        flags.iter().map(|flag| (component, (*flag).to_owned())).collect()
    };
    let options = Options {
        name: "bench".into(),
        groups: vec![Group {
            prefix: "n-",
            count: shape.nodes,
            gpu: A100,
            gpus: shape.node_gpus,
            memory_mib: 81_920,
        }],
        operators: usize::from(ours),
        policy,
        extender: ours,
        node_monitor_grace_period: GRACE,
        simulated: true,
        control_plane_args: [
            flags(Component::ControllerManager, &limits),
            flags(Component::ApiServer, api_server),
        ]
        .concat(),
        ..Options::default()
    };
    let began = Instant::now();
    let cluster = Cluster::start(options).await?;
    cluster.testbed.set_scheduler_config(&unlimited()).await?;
    cluster.make_namespace(NAMESPACE).await?;
    until_idle(&cluster, Duration::from_secs(60)).await?;
    let warm = Shape { jobs: 1, run_seconds: Some(0.1), ..*shape };
    let mut trace = Trace::start(&cluster.testbed)?;
    submit(&cluster, system, &warm, "warm").await?;
    until_bound(&mut trace, &warm, Duration::from_secs(60)).await.context("the first job")?;
    if ours {
        until_gpu_nodes(&cluster, shape.nodes, Duration::from_secs(240)).await?;
    }
    until_quiet(&mut trace, Duration::from_secs(3), Duration::from_secs(240)).await?;
    until_idle(&cluster, Duration::from_secs(60)).await?;
    say(&format!(
        "  {}: {} nodes of {} GPUs ready after {:.0} s",
        system.name(),
        shape.nodes,
        shape.node_gpus,
        began.elapsed().as_secs_f64()
    ));
    Ok(cluster)
}

/// Waits until the operator has made a GpuNode for every node: that happens once in the life of a node, not of a job.
async fn until_gpu_nodes(cluster: &Cluster, nodes: usize, limit: Duration) -> Result<()> {
    let kind = resource("andreas.dev", "v1alpha1", "GpuNode", "gpunodes");
    let api: Api<DynamicObject> = Api::all_with(cluster.testbed.client(), &kind);
    let end = Instant::now() + limit;
    loop {
        let page = api.list_metadata(&ListParams::default().limit(1)).await?;
        let more = page.metadata.remaining_item_count.unwrap_or(0);
        let made = page.items.len() + usize::try_from(more).unwrap_or(0);
        if made >= nodes {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{made} GpuNodes of {nodes} within {} s", limit.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The default scheduler without a limit of requests, as the peers' were measured.
fn unlimited() -> SchedulerConfig {
    SchedulerConfig::Inline(json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"qps": 5000, "burst": 10000},
    }))
}

/// Waits until the API server has next to nothing to do, or the time is over.
pub(super) async fn until_idle(cluster: &Cluster, limit: Duration) -> Result<()> {
    let server = cluster.testbed.process(Component::ApiServer)?;
    let used = || server.pid().and_then(cpu_seconds).unwrap_or(0.0);
    let end = Instant::now() + limit;
    loop {
        let (before, at) = (used(), Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        if (used() - before) / at.elapsed().as_secs_f64() < IDLE || Instant::now() > end {
            return Ok(());
        }
    }
}

/// A job of this shape. What is learnt of one profile does not change plans for another.
pub(super) fn job(system: System, shape: &Shape, profile: &str, index: usize) -> Value {
    let name = format!("{profile}{index:05}");
    let mut annotations = json!({});
    if let Some(seconds) = shape.run_seconds {
        annotations["testbed.andreas.dev/run-seconds"] = json!(seconds.to_string());
    }
    let mut container = json!({
        "name": "train", "image": "andreas.dev/trainer:dev",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    });
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    let mut labels = json!({});
    if !shape.alike {
        labels["example.com/experiment"] = json!(name);
        container["args"] = json!(["--seed", index.to_string(), "--output", format!("/data/{name}")]);
    }
    let worker = json!({"annotations": annotations, "labels": labels});
    match system {
        System::Andreas => json!({
            "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata,
            "spec": {
                "epochs": 10, "profileRef": {"name": profile},
                "gpus": {"min": shape.pods * shape.gpus, "max": shape.pods * shape.gpus, "maxNodes": shape.pods},
                "template": {"metadata": worker, "spec": {"containers": [container]}},
            },
        }),
        System::Plain => {
            container["resources"]["limits"] = json!({"nvidia.com/gpu": shape.gpus.to_string()});
            json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
                "spec": {
                    "parallelism": shape.pods, "completions": shape.pods, "backoffLimit": 0,
                    "template": {
                        "metadata": worker,
                        "spec": {"restartPolicy": "Never", "containers": [container]},
                    },
                },
            })
        }
    }
}

/// Creates all jobs, from [`CLIENTS`] clients at a time.
pub(super) async fn submit(cluster: &Cluster, system: System, shape: &Shape, profile: &str) -> Result<()> {
    let resource = match system {
        System::Plain => resource("batch", "v1", "Job", "jobs"),
        System::Andreas => resource("andreas.dev", "v1alpha1", "TrainingJob", "trainingjobs"),
    };
    let jobs = (0..shape.jobs).map(|i| job(system, shape, profile, i));
    create(&cluster.testbed.client(), &resource, jobs).await
}

/// Creates objects of one kind, from [`CLIENTS`] clients at a time.
pub(super) async fn create(
    client: &kube::Client,
    resource: &ApiResource,
    objects: impl Iterator<Item = Value>,
) -> Result<()> {
    let api: &Api<DynamicObject> = &Api::namespaced_with(client.clone(), NAMESPACE, resource);
    futures::stream::iter(objects)
        .map(|object| async move {
            let object: DynamicObject = serde_json::from_value(object)?;
            api.create(&PostParams::default(), &object).await.context("creating an object")
        })
        .buffer_unordered(CLIENTS)
        .try_for_each(|_| async { Ok(()) })
        .await
}

/// A kind, as the dynamic client wants it.
pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version,
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// Waits until every pod of every job is bound.
pub(super) async fn until_bound(trace: &mut Trace, shape: &Shape, limit: Duration) -> Result<()> {
    let began = Instant::now();
    let mut last_print = began;
    loop {
        trace.read()?;
        let bound = trace.jobs_bound(shape.pods);
        if bound >= shape.jobs {
            return Ok(());
        }
        if began.elapsed() > limit {
            bail!("{bound} of {} jobs bound within {} s", shape.jobs, limit.as_secs());
        }
        if last_print.elapsed() > Duration::from_secs(5) {
            last_print = Instant::now();
            say(&format!(
                "  {bound} of {} jobs bound after {:.0} s",
                shape.jobs,
                began.elapsed().as_secs_f64()
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until nobody has written anything but Leases for `quiet`, or the time is over; whether it became quiet.
pub(super) async fn until_quiet(trace: &mut Trace, quiet: Duration, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    let (mut last, mut since) = (0, Instant::now());
    while Instant::now() < end {
        trace.read()?;
        let lasting = trace.written() - trace.written_of("leases");
        if lasting != last {
            (last, since) = (lasting, Instant::now());
        }
        if since.elapsed() >= quiet {
            return Ok(true);
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(false)
}
