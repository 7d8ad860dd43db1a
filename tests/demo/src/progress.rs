//! What happens, in lines: for runs without a terminal.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use andreas_api::phase::Phase;
use andreas_e2e::seen::ClusterHistory;
use andreas_e2e::workload::TimeScale;

use crate::screen::{Head, Jobs};
use crate::summary::figure;

/// Tells what happens: a line for every change of phase, and one for the whole every five seconds.
pub(crate) struct ProgressPrinter {
    phases: BTreeMap<String, Phase>,
    last: Instant,
}

impl ProgressPrinter {
    pub(crate) fn new() -> Self {
        Self { phases: BTreeMap::new(), last: Instant::now() }
    }

    /// Whether so much time has passed since it last said so.
    pub(crate) fn is_due(&mut self, every: Duration) -> bool {
        let due = self.last.elapsed() >= every;
        if due {
            self.last = Instant::now();
        }
        due
    }

    pub(crate) fn tell(&mut self, jobs: &Jobs, seen: &ClusterHistory, head: Head<'_>) {
        let at = head.at;
        for (name, job) in jobs {
            let status = job.status.clone().unwrap_or_default();
            if self.phases.insert(name.clone(), status.phase) == Some(status.phase) {
                continue;
            }
            let what = match (&status.allocation, status.phase) {
                (Some(a), Phase::Starting | Phase::Running) => {
                    format!("{} x {} on {}", a.gpus, a.gpu_type, a.nodes.join(", "))
                }
                (_, Phase::Stopping) => {
                    status.stop.map(|s| format!("{} {}", s.reason, s.message)).unwrap_or_default()
                }
                (_, Phase::Pending) => status.reason.unwrap_or_default(),
                (_, Phase::Succeeded | Phase::Failed) => {
                    let joules = status.consumption.map_or(0, |used| used.joules + used.host_joules);
                    format!("{} kWh of the trace", figure(joules as f64 / 3.6e6 * TimeScale::DEMO.0))
                }
                _ => String::new(),
            };
            println!("{at:6.1}s  {name:<28} {:<10} {what}", status.phase.as_str());
        }
        if self.is_due(Duration::from_secs(5)) {
            let count = |phase| self.phases.values().filter(|p| **p == phase).count();
            let used: i64 = seen.gpus_in_use().values().sum();
            let all: i64 = seen.node_gpus.values().sum();
            println!(
                "{at:6.1}s  -- {}, usually {:.0} s: waiting {}, starting {}, running {}, stopping {}, done {}; {used} of {all} GPUs; {:.1} of {:.1} kW",
                head.title,
                head.usual,
                count(Phase::Pending),
                count(Phase::Starting),
                count(Phase::Running),
                count(Phase::Stopping),
                count(Phase::Succeeded) + count(Phase::Failed),
                head.watts / 1000.0,
                head.budget / 1000.0,
            );
        }
        // A closed pipe must not end the run before its summary.
        let _ = std::io::stdout().flush();
    }
}
