//! Definitions as YAML, the same on every machine.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Number, Value};

/// One definition as YAML: keys in alphabetical order, whole numbers without a fraction.
pub(super) fn yaml(crd: &CustomResourceDefinition) -> String {
    let value = serde_json::to_value(crd).expect("a definition is plain data");
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&tidy(value), options).expect("plain data is YAML")
}

/// Sorts maps (whichever kind of map serde_json was built with) and writes `1.0` as `1`: bounds are `f64` in the type
/// but whole in the schema.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(key, value)| (key, tidy(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(tidy).collect()),
        Value::Number(number) => Value::Number(whole(number)),
        other => other,
    }
}

fn whole(number: Number) -> Number {
    match number.as_f64() {
        // Whole and below 2^53, so the conversion loses nothing.
        #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
            Number::from(float as i64)
        }
        _ => number,
    }
}
