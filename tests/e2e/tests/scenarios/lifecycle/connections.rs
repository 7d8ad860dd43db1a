//! Whoever can reach our ports: silent connections, tokens without the right, reports for other pods' jobs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use andreas_api::names::progress_audience;
use andreas_api::phase::Phase;
use andreas_e2e::chart::SYSTEM;
use andreas_e2e::cluster::{Options, a100};
use andreas_e2e::job::job;
use andreas_e2e::pages;
use andreas_e2e::scenario::{DEFAULT_TIMEOUT, scenario};
use andreas_e2e::tenant::{at_least, connections_without_token, silent_connections};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A probe as the chart has them: 3 s.
const PROBE: Duration = Duration::from_secs(3);

/// Asks for a path without a token.
async fn probe(address: SocketAddr, path: &str, limit: Duration) -> Result<()> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer =
        tokio::time::timeout(limit, ask).await.with_context(|| format!("no answer in {limit:?}"))??;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

/// After so many failures in a row a kubelet acts: `failureThreshold` of the chart's readiness probes; liveness probes have more.
const FAILURES: u32 = 3;

/// Probes until it is stopped, or until a kubelet would call the container not ready.
async fn probes(address: SocketAddr, path: &str) -> Result<()> {
    let mut failures = 0;
    loop {
        match probe(address, path, PROBE).await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                ensure!(failures < FAILURES, "{path} of {address}, {failures} times in a row: {error:#}");
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Given somebody who holds more connections than there are places on every port of operator and extender, silent ones and such that
/// ask for something without a token; when a job with a short progressTimeout runs, then it succeeds at its first attempt, others are
/// placed, and no probe fails.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_show_no_token_on_every_port_fail_no_probe_and_no_job() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], heavy: true, ..Options::default() }, async |c| {
        let operator = c.operators.first().context("an operator")?;
        let listen = c.extender_listen.context("an extender")?;
        let admin = c.extender_admin.context("an extender")?;
        let probed = c.extender_probes.context("an extender")?;
        let addresses = [operator.probes, probed];
        let ports = [
            (operator.progress, 1_200),
            (operator.admin, 300),
            (operator.probes, 300),
            (listen, 100),
            (admin, 300),
            (probed, 300),
        ];
        let (mut attackers, opened) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        for (address, count) in ports {
            silent_connections(&mut attackers, address, count, &opened);
        }
        let (answered, authority) = (Arc::new(AtomicUsize::new(0)), c.testbed.pki().ca_file());
        let since = Instant::now();
        connections_without_token(&mut attackers, operator.progress, &authority, 200, &answered)?;
        let mut probing = JoinSet::new();
        for address in addresses {
            probing.spawn(probes(address, "/livez"));
            probing.spawn(probes(address, "/readyz"));
        }
        at_least(&opened, 2_500, "silent connections", DEFAULT_TIMEOUT).await?;

        let victim =
            job("victim").epochs(30, 1.5).spec("progressTimeout", json!("40s")).spec("retries", json!(0));
        c.submit(&victim).await?;
        c.wait_for_phase(&victim, Phase::Running).await?;
        c.wait_for_percent(&victim, 20).await?;
        let late = job("late").epochs(4, 0.3);
        c.submit(&late).await?;
        c.wait_for_phase(&late, Phase::Succeeded).await?;
        let key = victim.key();
        c.observer
            .until("the victim ends", Duration::from_secs(240), |seen| {
                matches!(seen.phase(&key), Phase::Succeeded | Phase::Failed)
            })
            .await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.phase == Phase::Succeeded && status.attempts == 1, "{status:?}");
        at_least(&answered, 200, "answers without a token", DEFAULT_TIMEOUT).await?;
        println!("{opened:?} connections, {answered:?} answers in {} s", since.elapsed().as_secs());
        if let Some(ended) = probing.try_join_next() {
            ended??;
        }
        probing.shutdown().await;
        attackers.shutdown().await;
        Ok(())
    })
    .await
}

