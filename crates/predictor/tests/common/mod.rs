#![allow(dead_code, missing_docs, clippy::unwrap_used)] // shared by test programs that each use a part of it
//! A small world with a law of its own: three GPU types, families with their own speed, hunger and scaling. The
//! predictor knows none of it but by observations.

use andreas_model::{Configuration, GpuCount, Seconds, Time, Watts};
use andreas_predictor::{Features, GpuModel, Observation, Prior, Profile, TableRow};

pub const TYPES: [(&str, f64, f64, f64); 3] =
    [("A100", 50.0, 400.0, 1.0), ("T4", 10.0, 70.0, 2.9), ("V100", 30.0, 300.0, 1.35)];

pub fn gpus() -> Vec<GpuModel> {
    TYPES
        .iter()
        .map(|(name, idle, max, _)| GpuModel {
            gpu_type: (*name).into(),
            idle: Watts(*idle),
            max: Watts(*max),
        })
        .collect()
}

pub fn on(gpu_type: &str, gpus: u32, nodes: u32) -> Configuration {
    Configuration { gpu_type: gpu_type.into(), nodes, gpus_per_node: GpuCount(gpus / nodes), limit: None }
}

/// Noise in [-1, 1], the same for the same index.
pub fn noise(index: usize) -> f64 {
    let x = (index as u64)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The truth about a family: billions of operations per sample, samples, part that does not scale.
pub struct Family {
    pub index: usize,
    pub parameters: f64,
    pub samples: f64,
    pub serial: f64,
}

pub fn family(index: usize) -> Family {
    Family {
        index,
        parameters: 25.0 * (1.0 + 3.0 * noise(index * 7 + 1).abs()),
        samples: 1e5 * (1.0 + 9.0 * noise(index * 7 + 2).abs()),
        serial: 0.15 + 0.05 * noise(index * 7 + 3),
    }
}

impl Family {
    pub fn epoch(&self, c: &Configuration) -> f64 {
        let slower = TYPES.iter().find(|t| t.0 == c.gpu_type.as_str()).unwrap().3;
        let g = f64::from(c.total_gpus().0);
        let own = 1.0 + 0.15 * noise(self.index * 7 + 4);
        let spread = 1.0 + 0.25 * f64::from(c.nodes).log2();
        let per_sample = 1e-3 * (self.parameters / 25.0).powf(0.8) * own;
        self.samples * per_sample * slower * (self.serial + (1.0 - self.serial) / g) * spread
    }

    pub fn watts_per_gpu(&self, c: &Configuration) -> f64 {
        let (_, idle, max, _) = TYPES.iter().find(|t| t.0 == c.gpu_type.as_str()).unwrap();
        let busy = 0.6 + 0.1 * noise(self.index * 7 + 5);
        idle + busy * (max - idle) * f64::from(c.total_gpus().0).powf(-0.15)
    }

    pub fn seen(&self, c: Configuration, epochs: f64) -> Observation {
        let wobble = 1.0 + 0.04 * noise(self.index * 31 + c.total_gpus().0 as usize);
        Observation {
            epoch: Some(Seconds(self.epoch(&c) * wobble)),
            watts_per_gpu: Some(Watts(self.watts_per_gpu(&c) * (2.0 - wobble))),
            configuration: c,
            epochs,
            at: Time(self.index as f64),
            gpus: None,
            batch: None,
            claimed: false,
        }
    }

    pub fn given(&self, c: &Configuration) -> TableRow {
        TableRow {
            gpu_type: c.gpu_type.clone(),
            gpus: c.total_gpus(),
            nodes: Some(c.nodes),
            epoch: Some(Seconds(self.epoch(c))),
            power: Some(Watts(self.watts_per_gpu(c) * f64::from(c.total_gpus().0))),
        }
    }

    pub fn features(&self) -> Features {
        Features { parameters: Some(self.parameters), samples: Some(self.samples), ..Features::default() }
    }

    pub fn profile(&self) -> Profile {
        Profile { name: format!("lab/family-{:04}", self.index), ..Profile::default() }
    }

    /// As a cluster comes to know it: three configurations, picked by its number.
    pub fn observed(&self) -> Profile {
        let all = every();
        let observations = (0..3).map(|k| self.seen(all[(self.index * 4 + k * 7) % all.len()].clone(), 4.0));
        Profile { observations: observations.collect(), features: self.features(), ..self.profile() }
    }
}

pub fn every() -> Vec<Configuration> {
    let one = TYPES.iter().flat_map(|t| [1, 2, 4, 8].map(|g| on(t.0, g, 1)));
    one.chain(TYPES.iter().map(|t| on(t.0, 16, 2))).collect()
}

pub fn prior() -> Prior {
    Prior { run_time: Seconds(14_400.0), epochs: 10.0, gpu_type: "A100".into(), gpus: GpuCount(1) }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
