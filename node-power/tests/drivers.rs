//! The drivers: Redfish against a BMC of this process, with what BMCs do; the webhook; Metal3 against a scripted API server.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use andreas_api::node_power::{BareMetalHostSpec, NodePowerSpec, PowerReading, RedfishSpec, WebhookSpec};
use andreas_bmc_sim::Bmc;
use andreas_node_power::driver::{Driver, PowerSwitch as _, Request as Ask, Trouble};
use andreas_node_power::secrets::Secrets;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

/// An API server with these Secrets alone.
fn secrets(all: Value) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let (status, body) = match all.get(&name) {
            Some(data) => (200, json!({"metadata": {"name": name}, "data": data})),
            None => {
                (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}))
            }
        };
        let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    Client::new(service, "power")
}

struct World {
    bmc: Bmc,
    client: Client,
    spec: RedfishSpec,
}

impl World {
    async fn start() -> Self {
        andreas_runtime::install_crypto();
        let bmc = Bmc::start("secret").await;
        let text = |text: &str| {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(text)
        };
        let client = secrets(json!({
            "bmc": {"username": text("root"), "password": text("secret\n")},
            "wrong": {"username": text("root"), "password": text("other")},
            "hook": {"token": text("secret")},
            "half": {"username": text("root")},
            "ca": {"ca.crt": text(bmc.certificate())},
            "noca": {"ca.crt": text("no PEM")},
        }));
        let spec = RedfishSpec {
            endpoint: bmc.endpoint(),
            system: None,
            credentials: "bmc".into(),
            ca_secret: None,
            fingerprint: Some(bmc.fingerprint().into()),
        };
        Self { bmc, client, spec }
    }

    async fn open(&self, change: impl FnOnce(&mut RedfishSpec)) -> Result<Driver, Trouble> {
        let mut redfish = self.spec.clone();
        change(&mut redfish);
        let spec = NodePowerSpec { redfish: Some(redfish), ..NodePowerSpec::default() };
        Driver::open("gpu-1", &spec, &Secrets::new(self.client.clone(), "power"), &self.client).await
    }

    async fn read(&self, change: impl FnOnce(&mut RedfishSpec)) -> Result<PowerReading, Trouble> {
        self.open(change).await?.read().await
    }
}

fn as_is(_: &mut RedfishSpec) {}

#[tokio::test]
async fn a_machine_is_read_shut_down_and_started() {
    let world = World::start().await;
    let driver = world.open(as_is).await.unwrap();
    assert_eq!(driver.read().await, Ok(PowerReading::On));
    driver.ask(Ask::Off).await.unwrap();
    assert_eq!(driver.read().await, Ok(PowerReading::Off));
    driver.ask(Ask::On).await.unwrap();
    driver.ask(Ask::On).await.unwrap();
    driver.ask(Ask::StayOn).await.unwrap();
    assert!(world.bmc.is_on());
    assert_eq!(world.bmc.resets(), ["GracefulShutdown", "On", "On"], "nothing is forced");
}

#[tokio::test]
async fn a_self_signed_certificate_needs_its_fingerprint_or_itself_as_authority() {
    let world = World::start().await;
    let with = |fingerprint: Option<String>, ca: Option<&str>| {
        let ca_secret = ca.map(str::to_owned);
        world.read(|spec| (spec.fingerprint, spec.ca_secret) = (fingerprint, ca_secret))
    };
    assert!(matches!(with(None, None).await, Err(Trouble::Unreachable(_) | Trouble::Misconfigured(_))));
    assert_eq!(with(None, Some("ca")).await, Ok(PowerReading::On));
    let error = with(Some("0".repeat(64)), None).await.unwrap_err().to_string();
    assert!(error.contains("spec.redfish.fingerprint") && error.contains(world.bmc.fingerprint()), "{error}");
    let error = with(None, Some("noca")).await.unwrap_err();
    assert!(
        matches!(&error, Trouble::Misconfigured(text) if text.starts_with("spec.redfish.caSecret")),
        "{error}"
    );
    let sent = world.bmc.calls().len();
    assert_eq!(sent, 2, "credentials go to a proven BMC alone: one reading, of two requests");
}

