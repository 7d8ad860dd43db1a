//! Scenarios: which starts wait for whom.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "every_method/order.rs"]
mod every_method;
mod methods;
mod scenarios;
