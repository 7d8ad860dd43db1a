//! What the API server spends its CPU time on while something is measured, for `go tool pprof`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use andreas_testbed::Testbed;
use anyhow::{Context as _, Result};
use kube::client::Body;

/// Seconds of each profile: one that is cut short is lost, and a run ends when it ends.
const SECONDS: u64 = 2;

/// Saves one profile of the API server after the other as `<name>-<number>.pprof` until `done`, and the allocations since its start
/// as `<name>-allocs.pprof`. Together: `go tool pprof -top <name>-*[0-9].pprof`. Needs `--profiling=true`.
///
/// # Errors
/// When the API server does not answer with a profile, or a file cannot be written.
pub(super) async fn take(testbed: &Testbed, folder: &Path, name: &str, done: &AtomicBool) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let mut number = 0_u32;
    while !done.load(Ordering::Relaxed) {
        let path = folder.join(format!("{name}-{number:03}.pprof"));
        save(testbed, &format!("/debug/pprof/profile?seconds={SECONDS}"), &path).await?;
        number += 1;
    }
    save(testbed, "/debug/pprof/allocs", &folder.join(format!("{name}-allocs.pprof"))).await
}

async fn save(testbed: &Testbed, url: &str, path: &Path) -> Result<()> {
    let request = http::Request::get(url).body(Body::empty())?;
    let response = testbed.client().send(request).await?;
    anyhow::ensure!(response.status().is_success(), "{url}: {}", response.status());
    let bytes = response.into_body().collect_bytes().await?;
    std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}
