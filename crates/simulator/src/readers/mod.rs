//! Files in.
pub mod andreas;
mod error;
mod table;
pub use error::ReadError;
