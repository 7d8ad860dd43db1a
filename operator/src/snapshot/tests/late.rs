//! Given a run that takes twice as long as its user said; when its reports show this over successive plans;
//! then it is on time if that is possible and lateness would cost more than GPUs.

use andreas_planner::{Decision, Options, Plan};
use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;

/// Maximum time between two plans, s.
const PLAN_EVERY: f64 = 30.0;
/// Planned time of a stop and a start, s.
const RESTART: f64 = 2.0;
/// Start of the first attempt's run, s.
const BEGINS: f64 = 20.0;

/// A run as described by its user, on a node of eight free GPUs.
#[derive(Clone, Debug)]
struct LateRun {
    /// Seconds of one epoch on one GPU, by its user.
    epoch: f64,
    /// Speedup exponent: speed grows with this power of the GPUs.
    scales: f64,
    epochs: i32,
    /// Its deadline, in multiples of the expected run time on one GPU.
    deadline: f64,
    weight: i32,
}

/// An attempt.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    number: i64,
    gpus: i32,
    /// Start of its run, and epochs done by then.
    began: f64,
    base: f64,
}

fn stamp(seconds: f64) -> Timestamp {
    at(0) + SignedDuration::from_secs_f64(seconds)
}

impl LateRun {
    fn expected_epoch(&self, gpus: i32) -> f64 {
        self.epoch / f64::from(gpus).powf(self.scales)
    }

    fn actual_epoch(&self, gpus: i32) -> f64 {
        2.0 * self.expected_epoch(gpus)
    }

    fn due(&self) -> f64 {
        (self.epoch * f64::from(self.epochs) * self.deadline).floor()
    }

    /// The cluster, with observations of earlier attempts.
    fn world(&self, observations: &[Value]) -> World {
        let row = |gpus: i32| {
            let millis = (self.expected_epoch(gpus) * 1_000.0) as i64;
            json!({"gpuType": GPU, "gpus": gpus, "millisPerEpoch": millis, "watts": 300 * gpus})
        };
        let rows = [1, 2, 4, 8].map(row);
        let mut world = World::default();
        world
            .node("n1", json!({}), json!({}))
            .policy(json!({"preemption": {"restartTime": format!("{RESTART}s"), "restartWear": "0s", "minRunTime": "3s"}}));
        let version = world.version();
        let profile: SlimTrainingProfile = serde_json::from_value(json!({
            "metadata": {"name": "hopeful", "namespace": "team", "resourceVersion": version},
            "spec": {"measurements": rows}, "status": {"observations": observations},
        }))
        .expect("a profile");
        world.index.apply(profile);
        world
    }

    /// The plan at an instant, and its number of GPUs.
    fn plan(&self, mut world: World, status: Value, claim: Claim, now: f64) -> (Plan, i32) {
        let spec = json!({"profileRef": {"name": "hopeful"}, "epochs": self.epochs, "weight": self.weight, "checkpoint": {},
            "gpus": {"min": 1, "max": 8}, "deadlineAfter": format!("{}s", self.due())});
        world.job("late", spec, status, claim);
        let ledger = world.ledger.expect("a job");
        let built = build(&world.index, &ledger, &mut Caches::default(), None, stamp(now));
        let plan = andreas_planner::plan(&built.snapshot, &Options::default()).expect("a plan");
        let gpus = plan.jobs.values().next().map_or(0, |job| match &job.decision {
            Decision::Run(placement) => i32::try_from(placement.total_gpus().0).expect("GPUs"),
            Decision::Wait { .. } => 0,
        });
        (plan, gpus)
    }

    /// Status of an attempt that has done this many epochs.
    fn status(&self, run: Attempt, done: f64, now: f64) -> Value {
        let milli = |done: f64| (done / f64::from(self.epochs) * 100_000.0) as i64;
        let mut status = holds(run.number, "n1", run.gpus);
        status["allocation"]["since"] = json!(stamp(run.began));
        status["allocation"]["runningTime"] = json!(stamp(run.began));
        status["progress"] = json!({"milliPercent": milli(done), "attempt": run.number, "at": stamp(now),
            "attemptStart": milli(run.base), "stepwise": true, "millisPerEpoch": (self.actual_epoch(run.gpus) * 1_000.0) as i64,
            "timedMilliEpochs": ((done - run.base) * 1_000.0) as i64});
        status
    }

    /// Slack at the first report, s: if nothing changes, and with all GPUs at once; then the initial GPUs.
    fn at_the_news(&self) -> (f64, f64, i32) {
        let (_, first) = self.plan(self.world(&[]), json!(null), waiting(), 5.0);
        let now = BEGINS + self.actual_epoch(first.max(1));
        let left = f64::from(self.epochs) - 1.0;
        let spare = |gpus: i32| self.due() - now - left * self.actual_epoch(gpus);
        (spare(first.max(1)), spare(8) - RESTART, first)
    }

    /// From the first report to the end with successive plans: slack, s.
    fn lives(&self, first: i32) -> f64 {
        let epochs = f64::from(self.epochs);
        let mut run = Attempt { number: 1, gpus: first, began: BEGINS, base: 0.0 };
        let mut now = BEGINS + self.actual_epoch(first);
        let mut seen: Vec<Value> = Vec::new();
        loop {
            let truth = self.actual_epoch(run.gpus);
            let done = run.base + (now - run.began) / truth;
            if done >= epochs {
                return self.due() - run.began - (epochs - run.base) * truth;
            }
            let claim = Claim::Running { since: stamp(run.began) };
            let (plan, gpus) = self.plan(self.world(&seen), self.status(run, done, now), claim, now);
            assert!(gpus > 0, "stopped: {plan:?}");
            if gpus == run.gpus {
                let wake =
                    plan.next_event.map_or(f64::INFINITY, |event| event.0 - stamp(0.0).as_second() as f64);
                now = wake.max(now + 5.0).min(now + PLAN_EVERY).min(now + (epochs - done) * truth + 0.001);
                continue;
            }
            seen.push(json!({"run": format!("late-{}", run.number), "gpuType": GPU, "gpus": run.gpus, "nodes": 1,
                "millisPerEpoch": (truth * 1_000.0) as i64, "milliEpochs": ((done - run.base) * 1_000.0) as i64, "at": stamp(now)}));
            run = Attempt { number: run.number + 1, gpus, began: now + RESTART, base: done };
            // Its first reports.
            now = run.began + 0.4 * self.actual_epoch(gpus);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_global_rejects: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_run_that_takes_twice_as_long_as_its_user_said_is_in_time_where_it_can_be(
        epoch in 1.0..10.0_f64, scales in 0.6..0.95_f64, epochs in 12..100_i32, deadline in 0.6..1.9_f64, weight in 10..50_i32,
    ) {
        let run = LateRun { epoch, scales, epochs, deadline, weight };
        let (stays, moves, first) = run.at_the_news();
        // With little slack, being late may be cheaper: eight GPUs were never measured for this run.
        prop_assume!(first > 0 && stays < 0.0 && moves > 0.3 * run.due());
        let spare = run.lives(first);
        prop_assert!(spare >= 0.0, "late by {:.1} s of {}, {moves:.1} s to spare at the news, {first} GPUs first", -spare, run.due());
    }
}
