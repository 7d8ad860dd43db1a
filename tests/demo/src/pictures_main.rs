//! Takes the pictures of the pages: `make pictures`.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    andreas_demo::pictures::take().await
}
