use std::path::Path;

use nvidia_ml::Curve;
use proptest::prelude::*;

use super::*;

fn sample(watts: u32, joules: u64) -> Sample {
    Sample { power_mw: Some(watts * 1000), energy_mj: Some(joules * 1000), ..Sample::default() }
}

fn shown(meter: &Meter) -> i64 {
    meter.joules().expect("it counts")
}

/// Nothing but where the meter stands.
fn counted_alone() -> Interval {
    Interval { counted: true, ..Interval::default() }
}

#[test]
fn joules_go_to_whoever_held_the_gpu_and_rest_saves_only_what_a_meter_shows() {
    let at = Duration::from_secs;
    let mut meter = Meter::default();
    let team = || GpuUse::Held("team".into());
    assert_eq!(meter.add(at(0), &sample(300, 1000), team(), None), counted_alone());
    let held = meter.add(at(10), &sample(80, 4000), GpuUse::Free, None);
    assert_eq!((held.joules.unwrap(), held.namespace.as_deref()), (3000.0, Some("team")));
    let free = meter.add(at(20), &sample(54, 4600), GpuUse::Resting, None);
    assert_eq!((free.joules.unwrap(), free.namespace, free.saved_joules), (600.0, None, 0.0));
    // 80 W awake, 54 W at rest.
    let rest = meter.add(at(30), &sample(54, 5140), GpuUse::Resting, None);
    assert_eq!(rest.saved_joules, 260.0);
    assert_eq!(shown(&meter), 5140);
    // A long gap is not attributed.
    assert_eq!(meter.add(at(400), &sample(54, 9000), GpuUse::Resting, None), counted_alone());
}

#[test]
fn a_counter_that_begins_anew_goes_on_where_it_was() {
    let at = Duration::from_secs;
    let mut meter = Meter::default();
    meter.add(at(0), &sample(300, 1_000), GpuUse::Free, None);
    let reset = meter.add(at(1), &sample(300, 100), GpuUse::Free, None);
    assert_eq!((reset.joules.unwrap(), reset.reset, reset.estimated), (300.0, true, true));
    assert_eq!((shown(&meter), meter.base_joules()), (1_300, 1_200));
    // While the GPU was away it drew what its counter shows, no more.
    let away = meter.add(at(60), &sample(300, 50), GpuUse::Free, None);
    assert_eq!((away.joules.unwrap(), shown(&meter)), (50.0, 1_350));
}

#[test]
fn an_agent_that_is_started_again_goes_on_with_the_counter() {
    let mut meter = Meter::default();
    meter.add(Duration::ZERO, &sample(300, 400), GpuUse::Free, None);
    meter.resume(EarlierCounter { joules: 1_300, base: 1_000 });
    let interval = meter.add(Duration::from_secs(1), &sample(300, 700), GpuUse::Free, None);
    assert_eq!((interval.joules.unwrap(), interval.resumed_joules, interval.unseen), (300.0, 1_000, false));
    assert_eq!((shown(&meter), meter.base_joules()), (1_700, 1_000));
    // The counter is lower than when the earlier agent read it: the energy in between is unknown.
    let mut meter = Meter::default();
    meter.resume(EarlierCounter { joules: 1_300, base: 1_000 });
    let interval = meter.add(Duration::ZERO, &sample(300, 200), GpuUse::Free, None);
    assert!(interval.reset && interval.unseen);
    assert_eq!((shown(&meter), meter.base_joules()), (1_500, 1_300));
    // Until its GPU answers, an agent says what the earlier one said.
    let mut meter = Meter::default();
    meter.resume(EarlierCounter { joules: 900, base: 300 });
    assert_eq!((shown(&meter), meter.base_joules()), (900, 300));
    meter.add(Duration::ZERO, &sample(300, 700), GpuUse::Free, None);
    assert_eq!((shown(&meter), meter.base_joules()), (1_000, 300));
    // Without a counter there is nothing to go on with.
    let mut meter = Meter::default();
    meter.resume(EarlierCounter { joules: 1_300, base: 0 });
    let none = Sample { power_mw: Some(100_000), ..Sample::default() };
    assert!(meter.add(Duration::ZERO, &none, GpuUse::Free, None).unseen);
    assert_eq!(shown(&meter), 1_300);
}

