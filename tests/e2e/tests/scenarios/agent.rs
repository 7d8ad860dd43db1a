//! Node agents on a real cluster, as the chart installs them: rest and wake, measured energy, and what is left when somebody dies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use andreas_api::gpu_node::GpuCondition;
use andreas_api::phase::Phase;
use andreas_api::slim::SlimGpuNode;
use andreas_e2e::api::{patch_status, yaml};
use andreas_e2e::cluster::{A100, Cluster, Options, a100, short_runs};
use andreas_e2e::install;
use andreas_e2e::job::{job, measured, profile};
use andreas_e2e::keeper::at_full_length;
use andreas_e2e::nodes::client;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::tenant::{at_least, silent_connections};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const NODE: &str = "a100-0";
const AGENTS: &str = "andreas-node";
/// For longer than it takes a kubelet to find by three probes that an agent is not Ready, and [`MOMENT`].
const PROBES: Duration = Duration::from_secs(80);
/// An agent that is not Ready for longer has missed three probes more.
const MOMENT: Duration = Duration::from_secs(40);
/// How long a GPU may stay changed after whoever should give it back has died.
const MINUTE: Duration = Duration::from_secs(60);

/// One node of four GPUs, whose idle ones rest soon; the chart is installed with its defaults.
fn one_node(placement_timeout: &str) -> Options {
    let mut policy = short_runs();
    policy["placementTimeout"] = json!(placement_timeout);
    policy["rest"] = json!({"mode": "On", "after": "1s"});
    Options {
        name: "agent".into(),
        groups: vec![a100(1)],
        policy,
        install: Some(json!({})),
        gpus_kept_busy: true,
        ..Options::default()
    }
}

fn gpu_nodes(c: &Cluster) -> Api<SlimGpuNode> {
    Api::all(c.testbed.client())
}

async fn gpu_node(c: &Cluster) -> Result<SlimGpuNode> {
    Ok(gpu_nodes(c).get(NODE).await?)
}

/// By the driver: UUIDs of the GPUs that are not as it has them by default, and what all have drawn, J.
async fn driver(c: &Cluster) -> Result<(Vec<String>, f64)> {
    let nodes = client(&c.testbed).nodes().await?;
    let node = nodes.into_iter().find(|node| node.name == NODE).context("the node")?;
    ensure!(node.hardware.len() == 4, "{:?}", node.hardware);
    let joules = node.hardware.iter().map(|gpu| gpu.joules).sum();
    Ok((node.hardware.into_iter().filter(|gpu| !gpu.at_defaults).map(|gpu| gpu.uuid).collect(), joules))
}

async fn all_rest(c: &Cluster) -> Result<Duration> {
    until("all GPUs rest", DEFAULT_TIMEOUT, async || Ok(driver(c).await?.0.len() == 4)).await
}

async fn restored(c: &Cluster, after: &str) -> Result<()> {
    let took =
        until(&format!("restored after {after}"), MINUTE, async || Ok(driver(c).await?.0.is_empty())).await?;
    println!("restored {took:?} after {after}");
    Ok(())
}

