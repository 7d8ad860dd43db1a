//! What is wrong with a GPU. Pure.
//!
//! A *fatal* problem makes a GPU unhealthy: nothing is planned on it. A warning is reported only.
//!
//! | problem | fatal | source of the rule |
//! |---|---|---|
//! | the driver lost it, hangs or fails | yes | - |
//! | Xid error | yes, but for those of applications and contained ones | NVIDIA's device plug-in, `internal/rm/health.go` |
//! | contained Xid error, for an hour | no | NVIDIA, *Xid Errors*: the application is to be started again |
//! | a row could not be remapped | yes | NVIDIA, *GPU Memory Error Management*: the board is to be replaced |
//! | row remapping or page retirement pending | no | the same: new work may start, a reset is due |
//! | uncorrected ECC errors since the driver was loaded | no | the same: the error was contained or came as an Xid |
//! | thermal slowdown, power brake, hardware slowdown | no | NVML, clock event reasons |
//! | the kubelet gave it to several pods, whole | no | it works; the operator stops the younger of ours |
//! | a figure that the GPU has cannot be read | no | one figure says nothing about the GPU |
//!
//! A GPU with a fatal Xid error stays unhealthy until it is reset or the driver loaded again, also for the next agent, or until an
//! administrator says that it is well ([`ANNOTATION_CLEARED`]). A reset is noticed by the energy counter, which begins anew, or by a GPU
//! that answers again after it was lost. An error from before the machine's last start counts no more.

use std::collections::{BTreeMap, BTreeSet};

use andreas_api::gpu_node::{GpuProblem, GpuState, TWO_HOLDERS};
use jiff::{SignedDuration, Timestamp};

use crate::gpu::{ErrorEvent, GpuError, Sample};
use crate::setting::Uuid;

/// Xid errors of applications, after which the GPU is healthy: NVIDIA's device plug-in 0.19 ignores the same
/// (`getDisabledHealthCheckXids`). Graphics engine exception, memory page fault, stopped processing, preemptive cleanup, video
/// processor exception, context switch time-out.
pub const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Xid errors that leave the GPU usable, though the plug-in withholds it until it is started again: it may not be handed out, which the
/// node's allocatable GPUs say, and works. Row remapping recorded, class error of an application, many corrected memory errors, contained
/// memory error, change of the recovery action. What does need a reset is said by the driver's answers too.
pub const CONTAINED_XIDS: [u64; 5] = [63, 69, 92, 94, 154];

/// Annotation of a GpuNode: Xid errors until this instant (RFC 3339) count no more. It must not lie in the future.
pub const ANNOTATION_CLEARED: &str = "andreas.dev/xids-cleared-at";

/// Time for which a contained error is a warning.
const WARNED: SignedDuration = SignedDuration::from_hours(1);
/// How far a clock may be ahead that an instant was read from.
const AHEAD: SignedDuration = SignedDuration::from_secs(60);

/// All reasons.
pub const PROBLEMS: [&str; 14] = [
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
    "ReadingMissing",
    TWO_HOLDERS,
];

/// Most problems that are reported of a GPU.
const MOST: usize = 8;

/// Reason of an Xid error in the status.
const XID: &str = "Xid";

/// Xid errors of the node's GPUs that still count, with the time of each.
#[derive(Clone, Debug, Default)]
pub struct XidErrors {
    ignored: BTreeSet<u64>,
    latched: BTreeMap<Uuid, (u64, Timestamp)>,
    contained: BTreeMap<Uuid, (u64, Timestamp)>,
}

impl XidErrors {
    /// Errors with these numbers leave a GPU healthy.
    #[must_use]
    pub fn ignoring(ignored: impl IntoIterator<Item = u64>) -> Self {
        Self { ignored: ignored.into_iter().collect(), ..Self::default() }
    }

    /// Takes over the errors that an earlier agent reported since the machine was started (`booted`), or did not date.
    pub fn resume(&mut self, gpus: &[GpuState], booted: Timestamp) {
        for gpu in gpus {
            let at = gpu.unhealthy_since.as_ref().map_or(booted, |since| since.0);
            let xid = gpu.problems.iter().find(|problem| problem.reason == XID && problem.fatal);
            let number = xid.and_then(|problem| u64::try_from(problem.xid?).ok());
            let counts = |xid: &u64| !self.ignored.contains(xid) && !CONTAINED_XIDS.contains(xid);
            if let Some(xid) = number.filter(|xid| at >= booted && counts(xid)) {
                self.latched.entry(gpu.uuid.clone()).or_insert((xid, at));
            }
        }
    }

    /// Adds an error of now. The first fatal one of a GPU counts: later ones follow from it.
    pub fn add(&mut self, event: &ErrorEvent, now: Timestamp) {
        if self.ignored.contains(&event.xid) {
        } else if CONTAINED_XIDS.contains(&event.xid) {
            self.contained.insert(event.uuid.clone(), (event.xid, now));
        } else {
            self.latched.entry(event.uuid.clone()).or_insert((event.xid, now));
        }
    }