#[tokio::test]
async fn what_a_person_must_change_is_named_by_its_field() {
    let world = World::start().await;
    let message = async |change: fn(&mut RedfishSpec)| match world.read(change).await {
        Err(Trouble::Misconfigured(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(message(|spec| spec.credentials = "none".into()).await.starts_with("spec.redfish.credentials"));
    assert!(message(|spec| spec.credentials = "half".into()).await.ends_with("has no key password"));
    let wrong = world.read(|spec| spec.credentials = "wrong".into()).await.unwrap_err();
    assert!(
        matches!(&wrong, Trouble::Denied(_)) && wrong.to_string().starts_with("credentials: "),
        "{wrong}"
    );
    world.bmc.set(|faults| faults.second_system = true);
    let several = message(as_is).await;
    assert!(several.starts_with("spec.redfish.system") && several.contains("HGX_Baseboard_0"), "{several}");
    let named = async || world.read(|spec| spec.system = Some("System.Embedded.1".into())).await;
    assert_eq!(named().await, Ok(PowerReading::On));
    world.bmc.switch(false);
    assert_eq!(named().await, Ok(PowerReading::Off), "the second system's 503 does not matter");
}

#[tokio::test]
async fn a_bmc_that_fails_is_unreachable_and_recovers() {
    let world = World::start().await;
    let driver = world.open(as_is).await.unwrap();
    let unreachable = async || matches!(driver.read().await, Err(Trouble::Unreachable(_)));
    for status in [500, 502, 503, 302, 404, 429] {
        world.bmc.set(|faults| faults.answers = Some(status));
        assert!(unreachable().await, "{status}");
    }
    world.bmc.set(|faults| (faults.answers, faults.endless) = (None, true));
    assert!(unreachable().await, "an answer without end");
    world.bmc.set(|faults| (faults.endless, faults.forgets) = (false, 1));
    assert!(matches!(driver.read().await, Err(Trouble::Denied(_))), "its sessions are gone");
    assert_eq!(driver.read().await, Ok(PowerReading::On), "and back");
    world.bmc.set(|faults| faults.delay = Duration::from_millis(700));
    assert_eq!(driver.read().await, Ok(PowerReading::On), "slow is not broken");
    for (power, reading) in [("PoweringOff", PowerReading::Changing), ("PoweringOn", PowerReading::Changing)]
    {
        world.bmc.set(|faults| (faults.delay, faults.lies) = (Duration::ZERO, Some(power)));
        assert_eq!(driver.read().await, Ok(reading));
    }
    world.bmc.set(|faults| faults.lies = Some("Sideways"));
    assert!(unreachable().await);
}

#[tokio::test]
async fn a_redirect_of_a_bmc_is_followed_for_a_trailing_slash_alone() {
    let (world, elsewhere) = (World::start().await, Bmc::start("secret").await);
    let driver = world.open(as_is).await.unwrap();
    for (status, address) in [(301, String::new()), (307, world.bmc.endpoint()), (308, elsewhere.endpoint())]
    {
        world.bmc.set(|faults| faults.slashes = Some((status, address)));
        assert_eq!(driver.read().await, Ok(PowerReading::On));
        driver.ask(Ask::Off).await.unwrap();
        assert_eq!(driver.read().await, Ok(PowerReading::Off));
        driver.ask(Ask::On).await.unwrap();
    }
    let called = |path: &str| world.bmc.calls().iter().any(|call| call.what == format!("GET {path}"));
    assert!(called("/redfish/v1/Systems/System.Embedded.1/"));
    assert!(!called("/redfish/v1/Systems/System.Embedded.1"), "members are asked for as the BMC names them");
    for (status, address) in [(302, ""), (308, "https://elsewhere.example"), (308, "/moved")] {
        world.bmc.set(|faults| faults.slashes = Some((status, address.into())));
        assert!(matches!(driver.read().await, Err(Trouble::Unreachable(_))), "{status} {address}");
    }
    assert!(elsewhere.calls().is_empty());
}

#[tokio::test]
async fn without_a_graceful_shutdown_nothing_is_asked() {
    let world = World::start().await;
    let driver = world.open(as_is).await.unwrap();
    for action_info in [false, true] {
        world.bmc.set(|faults| (faults.no_graceful_off, faults.action_info) = (true, action_info));
        assert!(matches!(driver.ask(Ask::Off).await, Err(Trouble::Refused(_))));
        assert!(world.bmc.is_on() && world.bmc.resets().is_empty());
    }
    world.bmc.set(|faults| faults.no_graceful_off = false);
    driver.ask(Ask::Off).await.unwrap();
    assert!(!world.bmc.is_on());
}

#[tokio::test]
async fn a_webhook_is_read_and_set() {
    let world = World::start().await;
    let url = format!("{}/hook", world.bmc.endpoint());
    let hook = |ca: Option<&str>| WebhookSpec {
        url: url.clone(),
        credentials: "hook".into(),
        ca_secret: ca.map(str::to_owned),
    };
    let open = async |hook| {
        let spec = NodePowerSpec { webhook: Some(hook), ..NodePowerSpec::default() };
        Driver::open("gpu-1", &spec, &Secrets::new(world.client.clone(), "power"), &world.client)
            .await
            .unwrap()
    };
    let driver = open(hook(Some("ca"))).await;
    assert_eq!(driver.read().await, Ok(PowerReading::On));
    driver.ask(Ask::Off).await.unwrap();
    assert_eq!(driver.read().await, Ok(PowerReading::Off));
    driver.ask(Ask::On).await.unwrap();
    assert!(world.bmc.is_on());
    assert!(world.bmc.calls().iter().all(|call| call.what.ends_with("/hook/gpu-1")));
}

#[tokio::test]
async fn a_bare_metal_host_is_set_online_unless_it_forbids_that() {
    let host = Arc::new(Mutex::new(json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {"name": "h", "namespace": "metal3"}, "spec": {"online": true}, "status": {"poweredOn": true}})));
    let shared = Arc::clone(&host);
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&gone);
    let service = service_fn(move |request: Request<Body>| {
        let (host, gone) = (Arc::clone(&shared), is_gone.load(Ordering::Relaxed));
        async move {
            if gone {
                let status =
                    json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"});
                let response =
                    Response::builder().status(404).body(Body::from(status.to_string().into_bytes()));
                return Ok::<_, Infallible>(response.unwrap());
            }
            assert_eq!(request.uri().path(), "/apis/metal3.io/v1alpha1/namespaces/metal3/baremetalhosts/h");
            let patches = request.method() == "PATCH";
            let body = request.into_body().collect_bytes().await.unwrap();
            let mut host = host.lock().unwrap();
            if patches {
                let patch: Value = serde_json::from_slice(&body).unwrap();
                host["spec"]["online"] = patch["spec"]["online"].clone();
                host["status"]["poweredOn"] = patch["spec"]["online"].clone();
            }
            let response = Response::builder().body(Body::from(host.to_string().into_bytes()));
            Ok(response.unwrap())
        }
    });
    let client = Client::new(service, "power");
    let spec = BareMetalHostSpec { namespace: "metal3".into(), name: "h".into() };
    let spec = NodePowerSpec { bare_metal_host: Some(spec), ..NodePowerSpec::default() };
    let driver = Driver::open("gpu-1", &spec, &Secrets::new(client.clone(), "power"), &client).await.unwrap();
    assert_eq!(driver.read().await, Ok(PowerReading::On));
    driver.ask(Ask::Off).await.unwrap();
    assert_eq!(driver.read().await, Ok(PowerReading::Off));
    driver.ask(Ask::On).await.unwrap();
    // A wish that was not carried out does not stay.
    driver.ask(Ask::Off).await.unwrap();
    driver.ask(Ask::StayOn).await.unwrap();
    assert_eq!(host.lock().unwrap()["spec"]["online"], true);
    host.lock().unwrap()["spec"]["disablePowerOff"] = json!(true);
    assert!(matches!(driver.ask(Ask::Off).await, Err(Trouble::Refused(_))));
    assert_eq!(driver.read().await, Ok(PowerReading::On));
    gone.store(true, Ordering::Relaxed);
    assert!(matches!(driver.ask(Ask::On).await, Err(Trouble::Misconfigured(_))));
    assert_eq!(driver.ask(Ask::StayOn).await, Ok(()), "a host that is gone has no wish");
}

