//! Given events, one after the other; when a plan waits for their end; then it waits no longer than it may.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::{PlanCadence, debounce};

/// The defaults of the operator's flags.
const PACE: PlanCadence = PlanCadence {
    quiet: Duration::from_millis(100),
    within: Duration::from_secs(1),
    every: Duration::from_secs(30),
};
/// Between two events.
const APART: Duration = Duration::from_millis(10);

/// Milliseconds from the first of so many events until the plan is made.
async fn delay_ms(events: u32) -> u128 {
    let (signal, began) = (Notify::new(), Instant::now());
    let others = async {
        for _ in 1..events {
            sleep(APART).await;
            signal.notify_one();
        }
    };
    let planned = async {
        debounce(&signal, PACE).await;
        began.elapsed().as_millis()
    };
    tokio::join!(planned, others).0
}

#[tokio::test(start_paused = true)]
async fn a_plan_follows_the_last_event_at_once_and_the_first_within_a_second() {
    for (events, wanted) in [(1, 100), (6, 150), (200, 1_000)] {
        let took = delay_ms(events).await;
        assert!((wanted..wanted + 10).contains(&took), "{events} events: {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn events_without_end_make_one_plan_a_second() {
    let (signal, began) = (Notify::new(), Instant::now());
    let events = async {
        for _ in 0..1_200 {
            signal.notify_one();
            sleep(APART).await;
        }
    };
    let planning = async {
        let mut plans = 0;
        while began.elapsed() < Duration::from_secs(10) {
            signal.notified().await;
            debounce(&signal, PACE).await;
            plans += 1;
        }
        plans
    };
    let ((), plans) = tokio::join!(events, planning);
    assert_eq!(plans, 10, "in ten seconds");
}