    /// The GPU was reset, or the driver loaded again.
    pub fn clear(&mut self, uuid: &str) {
        self.latched.remove(uuid);
        self.contained.remove(uuid);
    }

    /// Errors until this instant count no more. One in the future says nothing: it would hide errors to come.
    pub fn clear_until(&mut self, cleared: Timestamp, now: Timestamp) {
        if cleared.duration_since(now) <= AHEAD {
            for errors in [&mut self.latched, &mut self.contained] {
                errors.retain(|_, (_, at)| *at > cleared);
            }
        }
    }

    /// The Xid error that makes a GPU unhealthy.
    #[must_use]
    pub fn fatal_error(&self, uuid: &str) -> Option<u64> {
        self.latched.get(uuid).map(|(xid, _)| *xid)
    }

    /// The last contained error of a GPU, if it is not long ago.
    #[must_use]
    pub fn contained_error(&self, uuid: &str, now: Timestamp) -> Option<u64> {
        let recent = self.contained.get(uuid).filter(|(_, at)| now.duration_since(*at) < WARNED);
        recent.map(|(xid, _)| *xid)
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

/// What is known of a GPU that may be wrong with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Findings<'a> {
    /// Why it must not be used, by its reads.
    pub error: Option<&'a GpuError>,
    /// Its fatal Xid error.
    pub xid: Option<u64>,
    /// Its contained Xid error.
    pub contained: Option<u64>,
    /// Whether the kubelet gave it to several pods.
    pub twice: bool,
    /// Its last sample.
    pub sample: Option<&'a Sample>,
}

/// What is wrong with a GPU, the fatal ones first.
#[must_use]
pub fn problems(findings: Findings<'_>) -> Vec<GpuProblem> {
    let Findings { error, xid, contained, twice, sample } = findings;
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
    let xid_problem = |xid: u64, fatal, message: &str| GpuProblem {
        xid: Some(i32::try_from(xid).unwrap_or(i32::MAX)),
        ..problem(XID, fatal, &format!("Xid {xid}: {message}"))
    };
    if let Some(xid) = xid {
        let message =
            "unhealthy until the GPU is reset, the driver loaded again, or the GpuNode is annotated with";
        found.push(xid_problem(xid, true, &format!("{message} {ANNOTATION_CLEARED}")));
    }
    if twice {
        found.push(problem(TWO_HOLDERS, false, "the kubelet gave it to several pods at once"));
    }
    if let Some(xid) = contained.filter(|_| xid.is_none()) {
        found.push(xid_problem(
            xid,
            false,
            "contained: the GPU works, the program that had it may have ended",
        ));
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
    if !sample.unread.is_empty() {
        let calls = sample.unread.iter().copied().collect::<Vec<_>>().join(", ");
        let message = format!("the driver does not answer {calls}: what it would say counts as unknown");
        found.push(problem("ReadingMissing", false, &message));
    }
    found.truncate(MOST);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{ClockEvents, MemoryErrors};

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_error_that_leaves_the_gpu_usable_warns_for_an_hour() {
        let mut errors = XidErrors::ignoring(APPLICATION_XIDS);
        for xid in CONTAINED_XIDS {
            errors.add(&event("GPU-a", xid), second(0));
            assert_eq!(errors.fatal_error("GPU-a"), None);
            let found = problems(Findings {
                contained: errors.contained_error("GPU-a", second(3_599)),
                ..Findings::default()
            });
            assert_eq!((found[0].xid, found[0].fatal), (i32::try_from(xid).ok(), false));
        }
        assert_eq!(errors.contained_error("GPU-a", second(3_600)), None);
    }

    #[test]
    fn an_administrator_clears_errors_up_to_an_instant_that_has_come() {
        for (cleared, now, counts) in
            [(99, 200, true), (100, 200, false), (250, 200, false), (261, 200, true)]
        {
            let mut errors = XidErrors::default();
            errors.add(&event("GPU-a", 149), second(100));
            errors.clear_until(second(cleared), second(now));
            assert_eq!(errors.fatal_error("GPU-a").is_some(), counts, "{cleared} at {now}");
        }
    }

    fn event(uuid: &str, xid: u64) -> ErrorEvent {
        ErrorEvent { uuid: uuid.into(), xid }
    }

    #[test]
    fn an_error_of_an_application_leaves_a_gpu_healthy_and_others_last_until_a_reset() {
        let mut errors = XidErrors::ignoring(APPLICATION_XIDS);
        for xid in APPLICATION_XIDS {
            errors.add(&event("GPU-a", xid), second(0));
        }
        assert_eq!(errors.fatal_error("GPU-a"), None);
        errors.add(&event("GPU-a", 48), second(0));
        errors.add(&event("GPU-a", 45), second(0));
        errors.add(&event("GPU-a", 63), second(0));
        assert_eq!((errors.fatal_error("GPU-a"), errors.fatal_error("GPU-b")), (Some(48), None));
        let found = problems(Findings { xid: errors.fatal_error("GPU-a"), ..Findings::default() });
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
            let found = problems(Findings { sample: Some(&sample), ..Findings::default() });
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