/// Given tokens of an administrator, of a tenant, and none; when they ask for what names jobs of all namespaces, then only who has the
/// right is shown it.
#[tokio::test(flavor = "multi_thread")]
async fn only_those_with_the_right_read_about_all_namespaces() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], ..Options::default() }, async |c| {
        c.kubectl("create serviceaccount tenant").await?;
        c.kubectl("create rolebinding tenant --clusterrole=admin --serviceaccount=default:tenant").await?;
        c.submit(&job("secret").epochs(4, 0.3)).await?;
        c.wait_for_phase(&job("secret"), Phase::Succeeded).await?;
        let (reader, tenant) = (pages::reader(c).await?, pages::token(c, "default", "tenant").await?);
        let path = "/snapshot";
        let (code, text) = pages::get(c, path, Some(&reader)).await?;
        ensure!(code == 200, "{code}: {text}");
        for (token, expected) in [(Some(tenant.as_str()), 403), (Some("forged"), 401), (None, 401)] {
            let (code, text) = pages::get(c, path, token).await?;
            ensure!(code == expected && !text.contains("secret"), "{code}: {text}");
        }
        // and the port without authentication does not know it
        let admin = c.operators.first().context("an operator")?.admin;
        let refused = probe(admin, path, Duration::from_secs(30)).await.err().map(|error| error.to_string());
        ensure!(refused.is_some_and(|text| text.starts_with("HTTP/1.1 404")), "{path} at {admin}");
        Ok(())
    })
    .await
}

/// So many post at a time, each so often.
const POSTERS: usize = 8;
const POSTS: usize = 150;

/// Given a pod that is no member of a job of its namespace, and a token for that job's reports; when it posts without end, then it is
/// refused, and the API server is hardly asked.
#[tokio::test(flavor = "multi_thread")]
async fn reports_of_a_bystander_cost_the_api_server_next_to_nothing() -> Result<()> {
    scenario(Options { groups: vec![a100(1)], heavy: true, ..Options::default() }, async |c| {
        let tj = job("busy").epochs(400, 0.5);
        c.submit(&tj).await?;
        c.wait_for_phase(&tj, Phase::Running).await?;
        c.kubectl("run bystander --image=missing/x --restart=Never").await?;
        let uid =
            c.observer.seen().job(&tj.key()).and_then(|job| job.metadata.uid.clone()).context("a UID")?;
        let audience = progress_audience(&uid);
        let token = format!(
            "create token default --bound-object-kind Pod --bound-object-name bystander --audience {audience}"
        );
        let token = c.kubectl(&token).await?.trim().to_owned();
        let url = format!(
            "{}/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/busy/status",
            pages::url(c)?
        );
        let since = Instant::now();
        let mut posts = JoinSet::new();
        for _ in 0..POSTERS {
            let (agent, url, token) = (pages::agent(c.testbed.pki().ca_file())?, url.clone(), token.clone());
            posts.spawn_blocking(move || -> Result<()> {
                for _ in 0..POSTS {
                    let request = agent.post(&url).header("Authorization", format!("Bearer {token}"));
                    let code = request.send("{}")?.status().as_u16();
                    ensure!(code == 403, "{code}");
                }
                Ok(())
            });
        }
        while let Some(outcome) = posts.join_next().await {
            outcome??;
        }
        // then the pod was read a few times, whatever was posted (the first of each may have come at once), again each minute
        let operator = format!("system:serviceaccount:{SYSTEM}:andreas-operator");
        let mut reads = 0;
        for event in c.testbed.audit_log()? {
            let event = event?;
            let pod = event.object_ref.resource == "pods" && event.object_ref.name == "bystander";
            reads += usize::from(event.verb == "get" && pod && event.user.username == operator);
        }
        let seconds = since.elapsed().as_secs();
        println!("{} reports in {seconds} s, {reads} reads of the pod", POSTERS * POSTS);
        let most = POSTERS * (1 + usize::try_from(seconds)? / 60);
        ensure!((1..=most).contains(&reads), "{reads} reads of the pod in {seconds} s");
        c.edit(&tj.key(), &json!({"suspend": true})).await?;
        c.wait_for_phase(&tj, Phase::Suspended).await
    })
    .await
}
