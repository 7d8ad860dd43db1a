//! Exit codes. They are documented in `docs/cli.md`; scripts hold on to them.

use std::fmt;

use crate::cluster::ClusterError;

/// Something went wrong.
pub const FAILED: u8 = 1;
/// The arguments make no sense; clap has the same code.
pub const USAGE: u8 = 2;
/// A right is missing, or the credentials are not accepted.
pub const NO_RIGHT: u8 = 3;
/// There is no such object.
pub const NOT_FOUND: u8 = 4;
/// The command did what it was asked, and what it found is not good: a check that failed, a manifest that lost something.
pub const NOT_GOOD: u8 = 5;

/// For `--help`.
pub const CODES: &str = "Exit codes: 0 done; 1 something failed; 2 the arguments make no sense; 3 a right is missing, or the \
credentials are not accepted; 4 there is no such object; 5 done, and what was found is not good (can --at-least, convert, doctor, wait).";

/// The arguments make no sense together.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What was found is not good; it has been printed.
#[derive(Debug)]
pub struct NotGood(pub String);

impl fmt::Display for NotGood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotGood {}

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<NotGood>() {
            return NOT_GOOD;
        }
        if cause.is::<Usage>() {
            return USAGE;
        }
        match cause.downcast_ref::<ClusterError>() {
            Some(
                ClusterError::Forbidden { .. }
                | ClusterError::Unauthorized(_)
                | ClusterError::NoCredentials(_),
            ) => return NO_RIGHT,
            Some(ClusterError::NotFound(_)) => return NOT_FOUND,
            _ => {}
        }
    }
    FAILED
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn an_error_has_the_code_of_what_went_wrong_first() {
        let not_found = ClusterError::NotFound("job".into());
        let outer = Err::<(), _>(not_found).context("logs").unwrap_err();
        assert_eq!(code(&outer), NOT_FOUND);
        assert_eq!(code(&ClusterError::Unauthorized(String::new()).into()), NO_RIGHT);
        assert_eq!(code(&NotGood(String::new()).into()), NOT_GOOD);
        assert_eq!(code(&Usage(String::new()).into()), USAGE);
        assert_eq!(code(&anyhow!("other")), FAILED);
    }
}
