//! The benchmarks as a command: `make bench`.

use andreas_bench::{BenchArgs, run};
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    run(BenchArgs::parse()).await
}
