//! A minute of what `make soak` does for an hour.

use std::time::Duration;

use andreas_e2e::soak::{Soak, run};
use anyhow::{Result, ensure};

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_everything_at_once_leaves_every_job_ended_and_nothing_behind() -> Result<()> {
    let report = run(Soak { lasts: Duration::from_secs(60), seed: 15 }).await?;
    println!("{report}");
    ensure!(report.submitted > 0 && report.looks > 0, "nothing happened: {report}");
    Ok(())
}