/// Given somebody who holds more connections than there are places on an agent's ports, and says nothing; when a job comes, then its GPUs
/// are woken for it, and for longer than three probes take the agent is Ready, but for moments, and is not restarted.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_on_an_agents_ports_keep_it_from_nothing() -> Result<()> {
    scenario(one_node("20s"), async |c| {
        all_rest(c).await?;
        let pods = c.machines.pods().await?;
        let agent =
            pods.iter().find(|pod| pod.name.starts_with("andreas-node-agent-")).context("an agent")?;
        let (mut attackers, opened) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        let (mut leases, count) = (Vec::new(), if at_full_length() { 2_000 } else { 400 });
        for port in [9090, 9091] {
            let (address, lease) = c.machines.reach(SocketAddr::new(agent.ip.parse()?, port)).await?;
            silent_connections(&mut attackers, address, count, &opened);
            leases.extend(lease);
        }
        at_least(&opened, 2 * count, "silent connections", DEFAULT_TIMEOUT).await?;
        let began = Instant::now();
        let tj = job("woken").gpus(4, 1).epochs(4, 0.3);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let mut ready = Instant::now();
        while began.elapsed() < PROBES {
            let select = "app.kubernetes.io/component=agent";
            let pods = c.kubectl(&format!("get pods -n {AGENTS} -l {select} -o json")).await?;
            let pods: Value = serde_json::from_str(&pods)?;
            let containers =
                pods["items"][0]["status"]["containerStatuses"].as_array().context("containers")?;
            let first = |one: &Value| one["restartCount"] == 0;
            ensure!(!containers.is_empty() && containers.iter().all(first), "{containers:?}");
            // On a busy machine the kubelet may answer an agent late, which is then not ready for a probe.
            if containers.iter().all(|one| one["ready"] == true) {
                ready = Instant::now();
            }
            ensure!(ready.elapsed() < MOMENT, "{containers:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        attackers.shutdown().await;
        Ok(())
    })
    .await
}

/// Given a node whose GPUs rest; when a job gets two of them, then they are awake before its pods are made, what it used is what the
/// GPUs' counters say, and they rest again.
#[tokio::test(flavor = "multi_thread")]
async fn gpus_wake_for_a_job_and_what_it_used_is_measured() -> Result<()> {
    // GPUs that were woken and not taken stay awake for so long, and the drivers are asked meanwhile.
    scenario(one_node("30s"), async |c| {
        until("the agent reports", DEFAULT_TIMEOUT, async || {
            let status = gpu_node(c).await?.status.unwrap_or_default();
            Ok(status.gpus.len() == 4 && status.agent_version.is_some())
        })
        .await?;
        it_writes_only_its_own(c).await?;
        all_rest(c).await?;

        let (_, before) = driver(c).await?;
        let tj = job("two").profile("two").gpus(2, 1).epochs(20, 0.5);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let (changed, _) = driver(c).await?;
        ensure!(changed.is_empty(), "a GPU rests beside a job that has just begun");
        let awake = gpu_node(c).await?;
        let acknowledged = awake.status.clone().unwrap_or_default().observed_wake_generation;
        ensure!(awake.spec.wake_generation > 0 && acknowledged == awake.spec.wake_generation, "{awake:?}");
        woken_before_made(c)?;

        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let key = tj.key();
        c.observer
            .until("its energy is measured", DEFAULT_TIMEOUT, |seen| {
                seen.status(&key).consumption.is_some_and(|total| total.source == "Measured")
            })
            .await?;
        let status = c.observer.seen().status(&key);
        let (record, total) = (&status.history[0], status.consumption.clone().unwrap_or_default());
        let released = gpu_node(c).await?.status.unwrap_or_default().released;
        let (_, after) = driver(c).await?;
        ensure!(
            released.len() == 1 && released[0].gpus == 2 && released[0].joules == record.joules,
            "{released:?} {record:?}"
        );
        ensure!(record.measured && total.joules == record.joules, "{record:?} {total:?}");
        // No more than all four GPUs drew meanwhile, and as only GPUs at work draw.
        let drawn = after - before;
        ensure!(record.joules > 1_000 && (record.joules as f64) < drawn, "{record:?}, drawn {drawn} J");
        until("the profile has a measured draw", DEFAULT_TIMEOUT, async || {
            // It is made with the first lesson, up to a second after the run.
            let profile = c.kubectl("get trainingprofile two -o json").await.unwrap_or_default();
            let profile: Value = serde_json::from_str(&profile).unwrap_or_default();
            Ok(profile["status"]["observations"][0]["watts"].as_i64().is_some_and(|watts| watts > 200))
        })
        .await?;
        all_rest(c).await?;

        // When agents are taken off the node in order, then everything is restored and nobody waits for them any more.
        let away = "{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"nobody\":\"here\"}}}}}";
        c.kubectl(&format!("patch daemonset andreas-node-agent -n {AGENTS} --type merge -p {away}")).await?;
        restored(c, "the agent ended in order").await?;
        until("it has said so", DEFAULT_TIMEOUT, async || {
            let gone = gpu_node(c).await?.status.unwrap_or_default();
            Ok(gone.agent_version.is_none() && gone.conditions[0].reason == "AgentEnded")
        })
        .await?;
        let next = job("next").gpus(1, 1);
        c.submit(&next).await?;
        c.wait_for_phase(&next, Phase::Succeeded).await?;
        let predicted = c.observer.seen().status(&next.key()).consumption.unwrap_or_default();
        ensure!(predicted.source == "Predicted", "{predicted:?}");
        Ok(())
    })
    .await
}

/// Under the chart's rights and policies, with a token as its pod has it.
async fn it_writes_only_its_own(c: &Cluster) -> Result<()> {
    let pods = install::pods(&c.testbed).await?;
    let pod = pods.iter().find_map(|pod| pod.strip_prefix("andreas-node/")).context("an agent's pod")?;
    let token = format!(
        "create token andreas-node-agent -n {AGENTS} --bound-object-kind=Pod --bound-object-name={pod}"
    );
    let token = c.kubectl(&token).await?;
    let account = c.testbed.kubeconfig_for_service_account(AGENTS, "andreas-node-agent").await?;
    let mut kubeconfig = yaml(&std::fs::read_to_string(&account)?)?;
    kubeconfig["users"][0]["user"] = json!({"token": token.trim()});
    let path = c.testbed.data_dir().join("agent.kubeconfig");
    std::fs::write(&path, kubeconfig.to_string())?;
    let client = c.testbed.client_for(&path).await?;

    let other = json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "elsewhere"}, "spec": {}});
    c.apply(&other).await?;
    let refusal =
        patch_status(&client, &other, &json!({"status": {"observedWakeGeneration": 1}})).await?.refused()?;
    ensure!(refusal.message.contains("only the agent on node elsewhere"), "{}", refusal.message);
    let wake = Patch::Merge(json!({"spec": {"wakeGeneration": 1}}));
    let refused = Api::<SlimGpuNode>::all(client).patch(NODE, &PatchParams::default(), &wake).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403), "{refused:?}");
    Ok(())
}

