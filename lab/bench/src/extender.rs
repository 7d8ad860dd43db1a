//! The extender: calls over loopback, and pods per second through the real scheduler.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_testbed::{Component, Process, SchedulerConfig};
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::bed::{self, Shape};
use super::filter;
use super::report::{Report, quantile, spread};
use super::trace::{NAMESPACE, Trace};
use super::usage::{Cpu, cpu_seconds};
use super::{Output, say};
use andreas_e2e::chart::{self, SYSTEM};
use andreas_e2e::cluster::{A100, Cluster, Group, Options};
use andreas_e2e::tenant::{at_least, silent_connections};

/// Others' connections to the extender on which nothing is said.
const SILENT: usize = 1_000;
/// Members of one gang: more jobs than one, and none too long for its status.
const MEMBERS: usize = 100;

/// Flags of `bench extender`.
#[derive(Clone, Debug, Args)]
pub(super) struct ExtenderArgs {
    /// Clusters of so many nodes.
    #[arg(long, value_delimiter = ',', default_values_t = [500, 5000])]
    nodes: Vec<usize>,
    /// Pods that wait when the scheduler starts.
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Node names in a call.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 5000])]
    names: Vec<usize>,
    /// Calls of each kind.
    #[arg(long, default_value_t = 2000)]
    calls: usize,
    /// Runs of each.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
}

impl ExtenderArgs {
    /// As `bench all` runs it.
    pub fn preset(quick: bool) -> Self {
        let names = vec![1, 1000, 5000];
        if quick {
            Self { nodes: vec![200], pods: 300, names, calls: 500, rounds: 1 }
        } else {
            Self { nodes: vec![500, 5000], pods: 1000, names, calls: 2000, rounds: 2 }
        }
    }

    fn command(&self) -> String {
        let list = |of: &[usize]| of.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        format!(
            "extender --nodes {} --pods {} --names {} --calls {} --rounds {}",
            list(&self.nodes),
            self.pods,
            list(&self.names),
            self.calls,
            self.rounds
        )
    }
}

/// Whether pods name their node, and who is asked.
#[derive(Clone, Copy, Debug)]
struct Variant {
    pinned: bool,
    extender: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant { pinned: false, extender: false },
    Variant { pinned: false, extender: true },
    Variant { pinned: true, extender: false },
    Variant { pinned: true, extender: true },
];

/// Runs `bench extender`.
pub(super) async fn run(args: &ExtenderArgs, out: &mut Output) -> Result<()> {
    let mut calls = Report::new(
        "filter",
        args.command(),
        &["node names", "pod", "silent connections", "p50 us", "p99 us", "extender CPU us/call", "body kB"],
    );
    let mut rates = Report::new(
        "extender",
        args.command(),
        &[
            "nodes",
            "pods pinned",
            "extender",
            "pods/s",
            "scheduler CPU ms/pod",
            "API server CPU ms/pod",
            "extender CPU ms/pod",
            "429 per pod",
        ],
    );
    let mut figures = Vec::new();
    for (index, &nodes) in args.nodes.iter().enumerate() {
        say(&format!("extender: {nodes} nodes, {} pods", args.pods));
        let mut cluster = start(nodes).await?;
        let measured =
            measure(args, nodes, index == 0, &mut cluster, &mut calls, &mut rates, &mut figures).await;
        let measured = measured.map_err(|error| error.context(cluster.logs()));
        cluster.stop().await;
        measured?;
    }
    calls.notes = vec![
        "One call at a time on one connection, as kube-scheduler filters, measured by the caller; TLS 1.3 with client certificate. \
         `member`: a pod of a gang, answered with its one node; `foreign`: a pod that is none of ours, answered with all names."
            .into(),
    ];
    rates.notes = vec![
        "Pods wait first, then the scheduler starts; from the first to the last Binding. 1 GPU per pod, 8 per node, \
         `percentageOfNodesToScore: 100`, the scheduler's requests not limited; no kubelets. With the extender it also binds. \
         Pinned: `nodeAffinity` with `matchFields metadata.name`, as the operator makes pods."
            .into(),
    ];
    rates.figures = json!(figures);
    out.add(&calls)?;
    out.add(&rates)
}

