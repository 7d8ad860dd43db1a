use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn facts() -> Facts {
    Facts {
        product: "A100".into(),
        limit_mw: Some((100_000, 400_000)),
        clock_mhz: Some((210, 1410)),
        ..Facts::default()
    }
}

fn policy() -> Policy {
    Policy {
        rest: true,
        rest_after: Duration::from_secs(60),
        awake_for: Duration::from_secs(120),
        limits: true,
        rest_parked: false,
    }
}

/// GPU `a` is free, pod `p` holds GPU `b`; nothing changes for more than a minute.
fn idle_node() -> Observed {
    let free = GpuObservation {
        facts: Some(facts()),
        processes: Some(0),
        healthy: true,
        ..GpuObservation::default()
    };
    let held = GpuObservation { holder: Holder::Pod("p".into()), processes: Some(1), ..free.clone() };
    Observed {
        gpus: BTreeMap::from([("a".to_owned(), free), ("b".to_owned(), held)]),
        desired: Some(DesiredSettings {
            generation: 1,
            wake: 0,
            limits: BTreeMap::from([("p".to_owned(), 250)]),
        }),
        policy: policy(),
        leader_alive: true,
    }
}

fn after(memory: Memory, observed: &Observed, seconds: u64) -> (Memory, Decision) {
    decide(memory, observed, Duration::from_secs(seconds))
}

#[test]
fn an_unheld_gpu_rests_after_a_while_and_a_held_one_has_its_limit() {
    let node = idle_node();
    let (memory, first) = after(Memory::default(), &node, 0);
    assert_eq!(first.wanted["b"], Setting { limit_mw: Some(250_000), clock_mhz: None });
    assert!(first.resting.is_empty());
    let mut broken = node.clone();
    broken.gpus.get_mut("b").unwrap().healthy = false;
    assert_eq!(after(memory.clone(), &broken, 1).1.wanted["b"].limit_mw, Some(250_000), "its pod goes on");
    let (memory, _) = after(memory, &node, 119);
    let (memory, later) = after(memory, &node, 120);
    assert_eq!(later.wanted["a"], Setting { clock_mhz: Some(210), limit_mw: None });
    assert_eq!(later.resting, BTreeSet::from(["a".to_owned()]));

    // A pod takes it, unannounced: awake in the same step.
    let mut taken = node.clone();
    taken.gpus.get_mut("a").unwrap().holder = Holder::Pod("other".to_owned());
    let (memory, decision) = after(memory, &taken, 121);
    assert!(!decision.wanted.contains_key("a"));
    // The rest timer starts again.
    let (memory, decision) = after(memory, &node, 180);
    assert!(decision.resting.is_empty());
    assert!(after(memory, &node, 240).1.resting.contains("a"));
}

#[test]
fn the_limit_of_a_pod_that_is_to_come_is_on_every_gpu_that_it_may_get() {
    let mut node = idle_node();
    let on_a =
        |node: &Observed| after(Memory::default(), node, 0).1.wanted.get("a").and_then(|set| set.limit_mw);
    assert_eq!(on_a(&node), None);
    node.desired.as_mut().unwrap().limits.extend([("soon".to_owned(), 300), ("also".to_owned(), 220)]);
    assert_eq!(on_a(&node), Some(220_000), "whichever of the two gets it");
    assert!(after(Memory::default(), &node, 0).1.resting.is_empty());
    let holder = |node: &Observed, pod: &str| {
        let mut node = node.clone();
        node.gpus.get_mut("a").unwrap().holder = Holder::Pod(pod.to_owned());
        node
    };
    assert_eq!(on_a(&holder(&node, "soon")), Some(300_000), "its own");
    assert_eq!(on_a(&holder(&node, "foreign")), None, "others have none");
    let (memory, _) = after(Memory::default(), &holder(&node, "also"), 0);
    let without = after(memory, &node, 1).1.wanted.get("a").and_then(|set| set.limit_mw);
    assert_eq!(without, Some(300_000), "one of them has been there and has left");
    let mut off = node.clone();
    off.policy.limits = false;
    assert_eq!(on_a(&off), None);
    node.gpus.get_mut("a").unwrap().healthy = false;
    assert_eq!(on_a(&node), None, "nobody gets a broken one");
}