/// What a counter says of a second is believed up to what the board draws in it; else it is what the power readings say, if there are any.
#[test]
fn a_counter_that_jumps_or_steps_back_bills_what_the_board_can_draw() {
    let most = Some(400_000);
    for (after, watts, joules, reset) in [
        (1_000_300, Some(300), 300.0, false),
        (9_999_999, Some(300), 300.0, false),
        (9_999_999, None, 0.0, false),
        (999_995, Some(300), 300.0, false),
        (100, Some(300), 300.0, true),
        (500, Some(300), 400.0, true),
        (9_999_999, Some(4_000_000), 400.0, false),
    ] {
        let mut meter = Meter::default();
        let power_mw = watts.map(|watts: u32| watts * 1000);
        let at = |joules: u64| Sample { power_mw, energy_mj: Some(joules * 1000), ..Sample::default() };
        meter.add(Duration::ZERO, &at(1_000_000), GpuUse::Free, most);
        let interval = meter.add(Duration::from_secs(1), &at(after), GpuUse::Free, most);
        assert_eq!((interval.joules, interval.reset), (watts.map(|_| joules), reset), "{after} {watts:?}");
        assert_eq!((interval.lost, meter.joules()), (watts.is_none(), Some(1_000_000 + joules as i64)));
        // And it goes on from there, for the next agent too.
        let mut next = Meter::default();
        next.resume(EarlierCounter { joules: meter.joules().unwrap(), base: meter.base_joules() });
        for meter in [&mut meter, &mut next] {
            meter.add(Duration::from_secs(2), &at(after + 300), GpuUse::Free, most);
            assert_eq!(meter.joules(), Some(1_000_300 + joules as i64), "{after} {watts:?}");
        }
    }
}

#[test]
fn energy_that_nothing_tells_is_missing_and_not_zero() {
    let at = Duration::from_secs;
    let (none, power) = (Sample::default(), Sample { power_mw: Some(100_000), ..Sample::default() });
    let mut meter = Meter::default();
    for second in 0..300 {
        assert_eq!(meter.add(at(second), &none, GpuUse::Free, None), Interval::default());
        assert_eq!(meter.joules(), None);
    }
    // A counter that is away for a minute covers it when it is back.
    let mut meter = Meter::default();
    meter.add(at(0), &sample(300, 1_000), GpuUse::Held("a".into()), None);
    for second in 1..60 {
        let missing = meter.add(at(second), &power, GpuUse::Held("a".into()), None);
        assert_eq!(missing, Interval::default());
    }
    let back = meter.add(at(60), &sample(300, 19_000), GpuUse::Free, None);
    assert_eq!((back.joules, back.namespace.as_deref(), back.lost), (Some(18_000.0), Some("a"), false));
    // One that stays away is given up for the power, and what was drawn until then is not known.
    let intervals: Vec<Interval> = (61..200).map(|s| meter.add(at(s), &power, GpuUse::Free, None)).collect();
    assert_eq!(intervals.iter().filter(|interval| interval.lost).count(), 1);
    assert_eq!(intervals.last().unwrap().joules, Some(100.0));
    // Without that one too, nobody knows where it stands.
    (200..400).for_each(|second| drop(meter.add(at(second), &none, GpuUse::Free, None)));
    assert_eq!(meter.joules(), None);
}

fn curve(name: &str) -> Curve {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nvml-sim/curves");
    Curve::read_windows(&folder.join(name)).unwrap()
}

/// A GPU that replays a curve, read at some times (ns).
struct Replay<'a> {
    curve: &'a Curve,
    counts: bool,
    /// Averaging time of the power reading, ns.
    average: u64,
    /// When the counter begins anew.
    reset: Option<u64>,
}

