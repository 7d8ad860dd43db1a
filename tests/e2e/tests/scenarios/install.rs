//! The chart as a platform team uses it: installed, upgraded, rolled back and uninstalled by helm on a real API server,
//! its pods run by the pretend kubelets with their arguments, tokens, secrets, mounts and probes.

use std::collections::BTreeSet;
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100, short_runs};
use andreas_e2e::install;
use andreas_e2e::job::{Job, job};
use andreas_e2e::pages;
use andreas_e2e::scenario::scenario;
use andreas_e2e::scrape::{self, Scrape};
use andreas_e2e::seen::ClusterHistory;
use andreas_test_nodes::{Gpu, GpuHardware};
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

fn two_of_each() -> Value {
    json!({"operator": {"replicas": 2}, "scheduler": {"replicas": 2}})
}

fn options(values: Value) -> Options {
    let mut policy = short_runs();
    policy["rest"] = json!({"mode": "On", "after": "3s"});
    let groups = vec![a100(2)];
    let install = Some(values);
    Options { name: "install".into(), groups, install, policy, gpus_kept_busy: true, ..Options::default() }
}

/// Waits until the drivers of the nodes' GPUs say so.
async fn gpus(c: &Cluster, what: &str, mut holds: impl FnMut(&Gpu, &GpuHardware) -> bool) -> Result<()> {
    let nodes = andreas_e2e::nodes::client(&c.testbed);
    // A killed agent's settings end after its time to live, 30 s, and a look; a container that was killed again and again is started
    // after 10, 20, 40 s.
    let limit = Duration::from_secs(180);
    let mut last = String::new();
    let all_hold = async || {
        let seen = nodes.nodes().await?;
        let all = seen.iter().flat_map(|node| node.gpus.iter().zip(&node.hardware));
        let wrong: Vec<_> = all.filter(|(gpu, hardware)| !holds(gpu, hardware)).collect();
        last = format!("{wrong:?}");
        Ok(wrong.is_empty() && seen.iter().any(|node| !node.hardware.is_empty()))
    };
    let waited = until(what, limit, all_hold).await;
    waited.with_context(|| format!("{last}\n{}", c.logs()))?;
    Ok(())
}

fn rests(gpu: &Gpu, hardware: &GpuHardware) -> bool {
    gpu.holder.is_some() == hardware.at_defaults
}

fn at_defaults(_: &Gpu, hardware: &GpuHardware) -> bool {
    hardware.at_defaults
}

