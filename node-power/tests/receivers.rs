//! The receiver of webhooks that the how-to names (`deploy/power/receiver.py`), asked by the driver: with ipmitool, ssh, ping and
//! wakeonlan as programs that keep a machine's power in a file, and a MAAS of this process.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use andreas_api::node_power::{NodePowerSpec, PowerReading, WebhookSpec};
use andreas_bmc_sim::self_signed;
use andreas_node_power::driver::{Driver, PowerSwitch as _, Request as Ask, Trouble};
use andreas_node_power::secrets::Secrets;
use andreas_testbed::write_executables;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::service_fn;

/// Programs that read and set the power in the file `power` of their folder, and refuse what they are not asked for.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "ipmitool",
        r#"[ "$IPMI_PASSWORD" = "pass word" ] || exit 1
case "$*" in
"-I lanplus -H bmc-7 -U root -E chassis power status") echo "Chassis Power is $(cat power)" ;;
"-I lanplus -H bmc-7 -U root -E chassis power soft") echo off >power ;;
"-I lanplus -H bmc-7 -U root -E chassis power on") echo on >power ;;
*) echo "asked: $*" >&2; exit 1 ;;
esac"#,
    ),
    (
        "ssh",
        r#"[ "$(cat power)" = on ] || exit 255
case "$*" in
*"gpu-8 true") ;;
*"gpu-8 sudo systemctl poweroff") echo off >power ;;
*) exit 1 ;;
esac"#,
    ),
    ("ping", r#"[ "$(cat power)" != off ]"#),
    ("wakeonlan", r#"[ "$*" = "3c:ec:ef:00:00:08" ] && echo on >power"#),
];

struct Receiver {
    process: Child,
    url: String,
    client: Client,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Receiver {
    fn start(folder: &Path, maas: &str) -> Self {
        andreas_runtime::install_crypto();
        let own = self_signed();
        let machines = json!({
            "gpu-7": {"by": "ipmitool", "host": "bmc-7"},
            "gpu-8": {"by": "wakeonlan", "host": "gpu-8", "mac": "3c:ec:ef:00:00:08"},
            "gpu-9": {"by": "maas", "system": "4y3h7n"},
        });
        let files = [
            ("cert.pem", own.certificate.clone()),
            ("key.pem", own.key),
            ("machines.json", machines.to_string()),
            ("power", "on\n".into()),
        ];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let programs = PROGRAMS.map(|(name, script)| (name, format!("#!/bin/sh\n{script}\n")));
        write_executables(folder, programs).unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/power/receiver.py");
        let mut process = Command::new("python3")
            .arg(program)
            .args([
                "machines.json",
                "--certificate",
                "cert.pem",
                "--key",
                "key.pem",
                "--listen",
                "127.0.0.1:0",
            ])
            .current_dir(folder)
            .env("PATH", path)
            .envs([("TOKEN", "secret"), ("IPMI_USER", "root"), ("IPMI_PASSWORD", "pass word")])
            .envs([("MAAS_URL", maas), ("MAAS_KEY", "consumer:token:key")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().unwrap().to_owned();
        let text = |text: &str| STANDARD.encode(text);
        let all = json!({"hook": {"token": text("secret")}, "other": {"token": text("wrong")},
            "ca": {"ca.crt": text(&own.certificate)}});
        let service = service_fn(move |request: Request<Body>| {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let secret = json!({"metadata": {"name": name}, "data": all[name]}).to_string();
            async move { Ok::<_, Infallible>(Response::new(Body::from(secret.into_bytes()))) }
        });
        Self { process, url: format!("https://127.0.0.1:{port}"), client: Client::new(service, "power") }
    }

    async fn driver(&self, node: &str, credentials: &str) -> Driver {
        let hook = WebhookSpec {
            url: self.url.clone(),
            credentials: credentials.into(),
            ca_secret: Some("ca".into()),
        };
        let spec = NodePowerSpec { webhook: Some(hook), ..NodePowerSpec::default() };
        Driver::open(node, &spec, &Secrets::new(self.client.clone(), "power"), &self.client).await.unwrap()
    }
}

/// A MAAS that knows one machine, and the requests that it had.
async fn maas() -> (String, Arc<parking_lot::Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/MAAS", listener.local_addr().unwrap());
    let calls = Arc::<parking_lot::Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&calls);
    tokio::spawn(async move {
        let mut power = "on";
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = String::new();
            while !request.contains("\r\n\r\n")
                || request.contains("op=power_off") && !request.ends_with("stop_mode=soft")
            {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).await.unwrap();
                request += &String::from_utf8_lossy(&bytes[..read]);
            }
            let line = request.lines().next().unwrap().to_owned();
            let header = r#"OAuth oauth_signature_method="PLAINTEXT", oauth_version="1.0", oauth_consumer_key="consumer", oauth_token="token", oauth_signature="%26key""#;
            assert!(request.contains(header), "{request}");
            power = match line.rsplit_once("op=").unwrap().1 {
                "power_off HTTP/1.1" => "off",
                "power_on HTTP/1.1" => "on",
                _ => power,
            };
            seen.lock().push(line);
            let body = json!({ "state": power }).to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_machine_is_read_switched_off_gracefully_and_on() {
    let folder = tempfile::tempdir().unwrap();
    let (url, calls) = maas().await;
    let receiver = Receiver::start(folder.path(), &url);
    for node in ["gpu-7", "gpu-8", "gpu-9"] {
        let driver = receiver.driver(node, "hook").await;
        assert_eq!(driver.read().await, Ok(PowerReading::On), "{node}");
        driver.ask(Ask::Off).await.unwrap();
        assert_eq!(driver.read().await, Ok(PowerReading::Off), "{node}");
        driver.ask(Ask::On).await.unwrap();
        assert_eq!(driver.read().await, Ok(PowerReading::On), "{node}");
    }
    let machine = "/MAAS/api/2.0/machines/4y3h7n/?op=";
    assert!(calls.lock().contains(&format!("POST {machine}power_off HTTP/1.1")), "{:?}", calls.lock());
    // A host that answers no ssh and still answers pings is not off.
    std::fs::write(folder.path().join("power"), "hangs\n").unwrap();
    assert_eq!(receiver.driver("gpu-8", "hook").await.read().await, Ok(PowerReading::Changing));
    // Neither is one of which nobody knows.
    for (node, credentials) in [("gpu-6", "hook"), ("gpu-7", "other")] {
        let read = receiver.driver(node, credentials).await.read().await;
        assert!(
            matches!(read, Err(Trouble::Refused(_) | Trouble::Denied(_) | Trouble::Unreachable(_))),
            "{read:?}"
        );
    }
    // What it cannot work with is said before it listens.
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/power/receiver.py");
    let refused = |token: &str, machines: &str| {
        std::fs::write(folder.path().join("bad.json"), machines).unwrap();
        let mut command = Command::new("python3");
        command.arg(&program).args(["bad.json", "--certificate", "cert.pem", "--key", "key.pem"]);
        let output = command.current_dir(&folder).env("TOKEN", token).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("", "{}").contains("no TOKEN"));
    assert!(
        refused("t", r#"{"gpu-7": {"by": "ipmi"}}"#)
            .contains("gpu-7: by is one of ipmitool, wakeonlan, maas")
    );
}