async fn start(nodes: usize) -> Result<Cluster> {
    let options = Options {
        name: "bench-extender".into(),
        groups: vec![Group { prefix: "n-", count: nodes, gpu: A100, gpus: 8, memory_mib: 81_920 }],
        operators: 0,
        policy: json!({}),
        node_monitor_grace_period: Duration::from_secs(7 * 24 * 3600),
        simulated: true,
        ..Options::default()
    };
    let cluster = Cluster::start(options).await?;
    // The nodes are there; who plays their kubelets would only cost time.
    cluster.testbed.kill(Component::Kubelets)?;
    // Pods and allocations are made by hand here, which the chart's policies are there to refuse.
    cluster.testbed.kubectl(["delete", "validatingadmissionpolicybindings", "--all"]).await?.checked()?;
    cluster.make_namespace(NAMESPACE).await?;
    bed::until_idle(&cluster, Duration::from_secs(60)).await?;
    Ok(cluster)
}

async fn measure(
    args: &ExtenderArgs,
    nodes: usize,
    call_too: bool,
    cluster: &mut Cluster,
    calls: &mut Report,
    rates: &mut Report,
    figures: &mut Vec<Value>,
) -> Result<()> {
    let pods = allocate(cluster, args.pods, nodes).await?;
    let own = cluster.scheduler.take().context("no scheduler")?;
    own.stop().await;
    if call_too {
        call(args, cluster, &pods, calls).await?;
    }
    for variant in VARIANTS {
        let mut runs = Vec::new();
        for _ in 0..args.rounds.max(1) {
            runs.push(rate(cluster, &pods, variant).await?);
        }
        let each =
            |of: &dyn Fn(&Rate) -> f64, digits| spread(&runs.iter().map(of).collect::<Vec<_>>(), digits);
        let said = |yes: bool| if yes { "yes" } else { "no" };
        let row = vec![
            nodes.to_string(),
            said(variant.pinned).into(),
            said(variant.extender).into(),
            each(&|run| run.per_second, 0),
            each(&|run| run.scheduler_ms, 2),
            each(&|run| run.server_ms, 2),
            each(&|run| run.extender_ms, 2),
            each(&|run| run.refused, 2),
        ];
        say(&format!("  {}", row.join(" | ")));
        figures.extend(runs.iter().map(|run| {
            json!({
                "nodes": nodes, "pods": pods.len(), "pinned": variant.pinned, "extender": variant.extender,
                "pods_per_s": run.per_second, "scheduler_ms": run.scheduler_ms, "api_server_ms": run.server_ms,
                "extender_ms": run.extender_ms, "refused_per_pod": run.refused,
            })
        }));
        rates.rows.push(row);
    }
    Ok(())
}

async fn call(args: &ExtenderArgs, cluster: &Cluster, pods: &[Member], report: &mut Report) -> Result<()> {
    let member = pods.first().context("no pods")?;
    let mut figures = Vec::new();
    for &count in &args.names {
        for whose in ["member", "foreign"] {
            let body = filter::body(&member.pod(true), &member.node, count, whose == "member")?;
            // Long lists take long; half a million names are enough for a p99.
            let calls = args.calls.min((500_000 / count).max(200));
            let mut row = vec![count.to_string(), whose.to_owned(), "0".to_owned()];
            figures.push(time_calls(cluster, &body, calls, &mut row).await?);
            report.rows.push(row);
        }
    }
    // Others' connections on which nothing is said: more than there are places for those who have not shown who they are.
    let listen = cluster.extender_listen.context("no extender")?;
    let (mut silent, opened) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    silent_connections(&mut silent, listen, SILENT, &opened);
    at_least(&opened, SILENT, "silent connections", Duration::from_secs(60)).await?;
    let names = args.names.first().copied().unwrap_or(1);
    let body = filter::body(&member.pod(true), &member.node, names, true)?;
    let mut row = vec![names.to_string(), "member".into(), SILENT.to_string()];
    figures.push(time_calls(cluster, &body, args.calls, &mut row).await?);
    report.rows.push(row);
    silent.shutdown().await;
    report.figures = json!(figures);
    Ok(())
}

