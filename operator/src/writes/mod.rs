//! Writes to the API server, for every loop and endpoint.
//!
//! **In**: objects and patches. **Out**: the API server's answer, or a classified refusal.
//!
//! | file | what |
//! |---|---|
//! | [`writer`] | the client: bounded concurrency, only while this replica leads, retries on request |
//! | [`permits`] | whose write is next, and how many a namespace may have in flight |
//! | [`refusal`] | classifies API server errors |
//! | [`patch`] | patches of changes |
//!
//! **Never here**: what to write, and what follows from an answer.

pub mod patch;
pub mod permits;
pub mod refusal;
pub mod writer;

pub use refusal::Refusal;
pub use writer::{WriteError, Writer};
