//! Errors of an input line.

/// A field and its problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InputError {
    /// Path of the field, e.g. `new_jobs[3].epoch_s.V100[0]`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Largest magnitude of any number, as in the planner.
const LARGE: f64 = 1e15;

/// An [`InputError`], as the result of a check.
pub fn bad<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, InputError> {
    Err(InputError { field: field.into(), problem: problem.into() })
}

/// At least 0.
pub fn not_negative(value: f64, field: impl FnOnce() -> String) -> Result<f64, InputError> {
    if (0.0..=LARGE).contains(&value) {
        Ok(value)
    } else {
        bad(field(), format!("{value} is not between 0 and {LARGE:e}"))
    }
}

/// Above 0.
pub fn positive(value: f64, field: impl FnOnce() -> String) -> Result<f64, InputError> {
    if value > 0.0 && value <= LARGE {
        Ok(value)
    } else {
        bad(field(), format!("{value} is not above 0 and at most {LARGE:e}"))
    }
}

/// Must be there.
pub fn required<T>(value: Option<&T>, field: impl FnOnce() -> String) -> Result<&T, InputError> {
    match value {
        Some(value) => Ok(value),
        None => bad(field(), "is missing"),
    }
}
