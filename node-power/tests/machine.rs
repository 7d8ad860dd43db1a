//! The state machine in a world of its own: a machine, its BMC, its Node, pods that come and go, and a program that may die
//! between any two of its steps.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

use std::time::Duration;

use andreas_api::node_power::{
    NodePowerStatus, PowerMode, PowerReading, PowerState, RememberedMachine, WantedPower,
};
use andreas_node_power::transition::{Act, Seen, SeenNode, Settings, decide};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

const UID: &str = "power-1";
const SETTINGS: Settings = Settings {
    off_timeout: Duration::from_secs(300),
    boot_timeout: Duration::from_secs(900),
    min_on: Duration::from_secs(1800),
    max_cycles_per_day: 16,
    refresh_after: Duration::from_secs(14 * 86_400),
};

/// What happens in the world between two steps.
#[derive(Clone, Copy, Debug)]
enum Event {
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
    Uncordon,
    OperatorGone(bool),
}

fn events() -> impl Strategy<Value = Event> {
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
        1 => Just(Event::Uncordon),
        1 => any::<bool>().prop_map(Event::OperatorGone),
    ]
}

#[derive(Debug)]
struct Node {
    uid: u32,
    cordoned: bool,
    mark: bool,
    restored: bool,
    boot: u32,
}

/// Where in a step the program dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    Never,
    BeforeTheWrite,
    BeforeTheAct,
}

struct World {
    now: Timestamp,
    status: NodePowerStatus,
    mode: PowerMode,
    wanted: WantedPower,
    node: Option<Node>,
    nodes: u32,
    pods: u32,
    on: bool,
    boots: u32,
    /// When the machine last came on or went off.
    switched: Timestamp,
    bmc: bool,
    lies: bool,
    deaf: bool,
    operator_gone: Option<Timestamp>,
    // The program's own memory.
    off_since: Option<Timestamp>,
    last_reading: Option<Timestamp>,
    began: Timestamp,
    cordon_seen: Option<Timestamp>,
    request: Option<(PowerState, Timestamp)>,
    deleted: u32,
}

impl World {
    fn new() -> Self {
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
            operator_gone: None,
            off_since: None,
            last_reading: None,
            began: now,
            cordon_seen: None,
            request: None,
            deleted: 0,
        }
    }

    fn since(&self, time: Timestamp) -> Duration {
        self.now.duration_since(time).try_into().unwrap_or_default()
    }

    fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        // A kubelet registers 40 s after power.
        if self.on && self.since(self.switched) >= Duration::from_secs(40) && self.node.is_none() {
            self.nodes += 1;
            let boot = self.boots;
            self.node = Some(Node { uid: self.nodes, cordoned: false, mark: false, restored: false, boot });
        }
        if let Some(node) = self.node.as_mut().filter(|_| self.on) {
            node.boot = self.boots;
        }
    }

    fn switch(&mut self, on: bool) {
        if self.on != on {
            self.on = on;
            self.switched = self.now;
            self.boots += u32::from(on);
            if !on {
                self.pods = 0;
            }
        }
    }

    fn kill(&mut self) {
        self.off_since = None;
        self.last_reading = None;
        self.began = self.now;
        self.cordon_seen = None;
        self.request = None;
    }

    fn happens(&mut self, event: Event) {
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
            Event::Uncordon => {
                if let Some(node) = &mut self.node {
                    node.cordoned = false;
                }
            }
            Event::OperatorGone(gone) => self.operator_gone = gone.then_some(self.now),
        }
    }

    fn see(&mut self) -> Seen {
        let reading = match (self.bmc, self.lies || !self.on) {
            (false, _) => PowerReading::Unknown,
            (true, true) => PowerReading::Off,
            (true, false) => PowerReading::On,
        };
        self.off_since = (reading == PowerReading::Off).then(|| self.off_since.unwrap_or(self.now));
        self.last_reading = Some(self.now);
        let marked = self.node.as_ref().is_some_and(|node| node.mark);
        self.cordon_seen = marked.then(|| self.cordon_seen.unwrap_or(self.now));
        // The kubelet renews while the machine is on; what the program knows began with it.
        let still =
            if self.on { Duration::ZERO } else { self.since(self.switched).min(self.since(self.began)) };
        let ready = self.on && self.since(self.switched) >= Duration::from_secs(50);
        let node = self.node.as_ref().map(|node| SeenNode {
            uid: node.uid.to_string(),
            ready,
            cordoned: node.cordoned,
            going_off: node.mark.then(|| UID.into()),
            control_plane: false,
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
            obstacle: (self.pods > 0).then(|| "PodsOfOthers: a/b".into()),
            no_further_off: None,
            may_start: true,
            operator_still: Some(self.operator_gone.map_or(Duration::ZERO, |since| self.since(since))),
        }
    }

    /// One step, of a program that may die in it. What must hold is checked where it could break.
    fn step(&mut self, dies: Dies) {
        let seen = self.see();
        let (next, act) = decide(&self.status, &seen, &SETTINGS, self.now);
        if dies == Dies::BeforeTheWrite {
            return;
        }
        self.status = next;
        let Some(act) = act.filter(|_| dies == Dies::Never) else { return };
        match act {
            Act::AskOff => {
                assert_eq!(self.pods, 0, "asked to shut down with a pod on it");
                let fresh =
                    self.operator_gone.is_none_or(|since| self.since(since) <= Duration::from_secs(60));
                assert!(fresh || self.mode == PowerMode::Off, "the operator is away");
                let node = self.node.as_ref().expect("asked without a Node");
                assert!(self.status.asked.is_some() && node.mark);
                assert_eq!(
                    self.status.machine.as_ref().unwrap().node_uid,
                    node.uid.to_string(),
                    "not remembered"
                );
                self.request = Some((self.status.state, self.now));
                if self.bmc && !self.deaf {
                    self.switch(false);
                }
            }
            Act::AskOn => {
                self.request = Some((self.status.state, self.now));
                if self.bmc {
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
                let node = self.node.as_mut().unwrap();
                (node.cordoned, node.mark) = (false, false);
            }
            Act::Restore => self.node.as_mut().unwrap().restored = true,
        }
    }

    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds / 5 {
            self.step(Dies::Never);
            self.wait(5);
        }
    }
}

