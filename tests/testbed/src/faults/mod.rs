//! A proxy between programs and the API server that makes things go wrong on purpose.
//!
//! **What it holds.** [`FaultProxy`] listens on one endpoint for each caller, so that replicas of a program can be told
//! apart and cut off one by one. It serves TLS with a certificate of the test bed's authority, HTTP/1.1 and HTTP/2, hands
//! the caller's bearer token on, and streams watches. Callers that show a client certificate have no identity behind it.
//! The caller's name is appended to its `User-Agent`, so the audit log knows it too.
//!
//! **What flows in.** Rules as data ([`Rule`]), added and removed while it runs. `request` takes a request apart, `rule`
//! decides, `answer` makes answers, `upstream` asks the API server, `serve` joins them, `record` counts.
//!
//! **What must never be here.** Anything that knows ANDREAS' own kinds, and writes of the proxy's own.
//!
//! ```no_run
//! # async fn example(testbed: &andreas_testbed::Testbed) -> Result<(), Box<dyn std::error::Error>> {
//! use andreas_testbed::faults::{Fault, Rule, Select, Share};
//! let proxy = testbed.fault_proxy()?;
//! let url = proxy.endpoint("operator")?;
//! let half = Share::PerMille { share: 500, seed: 1 };
//! let conflicts = Rule::new(Select::writes(), Fault::Answer { status: 409, retry_after: None }).share(half);
//! let rule = proxy.add(conflicts);
//! // the program runs with a kubeconfig for `url`
//! proxy.remove(rule);
//! # Ok(()) }
//! ```

mod answer;
mod error;
mod record;
mod request;
mod rule;
mod serve;
mod shared;
mod upstream;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::ports::PortLease;
use crate::testbed::Testbed;

pub use error::FaultProxyError;
pub use record::{Record, Records};
pub use request::{ApiRequest, Verb};
pub use rule::{Fault, Rule, RuleId, Select, Share};

use shared::Shared;
use upstream::{Upstream, pair};

/// A running proxy; dropped, it ends with all its connections.
pub struct FaultProxy {
    shared: Arc<Shared>,
    tls: TlsAcceptor,
    endpoints: Mutex<Vec<(String, Arc<PortLease>)>>,
    tasks: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultProxy").finish_non_exhaustive()
    }
}

impl Testbed {
    /// Starts a proxy before this test bed's API server. It hands everything on until rules are added.
    pub fn fault_proxy(&self) -> Result<FaultProxy, FaultProxyError> {
        let pki = self.pki();
        let address = self.api_server_url().trim_start_matches("https://");
        let admin = pki.client("fault-proxy-older-reads", Some("system:masters"))?;
        let callers = Upstream::new(address, pki.ca(), None)?;
        let admins = Upstream::new(address, pki.ca(), Some(&admin))?;
        let (chain, key) = pair(&pki.server_in_place_of_the_api_server("fault-proxy")?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(FaultProxy {
            shared: Arc::new(Shared::new(callers, admins)),
            tls: TlsAcceptor::from(Arc::new(config)),
            endpoints: Mutex::default(),
            tasks: Mutex::default(),
        })
    }
}

impl FaultProxy {
    /// The address of this caller's endpoint; opened on first use. Must be called within a tokio runtime.
    pub fn address(&self, caller: &str) -> Result<SocketAddr, FaultProxyError> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let local = |port: &PortLease| SocketAddr::from(([127, 0, 0, 1], port.port()));
        if let Some((_, port)) = endpoints.iter().find(|(name, _)| name == caller) {
            return Ok(local(port));
        }
        let port = Arc::new(PortLease::take()?);
        let address = local(&port);
        let first = std::net::TcpListener::bind(address)?;
        first.set_nonblocking(true)?;
        let first = tokio::net::TcpListener::from_std(first)?;
        let serving = serve::serve(self.shared.clone(), caller.to_owned(), address, first, self.tls.clone());
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(serving);
        endpoints.push((caller.to_owned(), port));
        Ok(address)
    }

    /// `https://127.0.0.1:PORT` of this caller's endpoint, for a kubeconfig.
    pub fn endpoint(&self, caller: &str) -> Result<String, FaultProxyError> {
        Ok(format!("https://{}", self.address(caller)?))
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.shared.change(|state| state.rules.add(rule, Instant::now()))
    }

    /// Removes a rule; what it held back goes on.
    pub fn remove(&self, rule: RuleId) {
        self.shared.change(|state| state.rules.remove(rule));
    }

    /// Removes all rules and lets everybody in again.
    pub fn clear(&self) {
        self.shared.change(|state| {
            state.rules.clear();
            state.cut_off.clear();
            state.everybody_cut_off = false;
        });
    }

    /// How many requests a rule met, also when it is gone. Watches that are held do not count.
    pub fn met(&self, rule: RuleId) -> u64 {
        self.shared.state().rules.met(rule)
    }

    /// Waits until a rule met so many requests.
    pub async fn until_met(&self, rule: RuleId, wanted: u64, limit: Duration) -> Result<(), FaultProxyError> {
        let met = self.shared.until(|state| state.rules.met(rule) >= wanted);
        tokio::time::timeout(limit, met).await.map_err(|_| FaultProxyError::NotMet {
            met: self.met(rule),
            wanted,
            seconds: limit.as_secs(),
        })
    }

    /// Waits until a rule holds back, or has held back, so many requests or answers. A held answer means that the API
    /// server has done what was asked.
    pub async fn until_held(
        &self,
        rule: RuleId,
        wanted: u64,
        limit: Duration,
    ) -> Result<(), FaultProxyError> {
        let count = |state: &shared::State| state.held.get(&rule).copied().unwrap_or(0);
        let held = self.shared.until(|state| count(state) >= wanted);
        tokio::time::timeout(limit, held).await.map_err(|_| FaultProxyError::NotMet {
            met: count(&self.shared.state()),
            wanted,
            seconds: limit.as_secs(),
        })
    }

    /// Waits until what came through makes `holds` true; `false` when the time is over.
    pub async fn until(&self, limit: Duration, mut holds: impl FnMut(&Records) -> bool) -> bool {
        tokio::time::timeout(limit, self.shared.until(|state| holds(&state.records))).await.is_ok()
    }

    /// Closes the endpoint and the connections of one caller, or of everybody: connections are refused.
    pub fn cut_off(&self, caller: Option<&str>) {
        self.shared.change(|state| match caller {
            Some(caller) => drop(state.cut_off.insert(caller.to_owned())),
            None => state.everybody_cut_off = true,
        });
    }

    /// Lets one caller, or everybody, in again.
    pub fn let_in(&self, caller: Option<&str>) {
        self.shared.change(|state| match caller {
            Some(caller) => drop(state.cut_off.remove(caller)),
            None => {
                state.everybody_cut_off = false;
                state.cut_off.clear();
            }
        });
    }

    /// All requests so far.
    pub fn records(&self) -> Records {
        self.shared.state().records.clone()
    }
}
