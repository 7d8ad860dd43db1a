//! A machine, its BMC, its Node, pods that come and go, and the program that decides on it.

use std::time::Duration;

use andreas_api::node_power::{
    NodePowerStatus, PowerMode, PowerReading, PowerState, RememberedMachine, WantedPower,
};
use andreas_node_power::driver::Request;
use andreas_node_power::transition::{Act, Seen, SeenNode, Settings, decide};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

const UID: &str = "power-1";
pub const SETTINGS: Settings = Settings {
    off_timeout: Duration::from_secs(300),
    boot_timeout: Duration::from_secs(900),
    min_on: Duration::from_secs(1800),
    max_cycles_per_day: 16,
    refresh_after: Duration::from_secs(14 * 86_400),
};

/// What happens in the world between two steps.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Seconds go by.
    Wait(u16),
    /// A pod is bound to the node, if there is one and it takes pods (or the pod tolerates all).
    Pod(bool),
    PodsEnd,
    Wish(PowerMode, WantedPower),
    /// The program dies before its next act, and another begins.
    Kill,
    /// The BMC cannot be reached, or can again.
    Bmc(bool),
    /// The BMC reports `Off` whatever is true, or tells the truth again.
    Lies(bool),
    /// The operating system ignores a shutdown, or follows again.
    Deaf(bool),
    ByHand(bool),
    /// Metal3's operator does what it was last asked for.
    Metal3,
    Uncordon,
    /// Somebody deletes the Node of a machine that is off.
    NodeLost,
    OperatorGone(bool),
}

pub fn events() -> impl Strategy<Value = Event> {
    let mode = prop_oneof![4 => Just(PowerMode::Auto), 1 => Just(PowerMode::On), 2 => Just(PowerMode::Off)];
    let wanted = prop_oneof![1 => Just(WantedPower::On), 3 => Just(WantedPower::Off)];
    prop_oneof![
        20 => (1_u16..60).prop_map(Event::Wait),
        4 => (600_u16..4000).prop_map(Event::Wait),
        3 => any::<bool>().prop_map(Event::Pod),
        4 => Just(Event::PodsEnd),
        5 => (mode, wanted).prop_map(|(mode, wanted)| Event::Wish(mode, wanted)),
        3 => Just(Event::Kill),
        2 => any::<bool>().prop_map(Event::Bmc),
        1 => any::<bool>().prop_map(Event::Lies),
        1 => any::<bool>().prop_map(Event::Deaf),
        1 => any::<bool>().prop_map(Event::ByHand),
        1 => Just(Event::Metal3),
        2 => Just(Event::Uncordon),
        1 => Just(Event::NodeLost),
        1 => any::<bool>().prop_map(Event::OperatorGone),
    ]
}

#[derive(Debug)]
pub struct Node {
    pub uid: u32,
    pub cordoned: bool,
    pub mark: bool,
    pub restored: bool,
    pub boot: u32,
}

/// Where in a step the program dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    Never,
    BeforeTheWrite,
    BeforeTheAct,
}

pub struct World {
    pub now: Timestamp,
    pub status: NodePowerStatus,
    pub mode: PowerMode,
    pub wanted: WantedPower,
    pub node: Option<Node>,
    pub nodes: u32,
    pub pods: u32,
    pub on: bool,
    pub boots: u32,
    /// When the machine last came on or went off.
    pub switched: Timestamp,
    pub bmc: bool,
    pub lies: bool,
    pub deaf: bool,
    /// The kubelet has ended, and the machine has power.
    pub hung: bool,
    /// What the power switch was last asked for, which Metal3 keeps.
    pub kept_wish: bool,
    pub operator_gone: Option<Timestamp>,
    // The program's own memory.
    pub off_since: Option<Timestamp>,
    pub last_reading: Option<Timestamp>,
    pub began: Timestamp,
    pub cordon_seen: Option<Timestamp>,
    pub request: Option<(PowerState, Timestamp)>,
    pub is_off_withdrawn: bool,
    pub deleted: u32,
}

