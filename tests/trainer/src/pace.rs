//! Seconds per epoch by GPU type and number of GPUs.
//!
//! A table is JSON: `{"<model>": {"<gpu type>": {"<gpus>": seconds}}}`. One model's part of it, or one number for all
//! GPUs, may be given directly. A type is found by its exact name, else by the longest key its name contains (`A100` in
//! `NVIDIA-A100-SXM4-80GB`), else `*`. Counts between two known ones follow a power law, those beyond the ends go on
//! with the nearest pair's.

use std::collections::BTreeMap;

/// The table for runs that bring none: `models.json`, see `PROVENANCE.md` beside it.
const BUILT_IN: &str = include_str!("../data/models.json");

type ByCount = BTreeMap<usize, f64>;
type ByType = BTreeMap<String, ByCount>;

/// One model's pace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Pace {
    /// The same everywhere.
    Constant(f64),
    ByType(ByType),
}

/// There is no pace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PaceError {
    #[error("TRAINER_SECONDS_PER_EPOCH: wanted seconds or {{\"<gpu type>\": {{\"<gpus>\": seconds}}}}: {0}")]
    Given(serde_json::Error),
    #[error("TRAINER_TABLE={path}: {message}")]
    Table { path: String, message: String },
    #[error("no model {model} in the table (it has {known})")]
    Model { model: String, known: String },
    #[error("no pace for GPU type {gpu_type:?} (there is one for {known})")]
    Type { gpu_type: String, known: String },
    #[error("a pace must be more than 0 seconds per epoch")]
    NotPositive,
}

impl Pace {
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>, model: &str) -> Result<Self, PaceError> {
        if let Some(given) = env("TRAINER_SECONDS_PER_EPOCH") {
            if let Ok(seconds) = given.trim().parse() {
                return Ok(Self::Constant(seconds));
            }
            return serde_json::from_str(&given).map(Self::ByType).map_err(PaceError::Given);
        }
        let path = env("TRAINER_TABLE");
        let of_table = |message: String| PaceError::Table { path: path.clone().unwrap_or_default(), message };
        let text = match &path {
            Some(path) => std::fs::read_to_string(path).map_err(|error| of_table(error.to_string()))?,
            None => BUILT_IN.to_owned(),
        };
        let mut table: BTreeMap<String, ByType> =
            serde_json::from_str(&text).map_err(|error| of_table(error.to_string()))?;
        let known = table.keys().cloned().collect::<Vec<_>>().join(", ");
        table.remove(model).map(Self::ByType).ok_or(PaceError::Model { model: model.to_owned(), known })
    }

    /// Seconds of one epoch on so many GPUs of a type.
    pub fn seconds_per_epoch(&self, gpu_type: &str, gpus: usize) -> Result<f64, PaceError> {
        let seconds = match self {
            Self::Constant(seconds) => *seconds,
            Self::ByType(types) => {
                let contained =
                    types.keys().filter(|key| gpu_type.contains(key.as_str())).max_by_key(|key| key.len());
                let key = types.get_key_value(gpu_type).map(|(key, _)| key).or(contained);
                let counts = key.and_then(|key| types.get(key)).or_else(|| types.get("*")).or_else(|| {
                    // A machine without a name for its GPUs trains as the only type there is.
                    types.values().next().filter(|_| types.len() == 1 || gpu_type.is_empty())
                });
                let known = || types.keys().cloned().collect::<Vec<_>>().join(", ");
                let missing = || PaceError::Type { gpu_type: gpu_type.to_owned(), known: known() };
                between(counts.ok_or_else(missing)?, gpus).ok_or_else(missing)?
            }
        };
        if seconds.is_finite() && seconds > 0.0 { Ok(seconds) } else { Err(PaceError::NotPositive) }
    }
}

fn between(counts: &ByCount, gpus: usize) -> Option<f64> {
    if let Some(seconds) = counts.get(&gpus) {
        return Some(*seconds);
    }
    let mut pairs: Vec<(f64, f64)> =
        counts.iter().map(|(count, seconds)| (*count as f64, *seconds)).collect();
    let wanted = gpus as f64;
    match pairs.len() {
        0 => None,
        1 => Some(pairs[0].1 * pairs[0].0 / wanted),
        _ => {
            pairs.sort_by(|a, b| (a.0 - wanted).abs().total_cmp(&(b.0 - wanted).abs()));
            let above = pairs.iter().find(|pair| pair.0 > wanted);
            let below = pairs.iter().find(|pair| pair.0 < wanted);
            let (a, b) = match (below, above) {
                (Some(below), Some(above)) => (below, above),
                _ => (&pairs[0], &pairs[1]),
            };
            let exponent = (b.1 / a.1).ln() / (b.0 / a.0).ln();
            Some(a.1 * (wanted / a.0).powf(exponent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Pace {
        let text = text.to_owned();
        Pace::from_env(&|name| (name == "TRAINER_SECONDS_PER_EPOCH").then(|| text.clone()), "m").unwrap()
    }

    #[test]
    fn a_type_is_found_by_name_or_part_of_it() {
        let pace = given(r#"{"A100": {"1": 4, "4": 1}, "NVIDIA-A100-SXM4-40GB": {"1": 8}, "T4": {"1": 9}}"#);
        let at = |gpu_type, gpus| pace.seconds_per_epoch(gpu_type, gpus).unwrap();
        assert_eq!(at("NVIDIA-A100-SXM4-80GB", 4), 1.0);
        assert_eq!(at("NVIDIA-A100-SXM4-40GB", 1), 8.0);
        assert_eq!(at("Tesla-T4", 2), 4.5, "one count known: perfect scaling");
        assert!((at("NVIDIA-A100-SXM4-80GB", 2) - 2.0).abs() < 1e-9, "between two");
        assert!((at("NVIDIA-A100-SXM4-80GB", 8) - 0.5).abs() < 1e-9, "beyond the last");
        let error = pace.seconds_per_epoch("H100", 1).unwrap_err().to_string();
        assert!(error.contains("H100") && error.contains("T4"), "{error}");
    }

    #[test]
    fn one_number_is_the_same_everywhere_and_0_is_none() {
        assert_eq!(given("0.3").seconds_per_epoch("any", 8).unwrap(), 0.3);
        assert!(given("0").seconds_per_epoch("any", 8).is_err());
        assert!(given(r#"{"*": {"1": -1}}"#).seconds_per_epoch("any", 1).is_err());
    }

    #[test]
    fn the_built_in_table_scales_with_gpus() {
        let pace = Pace::from_env(&|_| None, "resnet50").unwrap();
        let at = |gpus| pace.seconds_per_epoch("NVIDIA-A100-SXM4-80GB", gpus).unwrap();
        assert!(at(1) > at(2) && at(2) > at(4));
        assert!(pace.seconds_per_epoch("Tesla-T4", 1).unwrap() > at(1));
        let missing = Pace::from_env(&|_| None, "none").unwrap_err().to_string();
        assert!(missing.contains("resnet50"), "{missing}");
    }
}
