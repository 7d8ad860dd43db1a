//! A BMC with Redfish over TLS, in the test's own process: one machine, with faults that are switched on and off. The same
//! machine answers as a webhook of node-power below `/hook`, with its password as the token.
//!
//! What flows in: Redfish requests, and faults from the test. What flows out: the machine's power as a watch, on which a test
//! hangs what stands for the operating system. What must never be here: knowledge of the program under test.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::server::{self, Limits};
use andreas_runtime::tls::{Tls, TlsPem};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What is wrong with the BMC.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Every answer takes this long.
    pub delay: Duration,
    /// Every answer is this status.
    pub answers: Option<u16>,
    /// The power that is reported, whatever it is.
    pub lies: Option<&'static str>,
    /// A shutdown is accepted, and nothing happens.
    pub ignores_off: bool,
    /// No graceful shutdown is offered.
    pub no_graceful_off: bool,
    /// So many answers are 401: a table of sessions that is full.
    pub forgets: u32,
    /// A second system, which answers 503 while the host is off.
    pub second_system: bool,
    /// The kinds of reset are in an ActionInfo alone.
    pub action_info: bool,
    /// The answer never ends.
    pub endless: bool,
    /// Only paths with a trailing slash are served. Others are moved there by this status, at this address; empty: by path alone.
    pub slashes: Option<(u16, String)>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `GET /redfish/v1/Systems`.
    pub what: String,
    /// The kind of reset.
    pub reset: Option<String>,
}

struct Shared {
    faults: Mutex<Faults>,
    calls: Mutex<Vec<Call>>,
    power: watch::Sender<bool>,
    authorizations: [String; 2],
}

/// A certificate of the loopback address, as BMCs make them.
pub struct SelfSigned {
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint: String,
}

/// Makes one.
///
/// # Panics
/// When no key can be made.
#[must_use]
pub fn self_signed() -> SelfSigned {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pair = rcgen::generate_simple_self_signed(names).expect("a key can be made");
    let digest = ring::digest::digest(&ring::digest::SHA256, pair.cert.der());
    let fingerprint = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    SelfSigned { certificate: pair.cert.pem(), key: pair.signing_key.serialize_pem(), fingerprint }
}

/// A BMC that serves until it is dropped.
pub struct Bmc {
    shared: Arc<Shared>,
    address: SocketAddr,
    certificate: String,
    fingerprint: String,
    end: CancellationToken,
}

impl Drop for Bmc {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl Bmc {
    /// A BMC on a loopback address, of a machine that is on; the user is `root`.
    ///
    /// # Panics
    /// When no port or key can be had.
    pub async fn start(password: &str) -> Self {
        let SelfSigned { certificate, key, fingerprint } = self_signed();
        let pem = TlsPem { certificate: certificate.clone().into_bytes(), key: key.into_bytes() };
        let tls = Tls::from_pem(pem).expect("it was just made");
        let shared = Arc::new(Shared {
            faults: Mutex::default(),
            calls: Mutex::default(),
            power: watch::Sender::new(true),
            authorizations: [
                format!("Basic {}", STANDARD.encode(format!("root:{password}"))),
                format!("Bearer {password}"),
            ],
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let end = CancellationToken::new();
        let serving = server::serve(listener, Some(tls), router(&shared), Limits::default(), end.clone());
        tokio::spawn(serving);
        Self { shared, address, certificate, fingerprint, end }
    }

    /// `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Its self-signed certificate, PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// SHA-256 of the certificate, in hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Changes what is wrong.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.faults.lock());
    }

    /// Whether the machine has power.
    #[must_use]
    pub fn is_on(&self) -> bool {
        *self.shared.power.borrow()
    }

    /// Switches the machine by hand.
    pub fn switch(&self, on: bool) {
        self.shared.power.send_replace(on);
    }

    /// The power as it changes.
    #[must_use]
    pub fn power(&self) -> watch::Receiver<bool> {
        self.shared.power.subscribe()
    }

    /// All requests so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().clone()
    }

