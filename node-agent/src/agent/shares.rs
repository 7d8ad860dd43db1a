//! Estimates of what pods use of a GPU that they share, by time-slicing or MIG. Pure.
//!
//! A GPU counts its energy as a whole. A pod's estimate is the part of it that its time slices, or the compute slices of its
//! MIG devices, are of all that are held at the time. So the estimates of a GPU add up to its energy while it is shared, and a
//! pod that does nothing is charged like one that works.

use std::collections::BTreeMap;

use andreas_api::gpu_node::{GpuShare, namespaced_pod_name};

use super::holders::PodKey;
use crate::setting::Uuid;

/// Most pods of a GPU that are reported.
const MAX_PODS: usize = 64;

/// Slices by pod.
pub type Slices = BTreeMap<PodKey, u32>;

#[derive(Clone, Debug, Default)]
struct SharedGpu {
    slices: Slices,
    joules: BTreeMap<PodKey, f64>,
}

/// Estimates of all shared GPUs of a node.
#[derive(Clone, Debug, Default)]
pub struct SharedEnergy {
    gpus: BTreeMap<Uuid, SharedGpu>,
}

impl SharedEnergy {
    /// Adds the energy of an interval (J) to the pods that held slices at its begin. `slices`: the holders from now on; a pod
    /// that holds none any more is forgotten. `None`: it cannot be told.
    pub fn update(&mut self, uuid: &str, slices: Option<&Slices>, joules: Option<f64>) {
        let gpu = self.gpus.entry(uuid.to_owned()).or_default();
        let all: u32 = gpu.slices.values().sum();
        for ((pod, count), joules) in gpu.slices.iter().flat_map(|own| Some((own, joules?))) {
            let part = joules * f64::from(*count) / f64::from(all.max(1));
            *gpu.joules.entry(pod.clone()).or_default() += part;
        }
        match slices {
            Some(slices) => {
                gpu.slices = slices.clone();
                gpu.joules.retain(|pod, _| slices.contains_key(pod));
            }
            None => drop(self.gpus.remove(uuid)),
        }
    }

    /// The estimates of a GPU, as in the status.
    #[must_use]
    pub fn shares(&self, uuid: &str) -> Vec<GpuShare> {
        let Some(gpu) = self.gpus.get(uuid) else { return Vec::new() };
        let all = u64::from(gpu.slices.values().sum::<u32>()).max(1);
        let share = |(pod, count): (&PodKey, &u32)| GpuShare {
            pod: namespaced_pod_name(&pod.0, &pod.1),
            thousandths: i32::try_from(u64::from(*count) * 1000 / all).unwrap_or(1000),
            estimated_joules: gpu.joules.get(pod).map(|joules| *joules as i64),
        };
        gpu.slices.iter().take(MAX_PODS).map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slices(of: &[(&str, u32)]) -> Slices {
        of.iter().map(|(pod, own)| (("team".to_owned(), (*pod).to_owned()), *own)).collect()
    }

    #[test]
    fn pods_are_charged_by_their_slices_while_they_hold_them() {
        let mut shared = SharedEnergy::default();
        shared.update("GPU-a", Some(&slices(&[("x", 1)])), Some(500.0));
        shared.update("GPU-a", Some(&slices(&[("x", 1), ("y", 3)])), Some(100.0));
        shared.update("GPU-a", Some(&slices(&[("x", 1), ("y", 3)])), Some(400.0));
        let share = |pod: &str, thousandths, joules| GpuShare {
            pod: format!("team/{pod}"),
            thousandths,
            estimated_joules: Some(joules),
        };
        assert_eq!(shared.shares("GPU-a"), [share("x", 250, 200), share("y", 750, 300)]);
        shared.update("GPU-a", None, Some(0.0));
        assert!(shared.shares("GPU-a").is_empty());
    }

    proptest! {
        #[test]
        fn estimates_add_up_to_the_gpus_energy(
            counts in proptest::collection::vec(1..8_u32, 1..10), joules in proptest::collection::vec(0.0..1e6_f64, 1..20),
        ) {
            let pods: Vec<String> = (0..counts.len()).map(|pod| pod.to_string()).collect();
            let by_pod: Vec<(&str, u32)> = pods.iter().map(String::as_str).zip(counts).collect();
            let mut shared = SharedEnergy::default();
            shared.update("GPU-a", Some(&slices(&by_pod)), Some(0.0));
            joules.iter().for_each(|each| shared.update("GPU-a", Some(&slices(&by_pod)), Some(*each)));
            let sum: f64 = shared.gpus["GPU-a"].joules.values().sum();
            prop_assert!((sum - joules.iter().sum::<f64>()).abs() < 1e-3);
        }
    }
}
