//! Runs the commands of `docs/quickstart.md` and puts what they print below them: `make quickstart`.

use std::path::Path;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    andreas_demo::quickstart::regenerate(Path::new("docs/quickstart.md")).await
}