#[test]
fn a_wake_holds_until_the_pod_has_had_time_to_come() {
    let mut node = idle_node();
    let (memory, _) = after(Memory::default(), &node, 0);
    let (memory, resting) = after(memory, &node, 200);
    assert!(resting.resting.contains("a"));
    node.desired.as_mut().unwrap().wake = 7;
    node.desired.as_mut().unwrap().generation = 2;
    let (memory, woken) = after(memory, &node, 201);
    assert!(woken.resting.is_empty());
    assert_eq!(woken.carries_out, Some((2, 7)));
    let (memory, still) = after(memory, &node, 320);
    assert!(still.resting.is_empty());
    assert!(after(memory, &node, 321).1.resting.contains("a"));
}

#[test]
fn doubt_means_awake() {
    let rested = |change: fn(&mut Observed)| {
        let mut node = idle_node();
        change(&mut node);
        let (memory, _) = after(Memory::default(), &node, 0);
        after(memory, &node, 1000).1.wanted
    };
    assert!(rested(|_| ()).contains_key("a"));
    assert!(rested(|node| node.leader_alive = false).is_empty(), "nobody leads");
    assert!(rested(|node| node.desired = None).is_empty(), "no GpuNode");
    let a = |change: fn(&mut GpuObservation)| {
        let mut node = idle_node();
        change(node.gpus.get_mut("a").unwrap());
        let (memory, _) = after(Memory::default(), &node, 0);
        after(memory, &node, 1000).1.wanted.get("a").copied()
    };
    assert_eq!(a(|gpu| gpu.holder = Holder::Unknown), None, "the kubelet is silent");
    assert_eq!(a(|gpu| gpu.processes = Some(1)), None, "a process of no pod");
    assert_eq!(a(|gpu| gpu.processes = None), None, "processes are not known");
    assert_eq!(a(|gpu| gpu.healthy = false), None, "no command to a broken GPU");
    assert_eq!(a(|gpu| gpu.facts = None), None);
    assert_eq!(a(|gpu| gpu.rest_useless = true), None, "rest was measured to save nothing");
    assert_eq!(a(|gpu| gpu.at_rest = true), None, "it draws its bare idle");
    // Clocks cannot be locked: the power limit is used.
    let limit = a(|gpu| gpu.facts.as_mut().unwrap().clock_mhz = None);
    assert_eq!(limit, Some(Setting { limit_mw: Some(100_000), clock_mhz: None }));
}

#[test]
fn a_gpu_that_rests_goes_on_though_it_draws_its_bare_idle_by_that() {
    let mut node = idle_node();
    let (memory, _) = after(Memory::default(), &node, 0);
    let (memory, rests) = after(memory, &node, 120);
    assert!(rests.resting.contains("a"));
    node.gpus.get_mut("a").unwrap().at_rest = true;
    let (memory, rests) = after(memory, &node, 121);
    assert!(rests.resting.contains("a"));
    // Woken, it has no setting of ours any more.
    node.desired.as_mut().unwrap().wake = 1;
    let (memory, _) = after(memory, &node, 122);
    assert!(after(memory, &node, 500).1.resting.is_empty());
}

#[test]
fn a_gpu_is_at_rest_by_its_clock_or_by_its_draw_where_clocks_cannot_be_locked() {
    let reading = |value: u32| Some(value).filter(|value| *value > 0);
    let at =
        |clock, power| Sample { clock_mhz: reading(clock), power_mw: reading(power), ..Sample::default() };
    assert!(is_at_rest(&facts(), &at(345, 80_000)));
    assert!(!is_at_rest(&facts(), &at(1410, 54_000)));
    assert!(is_at_rest(&facts(), &at(0, 80_000)), "no reading is no reason to set anything");
    let unlockable = Facts { clock_mhz: None, ..facts() };
    assert!(is_at_rest(&unlockable, &at(1410, 99_000)));
    assert!(!is_at_rest(&unlockable, &at(1410, 101_000)));
    assert!(is_at_rest(&unlockable, &at(1410, 0)));
    let nothing = Facts { clock_mhz: None, limit_mw: None, ..facts() };
    assert!(is_at_rest(&nothing, &at(1410, 300_000)), "nothing can be set");
}

