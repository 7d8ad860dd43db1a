//! What is wrong with a GPU. Pure.
//!
//! A *fatal* problem makes a GPU unhealthy: nothing is planned on it. A warning is reported only.
//!
//! | problem | fatal | source of the rule |
//! |---|---|---|
//! | the driver lost it, hangs or fails | yes | - |
//! | Xid error | yes, but for those of applications | NVIDIA's device plug-in, `internal/rm/health.go` |
//! | a row could not be remapped | yes | NVIDIA, *GPU Memory Error Management*: the board is to be replaced |
//! | row remapping or page retirement pending | no | the same: new work may start, a reset is due |
//! | uncorrected ECC errors since the driver was loaded | no | the same: the error was contained or came as an Xid |
//! | thermal slowdown, power brake, hardware slowdown | no | NVML, clock event reasons |
//!
//! A GPU with a fatal Xid error stays unhealthy until it is reset or the driver loaded again, also for the next agent.
//! Either is noticed by the energy counter, which begins anew, or by a GPU that answers again after it was lost. An error
//! from before the machine's last start counts no more.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::gpu_node::{GpuProblem, GpuState};
use jiff::Timestamp;

use crate::gpu::{ErrorEvent, GpuError, Sample};
use crate::setting::Uuid;

/// Xid errors of applications, after which the GPU is healthy: NVIDIA's device plug-in 0.19 ignores the same
/// (`getDisabledHealthCheckXids`). Graphics engine exception, memory page fault, stopped processing, preemptive cleanup, video
/// processor exception, context switch time-out.
pub const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// All reasons.
pub const PROBLEMS: [&str; 12] = [
    "GpuLost",
    "ResetRequired",
    "DriverHangs",
    "DriverError",
    XID,
    "RowRemapFailed",
    "RowRemapPending",
    "PageRetirementPending",
    "UncorrectedEcc",
    "ThermalSlowdown",
    "PowerBrake",
    "HardwareSlowdown",
];

/// Reason of an Xid error in the status.
const XID: &str = "Xid";

/// Xid errors of the node's GPUs that still count.
#[derive(Clone, Debug, Default)]
pub struct XidErrors {
    ignored: BTreeSet<u64>,
    latched: BTreeMap<Uuid, u64>,
}

impl XidErrors {
    /// Errors with these numbers leave a GPU healthy.
    #[must_use]
    pub fn ignoring(ignored: impl IntoIterator<Item = u64>) -> Self {
        Self { ignored: ignored.into_iter().collect(), latched: BTreeMap::new() }
    }

    /// Takes over the errors that an earlier agent reported since the machine was started (`booted`), or did not date.
    pub fn resume(&mut self, gpus: &[GpuState], booted: Timestamp) {
        let current = |gpu: &&GpuState| gpu.unhealthy_since.as_ref().is_none_or(|since| since.0 >= booted);
        for gpu in gpus.iter().filter(current) {
            let xid = gpu.problems.iter().find(|problem| problem.reason == XID && problem.fatal);
            let number = xid.and_then(|problem| u64::try_from(problem.xid?).ok());
            if let Some(xid) = number.filter(|xid| !self.ignored.contains(xid)) {
                self.latched.entry(gpu.uuid.clone()).or_insert(xid);
            }
        }
    }

    /// Adds an error. The first fatal one of a GPU counts: later ones follow from it.
    pub fn add(&mut self, event: &ErrorEvent) {
        if !self.ignored.contains(&event.xid) {
            self.latched.entry(event.uuid.clone()).or_insert(event.xid);
        }
    }

    /// The GPU was reset, or the driver loaded again.
    pub fn clear(&mut self, uuid: &str) {
        self.latched.remove(uuid);
    }

    /// The Xid error that makes a GPU unhealthy.
    #[must_use]
    pub fn fatal_error(&self, uuid: &str) -> Option<u64> {
        self.latched.get(uuid).copied()
    }
}

/// Reason of a driver's error.
fn of_error(error: &GpuError) -> &'static str {
    match error {
        GpuError::Lost => "GpuLost",
        GpuError::ResetRequired => "ResetRequired",
        GpuError::Hung => "DriverHangs",
        _ => "DriverError",
    }
}

