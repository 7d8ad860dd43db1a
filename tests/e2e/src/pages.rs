//! The operator's pages about all namespaces, and tokens to read them with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use andreas_testbed::PortLease;
use anyhow::{Context as _, Result, ensure};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::chart::SYSTEM;
use crate::cluster::Cluster;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(90);

/// A token of the account that the chart makes for reading these pages.
///
/// # Errors
/// When the API server does not make one.
pub async fn reader(c: &Cluster) -> Result<String> {
    token(c, SYSTEM, "andreas-plan-reader").await
}

/// A token of any account.
///
/// # Errors
/// When the API server does not make one.
pub async fn token(c: &Cluster, namespace: &str, account: &str) -> Result<String> {
    Ok(c.kubectl(&format!("create token {account} -n {namespace}")).await?.trim().to_owned())
}

/// Code and text of what the first replica of the operator answers to a GET on its port with certificates.
///
/// # Errors
/// When it does not answer.
pub async fn get(c: &Cluster, path: &str, token: Option<&str>) -> Result<(u16, String)> {
    let url = format!("{}{path}", url(c)?);
    let agent = agent(c.testbed.pki().ca_file())?;
    let token = token.map(str::to_owned);
    let ask = move || -> Result<(u16, String)> {
        let mut request = agent.get(&url);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call()?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    };
    tokio::task::spawn_blocking(ask).await?
}

/// A page, as the reader of the chart gets it.
///
/// # Errors
/// When it is not shown.
pub async fn read(c: &Cluster, path: &str) -> Result<String> {
    let (code, text) = get(c, path, Some(&reader(c).await?)).await?;
    ensure!(code == 200, "{path}: {code}: {text}");
    Ok(text)
}

/// A page of the operator, to be read again and again as the reader of the chart, whatever certificate the operator has.
pub struct Page {
    agent: ureq::Agent,
    url: String,
    token: String,
    _port: Option<PortLease>,
}

impl Page {
    /// A page of the operator that is a plain process, or else runs in a pod and is reached through a port of this machine.
    ///
    /// # Errors
    /// When there is no operator, or no token for the reader.
    pub async fn open(c: &Cluster, path: &str) -> Result<Self> {
        let (address, port) = match c.operators.first() {
            Some(operator) => (operator.progress, None),
            None => port_of_pod(c).await?,
        };
        let tls = TlsConfig::builder().disable_verification(true).build();
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false)
            .tls_config(tls);
        let agent = ureq::Agent::new_with_config(config.build());
        Ok(Self { agent, url: format!("https://{address}{path}"), token: reader(c).await?, _port: port })
    }

    /// Code and text of an answer. Blocks.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self) -> Result<(u16, String)> {
        let request = self.agent.get(&self.url).header("Authorization", format!("Bearer {}", self.token));
        let mut answer = request.call()?;
        let text = answer.body_mut().with_config().limit(1 << 30).read_to_string()?;
        Ok((answer.status().as_u16(), text))
    }

    /// The same of a question, which has a body of JSON. Blocks.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn post(&self, body: &str) -> Result<(u16, String)> {
        let request = self.agent.post(&self.url).header("Authorization", format!("Bearer {}", self.token));
        let mut answer = request.header("Content-Type", "application/json").send(body)?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    }
}

/// Where the port of the operator's pod can be reached from this machine.
async fn port_of_pod(c: &Cluster) -> Result<(SocketAddr, Option<PortLease>)> {
    let pods = c.machines.pods().await?;
    let pod = pods.iter().find(|pod| pod.name.starts_with("andreas-operator-") && !pod.ended);
    let pod = pod.context("no pod of the operator")?;
    let to = format!("{}:8443", pod.ip).parse().with_context(|| format!("address of {}", pod.name))?;
    c.machines.reach(to).await
}

/// Reads a page of the operator that runs in a pod, as the reader of the chart.
///
/// # Errors
/// When it is not shown within a minute.
pub async fn read_from_pod(c: &Cluster, path: &str) -> Result<String> {
    let page = Page::open(c, path).await?;
    let ask = move || -> Result<String> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let said = match page.get() {
                Ok((200, text)) => return Ok(text),
                Ok((code, text)) => format!("{code}: {text}"),
                Err(error) => format!("{error:#}"),
            };
            ensure!(Instant::now() < until, "{}: {said}", page.url);
            std::thread::sleep(Duration::from_millis(500));
        }
    };
    tokio::task::spawn_blocking(ask).await?
}

/// Address of the first replica's port with certificates.
///
/// # Errors
/// When there is no replica.
pub fn url(c: &Cluster) -> Result<String> {
    Ok(format!("https://{}", c.operators.first().context("an operator")?.progress))
}

/// A client that trusts this authority, keeps connections, and takes every code for an answer.
///
/// # Errors
/// When the file holds no certificate.
pub fn agent(authority: PathBuf) -> Result<ureq::Agent> {
    let pem = std::fs::read(&authority).with_context(|| authority.display().to_string())?;
    let mut roots: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item? {
            roots.push(certificate);
        }
    }
    let tls = TlsConfig::builder().root_certs(RootCerts::from(roots)).build();
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(LIMIT))
        .http_status_as_error(false)
        .tls_config(tls)
        .build();
    Ok(ureq::Agent::new_with_config(config))
}