#[test]
fn a_limit_that_is_not_below_the_ceiling_is_no_limit() {
    let limit = |watts, range| {
        let mut node = idle_node();
        node.desired.as_mut().unwrap().limits.insert("p".into(), watts);
        node.gpus.get_mut("b").unwrap().facts.as_mut().unwrap().limit_mw = range;
        after(Memory::default(), &node, 0).1.wanted.get("b").and_then(|setting| setting.limit_mw)
    };
    let capped = Some((100_000, 250_000));
    assert_eq!(limit(220, capped), Some(220_000));
    assert_eq!((limit(250, capped), limit(280, capped)), (None, None));
    assert_eq!(limit(50, capped), Some(100_000), "the lowest one");
    assert_eq!((limit(50, Some((100_000, 100_000))), limit(220, None)), (None, None));
}

fn gpu_observation() -> impl Strategy<Value = GpuObservation> {
    let holder = prop_oneof![
        Just(Holder::Nobody),
        Just(Holder::Unknown),
        Just(Holder::Pod("other".to_owned())),
        Just(Holder::Pod("p".to_owned())),
    ];
    (holder, proptest::option::of(0..2_u32), any::<bool>(), any::<bool>()).prop_map(
        |(holder, processes, healthy, known)| GpuObservation {
            facts: known.then(facts),
            holder,
            processes,
            healthy,
            ..GpuObservation::default()
        },
    )
}

fn observed() -> impl Strategy<Value = Observed> {
    let gpus = proptest::collection::btree_map("[a-d]", gpu_observation(), 0..4);
    let desired = proptest::option::of((0..3_i64, 0..2000_u32).prop_map(|(wake, watts)| DesiredSettings {
        generation: wake,
        wake,
        limits: BTreeMap::from([("p".to_owned(), watts)]),
    }));
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (gpus, desired, switches).prop_map(|(gpus, desired, (rest, limits, rest_parked, leader_alive))| {
        Observed { gpus, desired, policy: Policy { rest, limits, rest_parked, ..policy() }, leader_alive }
    })
}

proptest! {
    /// Holds for any observations, in any order, at any interval.
    #[test]
    fn no_setting_without_a_right(steps in proptest::collection::vec((observed(), 0..100_u64), 1..40)) {
        let (mut memory, mut now) = (Memory::default(), Duration::ZERO);
        let mut unused: BTreeMap<Uuid, Duration> = BTreeMap::new();
        let mut wake = (None, Duration::ZERO);
        for (observed, wait) in steps {
            now += SECOND * u32::try_from(wait).unwrap();
            let (next, decision) = decide(memory, &observed, now);
            memory = next;
            if let Some(desired) = &observed.desired && wake.0 != Some(desired.wake) {
                wake = (Some(desired.wake), now);
            }
            unused.retain(|uuid, _| observed.gpus.contains_key(uuid));
            for (uuid, gpu) in &observed.gpus {
                if gpu.holder == Holder::Nobody && (gpu.processes == Some(0) || observed.policy.rest_parked) {
                    unused.entry(uuid.clone()).or_insert(now);
                } else {
                    unused.remove(uuid);
                }
            }
            for (uuid, setting) in &decision.wanted {
                let gpu = &observed.gpus[uuid];
                prop_assert!(observed.leader_alive && observed.desired.is_some() && !setting.is_default());
                if let Some(limit) = setting.limit_mw {
                    prop_assert!((100_000..=400_000).contains(&limit));
                }
                prop_assert!(gpu.healthy || matches!(gpu.holder, Holder::Pod(_)));
                if decision.resting.contains(uuid) {
                    prop_assert!(gpu.holder == Holder::Nobody && observed.policy.rest);
                    prop_assert!(now - unused[uuid] >= observed.policy.rest_after);
                    prop_assert!(now - wake.1 >= observed.policy.awake_for);
                } else {
                    let p = Holder::Pod("p".to_owned());
                    let is_there = observed.gpus.values().any(|gpu| gpu.holder == p);
                    prop_assert!(gpu.holder == p || gpu.holder == Holder::Nobody && !is_there);
                    prop_assert!(observed.policy.limits);
                    prop_assert!(setting.clock_mhz.is_none());
                }
            }
            prop_assert!(decision.resting.iter().all(|uuid| decision.wanted.contains_key(uuid)));
        }
    }
}
