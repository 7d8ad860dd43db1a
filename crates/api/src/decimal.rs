//! Decimal numbers as users write them: `0.2`, `1.25`, `20`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A decimal number of at most nine digits before and six after the point, not negative.
///
/// A string, as a Quantity is: a float would come back changed from some clients. Kept as the user's own text;
/// [`Decimal::millionths`] reads it. The schema holds the same pattern, so what the API server accepted can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Decimal(
    #[schemars(regex(pattern = r"^[0-9]{1,9}([.][0-9]{1,6})?$"), length(min = 1, max = 16))] pub String,
);

impl Decimal {
    /// Millionths, exact; `None` where the text is not of the pattern.
    pub fn millionths(&self) -> Option<i64> {
        let (whole, part) = self.0.split_once('.').map_or((self.0.as_str(), None), |(w, p)| (w, Some(p)));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let part = part.map_or(Some(0), |part| {
            (digits(part) && part.len() <= 6).then(|| format!("{part:0<6}").parse::<i64>().ok()).flatten()
        })?;
        if !digits(whole) || whole.len() > 9 {
            return None;
        }
        Some(whole.parse::<i64>().ok()? * 1_000_000 + part)
    }

    /// The number, or `default` where the text cannot be read.
    pub fn value_or(&self, default: f64) -> f64 {
        self.millionths().map_or(default, |millionths| millionths as f64 / 1e6)
    }
}

impl From<&str> for Decimal {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_exactly() {
        for (text, millionths) in
            [("0.2", 200_000), ("1.3", 1_300_000), ("20", 20_000_000), ("0.000001", 1), ("0", 0)]
        {
            assert_eq!(Decimal::from(text).millionths(), Some(millionths), "{text}");
        }
        assert_eq!(Decimal::from("999999999.999999").millionths(), Some(999_999_999_999_999));
    }

    #[test]
    fn what_the_schema_refuses_is_refused() {
        for text in
            ["", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", "0.0000001", "1234567890", "1.2.3", " 1", "١"]
        {
            assert_eq!(Decimal::from(text).millionths(), None, "{text}");
        }
    }
}
