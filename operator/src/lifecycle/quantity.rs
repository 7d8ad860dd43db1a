//! Exact multiplication of a quantity in its own notation.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// `quantity` times `factor`; unchanged if it cannot be parsed (the API server will refuse it).
pub(super) fn times(quantity: &Quantity, factor: u32) -> Quantity {
    if factor == 1 {
        return quantity.clone();
    }
    Quantity(multiply(quantity.0.trim(), factor).unwrap_or_else(|| quantity.0.clone()))
}

fn multiply(text: &str, factor: u32) -> Option<String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
