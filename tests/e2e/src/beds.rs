//! Control planes with the chart's definitions, each used by one scenario after another: starting one costs more than most
//! scenarios do on it.

use andreas_testbed::{Inventory, Testbed};
use anyhow::{Context as _, Result};
use parking_lot::Mutex;

use crate::chart;
use crate::options::Options;

/// Those that no scenario uses now. They end with the program.
static IDLE: Mutex<Vec<(Testbed, Inventory)>> = Mutex::new(Vec::new());

/// A control plane as [`chart::install`] leaves it, and what it holds.
///
/// # Errors
/// When none is idle and none can be started.
pub async fn take(options: &Options) -> Result<(Testbed, Inventory)> {
    let idle = IDLE.lock().pop();
    if let Some((mut testbed, inventory)) = idle {
        testbed.renew_client().await?;
        return Ok((testbed, inventory));
    }
    let testbed =
        Testbed::builder().name("shared").node_monitor_grace_period(options.node_monitor_grace_period);
    let testbed = testbed.start().await.context("starting the control plane")?;
    chart::install(&testbed, &[("policies.maxWeight", &chart::MAX_WEIGHT.to_string())])
        .await
        .context("installing the chart's objects")?;
    let inventory = testbed.inventory().await?;
    Ok((testbed, inventory))
}

/// Removes what a scenario left; a control plane that does not come back to what it held is ended.
pub async fn give_back(mut testbed: Testbed, inventory: Inventory) {
    match testbed.restore(&inventory).await {
        Ok(()) => IDLE.lock().push((testbed, inventory)),
        Err(error) => {
            eprintln!("a control plane is not used again: {:#}", anyhow::Error::from(error));
            testbed.stop().await;
        }
    }
}
