//! A minute of what `make soak` does for an hour.

use std::time::Duration;

use andreas_e2e::soak::{BUDGET_WATTS, Soak, number, run};
use anyhow::{Result, ensure};

/// Given everything that may happen, drawn from one seed; when it is over, then no GPU had two users, no job two attempts at once, the
/// budget was kept, every job has ended, and nothing is left. `SOAK_SEED` and `SOAK_SECONDS` choose others.
#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_everything_at_once_leaves_every_job_ended_and_nothing_behind() -> Result<()> {
    let lasts = Duration::from_secs(number("SOAK_SECONDS", 60)?);
    let report = run(Soak { lasts, seed: number("SOAK_SEED", 15)?, verbose: false }).await?;
    println!("{report}");
    ensure!(report.submitted > 0 && report.looks > 0, "nothing happened: {report}");
    // A budget that nothing comes near would be kept by any plan.
    ensure!(report.highest_watts > BUDGET_WATTS / 2.0, "the budget was not put to the test: {report}");
    Ok(())
}
