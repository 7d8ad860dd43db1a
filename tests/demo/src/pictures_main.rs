//! Takes the pictures of the pages: `make docs WHAT=pictures`.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    andreas_demo::pictures::take().await
}
