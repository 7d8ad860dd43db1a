//! Asks `whatif` before each job of the demo is submitted, and compares with what then happens: `make answers`.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    andreas_demo::answers::check().await
}
