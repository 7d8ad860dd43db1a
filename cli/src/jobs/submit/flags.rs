//! Values of the flags of `submit`.

use andreas_api::names::{MAX_JOB_NAME, is_job_name};

/// A range of GPUs in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpus {
    /// Minimum.
    pub min: i32,
    /// Maximum, at least `min`.
    pub max: i32,
}

/// An environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A PersistentVolumeClaim and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Folder in the container.
    pub path: Option<String>,
}

/// Parses `4` or `1-8`.
///
/// # Errors
/// When a number is not from 1 to 4096, or the first is greater than the second.
pub fn gpus(text: &str) -> Result<Gpus, String> {
    let number = |text: &str| text.trim().parse::<i32>().ok().filter(|n| (1..=4096).contains(n));
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    match (number(min), number(max)) {
        (Some(min), Some(max)) if min <= max => Ok(Gpus { min, max }),
        _ => Err(format!("{text:?} is neither a number of GPUs (4) nor a range (1-8), from 1 to 4096")),
    }
}

/// A name that a TrainingJob may have: it becomes part of host names (DNS-1035).
///
/// # Errors
/// When it may not.
pub fn name(text: &str) -> Result<String, String> {
    if is_job_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is no name: at most {MAX_JOB_NAME} of a-z, 0-9 and -, beginning with a letter"))
}

/// Parses `NAME=VALUE`.
///
/// # Errors
/// When there is no name or no `=`.
pub fn variable(text: &str) -> Result<Variable, String> {
    match text.split_once('=') {
        Some((name, value))
            if !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control()) =>
        {
            Ok(Variable { name: name.to_owned(), value: value.to_owned() })
        }
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

/// Parses `CLAIM` or `CLAIM:/path`.
///
/// # Errors
/// When the name is empty, or the path does not begin with `/`.
pub fn claim(text: &str) -> Result<Claim, String> {
    let (name, path) = match text.split_once(':') {
        Some((name, path)) => (name, Some(path)),
        None => (text, None),
    };
    if name.is_empty() || path.is_some_and(|path| !path.starts_with('/')) {
        return Err(format!("{text:?} is not CLAIM:/PATH"));
    }
    Ok(Claim { name: name.to_owned(), path: path.map(str::to_owned) })
}

/// A quantity of Kubernetes, by its form; the API server reads it.
///
/// # Errors
/// When it has another form.
pub fn quantity(text: &str) -> Result<String, String> {
    let good = andreas_api::quantity::milli(text).is_some_and(|milli| milli > 0);
    good.then(|| text.to_owned()).ok_or_else(|| format!("{text:?} is not a quantity such as 4, 500m or 16Gi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_variables_claims_and_quantities_are_read() {
        assert_eq!(gpus("4"), Ok(Gpus { min: 4, max: 4 }));
        assert_eq!(gpus("1-8"), Ok(Gpus { min: 1, max: 8 }));
        for wrong in ["", "0", "8-1", "-1", "1-", "one", "1-5000"] {
            assert!(gpus(wrong).is_err(), "{wrong}");
        }
        assert_eq!(variable("A=b=c"), Ok(Variable { name: "A".into(), value: "b=c".into() }));
        assert!(["A", "=b", "A B=c"].iter().all(|text| variable(text).is_err()));
        assert!(["bert", "b-2"].iter().all(|text| name(text).is_ok()));
        let long = "x".repeat(49);
        assert!(["", "A_b", "a/b", "2b", "b-", "a.b", &long].iter().all(|text| name(text).is_err()));
        assert_eq!(claim("data:/in"), Ok(Claim { name: "data".into(), path: Some("/in".into()) }));
        assert!(claim(":/in").is_err() && claim("data:in").is_err());
        assert!(["4", "500m", "1.5", "16Gi", "1e3"].iter().all(|text| quantity(text).is_ok()));
        assert!(["", "-4", "0", "Gi", "4 GB", "4Gb"].iter().all(|text| quantity(text).is_err()));
    }
}
