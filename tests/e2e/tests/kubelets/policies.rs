//! NetworkPolicies in force: those of the chart, and of a tenant that denies by default.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use andreas_api::phase::{Phase, Reason};
use andreas_e2e::chart::{self, SYSTEM};
use andreas_e2e::cluster::Cluster;
use andreas_e2e::install;
use andreas_e2e::job::job;
use andreas_e2e::keeper::at_full_length;
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::gangs::{ended_well, small};
use crate::{nodes, real};

const LIMIT: Duration = Duration::from_secs(120);

/// The agents' namespace.
const AGENTS: &str = "andreas-node";

/// A port that no program here takes.
const FREE_PORT: u16 = 29_600;

/// Longer than a program may say nothing before its job's status says so.
const NO_REPORT: Duration = Duration::from_secs(660);

/// A process in the network of a pod whose name begins so.
fn process_of(c: &Cluster, pod: &str) -> Result<i32> {
    let pods = nodes(c)?.pod_infos();
    let found = pods.iter().find(|one| one.name.starts_with(pod) && !one.pids.is_empty());
    found.and_then(|one| one.pids.values().next()).copied().with_context(|| format!("no process of {pod}"))
}

/// Listens in a pod's network for as long as it is kept: a connection that is refused for want of a listener would say nothing of policies.
/// A socket stays in the network that it was made in, so that a thread goes there for it.
fn listen_in(c: &Cluster, pod: &str) -> Result<TcpListener> {
    let network = File::open(format!("/proc/{}/ns/net", process_of(c, pod)?))?;
    let made = std::thread::spawn(move || -> std::io::Result<TcpListener> {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, FREE_PORT))
    });
    made.join().map_err(|_| anyhow!("the listener's thread"))?.with_context(|| format!("listening in {pod}"))
}

/// Whether a connection can be opened from a pod's network.
async fn reaches(c: &Cluster, from: &str, address: &str, port: u16) -> Result<bool> {
    let pid = process_of(c, from)?;
    let open = format!("exec 3<>/dev/tcp/{address}/{port}");
    let mut command = tokio::process::Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--net", "--", "timeout", "2", "bash", "-c", &open]);
    Ok(command.output().await.context("running nsenter")?.status.success())
}

/// Waits until such a connection can be opened: on a busy machine one try may be too slow.
async fn opens(c: &Cluster, from: &str, address: &str, port: u16) -> Result<()> {
    let open = async || reaches(c, from, address, port).await;
    until(&format!("{from} reaches {address}:{port}"), LIMIT, open).await?;
    Ok(())
}

/// The address of the one pod with such labels.
async fn address(c: &Cluster, namespace: &str, labels: &str) -> Result<String> {
    let columns = "-o=jsonpath={.items[0].status.podIP}";
    let found = c.kubectl(&format!("get pods -n {namespace} -l {labels} {columns}")).await?;
    ensure!(!found.is_empty(), "no pod {labels} in {namespace}");
    Ok(found)
}

/// A field of the status of each of our containers, of those of the agents too.
async fn of_our_containers(c: &Cluster, field: &str) -> Result<String> {
    let columns = format!("-o=jsonpath={{.items[*].status.containerStatuses[*].{field}}}");
    let mut values = Vec::new();
    for namespace in [SYSTEM, AGENTS] {
        values.push(c.kubectl(&format!("get pods -n {namespace} {columns}")).await?);
    }
    Ok(values.join(" "))
}

fn namespaced(manifest: &str, namespace: &str) -> Result<Value> {
    let file = Path::new(&chart::folder()).join("../../deploy/examples").join(manifest);
    let mut object: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
    object["metadata"]["namespace"] = json!(namespace);
    Ok(object)
}

