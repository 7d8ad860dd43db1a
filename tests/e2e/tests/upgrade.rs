//! From a release before this one to this one and back, with 200 jobs that run: helm is killed half-way, and no pod of a job is
//! touched. `make long WHAT=upgrade` builds the earlier release and runs it.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use andreas_api::TrainingJob;
use andreas_api::phase::Phase;
use andreas_e2e::chart::SYSTEM;
use andreas_e2e::cluster::{A100, Cluster, Group, Options};
use andreas_e2e::install::{self, RELEASE};
use andreas_e2e::job::{Job, job};
use andreas_e2e::older::{BEFORE, Older};
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::seen::ClusterHistory;
use andreas_testbed::audit::{AuditEvent, AuditLog};
use andreas_testbed::wait::{stays, until};
use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

/// How many jobs train all the time, on one GPU each: 200, or `UPGRADE_JOBS`.
static JOBS: LazyLock<usize> =
    LazyLock::new(|| std::env::var("UPGRADE_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(200));
/// User name of the pretend kubelets.
const KUBELETS: &str = "testbed-admin";
/// What anything may take that is done to 200 jobs or 26 nodes on a machine of two cores.
const LONG: Duration = Duration::from_secs(600);

/// Room for the jobs, and one node of eight GPUs for those that come later.
fn options(older: &Older) -> Options {
    let group =
        Group { prefix: "a100-", count: JOBS.div_ceil(8) + 1, gpu: A100, gpus: 8, memory_mib: 81_920 };
    Options {
        name: "upgrade".into(),
        groups: vec![group],
        install: Some(with_agents_in_few_steps(older.values())),
        older: Some(older.clone()),
        // 200 programs that start at once on two cores take their time.
        policy: json!({"restartSeconds": 2, "defaultRunTime": "2h", "placementTimeout": "5m"}),
        ..Options::default()
    }
}

fn with_agents_in_few_steps(mut values: Value) -> Value {
    values["agent"]["updateStrategy"] =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "34%"}});
    values
}

/// More than an hour of work, of which a report every half minute tells; a hundredth, which is worth a write, takes 50 s.
fn long(name: &str) -> Job {
    job(name).epochs(250, 20.0).env("TRAINER_REPORT_SECONDS", 30)
}

/// A training pod from outside: what a restart of any kind would change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Training {
    uid: String,
    node: String,
    started: Vec<Option<Timestamp>>,
    restarts: i32,
    phase: String,
    /// Processes on the machine.
    pids: BTreeMap<String, i32>,
}

/// The pods of the long jobs, by name.
async fn training(c: &Cluster) -> Result<BTreeMap<String, Training>> {
    let api: Api<Pod> = Api::namespaced(c.testbed.client(), "default");
    let mut pids: BTreeMap<String, _> = andreas_e2e::nodes::client(&c.testbed)
        .pods()
        .await?
        .into_iter()
        .filter(|pod| !pod.ended)
        .map(|pod| (pod.uid, pod.pids))
        .collect();
    let pods = api.list(&ListParams::default()).await.context("listing the pods")?;
    let pods = pods.items.into_iter().filter(|pod| pod.name_any().starts_with("long-"));
    Ok(pods
        .map(|pod| {
            let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
            let status = pod.status.unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let begun = containers
                .iter()
                .map(|c| c.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|t| t.0));
            let training = Training {
                node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
                started: std::iter::once(status.start_time.as_ref().map(|t| t.0)).chain(begun).collect(),
                restarts: containers.iter().map(|c| c.restart_count).sum(),
                phase: status.phase.unwrap_or_default(),
                pids: pids.remove(&uid).unwrap_or_default(),
                uid,
            };
            (name, training)
        })
        .collect())
}

/// The long jobs, read as any client reads them, are where they were.
async fn jobs_run_on(c: &Cluster) -> Result<()> {
    let api: Api<TrainingJob> = Api::namespaced(c.testbed.client(), "default");
    let jobs = api.list(&ListParams::default()).await.context("listing the jobs")?;
    let long: Vec<_> = jobs.items.into_iter().filter(|job| job.name_any().starts_with("long-")).collect();
    ensure!(long.len() == *JOBS, "{} jobs", long.len());
    for job in long {
        let name = job.name_any();
        let status = job.status.with_context(|| format!("{name} has no status"))?;
        let counts = (status.attempts, status.restarts, status.user_failures, status.cluster_failures);
        ensure!(status.phase == Phase::Running && counts == (1, 0, 0, 0), "{name}: {status:?}");
    }
    let seen = c.observer.seen();
    for (key, view) in seen.jobs.iter().filter(|(key, _)| key.starts_with("default/long-")) {
        let phases: Vec<Phase> = view.phases.iter().map(|(_, phase)| *phase).collect();
        let running = phases.iter().filter(|phase| **phase == Phase::Running).count();
        ensure!(running == 1 && phases.last() == Some(&Phase::Running), "{key} went through {phases:?}");
    }
    Ok(())
}

