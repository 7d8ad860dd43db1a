//! Kills of the agent's processes and faults of the driver, at random.

use std::time::Duration;

use crate::support::{SLACK, TestNode, until};
use nvidia_ml::Fault;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::json;

const FREE: &str = "GPU-free";
const HELD: &str = "GPU-held";

/// Kills and faults between two checks that everything is set again, and restored.
const RUNS_A_ROUND: usize = 25;
/// What may happen.
const EVENTS: [&str; 10] = [
    "setter killed",
    "agent killed",
    "both killed",
    "GPU lost",
    "GPU needs a reset",
    "GPU hangs",
    "driver slow",
    "driver loaded again",
    "GPU reset",
    "permission denied",
];

/// With `ANDREAS_LONG=1` (`make long WHAT=kills`) a thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_broken_at_any_moment_gpus_get_back_what_they_had() {
    let full = std::env::var_os("ANDREAS_LONG").is_some_and(|value| value == "1");
    let runs = if full { 1_000 } else { RUNS_A_ROUND };
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut number = |below: u32| random.next_u32() % below;
    let node = TestNode::new(&[FREE, HELD]).await;
    node.hold("job-1-0", &[HELD]);
    node.run(HELD, Some(77));
    node.api.order(json!({"wakeGeneration": 0, "limits": [{"pod": "team/job-1-0", "watts": 250}]}));
    let start = || (node.setter(), node.agent());
    let (mut setter, mut agent) = start();
    let settled = || node.gpu(FREE).locked_mhz == Some(210) && node.gpu(HELD).limit_watts == 250.0;
    let restored = || node.is_default(FREE) && node.is_default(HELD);
    until("settled", SLACK, settled).await;
    let mut happened = [0; EVENTS.len()];
    let (mut slowest_set, mut slowest_restored) = (Duration::ZERO, Duration::ZERO);
    while happened.iter().sum::<usize>() < runs {
        for _ in 0..RUNS_A_ROUND {
            tokio::time::sleep(Duration::from_millis(u64::from(50 + number(400)))).await;
            let event = number(EVENTS.len() as u32) as usize;
            let uuid = [FREE, HELD][number(2) as usize];
            // Some faults outlast the driver's time limit, most do not.
            let lasts =
                Duration::from_millis(if number(16) == 0 { 3_000 } else { u64::from(200 + number(300)) });
            let fault = |fault| node.sim.set_fault(uuid, fault).expect("the GPU is there");
            happened[event] += 1;
            match EVENTS[event] {
                "setter killed" => {
                    setter.kill();
                    setter = node.setter();
                }
                "agent killed" => {
                    agent.kill();
                    agent = node.agent();
                }
                "both killed" => {
                    agent.kill();
                    setter.kill();
                    (setter, agent) = start();
                }
                "GPU lost" | "GPU needs a reset" | "GPU hangs" => {
                    fault(match EVENTS[event] {
                        "GPU lost" => Fault::Lost,
                        "GPU hangs" => Fault::Hang,
                        _ => Fault::ResetRequired,
                    });
                    tokio::time::sleep(lasts).await;
                    fault(Fault::None);
                }
                "driver slow" => {
                    node.sim.set_slow(uuid, 1 + number(200)).expect("the GPU is there");
                    tokio::time::sleep(lasts).await;
                    node.sim.set_slow(uuid, 0).expect("the GPU is there");
                }
                "driver loaded again" => {
                    node.sim.set_driver_loaded(false);
                    tokio::time::sleep(lasts).await;
                    node.sim.set_driver_loaded(true);
                }
                "GPU reset" => node.sim.reset(uuid).expect("the GPU is there"),
                _ => {
                    node.sim.set_denied(true);
                    tokio::time::sleep(lasts).await;
                    node.sim.set_denied(false);
                    // The setter does not repeat for minutes what was refused; whoever gives it the right starts it again.
                    setter.kill();
                    setter = node.setter();
                }
            }
            let (free, held) = (node.gpu(FREE), node.gpu(HELD));
            let as_found_or_set = (free.is_default() || free.locked_mhz == Some(210))
                && (held.is_default() || held.limit_watts == 250.0);
            assert!(as_found_or_set, "a setting that nobody asked for after {happened:?}: {free:?} {held:?}");
        }
        // They go on with their work. What a reset took away without a trace in any reading is set again within a minute.
        let settings_last = Duration::from_secs(75);
        loop {
            slowest_set = slowest_set.max(until("set again", settings_last, settled).await);
            agent.kill();
            setter.kill();
            if settled() {
                break;
            }
            (setter, agent) = start();
        }
        setter = node.setter();
        slowest_restored = slowest_restored.max(until("restored by the next setter", SLACK, restored).await);
        agent = node.agent();
        until("settled again", SLACK, settled).await;
        println!("{} runs", happened.iter().sum::<usize>());
    }
    for (event, times) in EVENTS.iter().zip(happened) {
        println!("{times:4} {event}");
    }
    println!("set again within {slowest_set:?}, restored within {slowest_restored:?}");
}
