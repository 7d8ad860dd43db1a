//! A GPU of this machine in place of simulated ones. Where there is none, these scenarios say so and do nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options};
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
/// The program that keeps a GPU busy, in the repository.
const LOAD: &str = "node-agent/tests/hardware/load";
/// What the program needs of the machine: its Python and what that loads.
const FOLDERS: [(&str, &str); 4] =
    [("/usr", "/usr"), ("/usr/lib", "/lib"), ("/usr/lib64", "/lib64"), ("/opt", "/opt")];
const LIMIT: Duration = Duration::from_secs(300);

/// The repository, as programs on this machine and in containers see it.
fn root() -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    Ok(root.to_str().context("a path in UTF-8")?.to_owned())
}

/// A job whose container sees the machine's programs and this repository.
fn program(name: &str, command: &Value) -> Result<Job> {
    let root = root()?;
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (index, (from, to)) in FOLDERS.into_iter().chain([(root.as_str(), root.as_str())]).enumerate() {
        let name = format!("machine-{index}");
        volumes.push(json!({"name": name, "hostPath": {"path": from, "type": "Directory"}}));
        mounts.push(json!({"name": name, "mountPath": to, "readOnly": to == root}));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Ok(job(name)
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
        .container("command", command.clone()))
}

/// The machine's GPUs for one test at a time; the runtime's mount points are gone afterwards.
struct Alone {
    gpus: MachineGpus,
    mount_points: Vec<PathBuf>,
    _lock: std::fs::File,
}

impl Alone {
    /// None where there is no GPU.
    fn wait() -> Result<Option<Self>> {
        let Some(gpus) = MachineGpus::find() else { return Ok(None) };
        let lock = std::fs::File::open(Path::new(&root()?).join(LOAD))?;
        lock.lock()?;
        Ok(Some(Self { mount_points: gpus.mount_points(), gpus, _lock: lock }))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        for path in &self.mount_points {
            if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// A node with the GPUs of this machine, and agents that observe: settings of a card that others may use are not touched.
fn one_node(alone: &Alone) -> Options {
    Options {
        name: "hardware".into(),
        groups: Vec::new(),
        real_nodes: vec![Gpus::OfMachine(alone.gpus.clone())],
        install: Some(json!({"agent": {"observe": true}})),
        policy: json!({"limits": "Off", "rest": {"mode": "Off"}}),
        ..Options::default()
    }
}

/// Waits for what a job is to reach; that it failed is said at once, with what it printed.
async fn until(
    c: &mut Cluster,
    job: &Job,
    what: &str,
    reached: impl Fn(&ClusterHistory) -> bool,
) -> Result<()> {
    let key = job.key();
    let failed = |seen: &ClusterHistory| seen.phase(&key) == Phase::Failed;
    let awaited =
        c.observer.until(&format!("{key}: {what}"), LIMIT, |seen| reached(seen) || failed(seen)).await;
    let (failed, attempt) = {
        let seen = c.observer.seen();
        (failed(&seen), seen.status(&key).attempts)
    };
    if failed || awaited.is_err() {
        let (_, name) = key.split_once('/').context("a key")?;
        let log = c.kubectl(&format!("logs {name}-{attempt}-0 --tail=200")).await;
        println!("{}", log.unwrap_or_else(|error| format!("no log: {error:#}")));
    }
    ensure!(!failed, "{key} failed");
    awaited
}

/// Waits for its end and for its energy, measured on the GPU.
async fn until_measured(c: &mut Cluster, job: &Job) -> Result<()> {
    let key = job.key();
    until(c, job, "its end", |seen| seen.phase(&key) == Phase::Succeeded).await?;
    // Then what it drew was measured on the GPU
    let measured = |seen: &ClusterHistory| {
        let total = seen.status(&key).consumption;
        total.is_some_and(|total| total.source == "Measured" && total.joules > 0)
    };
    until(c, job, "measured energy", measured).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_runs_on_a_gpu_of_this_machine_and_its_energy_is_measured() -> Result<()> {
    let Some(alone) = Alone::wait()? else {
        println!("no GPU here: nothing ran on it");
        return Ok(());
    };
    scenario(one_node(&alone), async |c| {
        // Given a node that NVIDIA's own programs labelled, and whose agent reads the GPU
        println!("{}", c.kubectl("get node node-1 --show-labels").await?);
        println!("{}", c.kubectl("get gpunodes -o wide").await?);
        // When a program trains on it
        let load = format!("{}/{LOAD}", root()?);
        let command = match std::env::var(ENV_PROGRAM) {
            Ok(text) => serde_json::from_str(&text).context(ENV_PROGRAM)?,
            Err(_) => json!(["python3", "-c", PROGRAM, load, STEPS.to_string()]),
        };
        let tj = program("on-hardware", &command)?;
        let key = tj.key();
        c.submit(&tj).await?;
        until(c, &tj, "a fifth of it", |seen| seen.milli_percent(&key) >= 20_000).await?;
        println!("{}", c.kubectl("logs on-hardware-1-0 --tail=30").await?);
        println!("{}", c.kubectl("get gpunodes -o wide").await?);
        let gpunode: Value = serde_json::from_str(&c.kubectl("get gpunode node-1 -o json").await?)?;
        println!("{:#}", gpunode["status"]);
        let gpus = gpunode["status"]["gpus"].as_array().context("its GPUs")?;
        let held = |gpu: &Value| gpu["state"] == "Held" && gpu["holder"] == "default/on-hardware-1-0";
        ensure!(gpus.iter().any(held), "{gpunode:#}");
        until_measured(c, &tj).await?;
        println!("{}", c.kubectl("get trainingjob on-hardware -o yaml").await?);
        Ok(())
    })
    .await
}

/// The loss of all data that a program says at its end.
async fn loss(c: &Cluster, pod: &str) -> Result<f64> {
    let log = c.kubectl(&format!("logs {pod}")).await?;
    println!("{pod}:\n{log}");
    let said = log.lines().find_map(|line| line.split_once("loss ").filter(|_| line.starts_with("finished")));
    said.with_context(|| format!("no loss in {log}"))?.1.parse().context("a loss")
}

#[tokio::test(flavor = "multi_thread")]
async fn pytorch_on_a_gpu_of_this_machine_resumes_from_its_checkpoint() -> Result<()> {
    let torch =
        std::process::Command::new("python3").args(["-c", "import torch; torch.zeros(1).cuda()"]).output();
    let (Some(alone), true) = (Alone::wait()?, torch.is_ok_and(|output| output.status.success())) else {
        println!("no GPU here, or no PyTorch that uses it: nothing was trained on it");
        return Ok(());
    };
    scenario(one_node(&alone), async |c| {
        let script = format!("{}/tests/frameworks/programs/ddp.py", root()?);
        let command = json!(["python3", "-m", "torch.distributed.run", script]);
        let run = |name: &str| -> Result<Job> {
            let job = program(name, &command)?.spec("startTimeout", json!("4m")).gpus(1, 1);
            Ok(job
                .checkpoint(60)
                .env("STEPS", 600)
                .env("BATCH", 1024)
                .env("SECONDS_PER_STEP", 0.05)
                .env("NCCL_DEBUG", "WARN"))
        };
        // Given a run under torchrun that was suspended when it had saved, and goes on
        let stopped = run("stopped")?;
        let key = stopped.key();
        c.submit(&stopped).await?;
        until(c, &stopped, "a third of it", |seen| seen.milli_percent(&key) >= 33_000).await?;
        c.edit(&key, &json!({"suspend": true})).await?;
        until(c, &stopped, "suspended", |seen| seen.phase(&key) == Phase::Suspended).await?;
        println!("{}", c.kubectl("get gpunodes -o wide").await?);
        c.edit(&key, &json!({"suspend": false})).await?;
        until_measured(c, &stopped).await?;
        let status = c.observer.seen().status(&key);
        let progress = status.progress.clone().context("progress")?;
        ensure!(status.attempts == 2 && progress.attempt_start >= 30_000, "{status:?}");
        // When the same runs without a stop, then its loss is the same
        let whole = run("whole")?;
        c.submit(&whole).await?;
        until_measured(c, &whole).await?;
        let (with, without) = (loss(c, "stopped-2-0").await?, loss(c, "whole-1-0").await?);
        println!("{}", c.kubectl("get trainingjobs -o wide").await?);
        for name in ["stopped", "whole"] {
            println!(
                "{}",
                c.kubectl(&format!("get trainingjob {name} -o jsonpath={{.status.consumption}}")).await?
            );
        }
        ensure!((with - without).abs() <= 0.01 * without, "loss {with} with a stop, {without} without");
        Ok(())
    })
    .await
}
