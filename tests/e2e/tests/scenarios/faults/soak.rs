//! A minute of what `make long WHAT=soak` does for an hour.

use std::time::Duration;

use andreas_e2e::soak::{Soak, number, run};
use anyhow::Result;

/// Given everything that may happen, drawn from one seed; when it is over, then no GPU had two users, no job two attempts at once, the
/// budget was kept, every job has ended, and nothing is left. `SOAK_SEED` and `SOAK_SECONDS` choose others.
#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_everything_at_once_leaves_every_job_ended_and_nothing_behind() -> Result<()> {
    let lasts = Duration::from_secs(number("SOAK_SECONDS", 60)?);
    println!("{}", run(Soak { lasts, seed: number("SOAK_SEED", 15)?, verbose: false }).await?);
    Ok(())
}
