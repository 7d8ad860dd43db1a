//! Predictions.

pub mod limits;
