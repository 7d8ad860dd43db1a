//! The benchmarks as a command: `make lab WHAT=bench`.

use andreas_bench::{BenchArgs, run};
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    run(BenchArgs::parse()).await
}
