//! The state machine of one machine: what is seen, and the wish, give the next status and at most one act. Pure: no I/O, no
//! clock.
//!
//! The status is written before the act, with the version of the object that was read as a precondition. A program that dies
//! between the two is followed by one that reads the status and repeats the act; every act may be repeated.
//!
//! ```text
//! On --wanted Off, empty--> GoingOff: cordoned -> remembered -> asked -> proven --> Off --wanted On--> Starting --> On
//! ```
//!
//! What fails leads to `On`, or to `Quarantined` where nobody can tell what the machine does. Nothing is ever forced.

use std::time::Duration;

use andreas_api::node_power::{
    NodePowerStatus, PowerMode, PowerReading, PowerState, RememberedMachine, WantedPower, boot_seconds,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::conditions;
use crate::driver::Request;

/// Readings of `Off` prove nothing before they have been the same for this long.
const OFF_READINGS: Duration = Duration::from_secs(5);
/// A kubelet renews its Lease each 10 s: after two missed renewals and a margin it has ended.
const LEASE_STILL: Duration = Duration::from_secs(25);
/// From the cordon until the node must be empty: the agent lists the holders of GPUs at least this often, so its report is
/// newer than the cordon.
const AFTER_CORDON: Duration = Duration::from_secs(30);
/// Requests to a machine that does not follow are repeated after this time.
const REPEAT: Duration = Duration::from_secs(60);
/// The operator's Lease must have moved within this time, or nothing that it wanted goes off.
const OPERATOR_FRESH: Duration = Duration::from_secs(60);
/// After this time without the operator all that it wanted off is started: pods of others may need it.
const OPERATOR_GONE: Duration = Duration::from_secs(3600);
/// After the first attempt to go off that failed; doubled by each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(3600);
/// Starts in a row that fail before a person must look.
const MAX_FAILED_STARTS: i32 = 3;
/// Starts that are remembered.
const MAX_BOOTS: usize = 20;
/// Times of going off that are remembered.
const MAX_OFF_TIMES: usize = 16;

/// Times and limits, the same for all machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A machine that is not off this long after it was asked stays on.
    pub off_timeout: Duration,
    /// A start that takes longer has failed; at least twice the 90th percentile of those before.
    pub boot_timeout: Duration,
    /// A machine stays on for this long after it came on.
    pub min_on: Duration,
    /// A machine goes off at most so often in 24 h.
    pub max_cycles_per_day: usize,
    /// A machine that was off for so long is started once, so that its kubelet renews its certificates.
    pub refresh_after: Duration,
}

/// A Node as it was just read.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenNode {
    /// Its UID.
    pub uid: String,
    /// Condition `Ready`.
    pub ready: bool,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// UID of the NodePower that cordoned it.
    pub going_off: Option<String>,
    /// Why it may never go off, by what it is.
    pub never_off: Option<&'static str>,
    /// Identity of its boot.
    pub boot_id: String,
    /// Whole GPUs that pods may ask for.
    pub gpus: i32,
    /// Whether all that is remembered is on it.
    pub restored: bool,
    /// What is to be remembered of it, or why that is not possible.
    pub machine: Result<RememberedMachine, String>,
}

/// What was read for one decision. What was not read is what forbids to go off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// `spec.mode`.
    pub mode: PowerMode,
    /// `spec.wanted`.
    pub wanted: WantedPower,
    /// UID of the NodePower.
    pub uid: String,
    /// The Node; `None` if there is none.
    pub node: Option<SeenNode>,
    /// The last reading of the driver.
    pub power: PowerReading,
    /// For how long all readings were `Off`.
    pub off_for: Duration,
    /// For how long the kubelet's Lease has not moved, by our own clock. Zero without a Lease.
    pub lease_still: Duration,
    /// For how long this program has seen our mark and the cordon.
    pub cordoned_for: Duration,
    /// Since we last asked the driver for another power in this state; `None` if we did not.
    pub since_request: Option<Duration>,
    /// Whether the switch has accepted, since we last asked it for `Off`, that the machine is to be on.
    pub is_off_withdrawn: bool,
    /// Whether the switch does not accept the credentials: to ask it again may keep the account locked.
    pub denied: bool,
    /// Why the machine may not go off now by what is on the node; `None` if it is empty.
    pub obstacle: Option<String>,
    /// Why no further machine may go off now.
    pub no_further_off: Option<&'static str>,
    /// Whether a further machine may be started.
    pub may_start: bool,
    /// For how long the operator's Lease has not moved; `None` where no operator is expected.
    pub operator_still: Option<Duration>,
}

/// The one thing to do after the status is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Cordon the Node and mark it with our UID.
    Cordon,
    /// Take both back.
    Uncordon,
    /// Ask the power switch.
    Ask(Request),
    /// Delete the Node that was read, and no other.
    DeleteNode,
    /// Put what is remembered on the Node.
    Restore,
}

