//! Given the pages with transcripts; when their commands are run again on a cluster like the demo's; then each ends as the page
//! says and prints what has the same shape.
#![allow(missing_docs)]

use andreas_demo::pages::{self, Outputs};

#[tokio::test(flavor = "multi_thread")]
async fn every_command_prints_what_its_page_shows() -> anyhow::Result<()> {
    pages::run(&pages::PAGES, Outputs::Compared).await
}
