//! The soak as a command: `make long WHAT=soak`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use andreas_e2e::soak::{Soak, run};
use anyhow::Result;
use clap::Parser;

/// Does everything at random that may happen to a cluster, and checks that nothing is lost and nobody is blamed.
#[derive(Parser)]
#[command(name = "soak")]
struct SoakArgs {
    /// For how many minutes things happen; the end takes up to some minutes more.
    #[arg(long, env = "SOAK_MINUTES", default_value_t = 60)]
    minutes: u32,
    /// What is drawn; the clock's second when absent.
    #[arg(long, env = "SOAK_SEED")]
    seed: Option<u64>,
    /// Print every action and every repair with its second.
    #[arg(long, env = "SOAK_VERBOSE", value_parser = clap::builder::BoolishValueParser::new())]
    verbose: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = SoakArgs::parse();
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let seed = args.seed.unwrap_or_else(clock);
    println!("soak: seed {seed}, {} min", args.minutes);
    let lasts = Duration::from_secs(60 * u64::from(args.minutes));
    println!("{}", run(Soak { lasts, seed, verbose: args.verbose }).await?);
    Ok(())
}
