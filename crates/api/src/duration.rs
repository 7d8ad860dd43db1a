//! Durations as users write them: `90s`, `15m`, `36h`, `2d`, `1h30m`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A duration in Kubernetes' habit of writing: whole numbers with the units `s`, `m`, `h`, `d`, added up.
// Kept as the user's own text. The schema holds the pattern that `seconds` reads, so what the API server accepted can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DurationText(
    #[schemars(regex(pattern = r"^([0-9]{1,6}(s|m|h|d)){1,4}$"), length(min = 2, max = 28))] pub String,
);

impl DurationText {
    /// Seconds; `None` where the text is not of the pattern.
    pub fn seconds(&self) -> Option<i64> {
        let mut total: i64 = 0;
        let mut number: Option<i64> = None;
        for c in self.0.chars() {
            if let Some(digit) = c.to_digit(10) {
                number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(i64::from(digit))?);
                continue;
            }
            let unit = match c {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                'd' => 86400,
                _ => return None,
            };
            total = total.checked_add(number.take()?.checked_mul(unit)?)?;
        }
        (number.is_none() && !self.0.is_empty()).then_some(total)
    }

    /// Whether the schema accepts it: at most four numbers of at most six digits.
    #[must_use]
    pub fn is_of_schema(&self) -> bool {
        let mut parts = self.0.split_inclusive(|c: char| c.is_ascii_alphabetic());
        self.seconds().is_some() && parts.clone().count() <= 4 && parts.all(|part| part.len() <= 7)
    }

    /// Seconds, or `default` where the text cannot be read.
    pub fn seconds_or(&self, default: i64) -> i64 {
        self.seconds().unwrap_or(default)
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_its_parts() {
        for (text, seconds) in [("36h", 129_600), ("1h30m", 5_400), ("90s", 90), ("2d", 172_800), ("0s", 0)] {
            assert_eq!(DurationText(text.into()).seconds(), Some(seconds), "{text}");
        }
    }

    #[test]
    fn the_schema_bounds_numbers_and_their_digits() {
        let of = |text: &str| DurationText(text.into()).is_of_schema();
        assert!(of("999999d") && of("1d1h1m1s"));
        assert!(!of("1000000s") && !of("1d1d1d1d1d") && !of("36"));
    }

    #[test]
    fn refuses_what_the_schema_refuses() {
        for text in ["", "36", "h", "1x", "1.5h", "-1s", "1h30", "99999999999999999999s"] {
            assert_eq!(DurationText(text.into()).seconds(), None, "{text}");
        }
    }
}
