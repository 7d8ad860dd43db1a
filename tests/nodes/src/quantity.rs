//! Kubernetes quantities as numbers: cores, bytes, counts.

/// The value of a quantity such as `500m`, `16Gi`, `2`, `1e3`; none where it is malformed.
#[must_use]
pub(crate) fn parse(quantity: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let text = quantity.trim();
    let found = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = found.unwrap_or((text, 1.0));
    number.parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| value * factor)
}

#[cfg(test)]
mod tests {
    #[test]
    fn quantities_of_every_form() {
        let expected =
            [("500m", 0.5), ("2", 2.0), ("16Gi", 17_179_869_184.0), ("1e3", 1000.0), ("1k", 1000.0)];
        for (text, value) in expected {
            assert_eq!(super::parse(text), Some(value), "{text}");
        }
        assert_eq!(super::parse("many"), None);
    }
}