/// Adds the times of calls to a row that says what is called.
async fn time_calls(cluster: &Cluster, body: &Bytes, calls: usize, row: &mut Vec<String>) -> Result<Value> {
    let extender = cluster.extender.as_ref().context("no extender")?;
    let pid = extender.pid().context("the extender ended")?;
    let before = cpu_seconds(pid).unwrap_or(0.0);
    let times = filter::measure(cluster, body, calls).await?;
    let used = (cpu_seconds(pid).unwrap_or(0.0) - before) / (times.len() + filter::WARM) as f64;
    let micros: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    let (p50, p99) = (quantile(micros.iter().copied(), 0.5), quantile(micros.iter().copied(), 0.99));
    let figure = json!({
        "names": row[0], "pod": row[1], "silent": row[2], "p50_us": p50, "p99_us": p99,
        "extender_cpu_us": used * 1e6, "calls": calls,
    });
    row.extend([
        format!("{p50:.0}"),
        format!("{p99:.0}"),
        format!("{:.0}", used * 1e6),
        format!("{:.1}", body.len() as f64 / 1000.0),
    ]);
    say(&format!("  filter: {}", row.join(" | ")));
    Ok(figure)
}

/// One pod to be, and where its allocation places it.
struct Member {
    job: String,
    uid: String,
    index: usize,
    node: String,
}

impl Member {
    /// As the operator makes it.
    fn pod(&self, pinned: bool) -> Value {
        let mut spec = json!({
            "schedulerName": names::SCHEDULER, "restartPolicy": "Never",
            "containers": [{
                "name": "train", "image": "andreas.dev/trainer:dev",
                "env": [{"name": names::env::ATTEMPT, "value": "1"}, {"name": names::env::JOB, "value": self.job}],
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {(names::GPU_RESOURCE): "1"},
                },
            }],
        });
        if pinned {
            spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [self.node]}
                ]}],
            }}});
        }
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": names::pod_name(&self.job, 1, self.index), "namespace": NAMESPACE,
                "labels": {
                    (names::LABEL_JOB): self.job, (names::LABEL_JOB_UID): self.uid, (names::LABEL_ATTEMPT): "1",
                    (names::LABEL_INDEX): self.index.to_string(), (names::LABEL_ALLOCATION): "1",
                },
                "ownerReferences": [{
                    "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "name": self.job, "uid": self.uid,
                    "controller": true,
                }],
            },
            "spec": spec,
        })
    }
}

/// TrainingJobs whose allocations together place so many pods, over all nodes.
async fn allocate(cluster: &Cluster, pods: usize, nodes: usize) -> Result<Vec<Member>> {
    let kind = bed::resource("andreas.dev", "v1alpha1", "TrainingJob", "trainingjobs");
    let client = cluster.testbed.client();
    let size = |job: usize| MEMBERS.min(nodes).min(pods - job * MEMBERS.min(nodes));
    let jobs = pods.div_ceil(MEMBERS.min(nodes));
    let objects = (0..jobs).map(|job| {
        json!({
            "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": format!("g{job}"), "namespace": NAMESPACE},
            "spec": {
                "epochs": 10, "gpus": {"min": size(job), "max": size(job), "maxNodes": size(job)},
                "template": {"spec": {"containers": [{"name": "train", "image": "andreas.dev/trainer:dev"}]}},
            },
        })
    });
    bed::create(&client, &kind, objects).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind);
    let mut members = Vec::new();
    for job in 0..jobs {
        let (name, first) = (format!("g{job}"), members.len());
        let uid = api.get(&name).await?.metadata.uid.context("no UID")?;
        members.extend((0..size(job)).map(|index| Member {
            job: name.clone(),
            uid: uid.clone(),
            index,
            // Nodes far from each other and none twice in a gang.
            node: format!("n-{}", (first + index) * (nodes / pods).max(1) % nodes),
        }));
        let placed: Vec<&str> = members[first..].iter().map(|member| member.node.as_str()).collect();
        let status = json!({"status": {
            "phase": "Starting", "attempts": 1, "userFailures": 0, "clusterFailures": 0, "restarts": 0,
            "allocation": {
                "attempt": 1, "generation": 1, "gpuType": A100, "gpus": size(job), "gpusPerWorker": 1,
                "nodes": placed, "placement": format!("{} nodes", placed.len()), "since": "2026-01-01T00:00:00Z",
                "watts": 100,
            },
        }});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    }
    Ok(members)
}

