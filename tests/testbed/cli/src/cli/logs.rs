//! `testbed logs`: a component's log file, once or followed.

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use andreas_testbed::Component;
use andreas_testbed::control;
use anyhow::{Context as _, bail};

/// Prints the log; with `follow` until the test bed is gone.
pub async fn print(name: &str, component: Component, follow: bool) -> anyhow::Result<()> {
    let status = control::ask_status(name).await?;
    let Some(found) = status.components.into_iter().find(|one| one.component == component) else {
        bail!("this test bed has no {component}");
    };
    let cannot_read = || format!("cannot read {}", found.log.display());
    let mut file = File::open(&found.log).with_context(cannot_read)?;
    loop {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(cannot_read)?;
        super::print(&String::from_utf8_lossy(&bytes))?;
        if !follow || !found.log.exists() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
