//! The demo as a command: `make demo`.

use andreas_e2e::demo::{DemoArgs, run};
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = DemoArgs::parse();
    run(&args).await.map(|_| ())
}
