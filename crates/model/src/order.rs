//! Keys to sort by.

/// A number with the order of `f64::total_cmp`, for keys whose order is derived.
pub const fn order_key(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

#[cfg(test)]
mod tests {
    use super::order_key;

    #[test]
    fn keys_have_the_order_of_their_values() {
        let values =
            [-f64::NAN, f64::NEG_INFINITY, -1e9, -1.0, -0.0, 0.0, f64::MIN_POSITIVE, 1.0, 1e9, f64::INFINITY];
        for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b))) {
            assert_eq!(order_key(a).cmp(&order_key(b)), a.total_cmp(&b), "{a} {b}");
        }
    }
}