/// The next status, and what to do once it is written.
pub type Step = (NodePowerStatus, Option<Act>);

/// What happens next.
pub fn decide(status: &NodePowerStatus, seen: &Seen, settings: &Settings, now: Timestamp) -> Step {
    let machine = Machine { before: status, seen, settings, now };
    match status.state {
        PowerState::On => machine.on(),
        PowerState::GoingOff => machine.going_off(),
        PowerState::Off => machine.off(),
        PowerState::Starting => machine.starting(),
        PowerState::Quarantined => machine.quarantined(),
    }
}

struct Machine<'a> {
    before: &'a NodePowerStatus,
    seen: &'a Seen,
    settings: &'a Settings,
    now: Timestamp,
}

impl Machine<'_> {
    fn same(&self) -> NodePowerStatus {
        self.before.clone()
    }

    fn to(&self, state: PowerState) -> NodePowerStatus {
        let keeps = matches!(state, PowerState::GoingOff | PowerState::Quarantined);
        let asked = self.before.asked.clone().filter(|_| keeps);
        NodePowerStatus {
            state,
            since: Some(Time(self.now)),
            asked,
            kept_on_by: String::new(),
            ..self.same()
        }
    }

    fn kept(&self, mut status: NodePowerStatus, reason: impl Into<String>) -> NodePowerStatus {
        status.kept_on_by = reason.into().chars().take(256).collect();
        status
    }

    fn quarantine(&self, why: &str) -> NodePowerStatus {
        let mut status = self.to(PowerState::Quarantined);
        let all = &mut status.conditions;
        conditions::set(all, conditions::QUARANTINED, true, "NeedsAttention", why, self.now);
        status
    }

    /// Time since an instant; nothing if it lies ahead, and without bound if there is none.
    fn since(&self, time: Option<&Time>) -> Duration {
        time.map_or(Duration::MAX, |time| self.now.duration_since(time.0).try_into().unwrap_or_default())
    }

    fn wants_off(&self) -> bool {
        match self.seen.mode {
            PowerMode::On => false,
            PowerMode::Off => true,
            PowerMode::Auto => {
                let gone = self.seen.operator_still.is_some_and(|still| still >= OPERATOR_GONE);
                self.seen.wanted == WantedPower::Off && !gone
            }
        }
    }

    /// The operator wanted it off, and may no longer be there to want it on.
    fn is_wish_stale(&self) -> bool {
        let still = self.seen.operator_still.is_some_and(|still| still > OPERATOR_FRESH);
        still && self.seen.mode == PowerMode::Auto
    }

    fn on(&self) -> Step {
        let seen = self.seen;
        let asked = self.before.asked.is_some();
        let off = seen.power == PowerReading::Off && seen.off_for >= OFF_READINGS;
        // It did not follow in time, but did later: proven as ever, then started if it is wanted on.
        if asked && off && (seen.lease_still >= LEASE_STILL || seen.node.is_none()) {
            return (NodePowerStatus { asked: Some(Time(self.now)), ..self.to(PowerState::GoingOff) }, None);
        }
        // Before pods come again.
        if asked && !seen.is_off_withdrawn {
            return (self.same(), Some(Act::Ask(Request::StayOn)));
        }
        // Also the end of each way back: whoever died before is followed by this.
        if seen.node.as_ref().is_some_and(|node| node.going_off.as_ref() == Some(&seen.uid)) {
            return (self.same(), Some(Act::Uncordon));
        }
        if !self.wants_off() {
            // A person who shut it down after a cordon, or has deleted its Node since, works on it.
            let lost = match &seen.node {
                Some(node) => !node.ready && (seen.mode == PowerMode::On || !node.cordoned),
                None => seen.mode == PowerMode::On,
            };
            if off && !asked && lost && seen.may_start {
                return (NodePowerStatus { machine: None, ..self.to(PowerState::Starting) }, None);
            }
            let mut status = self.same();
            status.kept_on_by.clear();
            // It was late by so much that it will not come.
            status.asked = status.asked.filter(|asked| self.since(Some(asked)) < FIRST_PAUSE);
            if seen.mode == PowerMode::On {
                status.failed_offs = 0;
            }
            return (status, None);
        }
        match self.reason_to_stay_on() {
            Some(reason) => (self.kept(self.same(), reason), None),
            None => (NodePowerStatus { machine: None, asked: None, ..self.to(PowerState::GoingOff) }, None),
        }
    }

    fn reason_to_stay_on(&self) -> Option<String> {
        let (seen, settings) = (self.seen, self.settings);
        let Some(node) = &seen.node else { return Some("NoNode".into()) };
        let by_hand = seen.mode == PowerMode::Off;
        let in_last_day = |time: &&Time| self.since(Some(time)) < Duration::from_secs(86_400);
        let doubled = self.before.failed_offs.clamp(1, 6).unsigned_abs() - 1;
        let pause = (FIRST_PAUSE * 2_u32.pow(doubled)).min(Duration::from_secs(86_400));
        let reason = if let Some(reason) = node.never_off {
            reason
        } else if !node.ready {
            "NotReady"
        } else if seen.power != PowerReading::On {
            "Unreachable"
        } else if !by_hand && node.cordoned {
            "Cordoned"
        } else if self.is_wish_stale() {
            "OperatorStale"
        } else if self.before.failed_offs > 0 && self.since(self.before.since.as_ref()) < pause {
            "OffTimeout"
        } else if !by_hand && self.since(self.before.since.as_ref()) < settings.min_on {
            "MinOn"
        } else if !by_hand
            && self.before.off_times.iter().filter(in_last_day).count() >= settings.max_cycles_per_day
        {
            "Cycles"
        } else {
            return seen.no_further_off.map(Into::into).or_else(|| seen.obstacle.clone());
        };
        Some(reason.into())
    }

    fn going_off(&self) -> Step {
        let seen = self.seen;
        let Some(node) = &seen.node else { return self.going_off_without_node() };
        let ours = node.going_off.as_ref() == Some(&seen.uid);
        let waited = seen.cordoned_for >= AFTER_CORDON;
        if let Some(asked) = &self.before.asked {
            if self.is_another(node) {
                return (self.to(PowerState::Starting), None);
            }
            if seen.power == PowerReading::Off
                && seen.off_for >= OFF_READINGS
                && seen.lease_still >= LEASE_STILL
            {
                // The mark is what allows the deletion.
                return (self.same(), Some(if ours { Act::DeleteNode } else { Act::Cordon }));
            }
            let again = seen.since_request.is_none_or(|since| since >= REPEAT);
            if self.since(Some(asked)) >= self.settings.off_timeout {
                return self.not_off_in_time(node);
            }
            if !(ours && node.cordoned) {
                return (self.same(), Some(Act::Cordon));
            }
            let may = self.wants_off() && !self.is_wish_stale() && seen.obstacle.is_none();
            let ask = waited && again && may && seen.power == PowerReading::On;
            return (self.same(), ask.then_some(Act::Ask(Request::Off)));
        }
        if !self.wants_off() {
            return (self.to(PowerState::On), None);
        }
        let unreachable = seen.power == PowerReading::Unknown;
        let obstacle = seen.obstacle.as_deref().or(self.is_wish_stale().then_some("OperatorStale"));
        if let Some(reason) = obstacle.or(unreachable.then_some("Unreachable")) {
            return (self.kept(self.to(PowerState::On), reason), None);
        }
        if !(ours && node.cordoned) {
            // Somebody takes it back each time.
            if self.since(self.before.since.as_ref()) >= self.settings.off_timeout {
                return (self.kept(self.failed_off(), "Uncordoned"), None);
            }
            return (self.same(), Some(Act::Cordon));
        }
        if !waited {
            return (self.same(), None);
        }
        match &node.machine {
            Err(why) => (self.kept(self.to(PowerState::On), why), None),
            // It was written before and read back.
            Ok(machine) if self.before.machine.as_ref() == Some(machine) => {
                let asked = NodePowerStatus { asked: Some(Time(self.now)), ..self.same() };
                (asked, (seen.power == PowerReading::On).then_some(Act::Ask(Request::Off)))
            }
            Ok(machine) => (NodePowerStatus { machine: Some(machine.clone()), ..self.same() }, None),
        }
    }

    /// Its Node was deleted: by us, once it was proven off, or by somebody else.
    fn going_off_without_node(&self) -> Step {
        if self.before.asked.is_none() {
            return (self.to(PowerState::On), None);
        }
        match self.seen.power {
            PowerReading::Off => {
                let mut status = self.to(PowerState::Off);
                status.failed_offs = 0;
                status.off_times.push(Time(self.now));
                let excess = status.off_times.len().saturating_sub(MAX_OFF_TIMES);
                status.off_times.drain(..excess);
                (status, None)
            }
            PowerReading::Unknown if self.wants_off() => (self.same(), None),
            // It was started since; a kubelet that never ended registers no Node, and the start fails.
            _ => (self.to(PowerState::Starting), None),
        }
    }

    /// Whether this Node is another one than the one that is remembered: the machine was off since.
    fn is_another(&self, node: &SeenNode) -> bool {
        self.before.machine.as_ref().is_some_and(|machine| machine.node_uid != node.uid)
    }

    fn not_off_in_time(&self, node: &SeenNode) -> Step {
        if !node.ready {
            let why = "it was asked to shut down: its node is not ready, and it is not proven off";
            return (self.quarantine(why), None);
        }
        let mut status = self.failed_off();
        status.asked.clone_from(&self.before.asked);
        (self.kept(status, "OffTimeout"), None)
    }

    /// Back to `On`: the next try waits for longer than the last one did.
    fn failed_off(&self) -> NodePowerStatus {
        let failed_offs = self.before.failed_offs.saturating_add(1).min(1000);
        NodePowerStatus { failed_offs, ..self.to(PowerState::On) }
    }

    fn off(&self) -> Step {
        match &self.seen.node {
            // The Node that we deleted is back, from a backup: proven and deleted again.
            Some(node) if !self.is_another(node) => {
                let status = self.to(PowerState::GoingOff);
                (NodePowerStatus { asked: Some(Time(self.now)), ..status }, None)
            }
            // Somebody started it.
            Some(_) => (self.to(PowerState::Starting), None),
            None => {
                let due = self.seen.mode != PowerMode::Off
                    && self.since(self.before.since.as_ref()) >= self.settings.refresh_after;
                let starts = (!self.wants_off() || due) && self.seen.may_start;
                (if starts { self.to(PowerState::Starting) } else { self.same() }, None)
            }
        }
    }

    fn starting(&self) -> Step {
        let seen = self.seen;
        let default = RememberedMachine::default();
        let machine = self.before.machine.as_ref().unwrap_or(&default);
        if seen.node.as_ref().is_some_and(|node| !node.restored) {
            return (self.same(), Some(Act::Restore));
        }
        let is_back =
            |node: &SeenNode| node.ready && node.boot_id != machine.boot_id && node.gpus >= machine.gpus;
        let back = seen.node.as_ref().is_some_and(is_back);
        if back && seen.is_off_withdrawn {
            return (self.started(), None);
        }
        let waited = self.since(self.before.since.as_ref());
        let usual = Duration::from_secs(self.before.boot_seconds.unwrap_or(0).unsigned_abs().into());
        if waited >= self.settings.boot_timeout.max(usual * 2) {
            return (self.start_failed(machine), None);
        }
        let again = seen.since_request.is_none_or(|since| since >= REPEAT) && !seen.denied;
        let request = match seen.power {
            // Also where the power cannot be read: what is wanted on comes on.
            PowerReading::Off | PowerReading::Unknown if !back => again.then_some(Request::On),
            _ => (!seen.is_off_withdrawn).then_some(Request::StayOn),
        };
        (self.same(), request.map(Act::Ask))
    }

    fn started(&self) -> NodePowerStatus {
        let mut status = NodePowerStatus { failed_starts: 0, ..self.to(PowerState::On) };
        // Somebody else started it, and nobody knows when.
        if self.seen.since_request.is_none() {
            return status;
        }
        let took = self.since(self.before.since.as_ref()).as_secs();
        status.boots.push(i32::try_from(took).unwrap_or(i32::MAX).min(1_000_000));
        let excess = status.boots.len().saturating_sub(MAX_BOOTS);
        status.boots.drain(..excess);
        status.boot_seconds = boot_seconds(&status.boots);
        status
    }

    fn start_failed(&self, machine: &RememberedMachine) -> NodePowerStatus {
        let mut status = self.to(PowerState::Starting);
        // A BMC that cannot be reached says nothing about the machine.
        if self.seen.power == PowerReading::Unknown {
            return status;
        }
        status.failed_starts = status.failed_starts.saturating_add(1).min(1000);
        if status.failed_starts < MAX_FAILED_STARTS {
            return status;
        }
        let why = match &self.seen.node {
            None => "it was started three times, and its Node did not appear".to_owned(),
            Some(node) if node.boot_id == machine.boot_id => {
                "it was never off: its boot is the same".to_owned()
            }
            Some(node) if node.gpus < machine.gpus => {
                format!("it came back with {} GPUs instead of {}", node.gpus, machine.gpus)
            }
            Some(_) => "it was started three times, and its Node did not become ready".to_owned(),
        };
        NodePowerStatus { failed_starts: status.failed_starts, ..self.quarantine(&why) }
    }

    fn quarantined(&self) -> Step {
        if self.seen.mode != PowerMode::On {
            return (self.same(), None);
        }
        // One that is off is found there, and started.
        let on = self.seen.node.as_ref().is_some_and(|node| !self.is_another(node));
        let next = if on { PowerState::On } else { PowerState::Starting };
        let asked = self.before.asked.clone().filter(|_| on);
        let mut status = NodePowerStatus { asked, failed_starts: 0, failed_offs: 0, ..self.to(next) };
        conditions::set(&mut status.conditions, conditions::QUARANTINED, false, "ModeOn", "", self.now);
        (status, None)
    }
}
