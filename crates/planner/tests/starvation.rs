//! Every job starts at last, and ends, at any load.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/starvation.rs"]
mod every_method;
mod methods;
