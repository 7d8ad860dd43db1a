//! What the nodes draw, read twice a second from the simulated drivers, as power meters would; and what counts against the
//! budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::names;
use andreas_api::training_job::Allocation;
use andreas_e2e::machines::Machines;
use andreas_e2e::seen::ClusterHistory;
use andreas_test_nodes::control::NodeInfo;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::nodes::{GpuType, Nodes};

const EVERY: Duration = Duration::from_millis(500);
/// Objects have instants in whole seconds: the draw at one of them is the highest within this time.
const NEAR: SignedDuration = SignedDuration::from_secs(1);

/// The last reading, and sums over time.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// W of all GPUs.
    pub watts: f64,
    /// W of all nodes beside their GPUs.
    pub host_watts: f64,
    /// W of each pod's GPUs, by the pod's UID.
    pub of_pods: BTreeMap<String, f64>,
    /// J of each pod's GPUs so far, by their counters, while they held them.
    pub joules_of_pods: BTreeMap<String, f64>,
    /// J of nodes beside their GPUs so far, while a pod held one of these.
    pub busy_host_joules: f64,
    /// Time so far in which GPUs and nodes together drew more than the product's budget, s.
    pub seconds_above_budget: f64,
    /// GPUs that nobody holds and that do not have their default settings.
    pub at_rest: usize,
    /// GPU hours at rest so far.
    pub rest_hours: f64,
    /// Counter of each GPU, J, by its UUID.
    counters: BTreeMap<String, f64>,
    /// W of everything at each reading.
    draws: Vec<(Timestamp, f64)>,
}

impl Reading {
    /// Takes in what the drivers say `seconds` after the reading before.
    pub(crate) fn add(&mut self, infos: &[NodeInfo], nodes: &Nodes, seconds: f64, at: Timestamp) {
        self.rest_hours += self.at_rest as f64 * seconds / 3600.0;
        (self.watts, self.host_watts, self.at_rest) = (0.0, 0.0, 0);
        self.of_pods.clear();
        for info in infos {
            for (gpu, hardware) in info.gpus.iter().zip(&info.hardware) {
                self.watts += hardware.watts;
                let before = self.counters.insert(gpu.uuid.clone(), hardware.joules);
                match &gpu.holder {
                    Some(pod) => {
                        *self.of_pods.entry(pod.clone()).or_default() += hardware.watts;
                        // A counter that went back is of a driver that has just begun.
                        let joules = before.map_or(0.0, |before| (hardware.joules - before).max(0.0));
                        *self.joules_of_pods.entry(pod.clone()).or_default() += joules;
                    }
                    None if !hardware.at_defaults => self.at_rest += 1,
                    None => {}
                }
            }
            let Some(node) = nodes.of_name(&info.name) else { continue };
            let busy = info.gpus.iter().any(|gpu| gpu.holder.is_some());
            let watts = node.gpu.host_watts[usize::from(busy)] as f64;
            self.host_watts += watts;
            if busy {
                self.busy_host_joules += watts * seconds;
            }
        }
        let all = self.watts + self.host_watts;
        if all > nodes.budget() as f64 {
            self.seconds_above_budget += seconds;
        }
        self.draws.push((at, all));
    }

    /// The most that GPUs and nodes drew together within a second of this instant, W.
    pub fn draw_at(&self, at: Timestamp) -> Option<f64> {
        let near = self.draws.iter().filter(|(read, _)| read.duration_since(at).abs() <= NEAR);
        near.map(|(_, watts)| *watts).reduce(f64::max)
    }

    /// Energy of all pods' GPUs so far, kWh.
    pub fn gpu_kwh(&self) -> f64 {
        self.joules_of_pods.values().sum::<f64>() / 3.6e6
    }
}

