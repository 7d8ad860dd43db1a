//! What the nodes' GPUs draw, read once a second from the simulated drivers, as a power meter would.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_e2e::machines::Machines;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

const EVERY: Duration = Duration::from_secs(1);

/// The last reading, and sums over time.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// W of all GPUs.
    pub watts: f64,
    /// W of each pod's GPUs, by the pod's UID.
    pub of_pods: BTreeMap<String, f64>,
    /// GPUs that nobody holds and that do not have their default settings.
    pub at_rest: usize,
    /// GPU hours at rest so far.
    pub rest_hours: f64,
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
    pub fn start(nodes: Arc<dyn Machines>) -> Self {
        let last = Arc::new(Mutex::new(Reading::default()));
        let shared = Arc::clone(&last);
        let task = tokio::spawn(async move {
            let mut before = Instant::now();
            loop {
                if let Ok(nodes) = nodes.nodes().await {
                    let mut reading = Reading::default();
                    for node in &nodes {
                        for (gpu, hardware) in node.gpus.iter().zip(&node.hardware) {
                            reading.watts += hardware.watts;
                            match &gpu.holder {
                                Some(pod) => {
                                    *reading.of_pods.entry(pod.clone()).or_default() += hardware.watts
                                }
                                None if !hardware.at_defaults => reading.at_rest += 1,
                                None => {}
                            }
                        }
                    }
                    let mut last = shared.lock();
                    reading.rest_hours =
                        last.rest_hours + last.at_rest as f64 * before.elapsed().as_secs_f64() / 3600.0;
                    before = Instant::now();
                    *last = reading;
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
