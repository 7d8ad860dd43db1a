//! The state machine in a world of its own: a machine, its BMC, its Node, pods that come and go, and a program that may die
//! between any two of its steps.
#![allow(clippy::unwrap_used, reason = "a test may panic where it fails")]

mod world;

use andreas_api::node_power::{PowerMode, PowerState, WantedPower};
use andreas_node_power::driver::Request;
use andreas_node_power::transition::{Act, Seen, decide};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use crate::world::{Dies, Event, SETTINGS, World, events};

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
fn a_shutdown_that_is_given_up_is_taken_back_before_pods_come_again() {
    let mut world = World::new();
    (world.wanted, world.deaf) = (WantedPower::Off, true);
    world.run(300);
    assert!(world.status.asked.is_some() && !world.kept_wish);
    // The switch cannot be reached when the time is over, and the program dies meanwhile.
    world.bmc = false;
    world.run(120);
    world.kill();
    world.run(7200);
    assert_eq!((world.status.state, world.kept_wish), (PowerState::On, false));
    assert!(world.node.as_ref().unwrap().cordoned);
    (world.bmc, world.wanted) = (true, WantedPower::On);
    world.run(30);
    assert!(world.kept_wish && !world.node.as_ref().unwrap().cordoned);
}

#[test]
fn a_quarantined_machine_keeps_no_wish_to_be_off_once_a_person_ends_that() {
    let mut world = World::new();
    (world.wanted, world.deaf) = (WantedPower::Off, true);
    world.run(60);
    // It hangs in its shutdown.
    world.hung = true;
    world.run(400);
    assert_eq!((world.status.state, world.kept_wish), (PowerState::Quarantined, false));
    (world.hung, world.mode) = (false, PowerMode::On);
    world.run(60);
    assert_eq!((world.status.state, world.kept_wish), (PowerState::On, true));
    assert!(!world.node.as_ref().unwrap().cordoned);
}

#[test]
fn a_machine_that_somebody_else_starts_keeps_no_wish_to_be_off() {
    let mut world = World::new();
    world.wanted = WantedPower::Off;
    world.run(120);
    assert_eq!((world.status.state, world.kept_wish), (PowerState::Off, false));
    world.switch(true);
    world.run(120);
    assert_eq!((world.status.state, world.kept_wish), (PowerState::On, true));
    assert!(world.status.boots.is_empty(), "nobody knows when it was started");
}

#[test]
fn a_machine_that_is_wanted_on_and_was_switched_off_by_others_is_started() {
    // A quarantined one, whose person shuts it down.
    let mut world = World::new();
    (world.wanted, world.deaf) = (WantedPower::Off, true);
    world.run(60);
    world.hung = true;
    world.run(400);
    assert_eq!(world.status.state, PowerState::Quarantined);
    world.hung = false;
    world.switch(false);
    world.run(60);
    assert!(!world.on, "until a person says so");
    world.mode = PowerMode::On;
    world.run(180);
    assert_eq!((world.status.state, world.on), (PowerState::On, true));

    // A machine without a Node, as with an object that is new or was restored: somebody may work on it.
    let mut world = World::new();
    world.switch(false);
    world.node = None;
    world.run(3600);
    assert_eq!((world.status.state, world.on), (PowerState::On, false));
    world.mode = PowerMode::On;
    world.run(180);
    assert_eq!((world.status.state, world.on), (PowerState::On, true));

    // A late shutdown, whose Node somebody deletes.
    let mut world = World::new();
    (world.wanted, world.deaf) = (WantedPower::Off, true);
    world.run(400);
    assert_eq!((world.status.state, world.status.failed_offs), (PowerState::On, 1));
    world.switch(false);
    world.node = None;
    world.run(60);
    assert_eq!(world.status.state, PowerState::Off, "as it is wanted");
    world.wanted = WantedPower::On;
    world.run(180);
    assert_eq!((world.status.state, world.on), (PowerState::On, true));
}

#[test]
fn a_machine_that_a_person_has_cordoned_and_shut_down_stays_off_until_its_mode_is_on() {
    let mut world = World::new();
    world.node.as_mut().unwrap().cordoned = true;
    world.switch(false);
    world.run(3600);
    assert_eq!((world.status.state, world.on), (PowerState::On, false));
    world.mode = PowerMode::On;
    world.run(180);
    assert!(world.on && world.node.as_ref().unwrap().cordoned);
}

#[test]
fn a_cordon_that_somebody_takes_back_is_made_anew_and_waited_for() {
    let mut world = World::new();
    world.wanted = WantedPower::Off;
    world.run(25);
    world.happens(Event::Uncordon);
    world.run(25);
    assert!(world.on && world.node.as_ref().unwrap().cordoned);
    world.run(60);
    assert!(!world.on);

    // Each time: the machine stays on, and the node is left alone.
    for mode in [PowerMode::Auto, PowerMode::Off] {
        let mut world = World::new();
        (world.mode, world.wanted) = (mode, WantedPower::Off);
        for _ in 0..14 {
            world.run(25);
            world.happens(Event::Uncordon);
        }
        world.run(600);
        assert!(world.on && !world.node.as_ref().unwrap().mark, "{:?}", world.status);
        assert_eq!((world.status.state, world.status.failed_offs), (PowerState::On, 1));
    }
}

#[test]
fn a_node_that_may_never_go_off_says_why() {
    for reason in ["ControlPlane", "MachineOwned"] {
        let mut world = World::new();
        world.mode = PowerMode::Off;
        let mut seen = world.see();
        seen.node.as_mut().unwrap().never_off = Some(reason);
        let (status, act) = decide(&world.status, &seen, &SETTINGS, world.now);
        assert_eq!((status.state, status.kept_on_by.as_str(), act), (PowerState::On, reason, None));
    }
}

#[test]
fn a_switch_that_does_not_accept_the_credentials_is_not_asked_to_start() {
    let mut world = World::new();
    (world.status.state, world.status.since) = (PowerState::Starting, Some(Time(world.now)));
    world.bmc = false;
    let mut seen = world.see();
    seen.node = None;
    let asks = |seen: &Seen| decide(&world.status, seen, &SETTINGS, world.now).1;
    assert_eq!(asks(&seen), Some(Act::Ask(Request::On)));
    seen.denied = true;
    assert_eq!(asks(&seen), None);
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
        prop_assert!(world.status.state == PowerState::On && world.on, "{:?}", world.status);
        let node = world.node.as_ref().unwrap();
        prop_assert!(node.restored && !node.mark && world.kept_wish, "{node:?} {:?}", world.status);
    }
}
