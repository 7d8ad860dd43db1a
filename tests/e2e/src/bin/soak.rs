//! The soak as a command: `make soak`. `SOAK_MINUTES` (60) and `SOAK_SEED` (the clock's) say how long and which.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use andreas_e2e::soak::{Soak, number, run};
use anyhow::Result;

#[tokio::main]
async fn main() -> Result<()> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let lasts = Duration::from_secs(60 * number("SOAK_MINUTES", 60)?);
    let seed = number("SOAK_SEED", clock)?;
    println!("soak: seed {seed}, {} min", lasts.as_secs() / 60);
    println!("{}", run(Soak { lasts, seed }).await?);
    Ok(())
}