    /// The kinds of reset that were asked for.
    #[must_use]
    pub fn resets(&self) -> Vec<String> {
        self.calls().into_iter().filter_map(|call| call.reset).collect()
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    let mut router = Router::new();
    for end in ["", "/"] {
        let path = |path: &str| format!("/redfish/v1/Systems{path}{end}");
        router = router
            .route(&path(""), get(systems))
            .route(&path("/{system}"), get(system))
            .route(&path("/{system}/ResetActionInfo"), get(action_info))
            .route(&path("/{system}/Actions/ComputerSystem.Reset"), post(reset));
    }
    router
        .route("/hook/{node}", get(hook_read).post(hook_set))
        .layer(middleware::from_fn_with_state(Arc::clone(shared), faulty))
        .with_state(Arc::clone(shared))
}

async fn faulty(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let faults = {
        let mut faults = shared.faults.lock();
        let now = faults.clone();
        faults.forgets = faults.forgets.saturating_sub(1);
        now
    };
    let what = format!("{} {}", request.method(), request.uri().path());
    shared.calls.lock().push(Call { what, reset: None });
    tokio::time::sleep(faults.delay).await;
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let wanted = &shared.authorizations[usize::from(request.uri().path().starts_with("/hook/"))];
    if given != Some(wanted) || faults.forgets > 0 {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if let Some(status) = faults.answers.and_then(|status| StatusCode::from_u16(status).ok()) {
        return status.into_response();
    }
    if let Some((status, address)) = faults.slashes
        && !request.uri().path().ends_with('/')
    {
        let status = StatusCode::from_u16(status).unwrap_or_default();
        let location = format!("{address}{}/", request.uri().path());
        return (status, [(header::LOCATION, location)]).into_response();
    }
    if faults.endless {
        return "x".repeat(1024 * 1024).into_response();
    }
    next.run(request).await
}

async fn systems(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let faults = shared.faults.lock().clone();
    let end = if faults.slashes.is_some() { "/" } else { "" };
    let mut members = vec![json!({"@odata.id": format!("/redfish/v1/Systems/System.Embedded.1{end}")})];
    if faults.second_system {
        members.push(json!({"@odata.id": "/redfish/v1/Systems/HGX_Baseboard_0"}));
    }
    Json(json!({"Members@odata.count": members.len(), "Members": members}))
}

fn kinds(faults: &Faults) -> Value {
    let mut kinds = vec!["On", "ForceOff", "ForceRestart"];
    if !faults.no_graceful_off {
        kinds.push("GracefulShutdown");
    }
    json!(kinds)
}

async fn system(State(shared): State<Arc<Shared>>, Path(system): Path<String>) -> Response {
    let (on, faults) = (*shared.power.borrow(), shared.faults.lock().clone());
    if system == "HGX_Baseboard_0" && !on {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let path = format!("/redfish/v1/Systems/{system}");
    let mut action = json!({"target": format!("{path}/Actions/ComputerSystem.Reset")});
    if faults.action_info {
        action["@Redfish.ActionInfo"] = json!(format!("{path}/ResetActionInfo"));
    } else {
        action["ResetType@Redfish.AllowableValues"] = kinds(&faults);
    }
    let power = faults.lies.unwrap_or(if on { "On" } else { "Off" });
    Json(json!({"@odata.id": path, "PowerState": power, "Actions": {"#ComputerSystem.Reset": action}}))
        .into_response()
}

async fn action_info(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let kinds = kinds(&shared.faults.lock());
    Json(json!({"Parameters": [{"Name": "ResetType", "AllowableValues": kinds}]}))
}

async fn reset(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> StatusCode {
    let kind = body["ResetType"].as_str().unwrap_or_default().to_owned();
    if let Some(call) = shared.calls.lock().last_mut() {
        call.reset = Some(kind.clone());
    }
    let faults = shared.faults.lock().clone();
    match kind.as_str() {
        "On" => drop(shared.power.send_replace(true)),
        "GracefulShutdown" if faults.no_graceful_off => return StatusCode::BAD_REQUEST,
        "GracefulShutdown" if !faults.ignores_off => drop(shared.power.send_replace(false)),
        "GracefulShutdown" => {}
        _ => return StatusCode::BAD_REQUEST,
    }
    StatusCode::NO_CONTENT
}

async fn hook_read(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({"power": if *shared.power.borrow() { "On" } else { "Off" }}))
}

async fn hook_set(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) {
    shared.power.send_replace(body["power"] == "On");
}
