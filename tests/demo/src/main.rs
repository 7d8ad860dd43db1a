//! The demo as a command: `make demo`.

use andreas_demo::{DemoArgs, run};
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = DemoArgs::parse();
    run(&args).await.map(|_| ())
}