/// By the audit log: the wake was asked for and acknowledged before the operator made a pod, and no status was written while GPUs woke.
fn woken_before_made(c: &Cluster) -> Result<()> {
    let (mut asked, mut acknowledged, mut made) = (None, None, None);
    let (mut wakes, mut written) = (Vec::new(), Vec::new());
    for event in c.testbed.audit_log()? {
        let event = event?;
        let (object, account) =
            (&event.object_ref, event.user.username.rsplit(':').next().unwrap_or_default());
        if !(200..300).contains(&event.code()) {
            continue;
        }
        let place =
            match (object.resource.as_str(), object.subresource.as_str(), event.verb.as_str(), account) {
                ("gpunodes", "", "patch", "andreas-operator") => {
                    wakes.push(event.stage_timestamp.clone());
                    &mut asked
                }
                ("gpunodes", "status", "patch", "andreas-node-agent") if asked.is_some() => &mut acknowledged,
                ("pods", "", "create", "andreas-operator") if !event.request_uri.contains("dryRun") => {
                    &mut made
                }
                ("trainingjobs", "status", ..) => {
                    written.push(event.stage_timestamp.clone());
                    continue;
                }
                _ => continue,
            };
        place.get_or_insert(event.stage_timestamp.clone());
    }
    // RFC 3339 in UTC with microseconds sorts as text.
    let in_order = asked.is_some() && asked < acknowledged && acknowledged < made;
    ensure!(in_order, "asked {asked:?}, acknowledged {acknowledged:?}, made {made:?}");
    // Other settings of the node may have been changed earlier.
    let wake = wakes.iter().filter(|at| Some(*at) < made.as_ref()).max();
    written.retain(|at| wake < Some(at) && Some(at) < made.as_ref());
    ensure!(written.is_empty(), "written while GPUs woke: {written:?}, asked {wake:?}, made {made:?}");
    Ok(())
}

/// Given a policy that sets power limits and a profile whose draw is known; when a job of it runs, then its GPUs have
/// the limit that was planned and draw no more; when the policy sets none any more, then they have it no longer, and
/// the job runs on.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_power_limit_is_set_and_lifted_under_a_running_job() -> Result<()> {
    let mut options = one_node("15s");
    options.policy["limits"] = json!("On");
    // Energy is what this job costs: no deadline, and a price at which a watt is worth more than a second.
    options.policy["prices"] = json!({"energyPerKWh": "100"});
    scenario(options, async |c| {
        until("the agent says which limits its GPUs take", DEFAULT_TIMEOUT, async || {
            let gpus = gpu_node(c).await?.status.unwrap_or_default().gpus;
            Ok(gpus.len() == 4 && gpus.iter().all(|gpu| gpu.min_limit_watts < gpu.max_limit_watts))
        })
        .await?;
        c.apply(&profile("known", &[measured(A100, 2, 1_000, 760)])).await?;
        let tj = job("thrifty").gpus(2, 1).epochs(100, 1.0).profile("known");
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let allocation = |c: &Cluster| c.observer.seen().status(&tj.key()).allocation;
        let planned = allocation(c).context("an allocation")?;
        let limit = planned.power_limit_watts.context("a limit is worth it")?;
        ensure!(limit < 400 && planned.watts <= 2 * limit, "{planned:?}");
        let hardware = async || -> Result<Vec<(f64, f64)>> {
            let nodes = client(&c.testbed).nodes().await?;
            let node = nodes.into_iter().find(|node| node.name == NODE).context("the node")?;
            Ok(node.hardware.iter().map(|gpu| (gpu.limit_watts, gpu.watts)).collect())
        };
        let at_work = |(_, watts): &&(f64, f64)| *watts > 100.0;
        until("both GPUs have the limit and obey it", DEFAULT_TIMEOUT, async || {
            let gpus = hardware().await?;
            let at_work: Vec<_> = gpus.iter().filter(at_work).collect();
            let obeys = |gpu: &&(f64, f64)| gpu.0 == f64::from(limit) && gpu.1 <= f64::from(limit) + 1.0;
            Ok(at_work.len() == 2 && at_work.iter().all(obeys))
        })
        .await?;

        c.kubectl("patch energypolicy default --type merge -p {\"spec\":{\"limits\":\"Off\"}}").await?;
        until("no GPU that works is limited", DEFAULT_TIMEOUT, async || {
            let gpus = hardware().await?;
            let at_work: Vec<_> = gpus.iter().filter(at_work).collect();
            Ok(at_work.len() == 2 && at_work.iter().all(|gpu| gpu.0 > f64::from(limit)))
        })
        .await?;
        // The GPUs may be free of it before that is recorded.
        until("the allocation has no limit", DEFAULT_TIMEOUT, async || {
            let now = allocation(c).context("an allocation")?;
            ensure!(now.generation == planned.generation, "{now:?}");
            Ok(now.power_limit_watts.is_none())
        })
        .await?;
        c.observer.until("it ended", 2 * DEFAULT_TIMEOUT, |s| s.phase(&tj.key()) == Phase::Succeeded).await?;
        // Two limits, one pace: it is of neither.
        let profile: Value = serde_json::from_str(&c.kubectl("get trainingprofile known -o json").await?)?;
        ensure!(profile["status"]["observations"].as_array().is_none_or(Vec::is_empty), "{profile}");
        Ok(())
    })
    .await
}

