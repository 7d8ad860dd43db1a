//! Kubernetes quantities (`500m`, `16Gi`, `1e3`): read, rounded and divided in one place.
//!
//! The grammar is that of `k8s.io/apimachinery/pkg/api/resource`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

/// A quantity in thousandths, rounded up; `None` if the text is no quantity or negative.
///
/// The grammar is that of `k8s.io/apimachinery/pkg/api/resource`: a decimal number, then `m`, `k`, `M`, `G`,
/// `T`, `P`, `E`, `n`, `u`, `Ki` to `Ei`, or a decimal exponent.
pub fn milli(text: &str) -> Option<u128> {
    let (whole, fraction, suffix) = parts(text)?;
    if whole.len() > 24 {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(12)];
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let mantissa = whole.checked_mul(scale)?.checked_add(part)?;
    let (times, over): (u128, u128) = match suffix {
        "" => (1_000, 1),
        "n" => (1, 1_000_000),
        "u" => (1, 1_000),
        "m" => (1, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000_000, 1),
        "Ki" => (1_000 << 10, 1),
        "Mi" => (1_000 << 20, 1),
        "Gi" => (1_000 << 30, 1),
        "Ti" => (1_000 << 40, 1),
        "Pi" => (1_000 << 50, 1),
        "Ei" => (1_000 << 60, 1),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = |by: i32| 10_u128.checked_pow(u32::try_from(by).ok()?);
            if exponent >= 0 { (power(exponent)?.checked_mul(1_000)?, 1) } else { (1_000, power(-exponent)?) }
        }
    };
    Some(mantissa.checked_mul(times)?.div_ceil(scale.checked_mul(over)?))
}

/// A quantity in whole units, rounded up, at most `u64::MAX`; 0 if invalid.
pub fn units(quantity: &Quantity) -> u64 {
    clamp(milli(&quantity.0).unwrap_or(0).div_ceil(1_000))
}

/// A quantity in thousandths, at most `u64::MAX`; 0 if invalid.
pub fn thousandths(quantity: &Quantity) -> u64 {
    clamp(milli(&quantity.0).unwrap_or(0))
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Digits before the point, digits after it, suffix; `None` if there are no digits.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let number = !fraction.contains('.') && number != "." && !number.is_empty();
    number.then_some((whole, fraction, suffix))
}

/// A whole number of things (GPUs), as a number or a quantity in JSON; `None` if it is invalid or not whole.
pub fn count(value: &Value) -> Option<i64> {
    let milli = value
        .as_i64()
        .map_or_else(|| milli(value.as_str()?), |n| u128::try_from(n).ok()?.checked_mul(1_000))?;
    (milli % 1_000 == 0).then(|| i64::try_from(milli / 1_000).ok()).flatten()
}

/// `quantity` times `factor`; unchanged if it cannot be parsed (the API server will refuse it).
pub fn times(quantity: &Quantity, factor: u32) -> Quantity {
    if factor == 1 {
        return quantity.clone();
    }
    Quantity(multiply(&quantity.0, factor).unwrap_or_else(|| quantity.0.clone()))
}

fn multiply(text: &str, factor: u32) -> Option<String> {
    let (whole, fraction, suffix) = parts(text)?;
    let mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let product = mantissa.checked_mul(u128::from(factor))?.to_string();
    let places = fraction.len();
    if places == 0 {
        return Some(format!("{product}{suffix}"));
    }
    let padded = format!("{product:0>width$}", width = places + 1);
    let (whole, fraction) = padded.split_at(padded.len() - places);
    let fraction = fraction.trim_end_matches('0');
    Some(if fraction.is_empty() { format!("{whole}{suffix}") } else { format!("{whole}.{fraction}{suffix}") })
}

/// One of `of` parts, to a thousandth of the suffix's unit, rounded up, in the same notation. An exponent stays as it
/// is: `None`, as for an invalid quantity.
pub fn part(text: &str, of: u32) -> Option<String> {
    let (whole, fraction, suffix) = parts(text)?;
    if suffix.starts_with(['e', 'E']) && !matches!(suffix, "E" | "Ei") || milli(text).is_none() {
        return None;
    }
    let unit = milli(&format!("{whole}.{fraction}"))?;
    Some(decimal(unit.div_ceil(u128::from(of.max(1)))) + suffix)
}