/// Users of the emulator: `root` with the password `secret`.
const EMULATOR_USERS: &str = "root:$2b$04$3O0j69vieSm55.D0e7oshudnnLYm.tAhXobCx64kulRmrIWIykO3W\n";

#[tokio::test]
#[ignore = "needs sushy-emulator from PyPI: make long WHAT=redfish"]
async fn an_emulator_that_others_wrote_is_switched_off_and_on() {
    let program = std::env::var_os("SUSHY_EMULATOR").expect("SUSHY_EMULATOR names the program");
    let port = andreas_testbed::PortLease::take().unwrap();
    let own = andreas_bmc_sim::self_signed();
    let folder = std::env::temp_dir().join(format!("andreas-sushy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (at, number) = (folder.display(), port.port());
    let config = format!(
        "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {number}\n\
         SUSHY_EMULATOR_SSL_CERT = '{at}/cert.pem'\nSUSHY_EMULATOR_SSL_KEY = '{at}/key.pem'\n\
         SUSHY_EMULATOR_AUTH_FILE = '{at}/users'\n\
         SUSHY_EMULATOR_FAKE_SYSTEMS = [{{'uuid': '7', 'name': 'gpu-1', 'power_state': 'On', 'nics': []}}]\n"
    );
    for (file, text) in [
        ("cert.pem", &own.certificate),
        ("key.pem", &own.key),
        ("users", &EMULATOR_USERS.into()),
        ("conf.py", &config),
    ] {
        std::fs::write(folder.join(file), text).unwrap();
    }
    let mut emulator = tokio::process::Command::new(program)
        .args(["--fake", "--config"])
        .arg(folder.join("conf.py"))
        // It keeps the power of its systems there.
        .env("TMPDIR", &folder)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let world = World::start().await;
    let driver = world
        .open(|spec| {
            spec.endpoint = format!("https://127.0.0.1:{number}");
            spec.fingerprint = Some(own.fingerprint.clone());
        })
        .await
        .unwrap();
    let reads = async |power: PowerReading| {
        andreas_testbed::wait::until(&format!("{power:?} is read"), Duration::from_secs(60), async || {
            Ok(driver.read().await == Ok(power))
        })
        .await
        .unwrap();
    };
    reads(PowerReading::On).await;
    driver.ask(Ask::Off).await.unwrap();
    reads(PowerReading::Off).await;
    driver.ask(Ask::On).await.unwrap();
    reads(PowerReading::On).await;
    emulator.kill().await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
