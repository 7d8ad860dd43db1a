//! A GPU of this machine in place of simulated ones. Where there is none, these scenarios say so and do nothing.

use std::path::Path;
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::Options;
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use andreas_e2e::seen::ClusterHistory;
use andreas_kubelets::{Gpus, MachineGpus};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Names a program in place of [`PROGRAM`], as a JSON list; it reports its own progress.
const ENV_PROGRAM: &str = "ANDREAS_GPU_PROGRAM";
/// Steps of a second each, while all cores of the GPU are busy. Its arguments: the program that keeps them so, how many steps.
const PROGRAM: &str = r#"
import subprocess, sys, time
import andreas_progress

total = int(sys.argv[2])
load = subprocess.Popen([sys.executable, sys.argv[1], "busy"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert load.stdout.readline() == b"ready\n"
with load, andreas_progress.start() as run:
    for step in range(total):
        time.sleep(1)
        run.report(step + 1, total)
        print("step", step + 1, flush=True)
"#;
const STEPS: u32 = 40;
/// What the program needs of the machine: its Python and what that loads.
const FOLDERS: [(&str, &str); 4] =
    [("/usr", "/usr"), ("/usr/lib", "/lib"), ("/usr/lib64", "/lib64"), ("/opt", "/opt")];
const LIMIT: Duration = Duration::from_secs(150);

/// A job whose container sees the machine's programs and this repository.
fn program() -> Result<Job> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let root = root.to_str().context("a path in UTF-8")?;
    let load = format!("{root}/node-agent/tests/hardware/load");
    let command: Value = match std::env::var(ENV_PROGRAM) {
        Ok(text) => serde_json::from_str(&text).context(ENV_PROGRAM)?,
        Err(_) => json!(["python3", "-c", PROGRAM, load, STEPS.to_string()]),
    };
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (index, (from, to)) in FOLDERS.into_iter().chain([(root, root)]).enumerate() {
        let name = format!("machine-{index}");
        volumes.push(json!({"name": name, "hostPath": {"path": from, "type": "Directory"}}));
        mounts.push(json!({"name": name, "mountPath": to, "readOnly": to == root}));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Ok(job("on-hardware")
        .spec("epochs", json!(1))
        .spec("retries", json!(0))
        .env("PATH", path)
        .env("LD_LIBRARY_PATH", libraries)
        .env("PYTHONPATH", format!("{root}/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", 1)
        .env("HOME", "/tmp")
        .pod("volumes", json!(volumes))
        .container("securityContext", json!({"runAsUser": 0}))
        .container("volumeMounts", json!(mounts))
        .container("command", command))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_trains_on_a_gpu_of_this_machine() -> Result<()> {
    let Some(gpus) = MachineGpus::find() else {
        println!("no GPU here: nothing was trained on it");
        return Ok(());
    };
    // The agents observe: settings of a card that others may use are not touched.
    let options = Options {
        name: "hardware".into(),
        groups: Vec::new(),
        real_nodes: vec![Gpus::OfMachine(gpus)],
        install: Some(json!({"agent": {"observe": true}})),
        policy: json!({"limits": "Off", "rest": {"mode": "Off"}}),
        ..Options::default()
    };
    scenario(options, async |c| {
        // Given a node that NVIDIA's own programs labelled, and whose agent reads the GPU
        println!("{}", c.kubectl("get node node-1 --show-labels").await?);
        println!("{}", c.kubectl("get gpunodes -o wide").await?);
        // When a program trains on it
        let tj = program()?;
        c.submit(&tj).await?;
        let (key, failed) = (tj.key(), |seen: &ClusterHistory, key: &str| seen.phase(key) == Phase::Failed);
        let begun = |seen: &ClusterHistory| seen.milli_percent(&key) >= 20_000 || failed(seen, &key);
        c.observer.until("a fifth of it is done", LIMIT, begun).await?;
        let said = c.kubectl("logs on-hardware-1-0 --tail=30").await?;
        ensure!(!failed(&c.observer.seen(), &key), "the program failed: {said}");
        println!("{said}\n{}", c.kubectl("get gpunodes -o wide").await?);
        let gpunode: Value = serde_json::from_str(&c.kubectl("get gpunode node-1 -o json").await?)?;
        println!("{:#}", gpunode["status"]);
        ensure!(gpunode["status"]["gpus"][0]["state"] == "Held", "{gpunode:#}");
        let ended = |seen: &ClusterHistory| seen.phase(&key) == Phase::Succeeded || failed(seen, &key);
        c.observer.until("its end", LIMIT, ended).await?;
        ensure!(!failed(&c.observer.seen(), &key), "{}", c.kubectl("logs on-hardware-1-0 --tail=30").await?);
        // Then what it drew was measured on the GPU
        let measured = |seen: &ClusterHistory| {
            seen.status(&key).consumption.is_some_and(|total| total.source == "Measured" && total.joules > 0)
        };
        c.observer.until("measured energy", LIMIT, measured).await?;
        println!("{}", c.kubectl("get trainingjob on-hardware -o yaml").await?);
        Ok(())
    })
    .await
}
