//! Rows of the offline table: a measured or queried configuration per row.

use std::collections::BTreeMap;

use andreas_model::{Configuration, GpuCount, GpuType, Seconds, Time, Watts};

use andreas_predictor::{Features, GpuModel, Observation, Profile, Query};

/// One row; unknown values are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Profile of the row.
    pub profile: String,
    /// Model family.
    pub model_family: Option<String>,
    /// Millions of parameters.
    pub params_m: Option<f64>,
    /// Samples of one global batch.
    pub batch: Option<f64>,
    /// GPU type.
    pub gpu_type: String,
    /// GPUs in total, at least 1.
    pub gpus: u32,
    /// Nodes they are on, at least 1, at most as many as GPUs.
    pub nodes: u32,
    /// Power limit of one GPU, watts.
    pub power_limit_w: Option<f64>,
    /// Seconds of one epoch.
    pub epoch_s: Option<f64>,
    /// Mean draw of all these GPUs together, watts.
    pub power_w: Option<f64>,
}

/// Epochs of a measured row: many, so that its noise is part of the residual noise.
const EPOCHS: f64 = 1e4;

impl Sample {
    /// Configuration of the row.
    pub fn query(&self) -> Query {
        let nodes = self.nodes.max(1);
        Query {
            configuration: Configuration {
                gpu_type: GpuType::from(self.gpu_type.as_str()),
                nodes,
                gpus_per_node: GpuCount((self.gpus / nodes).max(1)),
                limit: self.power_limit_w.map(Watts),
            },
            gpus: Some(GpuCount(self.gpus)),
            batch: self.batch,
        }
    }

    /// Name of its model; of its profile if the model is unknown.
    pub fn model(&self) -> &str {
        self.model_family.as_deref().unwrap_or(&self.profile)
    }

    fn observation(&self) -> Option<Observation> {
        if self.epoch_s.is_none() && self.power_w.is_none() {
            return None;
        }
        let Query { configuration, gpus, batch } = self.query();
        Some(Observation {
            configuration,
            epoch: self.epoch_s.map(Seconds),
            watts_per_gpu: self.power_w.map(|w| Watts(w / f64::from(self.gpus.max(1)))),
            epochs: EPOCHS,
            at: Time(0.0),
            gpus,
            batch,
            claimed: false,
        })
    }

    /// A profile of this name without observations.
    pub fn unseen(&self) -> Profile {
        Profile {
            name: self.profile.clone(),
            features: Features {
                model_family: self.model_family.clone(),
                parameters: self.params_m,
                ..Features::default()
            },
            ..Profile::default()
        }
    }
}

/// Profiles by name; rows without a value only describe. If rows of a profile disagree on its
/// model, the most frequent value counts. Row order has no effect.
pub fn profiles<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> BTreeMap<String, Profile> {
    let mut profiles: BTreeMap<&str, (Profile, TableFacts<'a>)> = BTreeMap::new();
    for sample in samples {
        let (profile, facts) = profiles.entry(&sample.profile).or_default();
        if let Some(model) = &sample.model_family {
            *facts.models.entry(model).or_default() += 1;
        }
        if let Some(parameters) = sample.params_m {
            // Bits of positive numbers sort like the numbers.
            *facts.parameters.entry(parameters.max(0.0).to_bits()).or_default() += 1;
        }
        profile.observations.extend(sample.observation());
    }
    let whole = |(name, (profile, facts)): (&str, (Profile, TableFacts<'_>))| {
        let features = Features {
            model_family: most(facts.models).map(ToOwned::to_owned),
            parameters: most(facts.parameters).map(f64::from_bits),
            ..Features::default()
        };
        (name.to_owned(), Profile { name: name.to_owned(), features, ..profile })
    };
    profiles.into_iter().map(whole).collect()
}

/// Models and parameter counts in a profile's rows, with row counts.
#[derive(Default)]
struct TableFacts<'a> {
    models: BTreeMap<&'a str, usize>,
    parameters: BTreeMap<u64, usize>,
}

/// The most frequent value; of several the least.
fn most<T: Ord>(facts: BTreeMap<T, usize>) -> Option<T> {
    facts.into_iter().max_by(|(a, n), (b, m)| n.cmp(m).then(b.cmp(a))).map(|(what, _)| what)
}

/// GPU types of the rows. `board` gives idle and maximum watts of types it knows. For others, and for
/// types with much larger limits or draws, the maximum is the largest of these but one in twenty
/// (typing or meter errors), and idle is a tenth of it.
pub fn boards<'a>(
    samples: impl IntoIterator<Item = &'a Sample>,
    board: impl Fn(&str) -> Option<(Watts, Watts)>,
) -> Vec<GpuModel> {
    let mut seen: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let draw = sample.power_w.map(|w| w / f64::from(sample.gpus.max(1)));
        let all = seen.entry(&sample.gpu_type).or_default();
        all.extend([sample.power_limit_w, draw].into_iter().flatten().filter(|w| w.is_finite()));
    }
    let model = |(name, mut all): (&str, Vec<f64>)| {
        all.sort_by(|a, b| b.total_cmp(a));
        let most = all.get(all.len() / 20).copied().unwrap_or_default();
        let (idle, max) = match board(name) {
            Some((idle, max)) if most <= 1.15 * max.0 => (idle, max),
            _ if most > 0.0 => (Watts(0.1 * most), Watts(most)),
            board => board?,
        };
        Some(GpuModel { gpu_type: name.into(), idle, max })
    };
    seen.into_iter().filter_map(model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(model: Option<&str>, gpus: u32, watts: f64) -> Sample {
        Sample {
            profile: "a".to_owned(),
            model_family: model.map(ToOwned::to_owned),
            gpu_type: "X".to_owned(),
            gpus,
            nodes: 1,
            power_w: Some(watts),
            ..Sample::default()
        }
    }

    #[test]
    fn what_most_rows_say_of_a_model_counts_in_whatever_order_they_come() {
        let mut samples =
            [Some("b"), None, Some("a"), Some("b"), None, None].map(|m| sample(m, 1, 100.0)).to_vec();
        for _ in 0..6 {
            samples.rotate_left(1);
            assert_eq!(profiles(&samples)["a"].features.model_family.as_deref(), Some("b"));
        }
        samples[0].model_family = Some("c".to_owned());
        assert_eq!(profiles(&samples)["a"].observations.len(), 6);
    }

    #[test]
    fn one_odd_row_in_many_does_not_make_a_board_another() {
        let mut samples: Vec<Sample> =
            (1..=40).map(|gpus| sample(None, gpus, 250.0 * f64::from(gpus))).collect();
        samples.push(sample(None, 1, 9_999.0));
        let known = |_: &str| Some((Watts(30.0), Watts(300.0)));
        assert_eq!(boards(&samples, known)[0].max, Watts(300.0));
        assert_eq!(boards(&samples, |_| None)[0].max, Watts(250.0));
        // With few rows each counts: an unknown board.
        let few = [sample(None, 2, 1_000.0), sample(None, 1, 450.0)];
        assert_eq!(boards(&few, known)[0].max, Watts(500.0));
        assert!(boards(&[Sample::default()], |_| None).is_empty());
    }
}