impl World {
    pub fn new() -> Self {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        Self {
            now,
            status: NodePowerStatus::default(),
            mode: PowerMode::Auto,
            wanted: WantedPower::On,
            node: Some(Node { uid: 1, cordoned: false, mark: false, restored: true, boot: 1 }),
            nodes: 1,
            pods: 0,
            on: true,
            boots: 1,
            switched: now - SignedDuration::from_hours(1),
            bmc: true,
            lies: false,
            deaf: false,
            hung: false,
            kept_wish: true,
            operator_gone: None,
            off_since: None,
            last_reading: None,
            began: now,
            cordon_seen: None,
            request: None,
            is_off_withdrawn: false,
            deleted: 0,
        }
    }

    pub fn since(&self, time: Timestamp) -> Duration {
        self.now.duration_since(time).try_into().unwrap_or_default()
    }

    pub fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        // A kubelet registers 40 s after power.
        if self.on && self.since(self.switched) >= Duration::from_secs(40) && self.node.is_none() {
            self.nodes += 1;
            // One that somebody else deleted and started is not restored.
            let (boot, restored) = (self.boots, self.status.state == PowerState::On);
            self.node = Some(Node { uid: self.nodes, cordoned: false, mark: false, restored, boot });
        }
        if let Some(node) = self.node.as_mut().filter(|_| self.on) {
            node.boot = self.boots;
        }
    }

    pub fn switch(&mut self, on: bool) {
        if self.on != on {
            self.on = on;
            self.switched = self.now;
            self.boots += u32::from(on);
            if !on {
                self.pods = 0;
            }
        }
    }

    pub fn kill(&mut self) {
        self.off_since = None;
        self.last_reading = None;
        self.began = self.now;
        self.cordon_seen = None;
        self.request = None;
        self.is_off_withdrawn = false;
    }

    pub fn happens(&mut self, event: Event) {
        match event {
            Event::Wait(seconds) => self.wait(seconds.into()),
            Event::Pod(tolerates) => {
                let takes = |node: &Node| tolerates || !node.cordoned;
                self.pods += u32::from(self.on && self.node.as_ref().is_some_and(takes));
            }
            Event::PodsEnd => self.pods = 0,
            Event::Wish(mode, wanted) => (self.mode, self.wanted) = (mode, wanted),
            Event::Kill => self.kill(),
            Event::Bmc(works) => self.bmc = works,
            Event::Lies(lies) => self.lies = lies,
            Event::Deaf(deaf) => self.deaf = deaf,
            Event::ByHand(on) => self.switch(on),
            Event::Metal3 => self.switch(self.kept_wish),
            Event::NodeLost => self.node = self.node.take().filter(|_| self.on),
            Event::Uncordon => {
                if let Some(node) = &mut self.node {
                    node.cordoned = false;
                }
            }
            Event::OperatorGone(gone) => self.operator_gone = gone.then_some(self.now),
        }
    }

    pub fn see(&mut self) -> Seen {
        let reading = match (self.bmc, self.lies || !self.on) {
            (false, _) => PowerReading::Unknown,
            (true, true) => PowerReading::Off,
            (true, false) => PowerReading::On,
        };
        self.off_since = (reading == PowerReading::Off).then(|| self.off_since.unwrap_or(self.now));
        self.last_reading = Some(self.now);
        let marked = self.node.as_ref().is_some_and(|node| node.mark && node.cordoned);
        self.cordon_seen = marked.then(|| self.cordon_seen.unwrap_or(self.now));
        // The kubelet renews while the machine is on; what the program knows began with it.
        let still =
            if self.on { Duration::ZERO } else { self.since(self.switched).min(self.since(self.began)) };
        let ready = self.on && !self.hung && self.since(self.switched) >= Duration::from_secs(50);
        let node = self.node.as_ref().map(|node| SeenNode {
            uid: node.uid.to_string(),
            ready,
            cordoned: node.cordoned,
            going_off: node.mark.then(|| UID.into()),
            never_off: None,
            boot_id: node.boot.to_string(),
            gpus: 8,
            restored: node.restored,
            machine: Ok(RememberedMachine {
                node_uid: node.uid.to_string(),
                boot_id: node.boot.to_string(),
                gpus: 8,
                ..RememberedMachine::default()
            }),
        });
        Seen {
            mode: self.mode,
            wanted: self.wanted,
            uid: UID.into(),
            lease_still: if node.is_some() { still } else { Duration::ZERO },
            node,
            power: reading,
            off_for: self.off_since.map_or(Duration::ZERO, |since| self.since(since)),
            cordoned_for: self.cordon_seen.map_or(Duration::ZERO, |since| self.since(since)),
            since_request: self
                .request
                .filter(|(of, _)| *of == self.status.state)
                .map(|(_, at)| self.since(at)),
            is_off_withdrawn: self.is_off_withdrawn,
            denied: false,
            obstacle: (self.pods > 0).then(|| "PodsOfOthers: a/b".into()),
            no_further_off: None,
            may_start: true,
            operator_still: Some(self.operator_gone.map_or(Duration::ZERO, |since| self.since(since))),
        }
    }

    /// One step, of a program that may die in it. What must hold is checked where it could break.
    pub fn step(&mut self, dies: Dies) {
        let seen = self.see();
        let (next, act) = decide(&self.status, &seen, &SETTINGS, self.now);
        if dies == Dies::BeforeTheWrite {
            return;
        }
        self.status = next;
        let status = &self.status;
        let uncordoned = self.node.as_ref().is_none_or(|node| !node.mark);
        if status.state == PowerState::On && status.asked.is_none() && uncordoned {
            assert!(self.kept_wish, "it is on, and may be switched off at any time");
        }
        let Some(act) = act.filter(|_| dies == Dies::Never) else { return };
        match act {
            Act::Ask(request @ Request::Off) => {
                assert_eq!(self.pods, 0, "asked to shut down with a pod on it");
                let fresh =
                    self.operator_gone.is_none_or(|since| self.since(since) <= Duration::from_secs(60));
                assert!(fresh || self.mode == PowerMode::Off, "the operator is away");
                let node = self.node.as_ref().expect("asked without a Node");
                assert!(self.status.asked.is_some() && node.mark);
                let cordoned_for = self.cordon_seen.map_or(Duration::ZERO, |since| self.since(since));
                assert!(node.cordoned && cordoned_for >= Duration::from_secs(30), "pods may come");
                assert_eq!(
                    self.status.machine.as_ref().unwrap().node_uid,
                    node.uid.to_string(),
                    "not remembered"
                );
                self.asks(request);
                if self.bmc && !self.deaf {
                    self.switch(false);
                }
            }
            Act::Ask(request) => {
                self.asks(request);
                if self.bmc && request == Request::On {
                    self.switch(true);
                }
            }
            Act::DeleteNode => {
                let node = self.node.take().expect("there is one");
                assert!(!self.on, "the Node of a machine that is on was deleted");
                assert!(node.mark && self.since(self.switched) >= Duration::from_secs(25));
                self.deleted += 1;
            }
            Act::Cordon => {
                let node = self.node.as_mut().unwrap();
                (node.cordoned, node.mark) = (true, true);
            }
            Act::Uncordon => {
                assert!(self.kept_wish, "pods may come, and it may be switched off at any time");
                let node = self.node.as_mut().unwrap();
                (node.cordoned, node.mark) = (false, false);
            }
            Act::Restore => self.node.as_mut().unwrap().restored = true,
        }
    }

    pub fn asks(&mut self, request: Request) {
        if request != Request::StayOn {
            self.request = Some((self.status.state, self.now));
        }
        if self.bmc {
            self.kept_wish = request != Request::Off;
        }
        self.is_off_withdrawn = self.bmc && request != Request::Off;
    }

    pub fn run(&mut self, seconds: i64) {
        for _ in 0..seconds / 5 {
            self.step(Dies::Never);
            self.wait(5);
        }
    }
}
