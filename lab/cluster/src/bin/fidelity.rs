//! Runs and replays compared: `make lab WHAT=fidelity`.

use andreas_lab_cluster::fidelity::{FidelityArgs, check};
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    check(&FidelityArgs::parse()).await
}
