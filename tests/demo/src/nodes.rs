//! The demo's nodes: twelve pretend ones, or eight real ones with as many GPUs. Pure.

use std::collections::BTreeMap;

use andreas_e2e::cluster::{Group, Options};
use andreas_e2e::workload::{self, Manifests, WorkloadJob};
use andreas_kubelets::Gpus;
use serde_json::json;

/// A GPU type of the demo.
#[derive(Clone, Copy, Debug)]
pub struct GpuType {
    /// Product label.
    pub name: &'static str,
    /// Memory of a GPU, MiB.
    pub memory_mib: u64,
    /// Idle draw of a GPU, W.
    pub idle_watts: i64,
    /// Largest draw of a GPU, W.
    pub max_watts: i64,
    /// What a node draws beside its GPUs without and with a job, W.
    pub host_watts: [i64; 2],
    /// Names of pretend nodes begin so.
    prefix: &'static str,
    /// Real nodes of the type.
    real: usize,
}

/// The types, in the order of [`workload::CLUSTER`].
pub const TYPES: [GpuType; 3] = [
    GpuType {
        name: workload::A100,
        memory_mib: 81_920,
        idle_watts: 54,
        max_watts: 400,
        host_watts: [300, 500],
        prefix: "a100-",
        real: 4,
    },
    GpuType {
        name: workload::V100,
        memory_mib: 16_384,
        idle_watts: 33,
        max_watts: 300,
        host_watts: [180, 300],
        prefix: "v100-",
        real: 2,
    },
    GpuType {
        name: workload::T4,
        memory_mib: 15_360,
        idle_watts: 10,
        max_watts: 70,
        host_watts: [90, 150],
        prefix: "t4-",
        real: 2,
    },
];
/// GPUs of a real node. With 16, as in NVIDIA's DGX-2, its device plugin would weigh all two million ways of parting them into sets of a
/// worker's size, which takes tens of seconds of a core for each of the first pods
/// (<https://github.com/NVIDIA/go-gpuallocator/blob/v0.6.0/gpuallocator/besteffort_policy.go>).
const OF_REAL: usize = 8;

/// One node.
#[derive(Clone, Debug)]
pub struct DemoNode {
    /// Its name.
    pub name: String,
    /// Its GPUs.
    pub gpu: GpuType,
    /// How many it has.
    pub gpus: usize,
}

/// The nodes of a run.
#[derive(Clone, Debug)]
pub struct Nodes {
    all: Vec<DemoNode>,
    real: bool,
}

impl Nodes {
    /// Twelve nodes of 4 and 8 GPUs, whose containers are processes.
    pub fn pretend() -> Self {
        let sizes = workload::CLUSTER.iter().zip(TYPES);
        let all = sizes.flat_map(|((_, count, gpus), gpu)| {
            (0..*count).map(move |n| DemoNode { name: format!("{}{n}", gpu.prefix), gpu, gpus: *gpus })
        });
        Self { all: all.collect(), real: false }
    }

    /// Eight nodes of 8 GPUs, with kubelets and containers.
    pub fn real() -> Self {
        Self::real_of(1)
    }

    /// Four nodes of 16 GPUs, as in NVIDIA's DGX-2 and in Google's a2-megagpu-16g: what pages show of them is short.
    pub fn of_pages() -> Self {
        Self::real_of(2)
    }

    /// A real node in place of so many of a type, with as many GPUs.
    fn real_of(merged: usize) -> Self {
        let types = TYPES.into_iter().flat_map(|gpu| std::iter::repeat_n(gpu, gpu.real / merged));
        let gpus = OF_REAL * merged;
        let all = (1..).zip(types).map(|(n, gpu)| DemoNode { name: format!("node-{n}"), gpu, gpus });
        Self { all: all.collect(), real: true }
    }

    /// All of them.
    pub fn all(&self) -> &[DemoNode] {
        &self.all
    }

    /// How many are real ones.
    pub fn real_count(&self) -> usize {
        if self.real { self.all.len() } else { 0 }
    }

    /// A node by its name.
    pub fn of_name(&self, name: &str) -> Option<&DemoNode> {
        self.all.iter().find(|node| node.name == name)
    }

