//! Rows of the offline table: what was run, or what is asked, one configuration a row.

use std::collections::BTreeMap;

use andreas_core::{Configuration, GpuCount, GpuType, Seconds, Time, Watts};

use crate::{Features, GpuModel, Observation, Profile, Query};

/// One row; what is not known is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The family of runs it belongs to.
    pub profile: String,
    /// Its model's family.
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

/// A measured row stands for many epochs: their noise is part of its scatter.
const EPOCHS: f64 = 1e4;

impl Sample {
    /// Where it ran, or would run.
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

/// The rows' profiles, by name; rows without a value only describe. Where rows of one profile say different things of its
/// model, what most of them say counts: their order does not.
pub fn profiles<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> BTreeMap<String, Profile> {
    let mut profiles: BTreeMap<&str, (Profile, Said<'a>)> = BTreeMap::new();
    for sample in samples {
        let (profile, said) = profiles.entry(&sample.profile).or_default();
        if let Some(model) = &sample.model_family {
            *said.models.entry(model).or_default() += 1;
        }
        if let Some(parameters) = sample.params_m {
            // Of positive numbers the bits are in the order of the numbers.
            *said.parameters.entry(parameters.max(0.0).to_bits()).or_default() += 1;
        }
        profile.observations.extend(sample.observation());
    }
    let whole = |(name, (profile, said)): (&str, (Profile, Said<'_>))| {
        let features = Features {
            model_family: most(said.models).map(ToOwned::to_owned),
            parameters: most(said.parameters).map(f64::from_bits),
            ..Features::default()
        };
        (name.to_owned(), Profile { name: name.to_owned(), features, ..profile })
    };
    profiles.into_iter().map(whole).collect()
}

/// What the rows of a profile say of its model, and how many of them.
#[derive(Default)]
struct Said<'a> {
    models: BTreeMap<&'a str, usize>,
    parameters: BTreeMap<u64, usize>,
}

/// What is said most often; of several the least.
fn most<T: Ord>(said: BTreeMap<T, usize>) -> Option<T> {
    said.into_iter().max_by(|(a, n), (b, m)| n.cmp(m).then(b.cmp(a))).map(|(what, _)| what)
}

/// The GPU types of the rows. `board` gives idle and maximum watts of a type it knows; of others the largest limit or
/// draw seen is taken for the maximum, a tenth of it for idle.
pub fn boards<'a>(
    samples: impl IntoIterator<Item = &'a Sample>,
    board: impl Fn(&str) -> Option<(Watts, Watts)>,
) -> Vec<GpuModel> {
    let mut seen: BTreeMap<&str, f64> = BTreeMap::new();
    for sample in samples {
        let draw = sample.power_w.map(|w| w / f64::from(sample.gpus.max(1)));
        let most = seen.entry(&sample.gpu_type).or_default();
        for watts in [sample.power_limit_w, draw].into_iter().flatten().filter(|w| w.is_finite()) {
            *most = most.max(watts);
        }
    }
    let model = |(name, most): (&str, f64)| {
        let known = board(name);
        // A limit above what the table has says that the board is another.
        let (idle, max) = match known {
            Some((idle, max)) if most <= 1.15 * max.0 => (idle, max),
            _ if most > 0.0 => (Watts(0.1 * most), Watts(most)),
            Some(board) => board,
            None => return None,
        };
        Some(GpuModel { gpu_type: name.into(), idle, max })
    };
    seen.into_iter().filter_map(model).collect()
}
