//! Machines that the plan switches off and on: operator and node-power with the chart's rights, a BMC for each machine, and pretend
//! kubelets that end and begin with its power.

use std::time::Duration;

use andreas_api::phase::{Phase, Reason};
use andreas_api::slim::SlimNodePower;
use andreas_bmc_sim::Bmc;
use andreas_e2e::chart::{POWER, SYSTEM};
use andreas_e2e::cluster::{A100, Cluster, Options, a100, short_runs};
use andreas_e2e::job::job;
use andreas_e2e::nodes::client;
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use andreas_testbed::{PortLease, Process, ProcessSpec, workspace_binary};
use anyhow::{Context as _, Result, ensure};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(300);

/// Machines with BMCs, and the program that switches them.
struct Machines {
    bmcs: Vec<(String, Bmc)>,
    boots: Vec<JoinHandle<()>>,
    _program: Process,
    _port: PortLease,
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.boots.iter().for_each(JoinHandle::abort);
    }
}

impl Machines {
    /// A NodePower for each of these nodes, of a machine that boots in a second, as was seen before.
    async fn start(cluster: &Cluster, names: &[&str]) -> Result<Self> {
        let secret = ["--from-literal=username=root", "--from-literal=password=secret"];
        let secret = [&["create", "secret", "generic", "bmc", "-n", POWER], &secret[..]].concat();
        cluster.testbed.kubectl(secret).await?.checked()?;
        let (mut bmcs, mut boots) = (Vec::new(), Vec::new());
        for name in names {
            let bmc = Bmc::start("secret").await;
            let (nodes, mut power, node) = (client(&cluster.testbed), bmc.power(), (*name).to_owned());
            boots.push(tokio::spawn(async move {
                while power.changed().await.is_ok() {
                    let on = *power.borrow();
                    let done = if on { nodes.restore_node(&node).await } else { nodes.silence(&node).await };
                    if let Err(error) = done {
                        println!("{node} does not follow its power: {error}");
                    }
                }
            }));
            let redfish =
                json!({"endpoint": bmc.endpoint(), "credentials": "bmc", "fingerprint": bmc.fingerprint()});
            cluster
                .apply(&json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "NodePower", "metadata": {"name": name},
                    "spec": {"redfish": redfish}}))
                .await?;
            let seen = json!({"status": {"boots": [2], "bootSeconds": 2}}).to_string();
            let patch = ["patch", "nodepower", name, "--subresource=status", "--type=merge", "-p", &seen];
            cluster.testbed.kubectl(patch).await?.checked()?;
            bmcs.push(((*name).to_owned(), bmc));
        }
        let port = PortLease::take()?;
        let admin = format!("127.0.0.1:{}", port.port());
        let account = cluster.testbed.kubeconfig_for_service_account(POWER, "andreas-node-power").await?;
        let spec = ProcessSpec::new("node-power", workspace_binary("andreas-node-power")?)
            .args(["--log-format", "text", "--identity", "test", "--min-on", "0", "--admin-listen", &admin])
            .args(["--operator-namespace", SYSTEM])
            .arg("--kubeconfig")
            .arg(account);
        let program = cluster.testbed.spawn(spec)?;
        program.wait_for_http(&admin, "/readyz", Duration::from_secs(120)).await?;
        Ok(Self { bmcs, boots, _program: program, _port: port })
    }

    /// How many have power.
    fn on(&self) -> usize {
        self.bmcs.iter().filter(|(_, bmc)| bmc.is_on()).count()
    }

    fn resets(&self) -> Vec<(&str, Vec<String>)> {
        self.bmcs.iter().map(|(name, bmc)| (name.as_str(), bmc.resets())).collect()
    }
}

async fn power(cluster: &Cluster, name: &str) -> Result<Value> {
    let output = cluster.testbed.kubectl(["get", "nodepower", name, "-o", "json"]).await?.checked()?;
    serde_json::from_str(&output.stdout).context("a NodePower")
}