    /// What the nodes that have a job draw beside their GPUs, W; `held` are the GPUs in use by node.
    pub fn busy_host_watts(&self, held: &BTreeMap<String, i64>) -> f64 {
        let busy = held.iter().filter(|(_, gpus)| **gpus > 0).filter_map(|(name, _)| self.of_name(name));
        busy.map(|node| node.gpu.host_watts[1] as f64).sum()
    }

    /// The power budget, W: four fifths of what the cluster draws with every GPU at its largest.
    pub fn budget(&self) -> i64 {
        let most: i64 =
            self.all.iter().map(|node| node.gpus as i64 * node.gpu.max_watts + node.gpu.host_watts[1]).sum();
        most * 4 / 5 / 100 * 100
    }

    /// The objects of a job. Its profile says on how many of these nodes each row was measured: the trainer takes the same time
    /// for a number of GPUs wherever they are.
    pub fn manifests(&self, job: &WorkloadJob) -> Manifests {
        let mut made = workload::manifest(job);
        for row in made.profile["spec"]["measurements"].as_array_mut().into_iter().flatten() {
            let of_type = self.all.iter().filter(|node| row["gpuType"] == node.gpu.name);
            let largest = of_type.map(|node| node.gpus as u64).max();
            if let (Some(largest), Some(gpus)) = (largest, row["gpus"].as_u64()) {
                row["nodes"] = json!(gpus.div_ceil(largest));
            }
        }
        made
    }

    /// The cluster's options for these nodes.
    pub fn options(&self) -> Options {
        if self.real {
            let gpus = |node: &DemoNode| Gpus::Simulated {
                product: node.gpu.name.to_owned(),
                count: node.gpus,
                memory_mib: node.gpu.memory_mib,
            };
            return Options {
                groups: Vec::new(),
                real_nodes: self.all.iter().map(gpus).collect(),
                ..Options::default()
            };
        }
        let groups = workload::CLUSTER.iter().zip(TYPES).map(|((name, count, gpus), gpu)| Group {
            prefix: gpu.prefix,
            count: *count,
            gpu: name,
            gpus: *gpus,
            memory_mib: gpu.memory_mib,
        });
        Options { groups: groups.collect(), ..Options::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_nodes_have_as_many_gpus_of_each_type_as_pretend_ones() {
        for gpu in TYPES {
            let of = |nodes: &Nodes| -> usize {
                nodes.all.iter().filter(|node| node.gpu.name == gpu.name).map(|node| node.gpus).sum()
            };
            for real in [Nodes::real(), Nodes::of_pages()] {
                assert_eq!(of(&real), of(&Nodes::pretend()), "{}", gpu.name);
            }
        }
        let nodes = [Nodes::pretend(), Nodes::real(), Nodes::of_pages()];
        assert_eq!(nodes.map(|nodes| nodes.all().len()), [12, 8, 4]);
    }

    #[test]
    fn a_profile_says_on_how_many_of_the_nodes_its_rows_were_measured() {
        let jobs = workload::jobs(workload::TimeScale::DEMO).expect("the workload");
        let nodes_of = |made: &Manifests| -> Vec<u64> {
            let rows = made.profile["spec"]["measurements"].as_array().expect("rows");
            rows.iter().map(|row| row["nodes"].as_u64().expect("nodes")).collect()
        };
        for job in &jobs {
            assert_eq!(Nodes::pretend().manifests(job), workload::manifest(job));
            // No real node has 16 GPUs.
            let made = Nodes::real().manifests(job);
            let rows = made.profile["spec"]["measurements"].as_array().expect("rows");
            let wanted: Vec<u64> = rows.iter().map(|row| 1 + u64::from(row["gpus"] == 16)).collect();
            assert_eq!(nodes_of(&made), wanted, "{}", job.name);
        }
        assert!(jobs.iter().any(|job| nodes_of(&workload::manifest(job)).contains(&2)));
    }

    #[test]
    fn hosts_count_while_they_have_a_job() {
        let held = [("a100-0".to_owned(), 8), ("t4-1".to_owned(), 1), ("t4-2".to_owned(), 0)];
        assert_eq!(Nodes::pretend().busy_host_watts(&held.into()), 500.0 + 150.0);
    }

    #[test]
    fn budgets_follow_the_hosts() {
        assert_eq!((Nodes::pretend().budget(), Nodes::real().budget()), (18_000, 17_200));
    }
}