/// One run through the scheduler.
struct Rate {
    per_second: f64,
    scheduler_ms: f64,
    server_ms: f64,
    extender_ms: f64,
    refused: f64,
}

async fn rate(cluster: &Cluster, members: &[Member], variant: Variant) -> Result<Rate> {
    let client = cluster.testbed.client();
    let kind = bed::resource("", "v1", "Pod", "pods");
    bed::create(&client, &kind, members.iter().map(|member| member.pod(variant.pinned))).await?;
    bed::until_idle(cluster, Duration::from_secs(20)).await?;
    let mut trace = Trace::start(&cluster.testbed)?;
    let before = Cpu::of(cluster);
    let scheduler = scheduler(cluster, variant).await?;
    let limit = Duration::from_secs(300);
    // Pods count here, not gangs.
    let shape = Shape {
        nodes: 0,
        node_gpus: 8,
        jobs: 1,
        pods: members.len(),
        gpus: 1,
        run_seconds: None,
        alike: false,
    };
    let bound = until_pods_bound(&mut trace, &shape, limit).await;
    let own = scheduler.pid().and_then(cpu_seconds).unwrap_or(0.0);
    let cpu = Cpu::of(cluster).since(&before);
    bound.with_context(|| scheduler.log_tail(20))?;
    scheduler.stop().await;
    let (first, last) = trace.first_and_last_bind();
    let pods = members.len() as f64;
    let rate = Rate {
        per_second: (pods - 1.0) / (last - first).max(1e-6),
        scheduler_ms: 1000.0 * own / pods,
        server_ms: 1000.0 * cpu.of_program("kube-apiserver") / pods,
        extender_ms: 1000.0 * cpu.of_program("extender") / pods,
        refused: trace.refused as f64 / pods,
    };
    clear(&client).await?;
    bed::until_idle(cluster, Duration::from_secs(20)).await?;
    Ok(rate)
}

/// The chart's scheduler without a limit of requests, with or without its extender.
async fn scheduler(cluster: &Cluster, variant: Variant) -> Result<Process> {
    let bed = &cluster.testbed;
    let text = std::fs::read_to_string(bed.data_dir().join("andreas-scheduler.yaml"))?;
    let mut config: Value = serde_json::from_str(&text).context("the scheduler's configuration")?;
    config["clientConnection"]["qps"] = json!(5000);
    config["clientConnection"]["burst"] = json!(10_000);
    if !variant.extender {
        config["extenders"] = json!([]);
    }
    let kubeconfig = bed.kubeconfig_for_service_account(SYSTEM, chart::scheduler_account()).await?;
    let config = SchedulerConfig::Inline(config);
    Ok(bed.spawn_scheduler("measured-scheduler", &config, &kubeconfig).await?)
}

async fn until_pods_bound(trace: &mut Trace, shape: &Shape, limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        trace.read()?;
        if trace.pods.len() >= shape.pods {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{} of {} pods bound", trace.pods.len(), shape.pods);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Removes all pods at once: there are no kubelets to ask.
async fn clear(client: &kube::Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete_collection(&now, &ListParams::default()).await?;
    while !pods.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
