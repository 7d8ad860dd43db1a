//! People are told of their runs: by receivers over TLS, one of which hangs, and by a mail server that others wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options, a100};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_testbed::tls;
use andreas_testbed::wait::until;
use andreas_testbed::{PortLease, Process, ProcessSpec};
use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

const LONG: Duration = Duration::from_secs(300);
/// Jobs in each of two namespaces.
const JOBS: usize = 100;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// An HTTPS server that takes what is posted, or hangs.
struct Receiver {
    url: String,
    taken: Arc<Mutex<Vec<(String, Value)>>>,
    hangs: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn start(authority: &tls::Authority) -> Result<Self> {
        let (chain, key) = tls::issue(authority, "receiver", &["localhost"]);
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(
            vec![CertificateDer::from_pem_slice(chain.as_bytes())?],
            PrivateKeyDer::from_pem_slice(key.as_bytes())?,
        )?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://localhost:{}/told", listener.local_addr()?.port());
        let (taken, hangs) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let state = (Arc::clone(&taken), Arc::clone(&hangs));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, (taken, hangs)) = (acceptor.clone(), state.clone());
                tokio::spawn(async move {
                    // A client that goes away is none of the test's business.
                    let _ = serve(stream, acceptor, &taken, &hangs).await;
                });
            }
        });
        Ok(Self { url, taken, hangs, task })
    }

    /// How often each was taken: by the identity of a CloudEvent, or by the text of a message to Slack.
    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, body) in self.taken.lock().iter() {
            let known = body["id"].as_str().or_else(|| body["text"].as_str()).unwrap_or("?").to_owned();
            *counts.entry(known).or_default() += 1;
        }
        counts
    }
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    taken: &Mutex<Vec<(String, Value)>>,
    hangs: &AtomicBool,
) -> Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    loop {
        let mut head = String::new();
        while stream.read_line(&mut head).await? > 2 {}
        ensure!(!head.is_empty(), "the client has gone");
        let field = |name: &str| {
            head.lines().find_map(|line| Some(line.to_lowercase().strip_prefix(name)?.trim().to_owned()))
        };
        let mut body = vec![0; field("content-length:").context("a length")?.parse()?];
        stream.read_exact(&mut body).await?;
        if hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        taken.lock().push((field("authorization:").unwrap_or_default(), serde_json::from_slice(&body)?));
        stream.write_all(ANSWER).await?;
    }
}

async fn ask(c: &Cluster, namespace: &str, data: &Value) -> Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "andreas-notifications", "namespace": namespace}, "stringData": data});
    c.apply(&secret).await.map(drop)
}

