//! Choices of the plan that fail are barred for the profile, and use one retry in all.

use andreas_api::{Outcome, Phase};
use serde_json::json;

use super::world::*;
use crate::*;

/// What the runs of a world have taught its profile.
fn barred(world: &World) -> Vec<String> {
    let all = world.learned.iter().filter_map(|update| match update {
        ProfileUpdate::Barred(barred) => Some(barred.to_string()),
        _ => None,
    });
    all.collect()
}

#[test]
fn a_choice_of_the_plan_that_failed_is_barred_for_the_profile_whatever_the_exit_code() {
    let memory = ("OutOfMemory", "2 and fewer GPUs of A100");
    let no_code = ("UnsupportedHardware", "GPUs of A100");
    let processor = ("UnsupportedHardware", "nodes of architecture arm64");
    for (words, (reason, choice)) in [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", memory),
        ("RuntimeError: CUDA error: out of memory", memory),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate", memory),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", no_code),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", no_code),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", no_code),
        ("exec /usr/bin/torchrun: exec format error", processor),
    ] {
        for code in [1, 134, 255] {
            let mut world = World::new(json!({"gpus": {"min": 1, "max": 8}}));
            world.nodes.get_mut("n1").unwrap().architecture = "arm64".into();
            world.plan_run(&["n1"], 2).bind_all().run_all();
            world.exit("bert-1-0", code, &format!("epoch 1\n{words}\n=====\ntorchrun failed"));
            assert_eq!(world.last(), (Outcome::UserFailure, reason.into()), "{words}");
            assert_eq!(barred(&world), [choice], "{words}");
            let status = world.status();
            let learned = format!("leave out {choice}, until TrainingProfile bert is deleted): {words}");
            assert!(status.history[0].message.ends_with(&learned), "{}", status.history[0].message);
            // The profile is written before the next plan.
            assert_eq!(status.not_before.unwrap().0, at(world.now + 5));
        }
    }
}

#[test]
fn choices_that_fail_one_after_the_other_use_one_retry_and_the_same_one_again_uses_another() {
    let mut world = World::new(json!({"retries": 1, "gpus": {"min": 1, "max": 8}}));
    for (attempt, gpus, failures) in [(1, 1, 1), (2, 2, 1), (3, 4, 1), (4, 4, 2)] {
        world.wait(400).plan_run(&["n1"], gpus).bind_all().run_all();
        world.exit(&format!("bert-{attempt}-0"), 1, "CUDA out of memory");
        assert_eq!(world.status().user_failures, failures, "{gpus} GPUs");
    }
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn memory_that_a_process_of_no_pod_holds_is_the_clusters_failure_and_bars_nothing() {
    for (holder, beside, cluster) in [
        (Some("team/bert-1-0"), "team/bert-1-0", true),
        (None, "", true),
        (Some("team/bert-1-0"), "", false),
        (Some("team/bert-1-0"), "team/other", false),
    ] {
        let mut world = World::running(json!({}), &["n1"], 1);
        let holders = holder.map(str::to_owned).into_iter().collect();
        let beside_parked = [beside.to_owned()].into();
        let agent = AgentFact { holders, beside_parked, ..AgentFact::default() };
        world.nodes.get_mut("n1").unwrap().agent = Some(agent);
        world.exit("bert-1-0", 1, "torch.OutOfMemoryError: CUDA out of memory.");
        let status = world.status();
        assert_eq!((status.cluster_failures, barred(&world).is_empty()), (i32::from(cluster), cluster));
        assert_eq!(status.excluded_nodes.len(), usize::from(cluster), "{holder:?} {beside}");
    }
}

#[test]
fn a_size_that_the_topology_manager_refuses_is_barred_and_a_rigid_job_tries_other_nodes() {
    for (reason, max, smaller) in [
        ("TopologyAffinityError", 4, true),
        ("SMTAlignmentError", 4, true),
        ("TopologyAffinityError", 1, false),
        ("OutOfcpu", 4, false),
    ] {
        let mut world = World::new(json!({"gpus": {"min": 1, "max": max}}));
        world.plan_run(&["n1"], max).bind_all();
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        (pod.status.phase, pod.status.reason) = ("Failed".into(), reason.into());
        world.step_until_stable();
        assert_eq!(world.last().0, Outcome::ClusterFailure, "{reason}");
        let expected = if smaller { vec![format!("workers with {max} GPUs of A100")] } else { Vec::new() };
        assert_eq!(
            (barred(&world), world.status().excluded_nodes.is_empty()),
            (expected, smaller),
            "{reason}"
        );
    }
}

#[test]
fn what_a_pod_asks_of_kubelets_and_they_forbid_is_the_users_failure() {
    for reason in ["SysctlForbidden", "AppArmor"] {
        let mut world = World::new(json!({}));
        world.plan_run(&["n1"], 1).bind_all();
        let pod = world.pods.get_mut("bert-1-0").unwrap();
        (pod.status.phase, pod.status.reason) = ("Failed".into(), reason.into());
        world.step_until_stable();
        assert_eq!(
            (world.last().0, world.status().excluded_nodes.len()),
            (Outcome::UserFailure, 0),
            "{reason}"
        );
    }
}