/// Nothing of the long jobs is other than before.
async fn untouched(c: &Cluster, before: &BTreeMap<String, Training>) -> Result<()> {
    jobs_run_on(c).await?;
    let now = training(c).await?;
    for (name, pod) in before {
        let after = now.get(name);
        ensure!(after == Some(pod), "{name} was {pod:?} and is {after:?}");
    }
    ensure!(now.len() == before.len(), "{} pods where {} were", now.len(), before.len());
    Ok(())
}

/// Half of each release is left alone with the pods for some time: that is when it could touch them.
async fn stay_untouched(c: &Cluster, before: &BTreeMap<String, Training>) -> Result<()> {
    let time = Duration::from_secs(30);
    stays("training pods are untouched", time, async || untouched(c, before).await.map(|()| true)).await
}

/// Waits until a report that came after that moment is in the status of every one of these jobs; for how long.
async fn all_report(c: &mut Cluster, jobs: &[String], since: Timestamp) -> Result<u64> {
    let began = Instant::now();
    let reported =
        |seen: &ClusterHistory, key: &str| seen.status(key).progress.is_some_and(|p| p.at.0 > since);
    let every = |seen: &ClusterHistory| jobs.iter().all(|key| reported(seen, key));
    c.observer.until("every job has reported", LONG, every).await?;
    Ok(began.elapsed().as_secs())
}

/// A job that comes now runs and ends.
async fn a_new_job_runs(c: &mut Cluster, name: &str) -> Result<()> {
    let new = job(name).epochs(6, 0.5);
    c.submit(&new).await?;
    let key = new.key();
    c.observer.until(&format!("{key} Succeeded"), LONG, |seen| seen.phase(&key) == Phase::Succeeded).await
}

/// Waits until only this release's images run, or only the earlier one's: what was replaced may still be ending.
async fn only(c: &Cluster, earlier: bool) -> Result<()> {
    let images = "jsonpath={range .items[*]}{range .spec.containers[*]}{.image}{'\\n'}{end}{end}";
    let select = format!("app.kubernetes.io/instance={RELEASE}");
    let args = ["get", "pods", "--all-namespaces", "--selector", &select, "--output", images];
    let mut output = String::new();
    let only_those = async || {
        output = c.testbed.kubectl(args).await?.checked()?.stdout;
        let ours: Vec<_> = output.lines().filter(|image| image.starts_with("andreas/")).collect();
        Ok(!ours.is_empty() && ours.iter().all(|image| image.ends_with(&format!(":{BEFORE}")) == earlier))
    };
    let waited = until("one release's images alone", DEFAULT_TIMEOUT, only_those).await;
    waited.with_context(|| format!("wanted the earlier release's images: {earlier}; there are {output}"))?;
    Ok(())
}

/// What helm noted last about the release.
async fn noted(c: &Cluster) -> Result<String> {
    let output = c.testbed.helm(["status", RELEASE, "--namespace", SYSTEM, "--output", "json"]).await?;
    let status: Value = serde_json::from_str(&output.checked()?.stdout)?;
    Ok(status["info"]["status"].as_str().unwrap_or_default().to_owned())
}

fn is_write_of_helm(event: &AuditEvent) -> bool {
    event.user_agent.starts_with("Helm/")
        && ["create", "update", "patch", "delete"].contains(&event.verb.as_str())
        && !event.request_uri.contains("dryRun")
        && (200..300).contains(&event.code())
}