/// What is wrong with a GPU, the fatal ones first. `error`: why it must not be used, by its reads; `xid`: its fatal Xid error.
#[must_use]
pub fn problems(error: Option<&GpuError>, xid: Option<u64>, sample: Option<&Sample>) -> Vec<GpuProblem> {
    let problem = |reason: &str, fatal: bool, message: &str| GpuProblem {
        reason: reason.into(),
        fatal,
        xid: None,
        message: message.into(),
    };
    let mut found = Vec::new();
    if let Some(error) = error {
        found.push(problem(of_error(error), true, &error.to_string()));
    }
    if let Some(xid) = xid {
        let message = format!("Xid {xid}: unhealthy until the GPU is reset or the driver loaded again");
        let number = i32::try_from(xid).unwrap_or(i32::MAX);
        found.push(GpuProblem { xid: Some(number), ..problem(XID, true, &message) });
    }
    let Some(sample) = sample else { return found };
    let (memory, clocks) = (&sample.memory, &sample.clock_events);
    if memory.remap_failed == Some(true) {
        found.push(problem("RowRemapFailed", true, "a memory row could not be remapped: replace the board"));
    }
    if memory.remap_pending == Some(true) {
        let message = "a memory row is remapped at the next reset of the GPU";
        found.push(problem("RowRemapPending", false, message));
    }
    if memory.retirement_pending == Some(true) {
        let message = "a memory page is retired at the next reset of the GPU";
        found.push(problem("PageRetirementPending", false, message));
    }
    if memory.uncorrected.is_some_and(|errors| errors > 0) {
        let message = "uncorrected memory errors since the driver was loaded";
        found.push(problem("UncorrectedEcc", false, message));
    }
    if clocks.thermal {
        found.push(problem("ThermalSlowdown", false, "clocks are low because the GPU or its memory is hot"));
    }
    if clocks.power_brake {
        let message = "clocks are low because the machine's power supply asks for it";
        found.push(problem("PowerBrake", false, message));
    } else if clocks.hardware && !clocks.thermal {
        found.push(problem("HardwareSlowdown", false, "the hardware halved the clocks"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{ClockEvents, MemoryErrors};

    fn event(uuid: &str, xid: u64) -> ErrorEvent {
        ErrorEvent { uuid: uuid.into(), xid }
    }

    #[test]
    fn an_error_of_an_application_leaves_a_gpu_healthy_and_others_last_until_a_reset() {
        let mut errors = XidErrors::ignoring(APPLICATION_XIDS);
        for xid in APPLICATION_XIDS {
            errors.add(&event("GPU-a", xid));
        }
        assert_eq!(errors.fatal_error("GPU-a"), None);
        errors.add(&event("GPU-a", 48));
        errors.add(&event("GPU-a", 45));
        errors.add(&event("GPU-a", 63));
        assert_eq!((errors.fatal_error("GPU-a"), errors.fatal_error("GPU-b")), (Some(48), None));
        let found = problems(None, errors.fatal_error("GPU-a"), Some(&Sample::default()));
        assert_eq!((found.len(), found[0].xid, found[0].fatal), (1, Some(48), true));
        errors.clear("GPU-a");
        assert_eq!(errors.fatal_error("GPU-a"), None);
        // What an earlier agent reported counts unless it is ignored now.
        let booted: Timestamp = "2026-11-24T10:00:00Z".parse().unwrap();
        let reported = |xid: u64, since: Option<&str>| -> [GpuState; 1] {
            let problem = serde_json::json!({"reason": XID, "fatal": true, "xid": xid, "message": ""});
            let gpu = serde_json::json!({
                "uuid": "GPU-a", "state": "Unhealthy", "problems": [problem], "unhealthySince": since,
            });
            [serde_json::from_value(gpu).unwrap()]
        };
        errors.resume(&reported(APPLICATION_XIDS[0], None), booted);
        assert_eq!(errors.fatal_error("GPU-a"), None);
        errors.resume(&reported(79, None), booted);
        assert_eq!(errors.fatal_error("GPU-a"), Some(79), "an older agent did not date it");
        errors.clear("GPU-a");
        // A start of the machine loads the driver again.
        errors.resume(&reported(79, Some("2026-11-24T09:59:59Z")), booted);
        assert_eq!(errors.fatal_error("GPU-a"), None);
        errors.resume(&reported(79, Some("2026-11-24T10:00:00Z")), booted);
        assert_eq!(errors.fatal_error("GPU-a"), Some(79));
    }

    #[test]
    fn memory_and_heat_warn_and_a_failed_remapping_is_fatal() {
        let reasons = |sample: Sample| -> Vec<(String, bool)> {
            let found = problems(None, None, Some(&sample));
            found.into_iter().map(|problem| (problem.reason, problem.fatal)).collect()
        };
        let memory = MemoryErrors {
            uncorrected: Some(1),
            remap_pending: Some(true),
            remap_failed: Some(true),
            retirement_pending: None,
        };
        let found = reasons(Sample { memory, ..Sample::default() });
        let wanted = [("RowRemapFailed", true), ("RowRemapPending", false), ("UncorrectedEcc", false)];
        assert_eq!(found, wanted.map(|(reason, fatal)| (reason.to_owned(), fatal)));
        let clock_events = ClockEvents { thermal: true, hardware: true, power_brake: false };
        let found = reasons(Sample { clock_events, ..Sample::default() });
        assert_eq!(found, [("ThermalSlowdown".to_owned(), false)], "one cause is named once");
        let clock_events = ClockEvents { hardware: true, ..ClockEvents::default() };
        let memory = MemoryErrors { retirement_pending: Some(true), ..MemoryErrors::default() };
        let found = reasons(Sample { clock_events, memory, ..Sample::default() });
        let wanted = ["PageRetirementPending", "HardwareSlowdown"];
        assert_eq!(found, wanted.map(|reason| (reason.to_owned(), false)));
        assert!(reasons(Sample::default()).is_empty());
    }
}
