//! Runs and replays compared: `make fidelity`.

use andreas_demo::fidelity::{FidelityArgs, check};
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    check(&FidelityArgs::parse()).await
}