/// Each GPU was as its driver has it by default in one of the looks, whichever: nodes do not wait for each other.
fn once_at_defaults() -> impl FnMut(&Gpu, &GpuHardware) -> bool {
    let mut seen = BTreeSet::new();
    move |_, hardware| {
        if hardware.at_defaults {
            seen.insert(hardware.uuid.clone());
        }
        seen.contains(&hardware.uuid)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_rest_idle_gpus_and_leave_none_slow_however_they_end() -> Result<()> {
    scenario(options(json!({})), async |c| {
        // given agents on every GPU node, and no job: all GPUs rest
        gpus(c, "at rest", rests).await?;
        // then a job's GPUs are awake when its pod starts, and the others rest on
        let tj = job("work").gpus(2, 1).epochs(400, 0.5);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        let nodes = andreas_e2e::nodes::client(&c.testbed);
        let seen = nodes.nodes().await?;
        let held = seen.iter().flat_map(|node| node.gpus.iter().zip(&node.hardware));
        let held: Vec<_> = held.filter(|(gpu, _)| gpu.holder.is_some()).collect();
        ensure!(held.len() == 2 && held.iter().all(|(gpu, hardware)| rests(gpu, hardware)), "{held:?}");
        gpus(c, "at rest but for the job's", rests).await?;
        // when setters, agents, or both are killed, then the GPUs get their defaults back, and rest again when all are back. An agent that
        // was not killed has its settings made again within a second, too soon for everybody to see it: `agent::` does, on one node
        for containers in
            [["setter", "setter-standby"].as_slice(), &["agent"], &["agent", "setter", "setter-standby"]]
        {
            for container in containers {
                ensure!(
                    install::kill(&*c.machines, "andreas-node-agent-", container).await? == 2,
                    "{container}"
                );
            }
            if containers.contains(&"agent") {
                let what = format!("at defaults after SIGKILL of {containers:?}");
                gpus(c, &what, once_at_defaults()).await?;
            }
            gpus(c, &format!("at rest again after SIGKILL of {containers:?}"), rests).await?;
        }
        // and when the operator goes for good, its Lease ends and with it every setting
        c.kubectl("scale deployment andreas-operator --replicas=0 --namespace andreas-system").await?;
        gpus(c, "at defaults without an operator", at_defaults).await?;
        c.kubectl("scale deployment andreas-operator --replicas=1 --namespace andreas-system").await?;
        gpus(c, "at rest with an operator again", rests).await?;
        // and uninstalling leaves every GPU as it was
        install::uninstall(&c.testbed).await?;
        gpus(c, "at defaults after uninstall", at_defaults).await?;
        Ok(())
    })
    .await
}

/// The UIDs of a job's live pods.
fn live_pods(seen: &ClusterHistory, job: &Job) -> Vec<String> {
    let uid = seen.job(&job.key()).and_then(|job| job.metadata.uid.clone()).unwrap_or_default();
    seen.pods_of(&uid)
        .iter()
        .filter(|pod| pod.is_live())
        .filter_map(|pod| pod.pod.metadata.uid.clone())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_lives_from_install_to_uninstall() -> Result<()> {
    scenario(options(two_of_each()), async |c| {
        // given a release with two replicas of operator and scheduler, a gang that trains, and a finished job
        let (long, short) = (job("long").gpus(8, 2).epochs(1000, 0.5), job("short").epochs(4, 0.3));
        c.submit(&short).await?;
        c.wait_for_phase(&short, Phase::Succeeded).await?;
        c.submit(&long).await?;
        c.wait_for_percent(&long, 1).await?;
        let before = live_pods(&c.observer.seen(), &long);
        ensure!(before.len() == 2, "{before:?}");

        // when the release is upgraded, so that every pod of it is replaced, and rolled back
        let mut louder = two_of_each();
        louder["operator"]["log"] = json!("debug,kube=warn,hyper=warn,rustls=warn");
        louder["extender"] = json!({"log": "debug,kube=warn,hyper=warn,rustls=warn"});
        install::upgrade(&c.testbed, &louder).await?;
        install::rollback(&c.testbed).await?;
        // then the same training pods go on and report
        let done = c.observer.seen().milli_percent(&long.key()) / 1000;
        c.wait_for_percent(&long, done + 1).await?;
        ensure!(live_pods(&c.observer.seen(), &long) == before, "a training pod was restarted");
        let status = c.observer.seen().status(&long.key());
        ensure!((status.attempts, status.restarts) == (1, 0), "{status:?}");

        // when every container of the operator is killed, the kubelets start them again and work goes on
        ensure!(install::kill(&*c.machines, "andreas-operator-", "operator").await? == 2);
        let next = job("next").epochs(4, 0.3);
        c.submit(&next).await?;
        c.edit(&long.key(), &json!({"suspend": true})).await?;
        c.wait_for_phase(&next, Phase::Succeeded).await?;
        c.observer
            .until("the gang has left", andreas_e2e::scenario::DEFAULT_TIMEOUT, |s| {
                live_pods(s, &long).is_empty()
            })
            .await?;
        c.edit(&long.key(), &json!({"suspend": false})).await?;
        c.wait_for_phase(&long, Phase::Running).await?;

        // when the release is uninstalled, its pods go, and the jobs with their data stay
        install::uninstall(&c.testbed).await?;
        let kept = c.kubectl("get trainingjobs -o name").await?;
        ensure!(kept.lines().count() == 3, "{kept}");
        let running = live_pods(&c.observer.seen(), &long);
        ensure!(running.len() == 2, "training goes on without us: {running:?}");
        Ok(())
    })
    .await
}

/// Given the chart's own values; when each program is asked for its metrics; then those with the right alone get them.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_those_with_the_right_where_the_values_say_so() -> Result<()> {
    let values = json!({"monitoring": {"authentication": true}});
    scenario(options(values), async |c| {
        for account in ["scraper", "tenant"] {
            c.kubectl(&format!("create serviceaccount {account}")).await?;
        }
        let role = "--clusterrole=andreas-metrics-reader --serviceaccount=default:scraper";
        c.kubectl(&format!("create clusterrolebinding scraper {role}")).await?;
        c.kubectl("create rolebinding tenant --clusterrole=admin --serviceaccount=default:tenant").await?;
        let scraper = pages::token(c, "default", "scraper").await?;
        let tenant = pages::token(c, "default", "tenant").await?;
        let programs = Scrape::of(c).await?;
        let named: Vec<&str> = programs.jobs.iter().map(|program| program.name).collect();
        ensure!(named == ["andreas-operator", "andreas-extender", "andreas-node-agent"], "{named:?}");
        for program in &programs.jobs {
            let address = program.targets[0].0;
            let asked = [(None, 401), (Some("forged"), 401), (Some(tenant.as_str()), 403)];
            for (token, expected) in asked {
                let (code, text) = scrape::answer(address, token).await?;
                ensure!(code == expected && !text.contains("andreas_"), "{}: {code}: {text}", program.name);
            }
            let (code, text) = scrape::answer(address, Some(&scraper)).await?;
            ensure!(code == 200 && text.contains("andreas_"), "{}: {code}: {text}", program.name);
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_passes_lint_and_refuses_values_it_does_not_know() -> Result<()> {
    let bed = andreas_testbed::Programs::find().await?;
    let chart = andreas_e2e::chart::folder();
    let helm = |args: Vec<String>| std::process::Command::new(bed.path("helm")).args(args).output();
    let folder = chart.display().to_string();
    let lint = helm(vec!["lint".into(), "--strict".into(), folder.clone()])?;
    ensure!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
    let wrong = ["template", "andreas", &folder, "--set", "operator.replica=2"];
    let wrong = helm(wrong.map(str::to_owned).to_vec())?;
    let said = String::from_utf8(wrong.stderr).context("text")?;
    ensure!(!wrong.status.success() && said.contains("replica"), "{said}");
    Ok(())
}
