//! Certificates change while jobs run: renewed leaves, and authorities of somebody else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use andreas_e2e::chart::SYSTEM;
use andreas_e2e::cluster::{Cluster, Options, a100, short_runs};
use andreas_e2e::install;
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_testbed::wait::until;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

/// Pods of a deleted job go when the garbage collector has seen it; then the operator looks at them.
const LIMIT: Duration = Duration::from_secs(180);
const SERVICE: &str = "andreas-operator.andreas-system.svc";

/// A number from the environment: `make long WHAT=certificates` runs the same scenario for longer.
fn seconds(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

fn options(name: &str, values: Value) -> Options {
    Options {
        name: name.into(),
        groups: vec![a100(1)],
        install: Some(values),
        policy: short_runs(),
        ..Options::default()
    }
}

/// A key of the Secret in which the operator keeps its certificates; empty where there is none.
async fn kept(c: &Cluster, key: &str) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(c.testbed.client(), SYSTEM);
    let data = secrets.get("andreas-operator-tls").await?.data.unwrap_or_default();
    Ok(data.get(key).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default())
}

async fn becomes(what: &str, wanted: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    until(what, LIMIT, wanted).await?;
    Ok(())
}

/// Reports that did not arrive, and those that were not answered in time, as a busy machine may: lines of training programs' logs.
fn unsent(c: &Cluster) -> Result<(Vec<String>, Vec<String>)> {
    let root = c.testbed.data_dir().join("kubelets/logs/default");
    let (mut lines, mut logs) = (Vec::new(), 0);
    for pod in std::fs::read_dir(&root).with_context(|| root.display().to_string())? {
        let Ok(text) = std::fs::read_to_string(pod?.path().join("train.log")) else { continue };
        logs += 1;
        lines.extend(text.lines().filter(|line| line.contains("not reported")).map(str::to_owned));
    }
    ensure!(logs > 0, "no log of a training program below {}", root.display());
    Ok(lines.into_iter().partition(|line| !line.contains("timeout")))
}

fn reporter(name: &str, seconds: u64) -> Job {
    let epochs = i32::try_from(seconds).unwrap_or(i32::MAX);
    job(name).epochs(epochs.max(30), 1.0).env("TRAINER_REPORT_SECONDS", "0.2")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_report_is_lost_while_certificates_are_renewed() -> Result<()> {
    let (every, lasts) = (seconds("RENEWAL_EVERY", 5), seconds("RENEWAL_SECONDS", 45));
    let flags = json!([format!("--renew-certificates-every={every}")]);
    let values = json!({
        "agent": {"enabled": false},
        "operator": {"replicas": 2, "extraArgs": flags},
    });
    scenario(options("renewal", values), async |c| {
        // given two jobs that report five times a second, each over a connection of its own
        let long = [reporter("long-a", lasts * 3 + 120), reporter("long-b", lasts * 3 + 120)];
        for job in &long {
            c.submit(job).await?;
        }
        for job in &long {
            c.wait_for_percent(job, 1).await?;
        }
        let mut leaves = BTreeSet::new();
        let (start, lasts) = (Instant::now(), Duration::from_secs(lasts));
        // Where a short job takes long, few certificates are read in this time: then it goes on for a while.
        let longest = lasts + Duration::from_secs(90);
        let mut ended = 0;
        // when certificates are renewed under a stream of short jobs
        while start.elapsed() < lasts || (leaves.len() <= 2 && start.elapsed() < longest) {
            let short = job(&format!("short-{ended}")).epochs(2, 0.2);
            c.submit(&short).await?;
            c.wait_for_phase(&short, Phase::Succeeded).await?;
            ended += 1;
            leaves.insert(kept(c, "tls.crt").await?);
        }
        // then several were in use, the first jobs still report, and nobody complained of a certificate
        let took = start.elapsed();
        println!("{ended} jobs, {} leaves in {took:.0?}", leaves.len());
        ensure!(leaves.len() > 2, "{} leaves", leaves.len());
        for job in &long {
            let done = c.observer.seen().milli_percent(&job.key()) / 1000;
            c.wait_for_percent(job, done + 2).await?;
        }
        let (lost, late) = unsent(c)?;
        ensure!(lost.is_empty(), "reports were lost: {lost:#?}");
        // A handshake that hangs at a renewal would cost both jobs a report each time.
        let renewals = usize::try_from(start.elapsed().as_secs() / every.max(1))?;
        println!("{} reports were not answered in time, {renewals} renewals", late.len());
        ensure!(late.len() < renewals, "{renewals} renewals, {late:#?}");
        // and each ran once
        for key in long.iter().map(Job::key).chain((0..ended).map(|n| job(&format!("short-{n}")).key())) {
            let status = c.observer.seen().status(&key);
            ensure!((status.attempts, status.restarts) == (1, 0), "{key}: {status:?}");
        }
        Ok(())
    })
    .await
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Result<Authority> {
    let mut params = CertificateParams::new(vec![])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// Applies a Secret exactly as cert-manager writes it: `tls.crt`, `tls.key`, `ca.crt`, of the type for TLS.
async fn give(c: &Cluster, name: &str, by: &Authority, names: &[&str]) -> Result<String> {
    let key = KeyPair::generate()?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)?.signed_by(&key, by)?.pem();
    c.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": SYSTEM},
        "stringData": {"tls.crt": certificate, "tls.key": key.serialize_pem(), "ca.crt": by.pem()},
    }))
    .await?;
    Ok(certificate)
}

async fn reports(c: &mut Cluster, job: &Job) -> Result<()> {
    let done = c.observer.seen().milli_percent(&job.key()) / 1000;
    c.wait_for_percent(job, done + 1).await
}

/// Given a job that runs; when the operator goes over to a certificate of another authority and back to its own; then later jobs report,
/// and the running job, which knows neither, trains on in its first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_given_certificate_is_served_at_once_and_no_job_fails_of_it() -> Result<()> {
    let values = |operator: &str| {
        json!({
            "agent": {"enabled": false},
            "operator": {"tls": {"existingSecret": operator}},
        })
    };
    scenario(options("authorities", json!({"agent": {"enabled": false}})), async |c| {
        let old = reporter("old", 600);
        c.submit(&old).await?;
        c.wait_for_percent(&old, 1).await?;
        let given = give(c, "given", &authority("company")?, &[SERVICE, "127.0.0.1"]).await?;
        install::upgrade(&c.testbed, &values("given")).await?;
        becomes("the given certificate is served", async || Ok(kept(c, "tls.crt").await? == given)).await?;
        let new = reporter("new", 600);
        c.submit(&new).await?;
        c.wait_for_percent(&new, 1).await?;

        // when nobody gives certificates any more
        install::upgrade(&c.testbed, &values("")).await?;
        becomes("our own certificate is served", async || {
            let served = kept(c, "tls.crt").await?;
            Ok(served != given && !kept(c, "authority.key").await?.is_empty())
        })
        .await?;
        let last = reporter("last", 600);
        c.submit(&last).await?;
        reports(c, &last).await?;

        // when somebody deletes the Secret, it is made again with the same authority
        let key = kept(c, "authority.key").await?;
        c.kubectl("delete secret andreas-operator-tls -n andreas-system").await?;
        becomes("the Secret is back", async || Ok(kept(c, "authority.key").await.unwrap_or_default() == key))
            .await?;
        reports(c, &last).await?;
        for job in [&old, &new, &last] {
            let status = c.observer.seen().status(&job.key());
            ensure!((status.attempts, status.restarts) == (1, 0), "{}: {status:?}", job.key());
        }
        Ok(())
    })
    .await
}