/// Waits until so many of the machines are in a state.
async fn are_in(cluster: &Cluster, names: &[&str], state: &str, count: usize) -> Result<()> {
    let mut last = Vec::new();
    let what = format!("{count} machines are {state}");
    let looks = until(&what, LONG, async || {
        last.clear();
        for name in names {
            last.push(power(cluster, name).await?);
        }
        Ok(last.iter().filter(|power| power["status"]["state"] == state).count() == count)
    });
    let waited = looks.await;
    waited.map(drop).with_context(|| format!("{last:#?}"))
}

/// Given two machines that nobody needs, once the operator has seen the demand of half a minute; when jobs come, then both go off, one
/// of them starts for the job that waits for it by name, and the other one stays off; with `nodeSleep` off again, all start.
#[tokio::test(flavor = "multi_thread")]
async fn machines_that_nobody_needs_go_off_and_the_one_that_a_job_needs_starts() -> Result<()> {
    const NAMES: [&str; 2] = ["a100-0", "a100-1"];
    let mut policy = short_runs();
    policy["nodeSleep"] = json!({"mode": "On", "idleAfter": "5s"});
    policy["gpuTypes"] =
        json!([{"name": A100, "idleWatts": 52, "maxWatts": 400, "hostIdleWatts": 500, "hostBusyWatts": 500}]);
    let options = Options {
        name: "sleep".into(),
        groups: vec![a100(2)],
        policy: policy.clone(),
        node_power: true,
        ..Options::default()
    };
    scenario(options, async |c| {
        let machines = Machines::start(c, &NAMES).await?;
        // the account of the operator writes nothing else
        let operator = c.testbed.kubeconfig_for_service_account(SYSTEM, "andreas-operator").await?;
        let powers = Api::<SlimNodePower>::all(c.testbed.client_for(&operator).await?);
        let forged = Patch::Merge(json!({"spec": {"mode": "On"}}));
        let said = powers.patch(NAMES[0], &PatchParams::default(), &forged).await.map(drop);
        let said = said.expect_err("the operator decides nothing but what is wanted").to_string();
        ensure!(said.contains("nothing of a NodePower but spec.wanted"), "{said}");

        are_in(c, &NAMES, "Off", 2).await?;
        ensure!(machines.on() == 0, "{:?}", machines.resets());
        let nodes = c.testbed.kubectl(["get", "nodes", "-l", "nvidia.com/gpu.present=true", "-o", "name"]);
        ensure!(nodes.await?.checked()?.stdout.trim().is_empty(), "their Nodes are gone");

        let tj = job("needs-one").gpus(4, 1).epochs(4, 0.5);
        c.submit(&tj).await?;
        c.wait_for_reason(&tj, Reason::NodeStarting).await?;
        let message = c.observer.seen().message(&tj.key(), Reason::NodeStarting);
        ensure!(message.starts_with("a100-"), "{message}");
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&tj.key());
        ensure!(status.attempts == 1 && status.restarts == 0, "no start of it was lost: {status:?}");
        let started: Vec<_> = machines.resets().into_iter().filter(|(_, resets)| resets.contains(&"On".to_owned())).collect();
        ensure!(started.len() == 1, "one of them: {started:?}");
        // It goes off again.
        are_in(c, &NAMES, "Off", 2).await?;
        let forced = machines.resets().into_iter().flat_map(|(_, resets)| resets);
        let forced: Vec<String> = forced.filter(|reset| reset != "GracefulShutdown" && reset != "On").collect();
        ensure!(forced.is_empty(), "{forced:?}");

        policy["nodeSleep"] = json!({"mode": "Off"});
        c.apply(&json!({"apiVersion": "andreas.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "default"}, "spec": policy}))
            .await?;
        are_in(c, &NAMES, "On", 2).await?;
        ensure!(machines.on() == 2);
        Ok(())
    })
    .await
}
