//! Given events, one after the other; when a plan waits for their end; then it waits no longer than it may.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use andreas_cluster::index::Signals;

use super::{debounce, events};

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
        debounce(&signal).await;
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
            debounce(&signal).await;
            plans += 1;
        }
        plans
    };
    let ((), plans) = tokio::join!(events, planning);
    assert_eq!(plans, 10, "in ten seconds");
}

/// Given a burst of new jobs, one in a tenth of a second; then one plan has those of the first two seconds, where others run.
#[tokio::test(start_paused = true)]
async fn a_plan_for_new_jobs_waits_for_more_of_them_unless_gpus_are_free_for_one() {
    let settle = Duration::from_secs(2);
    let delay = async |idle: bool, freed_at: Option<u64>| {
        let (signals, began) = (Signals::default(), Instant::now());
        let arrivals = async {
            for _ in 0..30 {
                signals.soon.notify_one();
                sleep(Duration::from_millis(150)).await;
            }
        };
        let freed = async {
            if let Some(at) = freed_at {
                sleep(Duration::from_millis(at)).await;
                signals.plan.notify_one();
            }
        };
        let planned = async {
            events(&signals, settle, || idle).await;
            began.elapsed().as_millis()
        };
        tokio::join!(planned, arrivals, freed).0
    };
    for (idle, freed_at, wanted) in [(false, None, 2_000), (true, None, 100), (false, Some(700), 800)] {
        let took = delay(idle, freed_at).await;
        assert!((wanted..wanted + 10).contains(&took), "{idle} {freed_at:?}: {took} ms");
    }
}