/// Runs for minutes, and should have ended already.
fn late(namespace: &str, number: usize) -> Job {
    job(&format!("late-{number}")).namespace(namespace).epochs(1_000, 1.0).spec("deadlineAfter", json!("1s"))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_notices_of_two_namespaces_arrive_once_each_though_a_receiver_hangs() -> Result<()> {
    let options =
        Options { groups: vec![a100(1)], notify_hosts: &["localhost"], heavy: true, ..Options::default() };
    scenario(options, async |c| {
        // given a namespace with a webhook and a mail server, and one with a webhook and a Slack that hangs
        let authority = tls::authority();
        let (left, right, slack) =
            (Receiver::start(&authority).await?, Receiver::start(&authority).await?, Receiver::start(&authority).await?);
        slack.hangs.store(true, Ordering::Relaxed);
        let port = Arc::new(PortLease::take()?);
        let address = format!("127.0.0.1:{}", port.port());
        let program = andreas_testbed::built("mail").await?.join("smtp-debug-server");
        let spec = ProcessSpec::new("mail", program).args(["-l", &address]).holding(Arc::clone(&port));
        let mail: Process = c.testbed.spawn(spec)?;
        mail.wait_for_port(&address, LONG).await?;
        for namespace in ["left", "right", "wrong"] {
            c.make_namespace(namespace).await?;
        }
        let ca = authority.pem();
        ask(c, "left", &json!({
            "webhook": left.url, "webhookToken": "sesame", "ca.crt": ca,
            "smtp": format!("smtp://localhost:{}", port.port()), "from": "Andreas <gpu@example.com>", "to": "ada@example.com, bob@example.com",
            "events": "Started,AtRisk,Succeeded", "template": "{event}: {name} {text}",
        })).await?;
        ask(c, "right", &json!({"webhook": right.url, "slack": slack.url, "ca.crt": ca, "events": "AtRisk"})).await?;
        ask(c, "wrong", &json!({"webhook": "https://metadata.internal/", "ca.crt": ca})).await?;
        // when a job runs to its end, and then two hundred are late
        let short = job("short").namespace("left").epochs(4, 0.5);
        c.submit(&short).await?;
        c.wait_for_phase(&short, Phase::Succeeded).await?;
        for number in 0..JOBS {
            c.submit(&late("left", number)).await?;
            c.submit(&late("right", number)).await?;
        }
        // then each receiver that works has each notice once, though one hangs
        let risks = |receiver: &Receiver| receiver.counts().keys().filter(|id| id.ends_with("/AtRisk")).count();
        let all = async || Ok(risks(&left) == JOBS && risks(&right) == JOBS);
        until("all notices", LONG, all).await.with_context(|| format!("{} and {}", risks(&left), risks(&right)))?;
        let subjects = || mail.log().lines().filter(|line| line.starts_with("Subject: AtRisk: late-")).count();
        until("all mails", LONG, async || Ok(subjects() == JOBS)).await.with_context(|| format!("{} mails", subjects()))?;
        ensure!(slack.taken.lock().is_empty(), "it hangs");
        // and the one that hung gets all of its own once it works
        slack.hangs.store(false, Ordering::Relaxed);
        until("all of Slack", LONG, async || Ok(slack.counts().len() == JOBS)).await.with_context(|| format!("{}", slack.counts().len()))?;
        // and nothing is told again by an operator that starts anew
        let written = async || {
            let list = c.kubectl("get trainingjobs -n right -o jsonpath={.items[*].status.notifications.sent}").await?;
            Ok(list.matches("AtRisk/slack").count() == JOBS && list.matches("AtRisk/webhook").count() == JOBS)
        };
        until("what was told is written", LONG, written).await?;
        c.operators[0].process.restart().await?;
        let last = late("right", JOBS);
        c.submit(&last).await?;
        until("the next notice", LONG, async || Ok(slack.counts().len() == JOBS + 1)).await?;
        let mut faults = String::new();
        for (name, receiver) in [("left", &left), ("right", &right), ("slack", &slack)] {
            for (id, count) in receiver.counts().iter().filter(|(_, count)| **count != 1) {
                writeln!(faults, "{name}: {id} {count} times")?;
            }
        }
        ensure!(faults.is_empty(), "{faults}");
        ensure!(subjects() == JOBS, "{} mails", subjects());
        // each with its own namespace's alone, with the token, in order
        let of = |receiver: &Receiver, namespace: &str| {
            receiver.taken.lock().iter().all(|(_, body)| body["data"]["namespace"] == namespace)
        };
        ensure!(of(&left, "left") && of(&right, "right") && !mail.log().contains("right/"));
        ensure!(slack.taken.lock().iter().all(|(_, body)| body["text"].as_str().is_some_and(|text| text.starts_with("right/late-"))));
        ensure!(left.taken.lock().iter().all(|(token, _)| token == "bearer sesame"));
        let of_short: Vec<String> = left.taken.lock().iter().filter(|(_, body)| body["data"]["name"] == "short").map(|(_, body)| body["type"].to_string()).collect();
        ensure!(of_short == ["\"dev.andreas.trainingjob.started\"", "\"dev.andreas.trainingjob.succeeded\""], "{of_short:?}");
        let received = mail.log();
        ensure!(received.contains("EHLO example.com"), "{received}");
        ensure!(received.contains("RCPT TO:<ada@example.com>") && received.contains("RCPT TO:<bob@example.com>"), "{received}");
        ensure!(received.contains("Subject: Succeeded: short succeeded after"), "{received}");
        // a Secret that cannot be used is named, and the operator reads no other
        let events = c.kubectl("get events -n wrong -o jsonpath={.items[*].message}").await?;
        ensure!(events.contains("webhook: the administrator does not allow the host metadata.internal"), "{events}");
        let account = "--as=system:serviceaccount:andreas-system:andreas-operator";
        let refused = c.kubectl(&format!("get secrets -A {account}")).await;
        ensure!(refused.is_err(), "it lists all Secrets: {refused:?}");
        c.kubectl("delete trainingjobs --all -n left --wait=false").await?;
        c.kubectl("delete trainingjobs --all -n right --wait=false").await?;
        Ok(())
    })
    .await
}