#[test]
fn a_machine_goes_off_and_comes_back() {
    let mut world = World::new();
    world.wanted = WantedPower::Off;
    world.run(120);
    assert_eq!((world.status.state, world.on, world.deleted), (PowerState::Off, false, 1));
    assert!(world.node.is_none() && world.status.off_times.len() == 1);
    world.wanted = WantedPower::On;
    world.run(120);
    assert_eq!((world.status.state, world.on), (PowerState::On, true));
    let node = world.node.as_ref().unwrap();
    assert!(node.restored && !node.cordoned, "as it was");
    assert_eq!(world.status.boots.len(), 1);
}

#[test]
fn a_bmc_that_lies_does_not_delete_the_node_of_a_living_machine() {
    let mut world = World::new();
    (world.wanted, world.deaf) = (WantedPower::Off, true);
    world.run(60);
    world.lies = true;
    world.run(400);
    assert_eq!((world.status.state, world.deleted), (PowerState::On, 0));
    assert_eq!(world.status.kept_on_by, "Unreachable");
    assert!(!world.node.as_ref().unwrap().cordoned);
}

#[test]
fn a_shutdown_that_comes_too_late_is_proven_and_taken_back_if_it_is_not_wanted() {
    let mut world = World::new();
    (world.wanted, world.deaf) = (WantedPower::Off, true);
    world.run(400);
    assert_eq!((world.status.state, world.status.failed_offs), (PowerState::On, 1));
    world.wanted = WantedPower::On;
    world.switch(false);
    world.run(200);
    assert_eq!((world.status.state, world.on, world.deleted), (PowerState::On, true, 1));
}

#[test]
fn without_the_operator_nothing_goes_off_and_after_an_hour_all_are_on() {
    let mut world = World::new();
    world.wanted = WantedPower::Off;
    world.run(120);
    world.operator_gone = Some(world.now);
    world.run(3500);
    assert_eq!(world.status.state, PowerState::Off);
    world.run(300);
    assert_eq!(world.status.state, PowerState::On);
    // What a person put out of service stays so.
    world.mode = PowerMode::Off;
    world.run(120);
    assert_eq!(world.status.state, PowerState::Off);
    world.run(4000);
    assert_eq!(world.status.state, PowerState::Off);
}

#[test]
fn a_boot_that_never_ends_is_quarantined_after_three_and_a_person_clears_it() {
    let mut world = World::new();
    world.wanted = WantedPower::Off;
    world.run(120);
    world.wanted = WantedPower::On;
    for _ in 0..3 * 190 {
        world.step(Dies::Never);
        world.now += SignedDuration::from_secs(5);
    }
    assert_eq!((world.status.state, world.status.failed_starts), (PowerState::Quarantined, 3));
    world.mode = PowerMode::On;
    world.run(120);
    assert_eq!((world.status.state, world.status.failed_starts), (PowerState::On, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_pod_loses_its_node_and_what_is_wanted_on_comes_on(
        events in prop::collection::vec((events(), any::<prop::sample::Index>()), 1..200),
    ) {
        let mut world = World::new();
        for (event, chance) in events {
            world.happens(event);
            let dies = match chance.index(10) {
                0 => Dies::BeforeTheWrite,
                1 => Dies::BeforeTheAct,
                _ => Dies::Never,
            };
            world.step(dies);
            if dies != Dies::Never {
                world.kill();
            }
        }
        // Faults end, and a person wants it on.
        (world.bmc, world.lies, world.deaf, world.operator_gone) = (true, false, false, None);
        world.mode = PowerMode::On;
        world.run(3 * 3600);
        prop_assert!(world.status.state == PowerState::On, "{:?}", world.status);
        // A machine that a person switched off by hand is an ordinary loss.
        if world.on {
            let node = world.node.as_ref().unwrap();
            prop_assert!(node.restored && !node.mark, "{node:?} {:?}", world.status);
        }
    }
}