/// One of `of` shares of whole things, to a thousandth, rounded down, so that `of` shares (up to 1000), summed and rounded
/// up ([`whole`]), are the whole again. `None` for an invalid quantity.
pub fn share(text: &str, of: u32) -> Option<String> {
    Some(decimal(milli(text)? / u128::from(of.max(1))))
}

/// `quantity` rounded up to a whole number; unchanged if it cannot be parsed (the API server will refuse it).
pub fn whole(quantity: &Quantity) -> Quantity {
    milli(&quantity.0).map_or_else(|| quantity.clone(), |milli| Quantity(milli.div_ceil(1_000).to_string()))
}

/// Thousandths as a decimal number.
fn decimal(thousandths: u128) -> String {
    let (whole, fraction) = (thousandths / 1_000, format!("{:03}", thousandths % 1_000));
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        for (text, value) in [
            ("1", 1_000),
            ("100m", 100),
            ("0.5", 500),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("12e2", 1_200_000),
            ("2E", 2_000_000_000_000_000_000_000),
            ("1500u", 2),
            ("5e-1", 500),
            ("0", 0),
        ] {
            assert_eq!(milli(text), Some(value), "{text}");
        }
        for text in ["", "abc", "1.2.3", "-1", "1e999", "1 Gi", "99999999999999999999999999999", "Ki"] {
            assert_eq!(milli(text), None, "{text}");
        }
    }

    #[test]
    fn keeps_the_notation() {
        let cases = [
            ("2", 4, "8"),
            ("500m", 3, "1500m"),
            ("1.5Gi", 4, "6Gi"),
            ("0.25", 3, "0.75"),
            ("1e3", 2, "2e3"),
            ("64Gi", 8, "512Gi"),
        ];
        for (text, factor, product) in cases {
            assert_eq!(times(&Quantity(text.into()), factor).0, product, "{text} x {factor}");
        }
    }

    #[test]
    fn leaves_alone_what_is_no_number() {
        for text in ["", "Gi", "-1", "1.2.3", "x"] {
            assert_eq!(times(&Quantity(text.into()), 3).0, text);
        }
    }

    #[test]
    fn a_part_is_rounded_up_and_keeps_the_notation() {
        let cases = [
            ("8", 4, Some("2")),
            ("10", 3, Some("3.334")),
            ("64Gi", 8, Some("8Gi")),
            ("500m", 3, Some("166.667m")),
        ];
        for (text, of, part_of) in cases {
            assert_eq!(part(text, of).as_deref(), part_of, "{text} / {of}");
        }
        for text in ["1e3", "many", "-4", "4Gb"] {
            assert_eq!(part(text, 2), None, "{text}");
        }
    }

    #[test]
    fn shares_of_whole_things_are_as_many_things_together() {
        for (text, of, share_of) in
            [("1", 8, "0.125"), ("1", 6, "0.166"), ("4", 8, "0.5"), ("1k", 6, "166.666")]
        {
            assert_eq!(share(text, of).as_deref(), Some(share_of), "{text} / {of}");
            let all = whole(&times(&Quantity(share_of.into()), of));
            assert_eq!(milli(&all.0), milli(text), "{share_of} x {of}");
        }
        assert_eq!((share("0", 2).as_deref(), share("many", 2)), (Some("0"), None));
        for (text, rounded) in [("0.5", "1"), ("2.004", "3"), ("4", "4"), ("1k", "1000"), ("many", "many")] {
            assert_eq!(whole(&Quantity(text.into())).0, rounded, "{text}");
        }
    }

    #[test]
    fn counts_are_whole() {
        for (value, number) in
            [(json!(4), 4), (json!("4"), 4), (json!("1k"), 1_000), (json!("2000m"), 2), (json!(0), 0)]
        {
            assert_eq!(count(&value), Some(number), "{value}");
        }
        for value in [json!("1500m"), json!(-1), json!("four"), json!(null), json!(1.5)] {
            assert_eq!(count(&value), None, "{value}");
        }
    }
}
