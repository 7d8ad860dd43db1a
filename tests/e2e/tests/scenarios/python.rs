//! A program with the Python package of `python/`, against the operator's own endpoint.

use std::path::{Path, PathBuf};

use andreas_api::phase::{Outcome, Phase, Reason};
use andreas_e2e::cluster::Options;
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

/// Counts to `TOTAL`, saves when it is asked to stop, and goes on from there. The first attempt waits at half for that.
const PROGRAM: &str = r#"
import os, sys, time
import andreas_progress

total = int(os.environ["TOTAL"])
with andreas_progress.start(interval=0.5) as run:
    folder = run.resume_folder()
    first = int((folder / "step").read_text()) if folder else 0
    print(f"attempt {run.environment.attempt} from {first} by Python {sys.version}", flush=True)
    for step in range(first + 1, total + 1):
        time.sleep(0.05)
        run.report(step, total, {"loss": 1 / step})
        while run.environment.attempt == 1 and step == total // 2 and not run.stop_requested:
            time.sleep(0.05)
        if run.stop_requested:
            with run.new_checkpoint(step) as folder:
                (folder / "step").write_text(str(step))
            break
    else:
        # Of both attempts.
        assert run.flush() and run.energy_joules > 0, run.energy_joules
"#;

/// The package's modules, as a ConfigMap that a container can import.
fn package() -> Result<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src/andreas_progress");
    let mut data = Map::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
            data.insert(name, json!(std::fs::read_to_string(&path)?));
        }
    }
    ensure!(data.contains_key("__init__.py"), "no package in {}", folder.display());
    Ok(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "package", "namespace": "default"}, "data": data,
    }))
}

/// The Python that `make long WHAT=python-operator` names, `…/bin/NAME`, or the machine's.
fn python() -> PathBuf {
    std::env::var_os("ANDREAS_PYTHON").unwrap_or_else(|| "/usr/bin/python3".into()).into()
}

fn program(name: &str, steps: u32) -> Job {
    let volume = json!([{"name": "package", "configMap": {"name": "package"}}]);
    let mounts = json!([{"name": "package", "mountPath": "/package/andreas_progress"}]);
    job(name)
        .checkpoint(20)
        .env("TOTAL", steps)
        .env("PYTHONPATH", "/package")
        .env("PYTHONDONTWRITEBYTECODE", 1)
        .pod("volumes", volume)
        .container("volumeMounts", mounts)
        .container("command", json!([python(), "-c", PROGRAM]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_reports_saves_when_asked_to_stop_and_resumes() -> Result<()> {
    // Its standard library is beside it, maybe below a home folder.
    let prefix = python().parent().and_then(Path::parent).context("…/bin/NAME")?.to_path_buf();
    scenario(Options { host_paths: vec![prefix], ..Options::default() }, async |c| {
        c.apply(&package()?).await?;
        let tj = program("counted", 600);
        let key = tj.key();
        c.submit(&tj).await?;
        // its counted steps arrive over TLS, with the token and the certificates of the job
        c.wait_for_percent(&tj, 25).await?;
        let progress = c.observer.seen().status(&key).progress.context("progress")?;
        ensure!(progress.stepwise && progress.attempt == 1, "{progress:?}");
        // when it is suspended, it saves and leaves
        c.edit(&key, &json!({"suspend": true})).await?;
        c.wait_for_phase(&tj, Phase::Suspended).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.history.last().is_some_and(|a| a.outcome == Outcome::Stopped), "{:?}", status.history);
        let saved = c.observer.seen().milli_percent(&key);
        // and goes on from there to the end, which it reports by its last count
        c.edit(&key, &json!({"suspend": false})).await?;
        c.wait_for_phase(&tj, Phase::Succeeded).await?;
        let status = c.observer.seen().status(&key);
        ensure!(status.attempts == 2 && status.user_failures == 0, "{status:?}");
        let progress = status.progress.context("progress")?;
        ensure!(
            progress.milli_percent == 100_000 && progress.attempt_start >= saved - 1_000,
            "saved at {saved}, then {progress:?}"
        );
        ensure!(c.observer.seen().has_reason(&key, Reason::Completed), "not completed");
        Ok(())
    })
    .await
}
