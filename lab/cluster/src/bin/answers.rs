//! Asks `whatif` before each job of the demo is submitted, and compares with what then happens: `make lab WHAT=answers`.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    andreas_lab_cluster::answers::check().await
}
