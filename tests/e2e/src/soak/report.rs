//! What a soak came to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Power budget, W: less than half of what all GPUs draw at work, so that plans have to mind it.
pub const BUDGET_WATTS: f64 = 2_400.0;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// From the first to the last thing that happened.
    pub lasted: Duration,
    /// From then until every job had ended.
    pub all_ended_after: Duration,
    /// Jobs that were submitted.
    pub submitted: usize,
    /// Jobs that succeeded.
    pub succeeded: usize,
    /// Jobs that failed, as they were made to.
    pub failed: usize,
    /// Jobs that were deleted.
    pub deleted: usize,
    /// Attempts of all jobs.
    pub attempts: i64,
    /// What was done, by its name.
    pub done: BTreeMap<&'static str, usize>,
    /// Calls that a rule of the fault proxy met.
    pub calls_met: u64,
    /// How often devices and containers were looked at.
    pub looks: usize,
    /// Pods whose containers were seen after their objects were gone.
    pub ran_without_object: usize,
    /// The most that all GPUs drew together, W.
    pub highest_watts: f64,
    /// Who drew what then.
    pub at_highest: String,
    /// Memory and open files of our programs.
    pub usage: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done: Vec<String> = self.done.iter().map(|(what, count)| format!("{what} {count}")).collect();
        write!(
            f,
            "soak: seed {}, {:.1} min and {:.0} s to the end of all jobs, {} jobs ({} succeeded, {} failed, {} deleted) in {} \
             attempts, {} calls met by faults, {} looks at devices, {} pods seen at work without an object, {:.0} W at most of \
             {BUDGET_WATTS:.0} W ({}); {}; {}",
            self.seed,
            self.lasted.as_secs_f64() / 60.0,
            self.all_ended_after.as_secs_f64(),
            self.submitted,
            self.succeeded,
            self.failed,
            self.deleted,
            self.attempts,
            self.calls_met,
            self.looks,
            self.ran_without_object,
            self.highest_watts,
            self.at_highest,
            self.usage,
            done.join(", ")
        )
    }
}
