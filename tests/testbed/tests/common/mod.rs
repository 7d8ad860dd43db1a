//! What the test bed's own tests share.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

mod waiting;

use andreas_testbed::{Builder, Testbed};
pub use waiting::{LIMIT, eventually, is_alive, process_state};

pub async fn start(builder: Builder) -> Testbed {
    builder.start().await.unwrap_or_else(|error| panic!("{error}"))
}