/// Power that counts against the budget, as seen from outside: predicted draw of every gang that has pods which have
/// not ended, the draw of other pods' GPUs, all nodes beside their GPUs, idle draw of every GPU that none of them holds.
pub fn budgeted_watts(seen: &ClusterHistory, reading: &Reading, nodes: &Nodes) -> f64 {
    let allocations: BTreeMap<String, &Allocation> = seen
        .jobs
        .values()
        .filter_map(|v| Some((v.job.uid()?, v.job.status.as_ref()?.allocation.as_ref()?)))
        .collect();
    let mut watts = 0.0;
    for pod in seen.pods.values().filter(|p| p.is_live()) {
        let job = pod.label(names::LABEL_JOB_UID);
        // The allocation is kept in the status until its last member has ended.
        if let Some(allocation) = allocations.get(&job) {
            watts += f64::from(allocation.watts) / allocation.nodes.len().max(1) as f64;
        } else if job.is_empty() {
            watts += reading.of_pods.get(&pod.pod.uid().unwrap_or_default()).copied().unwrap_or(0.0);
        }
    }
    let held = seen.gpus_in_use();
    for (node, gpus) in &seen.node_gpus {
        let Some(GpuType { idle_watts, host_watts: [empty, busy], .. }) =
            nodes.of_name(node).map(|node| node.gpu)
        else {
            continue;
        };
        let used = held.get(node).copied().unwrap_or(0);
        watts += ((gpus - used).max(0) * idle_watts) as f64;
        watts += if used > 0 { busy } else { empty } as f64;
    }
    watts
}

/// Reads until it is dropped.
pub struct Meter {
    last: Arc<Mutex<Reading>>,
    task: JoinHandle<()>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Meter {
    /// Begins to read.
    pub fn start(machines: Arc<dyn Machines>, nodes: Nodes) -> Self {
        let last = Arc::new(Mutex::new(Reading::default()));
        let shared = Arc::clone(&last);
        let task = tokio::spawn(async move {
            let mut before = Instant::now();
            loop {
                if let Ok(infos) = machines.nodes().await {
                    let seconds = before.elapsed().as_secs_f64();
                    before = Instant::now();
                    shared.lock().add(&infos, &nodes, seconds, Timestamp::now());
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { last, task }
    }

    /// The last reading.
    pub fn read(&self) -> Reading {
        self.last.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pretend node with two GPUs, the first of which a pod may hold.
    fn node(holder: Option<&str>, watts: f64, joules: f64) -> NodeInfo {
        let gpu = |n: u8, holder: Option<&str>| json!({"uuid": format!("GPU-{n}"), "healthy": true, "holder": holder});
        let hardware = |n: u8, watts: f64, joules: f64| {
            json!({"uuid": format!("GPU-{n}"), "watts": watts, "joules": joules, "limitWatts": 400.0,
                "lockedMhz": null, "atDefaults": true})
        };
        let info = json!({"name": "a100-0", "online": true, "bootId": "b", "refusedForGpus": [],
            "gpus": [gpu(0, holder), gpu(1, None)],
            "hardware": [hardware(0, watts, joules), hardware(1, 50.0, 7.0)]});
        serde_json::from_value(info).expect("a node")
    }

    #[test]
    fn energy_counts_while_a_pod_holds_the_gpu_and_hosts_while_one_has_a_job() {
        let (nodes, at) = (Nodes::pretend(), Timestamp::UNIX_EPOCH);
        let mut reading = Reading::default();
        reading.add(&[node(None, 50.0, 100.0)], &nodes, 1.0, at);
        reading.add(&[node(Some("pod"), 300.0, 400.0)], &nodes, 1.0, at + SignedDuration::from_secs(1));
        reading.add(&[node(Some("pod"), 300.0, 700.0)], &nodes, 1.0, at + SignedDuration::from_secs(2));
        reading.add(&[node(None, 50.0, 900.0)], &nodes, 1.0, at + SignedDuration::from_secs(3));
        assert_eq!((reading.joules_of_pods["pod"], reading.busy_host_joules), (600.0, 1000.0));
        assert_eq!((reading.watts, reading.host_watts), (100.0, 300.0));
        assert_eq!(reading.seconds_above_budget, 0.0);
        assert_eq!(reading.draw_at(at), Some(850.0), "the highest within a second");
        assert_eq!(reading.draw_at(at + SignedDuration::from_secs(9)), None);
    }

    #[test]
    fn time_above_the_budget_counts_gpus_and_hosts() {
        let (nodes, mut reading) = (Nodes::pretend(), Reading::default());
        let budget = nodes.budget() as f64;
        for watts in [budget - 551.0, budget - 549.0] {
            reading.add(&[node(Some("pod"), watts, 0.0)], &nodes, 0.5, Timestamp::UNIX_EPOCH);
        }
        assert_eq!(reading.seconds_above_budget, 0.5);
    }
}