/// Given a node whose GPUs rest; when agent, setter, both, or the operator's leader goes, then all GPUs are as they were
/// within a minute; and a GPU that hangs keeps no other from waking.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_killed_gpus_are_as_they_were_within_a_minute() -> Result<()> {
    scenario(one_node("5s"), async |c| {
        let kill = async |container: &str| -> Result<()> {
            ensure!(
                install::kill(&*c.machines, "andreas-node-agent-", container).await? == 1,
                "no {container}"
            );
            Ok(())
        };
        all_rest(c).await?;
        kill("agent").await?;
        restored(c, "the agent was killed").await?;

        all_rest(c).await?;
        let works =
            if at_work(c, "setter")? > at_work(c, "setter-standby")? { "setter" } else { "setter-standby" };
        kill(works).await?;
        restored(c, "the setter that works was killed").await?;

        all_rest(c).await?;
        for container in ["agent", "setter", "setter-standby"] {
            kill(container).await?;
        }
        restored(c, "agent and both setters were killed").await?;

        all_rest(c).await?;
        let hangs = driver(c).await?.0[0].clone();
        client(&c.testbed).gpu_hang(NODE, &hangs).await?;
        let order =
            Patch::Merge(json!({"spec": {"wakeGeneration": gpu_node(c).await?.spec.wake_generation + 1}}));
        gpu_nodes(c).patch(NODE, &PatchParams::default(), &order).await?;
        let took =
            until("the others wake", DEFAULT_TIMEOUT, async || Ok(driver(c).await?.0 == [hangs.clone()]))
                .await?;
        println!("three GPUs awake {took:?} after a wake, beside one that hangs");
        until("it is told", DEFAULT_TIMEOUT, async || {
            let gpus = gpu_node(c).await?.status.unwrap_or_default().gpus;
            Ok(gpus.iter().any(|gpu| gpu.uuid == hangs && gpu.state == GpuCondition::Unhealthy))
        })
        .await?;
        client(&c.testbed).gpu_heal(NODE, &hangs).await?;

        all_rest(c).await?;
        c.kubectl("scale deployment andreas-operator -n andreas-system --replicas=0").await?;
        restored(c, "nobody led any more").await?;

        c.kubectl("scale deployment andreas-operator -n andreas-system --replicas=1").await?;
        all_rest(c).await?;
        install::uninstall(&c.testbed).await?;
        restored(c, "the chart was uninstalled").await
    })
    .await
}

/// How often a setter's container has begun to serve, by its log.
fn at_work(c: &Cluster, container: &str) -> Result<usize> {
    let mut folders = vec![c.testbed.data_dir().join("kubelets/logs").join(AGENTS)];
    let mut times = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let of_it = path
                .components()
                .any(|part| part.as_os_str().to_string_lossy().trim_end_matches(".log") == container);
            if path.is_dir() {
                folders.push(path);
            } else if of_it {
                times += std::fs::read_to_string(&path)?.matches("serving the agent").count();
            }
        }
    }
    Ok(times)
}