/// Runs helm and kills it right after its first write of such an object; how many writes it had made.
async fn killed_half_way(c: &Cluster, args: &[String], resource: &str) -> Result<usize> {
    let mut log = c.testbed.audit_log()?.skip_to_end()?;
    let seen = async {
        let mut writes = 0;
        loop {
            for event in log.by_ref() {
                let event = event?;
                if is_write_of_helm(&event) {
                    writes += 1;
                    if event.object_ref.resource == resource {
                        return anyhow::Ok(writes);
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    // The one that loses is dropped, and a dropped helm gets SIGKILL.
    tokio::select! {
        ended = c.testbed.helm(args) => bail!("helm ended before it wrote {resource}: {:?}", ended?),
        writes = seen => writes,
    }
}

/// Writes to pods of long jobs from there on by others than the kubelets: there must be none.
fn nobody_wrote_to_pods(log: AuditLog) -> Result<()> {
    let mut writes = Vec::new();
    for event in log {
        let event = event?;
        let object = &event.object_ref;
        let pod = object.resource == "pods" && object.namespace == "default";
        let named =
            object.name.starts_with("long-") || object.name.is_empty() && event.verb == "deletecollection";
        let reads = ["get", "list", "watch"].contains(&event.verb.as_str());
        let made = event.verb == "create" && object.subresource.is_empty();
        let by_kubelet = object.subresource == "status" && event.user.username == KUBELETS;
        if pod && named && !reads && !made && !by_kubelet {
            writes.push(format!(
                "{} {}/{} by {} ({}): {}",
                event.verb,
                object.name,
                object.subresource,
                event.user.username,
                event.user_agent,
                event.code()
            ));
        }
    }
    ensure!(
        writes.is_empty(),
        "{} writes to training pods: {:#?}",
        writes.len(),
        &writes[..writes.len().min(10)]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn running_jobs_see_nothing_of_an_upgrade_and_of_the_way_back() -> Result<()> {
    let older = Older::find()?;
    scenario(options(&older), async |c| there_and_back(c).await).await
}

async fn there_and_back(c: &mut Cluster) -> Result<()> {
    let began = Instant::now();
    let say = |what: &str| println!("{:6.1} s  {what}", began.elapsed().as_secs_f64());

    // given 200 jobs that the earlier release runs
    only(c, true).await?;
    let mut jobs = Vec::new();
    for index in 0..*JOBS {
        let job = long(&format!("long-{index:03}"));
        c.submit(&job).await?;
        jobs.push(job.key());
    }
    let all_run = |seen: &ClusterHistory| jobs.iter().all(|key| seen.phase(key) == Phase::Running);
    c.observer.until("all jobs run", LONG, all_run).await?;
    say(&format!("{} jobs run under the earlier release", *JOBS));
    all_report(c, &jobs, Timestamp::MIN).await?;
    let log = c.testbed.audit_log()?.skip_to_end()?;
    let before = training(c).await?;
    ensure!(before.len() == *JOBS && before.values().all(|pod| !pod.pids.is_empty()), "{before:?}");

    // when helm is killed half-way through the upgrade, the jobs run on with one half of each release
    let values = with_agents_in_few_steps(json!({}));
    let args = install::upgrade_args(&c.testbed, &andreas_e2e::chart::folder(), &values)?;
    let writes = killed_half_way(c, &args, "daemonsets").await?;
    ensure!(noted(c).await? == "pending-upgrade", "{}", noted(c).await?);
    say(&format!("helm upgrade was killed after {writes} writes"));
    stay_untouched(c, &before).await?;

    // then helm refuses to go on until its record of the upgrade is gone, and then upgrades
    let refused = c.testbed.helm(&args).await?;
    ensure!(!refused.success() && refused.stderr.contains("another operation"), "{refused:?}");
    let forget = format!(
        "delete secret --namespace {SYSTEM} --selector owner=helm,name={RELEASE},status=pending-upgrade"
    );
    c.kubectl(&forget).await?;
    install::upgrade_to(&c.testbed, &andreas_e2e::chart::folder(), &values).await?;
    let upgraded = Timestamp::now();
    say("upgraded");
    only(c, false).await?;
    untouched(c, &before).await?;
    // and the new release reads them, hears of them and plans
    a_new_job_runs(c, "after-the-upgrade").await?;
    let waited = all_report(c, &jobs, upgraded).await?;
    say(&format!("a new job ran, and all jobs reported to this release {waited} s after"));
    untouched(c, &before).await?;
    // and one more that stays
    let meanwhile = long("meanwhile");
    c.submit(&meanwhile).await?;
    c.wait_for_phase(&meanwhile, Phase::Running).await?;
    jobs.push(meanwhile.key());

    // when it is rolled back, and helm is killed half-way through that as well
    let args = ["rollback", RELEASE, "1", "--namespace", SYSTEM, "--force-conflicts"].map(str::to_owned);
    let writes = killed_half_way(c, &args, "daemonsets").await?;
    ensure!(noted(c).await? == "pending-rollback", "{}", noted(c).await?);
    say(&format!("helm rollback was killed after {writes} writes"));
    stay_untouched(c, &before).await?;
    // then the same command goes on by itself
    c.testbed.helm(&args).await?.checked().context("helm rollback")?;
    install::rolled_out(&c.testbed).await?;
    let back = Timestamp::now();
    say("rolled back");
    only(c, true).await?;
    // then the same holds of the earlier release
    untouched(c, &before).await?;
    a_new_job_runs(c, "after-the-way-back").await?;
    let waited = all_report(c, &jobs, back).await?;
    say(&format!("a new job ran, and all jobs reported to the earlier release {waited} s after"));
    let status = c.observer.seen().status(&meanwhile.key());
    ensure!((status.phase, status.attempts) == (Phase::Running, 1), "{status:?}");
    untouched(c, &before).await?;
    nobody_wrote_to_pods(log)
}