/// Given the chart's NetworkPolicies with metrics for one namespace alone, and a tenant whose namespace denies everything; when policies
/// are enforced, then probes, plans, binds and reports go on, a pod of a tenant no longer reaches the metrics, a taken-over operator
/// reaches no pod of a tenant, and jobs of the closed namespace report once the example is applied, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn where_network_policies_are_enforced_jobs_report_and_what_they_close_is_closed() -> Result<()> {
    scenario(real(2), async |c| {
        let api_server = c.testbed.api_server_url().rsplit_once(':').context("a port")?.1.to_owned();
        let api_server: u16 = api_server.trim_end_matches('/').parse()?;
        let monitoring =
            json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}});
        let values =
            json!({"networkPolicy": {"apiServerPorts": [443, api_server], "metricsFrom": [monitoring]}});
        install::upgrade_to(&c.testbed, &chart::folder(), &values).await?;

        // before they are enforced, a pod reaches everything that listens
        let bystander = small(job("bystander").epochs(2_000, 0.5));
        c.submit(&bystander).await?;
        c.wait_for_percent(&bystander, 0).await?;
        c.wait_for_phase(&bystander, Phase::Running).await?;
        let operator = address(c, SYSTEM, "app.kubernetes.io/component=operator").await?;
        let agent = address(c, AGENTS, "app.kubernetes.io/component=agent").await?;
        let dns = address(c, "kube-system", "k8s-app=kube-dns").await?;
        for (to, port) in [(&operator, 8443), (&operator, 9090), (&agent, 9090), (&dns, 8080)] {
            opens(c, "bystander", to, port).await?;
        }
        opens(c, "andreas-operator", &dns, 8080).await?;

        // when they are
        c.kubectl("create namespace monitoring").await?;
        c.make_namespace("team").await?;
        c.apply(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "deny", "namespace": "team"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        }))
        .await?;
        let restarted = of_our_containers(c, "restartCount").await?;
        let _enforcer = nodes(c)?.enforce_network_policies(&c.testbed);
        until("the metrics are closed", LIMIT, async || Ok(!reaches(c, "bystander", &operator, 9090).await?))
            .await?;
        // then what they close is closed, and what they allow is open
        ensure!(!reaches(c, "bystander", &agent, 9090).await?, "an agent's metrics are open to a tenant");
        ensure!(!reaches(c, "andreas-operator", &dns, 8080).await?, "the operator reaches more than DNS");
        opens(c, "andreas-operator", &dns, 53).await?;
        opens(c, "bystander", &operator, 8443).await?;
        // and workers in their node's network report too, wherever they are
        for node in nodes(c)?.nodes() {
            let open = format!("exec 3<>/dev/tcp/{operator}/8443");
            node.run(&["timeout", "20", "bash", "-c", &open]).await?;
        }
        let own = small(job("host").epochs(20, 0.5)).pod("hostNetwork", json!(true));
        let own = own.pod("dnsPolicy", json!("ClusterFirstWithHostNet"));
        c.submit(&own).await?;
        c.wait_for_percent(&own, 10).await?;
        c.wait_for_phase(&own, Phase::Succeeded).await?;
        ended_well(c, &own)?;

        // when the closed namespace has a job without the example, nothing is heard of it though it runs
        let silent = small(job("silent").namespace("team").epochs(1_500, 0.5));
        c.submit(&silent).await?;
        c.wait_for_phase(&silent, Phase::Running).await?;
        let before = c.observer.seen().milli_percent(&bystander.key());
        let key = bystander.key();
        c.observer.until("others report", LIMIT, |seen| seen.milli_percent(&key) > before).await?;
        let received = c.observer.seen().status(&silent.key()).progress;
        ensure!(received.is_none(), "it reported: {received:?}");
        ensure!(!reaches(c, "silent", &operator, 8443).await?, "the namespace is open");
        if at_full_length() {
            let key = silent.key();
            let said =
                |seen: &andreas_e2e::seen::ClusterHistory| seen.has_reason(&key, Reason::ProgressUnknown);
            c.observer.until("the status says so", NO_REPORT, said).await?;
        }
        c.kubectl("delete tj silent -n team").await?;

        // when the example is applied, a gang over two nodes meets and reports
        let mut example = namespaced("07-tenant-network-policy.yaml", "team")?;
        example["metadata"]["name"] = json!("training");
        c.apply(&example).await?;
        let gang = small(job("gang").namespace("team").gpus(6, 2).epochs(2_000, 0.5));
        c.submit(&gang).await?;
        c.wait_for_percent(&gang, 1).await?;
        opens(c, "gang-1-0", &operator, 8443).await?;
        ensure!(!reaches(c, "gang-1-0", &operator, 9090).await?, "a worker reaches the operator's metrics");
        // and its workers are open to each other alone
        let worker = address(c, "team", "andreas.dev/index=0").await?;
        let listener = listen_in(c, "gang-1-0")?;
        opens(c, "gang-1-1", &worker, FREE_PORT).await?;
        ensure!(!reaches(c, "bystander", &worker, FREE_PORT).await?, "open to another namespace");
        drop(listener);
        c.kubectl("delete tj gang -n team").await?;
        // and one that is short ends well
        let short = small(job("short").namespace("team").gpus(6, 2).epochs(10, 0.5));
        c.submit(&short).await?;
        c.wait_for_phase(&short, Phase::Succeeded).await?;
        ended_well(c, &short)?;
        // and the kubelet's probes reached ours meanwhile: six that fail start a container again, and after three it is not ready
        let now = of_our_containers(c, "restartCount").await?;
        ensure!(now == restarted, "containers were started again: {restarted}, now {now}");
        let ready = async || Ok(!of_our_containers(c, "ready").await?.contains("false"));
        until("each of our containers is ready", LIMIT, ready).await?;
        c.kubectl("delete tj bystander").await.map(drop)
    })
    .await
}