impl Replay<'_> {
    fn sample(&self, time: u64) -> Sample {
        let from = self.reset.filter(|reset| *reset <= time).unwrap_or(0);
        let window = time.saturating_sub(self.average)..time;
        let mean = self.curve.energy_between(window.start, window.end) * 1000 / self.average.max(1);
        Sample {
            power_mw: Some(if self.average == 0 { self.curve.power_at(time) } else { mean as u32 }),
            energy_mj: self.counts.then(|| self.curve.energy_between(from, time) / 1_000_000),
            ..Sample::default()
        }
    }

    /// Largest error over windows of 60 s, as a part of the true energy. Samples come once a second, and up to
    /// `jitter` (ns) late. An agent is started again in the middle of each window if `restarts`.
    fn worst(&self, jitter: &[u64], restarts: bool) -> f64 {
        const SECOND: u64 = 1_000_000_000;
        let mut worst: f64 = 0.0;
        for (window, late) in (2..190).step_by(7).zip(jitter.iter().cycle()) {
            let at = |second: u64| (window + second) * SECOND + late * second % SECOND / 3;
            let (mut meter, mut counted, mut begin) = (Meter::default(), 0.0, 0);
            for second in 0..=60 {
                let time = at(second);
                if restarts && second == 30 {
                    let earlier = EarlierCounter { joules: shown(&meter), base: meter.base_joules() };
                    meter = Meter::default();
                    meter.resume(earlier);
                }
                let interval = meter.add(Duration::from_nanos(time), &self.sample(time), GpuUse::Free, None);
                counted += interval.joules.unwrap_or(0.0);
                if second == 0 {
                    begin = shown(&meter);
                }
            }
            // A restarted agent does not count the interval in which nobody watched; the counter does.
            let counted = if restarts { (shown(&meter) - begin) as f64 } else { counted };
            let real = self.curve.energy_between(at(0), at(60)) as f64 / 1e9;
            worst = worst.max((counted - real).abs() / real);
        }
        worst
    }
}

#[test]
fn the_error_over_a_minute_of_replayed_training_is_bounded() {
    const SECOND: u64 = 1_000_000_000;
    let jitter = [0, 3_000_000, 250_000_000, 70_000_000, 511_000_000];
    for name in ["zeus-a40-bert.csv", "zeus-v100-resnet50.csv"] {
        let curve = &curve(name);
        let with = |counts, average, reset| Replay { curve, counts, average, reset };
        let reset = Some(34_567_890_123);
        for (what, replay, restarts, bound) in [
            ("counter", with(true, 0, None), false, 0.02),
            ("counter, agent started again", with(true, 0, None), true, 0.02),
            ("counter begins anew", with(true, 0, reset), false, 0.02),
            ("counter begins anew, power averaged over 1 s", with(true, SECOND, reset), false, 0.02),
            ("no counter, power averaged over 1 s", with(false, SECOND, None), false, 0.02),
            // One reading a second misses what happens within it.
            ("no counter", with(false, 0, None), false, 0.06),
        ] {
            let worst = replay.worst(&jitter, restarts);
            println!("{name}, {what}: error at most {:.2} %", 100.0 * worst);
            assert!(worst < bound, "{name}, {what}: {worst}");
        }
    }
}

fn gpu_use() -> impl Strategy<Value = GpuUse> {
    prop_oneof![
        Just(GpuUse::Held("a".into())),
        Just(GpuUse::Held("b".into())),
        Just(GpuUse::Free),
        Just(GpuUse::Resting),
        Just(GpuUse::Unknown),
    ]
}

proptest! {
    /// Whoever holds it when, and however often the counter begins anew: what the namespaces used and what nobody used are
    /// together what the meter shows.
    #[test]
    fn the_sum_over_holders_and_idle_is_what_the_gpu_drew(
        steps in proptest::collection::vec((gpu_use(), 0..2_000_u64, 0..500_u32, 0..20_u8), 2..60),
    ) {
        let (mut meter, mut counter, mut now) = (Meter::default(), 10_000_u64, Duration::ZERO);
        let (mut sums, mut before) = (std::collections::BTreeMap::<Option<String>, f64>::new(), None);
        for (state, joules, watts, chance) in steps {
            counter = if chance == 0 { joules } else { counter + joules };
            now += Duration::from_millis(900 + u64::from(chance) * 10);
            let interval = meter.add(now, &sample(watts, counter), state, None);
            *sums.entry(interval.namespace).or_default() += interval.joules.unwrap_or(0.0);
            prop_assert!(before.is_none_or(|(_, last)| last <= shown(&meter)), "it never decreases");
            before = Some((before.map_or(shown(&meter), |(first, _)| first), shown(&meter)));
        }
        let (first, last) = before.unwrap();
        let sum: f64 = sums.values().sum();
        prop_assert!((sum - (last - first) as f64).abs() <= 1.1, "{sum} of {}", last - first);
    }
}
