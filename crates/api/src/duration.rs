//! Durations as users write them: `90s`, `15m`, `36h`, `1h30m`, `1.5h`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A duration as Go writes it, and so every Kubernetes object with one: numbers with the units `h`, `m`, `s` and `ms`, added up. Used in
/// whole seconds, parts of one rounded up.
// Kept as the user's own text. The schema holds the pattern that `seconds` reads, so what the API server accepted can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DurationText(
    #[schemars(regex(pattern = r"^([0-9]{1,7}([.][0-9]{1,3})?(h|m|s|ms)){1,4}$"), length(min = 2, max = 52))]
    pub String,
);

/// Most parts of a duration, digits of a whole number and of its fraction: those of the schema's pattern.
const PARTS: usize = 4;
const DIGITS: usize = 7;
const FRACTION: usize = 3;

impl DurationText {
    /// Seconds, rounded up; `None` where the text is not of the pattern.
    pub fn seconds(&self) -> Option<i64> {
        let mut rest = self.0.as_str();
        let (mut millis, mut parts) = (0_i64, 0);
        while !rest.is_empty() {
            let unit_at = rest.find(|c: char| c.is_ascii_alphabetic())?;
            let (number, after) = rest.split_at(unit_at);
            let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            let (unit, next) = after.split_at(unit_end);
            // Thousandths of a unit, of at most 10 digits, by at most 3,600,000 ms: no overflow.
            let millis_of_unit = match unit {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1_000,
                "ms" => 1,
                _ => return None,
            };
            millis += (thousandths(number)? * millis_of_unit + 999) / 1_000;
            parts += 1;
            rest = next;
        }
        (1..=PARTS).contains(&parts).then_some((millis + 999) / 1_000)
    }

    /// Seconds, or `default` where the text cannot be read.
    pub fn seconds_or(&self, default: i64) -> i64 {
        self.seconds().unwrap_or(default)
    }
}

/// A number such as `36` or `1.5`, in thousandths.
fn thousandths(number: &str) -> Option<i64> {
    let (whole, fraction) =
        number.split_once('.').map_or((number, None), |(whole, part)| (whole, Some(part)));
    let digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let fraction = match fraction {
        None => 0,
        Some(part) => format!("{:0<3}", Some(part).filter(|part| digits(part, FRACTION))?).parse().ok()?,
    };
    let whole: i64 = Some(whole).filter(|whole| digits(whole, DIGITS))?.parse().ok()?;
    Some(whole * 1_000 + fraction)
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<i64> {
        DurationText(text.into()).seconds()
    }

    #[test]
    fn adds_up_its_parts_in_whole_seconds() {
        for (text, expected) in [
            ("36h", 129_600),
            ("1h30m", 5_400),
            ("90s", 90),
            ("1.5h", 5_400),
            ("0.25m", 15),
            ("0s", 0),
            ("500ms", 1),
            ("1s1ms", 2),
            ("9999999h9999999h9999999h9999999h", 143_999_985_600),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_the_schema_refuses() {
        for text in [
            "",
            "36",
            "h",
            "1x",
            "2d",
            "1d12h",
            "-1s",
            "+1s",
            "1h30",
            "1.h",
            ".5h",
            "1.2345h",
            "1,5h",
            "1 h",
            "1H",
            "10000000s",
            "1s1s1s1s1s",
            "1us",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
