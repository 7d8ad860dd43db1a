//! Runs the commands of pages on a cluster like the demo's and puts what they print below them: `make docs WHAT=transcripts`. With
//! names of pages only those.

use andreas_demo::pages::{self, Outputs};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    pages::run(if asked.is_empty() { &pages::PAGES } else { &asked }, Outputs::Written).await
}
